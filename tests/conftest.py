import os
import sys
from pathlib import Path

import pytest

# Two test processes on two cores: torch must not start two threads in each. For the processes that tests start:
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """For this process, whose libraries may have read the environment before: one thread, where torch is loaded."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)
