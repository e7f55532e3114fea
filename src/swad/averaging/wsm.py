"""WSM: weights of a constant learning rate, averaged as if the learning rate had decayed."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar, Literal, get_args

from torch import nn

from swad.averaging.average import Average
from swad.averaging.checks import check_count
from swad.averaging.lawa import Latest
from swad.averaging.spans import Span
from swad.averaging.tracked import Buffers
from swad.tensors.names import Patterns
from swad.util.names import require_choice

DecayCurve = Literal["1-sqrt", "linear", "cosine"]

_CURVES: dict[str, Callable[[float], float]] = {
    "1-sqrt": lambda progress: 1 - math.sqrt(progress),
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
}


def wsm_coefficients(n: int, decay: DecayCurve = "1-sqrt") -> tuple[float, ...]:
    """Return how much each of `n` checkpoints counts, oldest first, so that their mean emulates a decay.

    The weights of checkpoint j are theta_j = theta_0 + g_1 + ... + g_j, where g_i is the change from one checkpoint to
    the next. So sum c_j theta_j = theta_0 + sum w_i g_i with w_i = c_i + ... + c_(n-1): the mean is the end of a
    training in which update g_i was scaled by w_i. With the decay f from f(0) = 1 to f(1) = 0,

        w_i = f(i / n),   c_j = f(j / n) - f((j + 1) / n),

    which are not negative and add up to 1. It is exact for the given updates; a training that really decays makes
    other ones. The linear decay is the plain mean, hence also that of LAWA.

    Tian et al., "WSM: Decay-Free Learning Rate Schedule via Checkpoint Merging for LLM Pre-training", 2025.

    >>> [round(c, 3) for c in wsm_coefficients(4)], wsm_coefficients(4, "linear")
    ([0.5, 0.207, 0.159, 0.134], (0.25, 0.25, 0.25, 0.25))

    Args:
        n: The number of checkpoints.
        decay: The decay to emulate: "1-sqrt", "linear" or "cosine".
    """
    n = check_count("n", n, "checkpoints")
    require_choice("decay", decay, get_args(DecayCurve))
    return tuple(before - after for before, after in pairwise(_CURVES[decay](j / n) for j in range(n + 1)))


class Decayed(Latest):
    """The weights at the last k evaluations, weighted as if the learning rate had decayed from the first to the last.

    >>> rule = Decayed(k=2)
    >>> for step in (100, 200, 300):
    ...     rule.observe(1.0, step)
    >>> [str(span) for span in rule.spans(300)]
    ['200-200 x1.41421', '300-300 x0.585786']

    Args:
        k: How many.
        decay: The decay to emulate: "1-sqrt", "linear" or "cosine".
    """

    settings: ClassVar[tuple[str, ...]] = ("k", "decay")

    def __init__(self, k: int = 5, decay: DecayCurve = "1-sqrt") -> None:
        super().__init__(k)
        require_choice("decay", decay, get_args(DecayCurve))
        self.decay: DecayCurve = decay

    def spans(self, step: int) -> tuple[Span, ...]:
        """Return the last evaluations; a plain mean would count each once."""
        n = len(self.steps)
        coefficients = wsm_coefficients(n, self.decay) if n else ()
        return tuple(Span(each, each, n * share) for each, share in zip(self.steps, coefficients, strict=True))


class WSM(Average):
    """Warmup-stable and merge: the mean sum c_j theta_j at the last k evaluations, which emulates a decay.

    Train with a constant learning rate, and read the average at any time instead of decaying. `wsm_coefficients` says
    what c is, and why. Call `observe` where you would save a checkpoint; the loss is not used. It holds k copies of the
    averaged tensors, which `offload=True` keeps in host memory. To average checkpoints that are on disk, use
    `swad.merge`.

    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> average = WSM(model, k=4)
    >>> for value in (0., 1., 2., 3.):
    ...     _ = model.weight.data.fill_(value)
    ...     average.update_parameters(model)
    ...     _ = average.observe(0.0)
    >>> round(average.averaged_state()["weight"].item(), 4)  # (1 - sqrt(1/4)) + (1 - sqrt(2/4)) + (1 - sqrt(3/4))
    0.9269

    Args:
        model: The model to follow.
        k: How many evaluations: the length of the emulated decay.
        decay: The decay to emulate: "1-sqrt", "linear" (the mean of LAWA) or "cosine".
        buffers: "copy" keeps the buffers of the last evaluation; "average" averages floating-point buffers too.
        offload: Keep all sums in pinned host memory.
        include: Name patterns of the tensors to average, also frozen ones. By default all trainable ones.
        exclude: Name patterns of tensors not to average.
    """

    def __init__(
        self,
        model: nn.Module,
        k: int = 5,
        decay: DecayCurve = "1-sqrt",
        *,
        buffers: Buffers = "copy",
        offload: bool = False,
        include: Patterns = None,
        exclude: Patterns = None,
    ) -> None:
        super().__init__(model, Decayed(k, decay), buffers=buffers, offload=offload, include=include, exclude=exclude)
