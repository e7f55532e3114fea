"""What benchmarks share: the command line, directories, waiting for a GPU, CUDA graphs, and the JSON file."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from swad.gpu.cuda_graph import CapturedGraph, run_on_stream


def make_parser(doc: str, sections: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return a parser that describes itself by the first line of a docstring, with --json and a flag per section."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the measurements to this file")
    for name in sections:
        flag, text = f"--{name.replace('_', '-')}", "only this section, and others that are named"
        parser.add_argument(flag, action="store_true", help=text)
    return parser


def measure_sections(sections: Mapping[str, Callable[[], Any]], arguments: argparse.Namespace) -> None:
    """Measure the sections that are named on the command line, or all; print and write them."""
    named, report = {name for name in sections if getattr(arguments, name)}, header()
    for name, section in sections.items():
        if name in (named or sections):
            report[name] = section()
            print(f"{name}: {json.dumps(report[name])}", flush=True)
            write(report, arguments.json)


@contextmanager
def directory() -> Iterator[Path]:
    """Make a temporary directory in memory (/dev/shm), where there is such a place: the disk is not measured."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="swad-benchmark-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def wait(device: str) -> None:
    """Wait for the work on a GPU; a CPU has done it."""
    if device == "cuda":
        torch.cuda.synchronize()


def timed(function: Callable[[], object], n: int, device: str) -> float:
    """Return milliseconds per call, the better of two rounds."""
    best = float("inf")
    for _ in range(2):
        wait(device)
        start = time.perf_counter()
        for _ in range(n):
            function()
        wait(device)
        best = min(best, (time.perf_counter() - start) / n * 1e3)
    return best


def captured(function: Callable[[], object], warm_up: int = 1) -> Callable[[], object]:
    """Return the replay of a CUDA graph of a function, captured after some calls."""
    stream = torch.cuda.Stream()
    for _ in range(warm_up):
        run_on_stream(stream, function)
    torch.cuda.synchronize()
    return CapturedGraph(function, stream=stream).replay


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
