"""SWAD: average the weights between the lowest validation loss and the start of overfitting.

    averager = swad.SWAD(model)
    ...
    averager.update_parameters(model)          # after every optimizer step
    status = averager.observe(val_loss)        # after every evaluation
    ...
    averager.copy_to(model)

The library is `averaging`, `tensors` and `integrations`; `flatness` and `robustness` measure any model; `testbed` is
the benchmark of the paper, whose `train`, `RunConfig`, `load_predictor` and `results` are names of `swad`, too.

Names are loaded on first use: `import swad` imports nothing heavy, and torch is imported with the first name that
needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from swad.util.version import __version__

if TYPE_CHECKING:
    from swad.averaging.base import Average
    from swad.averaging.batchnorm import update_bn
    from swad.averaging.ema import EMA
    from swad.averaging.group import AverageGroup
    from swad.averaging.lr_schedules import cyclic_lr
    from swad.averaging.rule import NeverConvergedWarning, Rule
    from swad.averaging.segment_log import SegmentLog
    from swad.averaging.segment_windows import fit_on_val
    from swad.averaging.spans import Phase, Span, Status
    from swad.averaging.swa import SMA, SWA
    from swad.averaging.swad import SWAD
    from swad.averaging.valley import LossValley
    from swad.testbed.training.config import RunConfig
    from swad.testbed.training.export import load_predictor
    from swad.testbed.training.loop import train

_HOMES = {
    "Average": "averaging.base",
    "EMA": "averaging.ema",
    "LossValley": "averaging.valley",
    "RunConfig": "testbed.training.config",
    "NeverConvergedWarning": "averaging.rule",
    "Phase": "averaging.spans",
    "Rule": "averaging.rule",
    "SMA": "averaging.swa",
    "SWA": "averaging.swa",
    "SWAD": "averaging.swad",
    "AverageGroup": "averaging.group",
    "SegmentLog": "averaging.segment_log",
    "Span": "averaging.spans",
    "Status": "averaging.spans",
    "cyclic_lr": "averaging.lr_schedules",
    "fit_on_val": "averaging.segment_windows",
    "load_predictor": "testbed.training.export",
    "train": "testbed.training.loop",
    "update_bn": "averaging.batchnorm",
}
_MODULES = {name: name for name in ("testbed", "flatness", "integrations", "robustness")}
_MODULES["results"] = "testbed.results"

__all__ = [  # noqa: RUF022 - the reader's order
    "SWAD",
    "LossValley",
    "SWA",
    "SMA",
    "EMA",
    "AverageGroup",
    "SegmentLog",
    "fit_on_val",
    "cyclic_lr",
    "update_bn",
    "Average",
    "Rule",
    "Status",
    "Span",
    "Phase",
    "NeverConvergedWarning",
    "RunConfig",
    "train",
    "load_predictor",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"swad.{_HOMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"swad.{_MODULES[name]}")
    raise AttributeError(f"module 'swad' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
