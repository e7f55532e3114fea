"""What several tests share. Files here also run as scripts of their own: `python tests/helpers/NAME.py`."""

from pathlib import Path

HELPERS = Path(__file__).parent
ROOT = HELPERS.parents[1]
SOURCE = ROOT / "src"
