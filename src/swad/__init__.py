"""SWAD: average the weights between the lowest validation loss and the start of overfitting.

    averager = swad.SWAD(model)
    ...
    averager.update_parameters(model)          # after every optimizer step
    status = averager.observe(val_loss)        # after every evaluation
    ...
    averager.copy_to(model)

These names are the averaging library; trainers have theirs in `swad.integrations`, and `swad.compat` replaces the
published code in a trainer that has a copy of it. `swad.flatness` and `swad.robustness` measure any model.
`swad.testbed` is the benchmark of the paper; `swad.train` is forwarded to it.

Names are loaded on first use: `import swad` imports nothing heavy, and torch is imported with the first name that
needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swad.util.lazy import lazy_exports
from swad.util.version import __version__

if TYPE_CHECKING:
    from swad.averaging.average import Average
    from swad.averaging.ema import EMA
    from swad.averaging.group import AverageGroup
    from swad.averaging.lawa import LAWA
    from swad.averaging.rule import FalseStartWarning, NeverConvergedWarning, Rule
    from swad.averaging.spans import Phase, Span, Status
    from swad.averaging.swa import SMA, SWA
    from swad.averaging.swad import SWAD
    from swad.averaging.valley import LossValley
    from swad.averaging.wsm import WSM
    from swad.integrations.checkpoints import averaged_weights
    from swad.merging.merge import merge
    from swad.tensors.batch_norms import update_bn
    from swad.testbed.training.loop import train

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "averaging.average": ("Average",),
        "tensors.batch_norms": ("update_bn",),
        "averaging.ema": ("EMA",),
        "averaging.group": ("AverageGroup",),
        "averaging.lawa": ("LAWA",),
        "averaging.rule": ("FalseStartWarning", "NeverConvergedWarning", "Rule"),
        "averaging.spans": ("Phase", "Span", "Status"),
        "averaging.swa": ("SMA", "SWA"),
        "averaging.swad": ("SWAD",),
        "averaging.valley": ("LossValley",),
        "averaging.wsm": ("WSM",),
        "integrations.checkpoints": ("averaged_weights",),
        "merging.merge": ("merge",),
        "testbed": ("train",),
    },
    modules=("compat", "flatness", "integrations", "robustness", "testbed"),
)

__all__ = [  # noqa: RUF022 - the reader's order
    "SWAD",
    "LossValley",
    "SWA",
    "SMA",
    "EMA",
    "LAWA",
    "WSM",
    "AverageGroup",
    "merge",
    "update_bn",
    "averaged_weights",
    "Average",
    "Rule",
    "Status",
    "Span",
    "Phase",
    "NeverConvergedWarning",
    "FalseStartWarning",
    "train",
    "__version__",
]
