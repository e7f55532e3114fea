"""The benchmark of the paper: datasets, networks, algorithms, one run, many runs, and what they measured.

    result = swad.testbed.train({"dataset": "digits", "target": "paper", "output": "runs/paper-0"})
    model, transform, class_names = swad.testbed.load_predictor(path)
    runs = swad.testbed.results.find_runs("runs")

It uses the library (`swad.averaging`, `swad.tensors`) and the lab (`swad.flatness`, `swad.robustness`, `swad.gpu`);
neither knows of it. Names are loaded on first use; `train` is a name of `swad` too.

The testbed is provisional: its names, options and files may change with any release.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from swad.util.packages import require_extra

if TYPE_CHECKING:
    from swad.testbed.averages.segment_log import SegmentLog
    from swad.testbed.averages.segment_windows import fit_on_val
    from swad.testbed.training.config import RunConfig
    from swad.testbed.training.export import load_predictor
    from swad.testbed.training.loop import train
    from swad.testbed.training.lr_schedule import cyclic_lr

_HOMES = {
    "RunConfig": "training.config",
    "SegmentLog": "averages.segment_log",
    "cyclic_lr": "training.lr_schedule",
    "fit_on_val": "averages.segment_windows",
    "load_predictor": "training.export",
    "train": "training.loop",
}

__all__ = ["RunConfig", "SegmentLog", "cyclic_lr", "fit_on_val", "load_predictor", "train"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        with require_extra(f"swad.testbed.{name}", "vision"):
            return getattr(importlib.import_module(f"swad.testbed.{_HOMES[name]}"), name)
    if name == "results":
        return importlib.import_module("swad.testbed.results")
    raise AttributeError(f"module 'swad.testbed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, "results"})
