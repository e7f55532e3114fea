"""Run `swad` with the given arguments and print which modules of the package were called before its report."""

from __future__ import annotations

import sys
from pathlib import Path

import swad
from swad.cli import main

ROOT = f"{Path(swad.__file__).parent}/"
OPTIMIZED = 2  # a flag of the code of functions, and not of that of modules and classes
called: set[str] = set()


def profile(frame, event, argument):
    file = frame.f_code.co_filename
    if event != "call" or not file.startswith(ROOT) or file in called or not frame.f_code.co_flags & OPTIMIZED:
        return
    if file.endswith("cli/report.py"):
        sys.setprofile(None)
        return
    while frame is not None:  # not what modules call while they are imported
        if frame.f_code.co_filename.startswith(ROOT) and not frame.f_code.co_flags & OPTIMIZED:
            return
        frame = frame.f_back
    called.add(file)


if __name__ == "__main__":  # collecting doctests imports it
    sys.setprofile(profile)
    try:
        main()
    finally:
        sys.setprofile(None)
        print("called:", *sorted(file.removeprefix(ROOT) for file in called))
