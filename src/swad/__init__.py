"""SWAD: average the weights between the floor of the loss valley and the start of overfitting.

    averager = swad.SWAD(model)
    ...
    averager.update_parameters(model)          # after every optimiser step
    status = averager.observe(val_loss)        # after every evaluation
    ...
    averager.copy_to(model)

Names are loaded when they are touched: `import swad` imports nothing heavy, and torch comes with the first
name that needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from swad.version import __version__

if TYPE_CHECKING:
    from swad.average import Average
    from swad.averaging import EMA, SMA, SWA, SWAD, NeverConvergedWarning
    from swad.batchnorm import update_bn
    from swad.feed import SegmentFeed
    from swad.rules import Phase
    from swad.schedules import cyclic_lr
    from swad.segments import SegmentLog, fit_on_val, iid_max
    from swad.valley import LossValley, Span, Status

_HOMES = {
    "Average": "average",
    "EMA": "averaging",
    "LossValley": "valley",
    "NeverConvergedWarning": "averaging",
    "Phase": "rules",
    "SMA": "averaging",
    "SWA": "averaging",
    "SWAD": "averaging",
    "SegmentFeed": "feed",
    "SegmentLog": "segments",
    "Span": "valley",
    "Status": "valley",
    "cyclic_lr": "schedules",
    "fit_on_val": "segments",
    "iid_max": "segments",
    "update_bn": "batchnorm",
}
_MODULES = {"ablations", "checkpoint", "flatness", "integrations"}

__all__ = [  # noqa: RUF022 - the reader's order
    "SWAD",
    "LossValley",
    "SWA",
    "SMA",
    "EMA",
    "SegmentFeed",
    "SegmentLog",
    "fit_on_val",
    "iid_max",
    "cyclic_lr",
    "update_bn",
    "Average",
    "Status",
    "Span",
    "Phase",
    "NeverConvergedWarning",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"swad.{_HOMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"swad.{name}")
    raise AttributeError(f"module 'swad' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
