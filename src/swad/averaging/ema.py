"""EMA: the exponential moving average of the weights (`swad.averaging.decay`)."""

from __future__ import annotations

from torch import nn

from swad.averaging.average import Average
from swad.averaging.decay import Decay
from swad.averaging.tracked import Buffers
from swad.tensors.names import Patterns


class EMA(Average):
    """Exponential moving average: m <- decay * m + (1 - decay) * theta, starting from the first update's weights.

    The paper compares with decay 0.99 (Polyak and Juditsky, 1992). Each update has a different weight, so an EMA cannot
    use the shared sum of a group and keeps its own mean.

    A decay near 1 remembers the first weights for long. With `warmup`, the update that follows t others has the decay
    min(decay, (1 + t) / (10 + t)), as in TensorFlow's ExponentialMovingAverage with `num_updates`: the mean forgets
    the first weights, and reaches decay 0.99 at t = 890 and 0.9999 at t = 89,990. `warmup=p` takes the curve
    1 - (1 + t) ** -p instead, which timm's ModelEmaV3 has with p = 2 / 3: 0.99 at t = 999 and 0.9999 at t = 999,999.

    Args:
        model: The model to follow.
        decay: The share of the mean that stays at each update.
        warmup: Begin with a smaller decay: True, or the power of another curve.
        buffers: "copy" keeps the buffers of the last update; "average" averages floating-point buffers too.
        include: Name patterns of the tensors to average, also frozen ones. By default all trainable ones.
        exclude: Name patterns of tensors not to average.
    """

    def __init__(
        self,
        model: nn.Module,
        decay: float = 0.99,
        *,
        warmup: bool | float = False,
        buffers: Buffers = "copy",
        include: Patterns = None,
        exclude: Patterns = None,
    ) -> None:
        rule = Decay(decay, warmup)
        super().__init__(model, rule, buffers=buffers, include=include, exclude=exclude)
