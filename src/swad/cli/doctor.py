"""`swad doctor`: what this machine has and can do."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import time

from swad.util.names import counted

EXAMPLES = "swad doctor"

NOT_SHOWN = ("demo", "all", "docs", "test")
"""Extras that combine others, or that are for developers."""


def doctor() -> None:
    """Show versions, devices, disk space, missing packages, and the time of an update of an average."""
    from rich.table import Table

    from swad.cli._console import make_console

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in (*_system(), *_torch()):
        table.add_row(name, value)
    for extra, packages in extras().items():
        versions = {package: _version(package) for package in packages}
        installed = ", ".join(f"{package} {version}" for package, version in versions.items() if version)
        missing = ", ".join(package for package, version in versions.items() if not version)
        note = f'[yellow]{missing} missing[/]: pip install "swad\\[{extra}]"' if missing else ""
        table.add_row(extra, "; ".join(filter(None, (installed, note))))
    make_console().print(table)


def extras() -> dict[str, list[str]]:
    """Return the packages of each extra, apart from those of the extras above it."""
    packages: dict[str, list[str]] = {}
    known = {"torch"}  # shown with its devices
    for requirement in importlib.metadata.requires("swad") or ():
        if (match := re.match(r"([\w.-]+).*\bextra == .(\w+)", requirement)) and match[2] not in NOT_SHOWN:
            of_extra = packages.setdefault(match[2], [])
            of_extra += [match[1]] * (match[1] not in known)
            known.add(match[1])
    return packages


def _system() -> list[tuple[str, str]]:
    from swad.util.processes import available_cores
    from swad.util.version import __version__

    free = shutil.disk_usage(".").free
    return [
        ("swad", f"{__version__}, Python {platform.python_version()} on {platform.system()} {platform.machine()}"),
        (
            "machine",
            f"{available_cores()} CPU cores, {_memory()} of memory, {free / 2**30:.0f} GiB of free disk space here",
        ),
    ]


def _memory() -> str:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return "an unknown amount"
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"


def _torch() -> list[tuple[str, str]]:
    try:
        import torch
    except ImportError:
        return [("torch", "[red]missing[/]: pip install torch")]
    threads = torch.get_num_threads()
    rows = [("torch", f"{torch.__version__}, {counted(threads, 'CPU thread')}")]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(index)
            bf16 = "bf16" if torch.cuda.is_bf16_supported() else "no bf16"
            rows.append((f"cuda:{index}", f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, {bf16}"))
    else:
        rows.append(("gpu", "none found by torch: training runs on the CPU"))
    rows.append(("averaging", _update_cost()))
    return rows


def _update_cost() -> str:
    """Measure one update of an average of 25 million parameters."""
    import torch

    from swad.averaging.swad import SWAD

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.ModuleList([torch.nn.Linear(500, 500, bias=False) for _ in range(100)]).to(device)
    averager = SWAD(model)
    times = []
    for _ in range(8):
        started = time.perf_counter()
        averager.update_parameters(model)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return f"{sorted(times)[len(times) // 2] * 1e3:.2f} ms per update for 25 M parameters on {device}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
