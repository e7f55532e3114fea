import os
import sys
from pathlib import Path

# Two test processes on two cores: torch must not start two threads in each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))
