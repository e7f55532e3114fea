"""Run `swad` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from helpers import HELPERS, SOURCE
from helpers.forked import run

SWAD = [sys.executable, "-m", "swad"]

QUICK = ["--steps", "40", "--evaluate-every", "10"]


def swad_without(packages: Sequence[str], *arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `swad` as if packages were not installed."""
    result = run([HELPERS / "without.py", ",".join(packages), *arguments], env=environment())
    assert result.returncode == code, result.stdout + result.stderr
    return result


def swad(
    *arguments: str | Path, cwd: Path | None = None, code: int = 0, fresh: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command, in a process that has imported torch and the like before unless it must be `fresh`."""
    if fresh:
        command = [*SWAD, *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment())
    else:
        result = run(["-m", "swad", *arguments], cwd=cwd, env=environment())
    assert result.returncode == code, result.stdout + result.stderr
    return result


def environment() -> dict[str, str]:
    source = str(SOURCE)
    return os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "150", "PYTHONPATH": source}
