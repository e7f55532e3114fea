"""The benchmark of the paper: datasets, networks, algorithms, one run, many runs, and what they measured.

    result = swad.testbed.train({"dataset": "digits", "target": "paper", "output": "runs/paper-0"})
    model, transform, class_names = swad.testbed.load_predictor(path)
    runs = swad.testbed.results.find_runs("runs")

It uses the library (`swad.averaging`, `swad.tensors`) and the lab (`swad.flatness`, `swad.robustness`, `swad.gpu`);
neither knows of it. Names are loaded on first use; `train` is a name of `swad` too.

The testbed is provisional: its names, options and files may change with any release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swad.util.lazy import lazy_exports

if TYPE_CHECKING:
    from swad.testbed.averages.segment_log import SegmentLog
    from swad.testbed.training.config import RunConfig
    from swad.testbed.training.export import load_predictor
    from swad.testbed.training.loop import train

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "averages.segment_log": ("SegmentLog",),
        "training.config": ("RunConfig",),
        "training.export": ("load_predictor",),
        "training.loop": ("train",),
    },
    modules=("results",),
    extra="vision",
)

__all__ = ["RunConfig", "SegmentLog", "load_predictor", "train"]
