"""The ablations of the paper's Table 5, by the names it gives them.

============================ ============ ============ ========
row                          from         to           interval
============================ ============ ============ ========
SWA with constant lr         4000         5000         100
SWAD without dense           valley       valley       100
SWAD without opt-overfit     4000         5000         1
SWAD without overfit         valley       5000         1
SWAD fit-on-val              best on val  best on val  1
============================ ============ ============ ========

All but the last are averages that ride on the same trajectory; `swad.fit_on_val` works on the stored segments
of a finished one. SWA with a cyclic lr is `SWA` beside `cyclic_lr`, and needs a training of its own.
"""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from swad.averaging.swa import SWA
from swad.averaging.swad import SWAD


def without_dense(model: nn.Module, interval: int = 100, **options: Any) -> SWAD:
    """SWAD on every `interval`-th update from the start of the valley on."""
    return SWAD(model, interval=interval, **options)


def without_overfit(model: nn.Module, **options: Any) -> SWAD:
    """SWAD from the start of the valley to the end of training, however the loss rises."""
    return SWAD(model, n_tolerance=math.inf, **options)


def without_opt_overfit(model: nn.Module, start: int = 4000, end: int | None = 5000, **options: Any) -> SWA:
    """Every update of a fixed window: dense, and blind to the loss."""
    return SWA(model, start=start, end=end, interval=1, **options)
