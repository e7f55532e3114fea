"""The JSON file of a benchmark: a header that says how and where it was measured, and the measurements."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch


def header() -> dict[str, Any]:
    """Return the command, the date, the versions and the machine."""
    return {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu_threads": torch.get_num_threads(),
        "cpu_count": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def write(report: dict[str, Any], path: Path | None) -> None:
    """Write the measurements so far, so that an interrupted benchmark keeps them; nothing without a path."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=2) + "\n")
        print(f"wrote {path}", flush=True)
