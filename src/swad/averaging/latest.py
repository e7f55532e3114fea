"""The rules of LAWA and WSM: the last evaluations, counted alike or as if the learning rate had decayed. No tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar, Literal, get_args

from swad.averaging.checks import check_count
from swad.averaging.rule import Rule
from swad.averaging.spans import Span
from swad.util.names import require_choice


class Latest(Rule):
    """The weights at the last k evaluations, each with the same weight.

    >>> rule = Latest(k=2)
    >>> for step in (100, 200, 300):
    ...     rule.observe(1.0, step)
    >>> [span.first for span in rule.spans(300)]
    [200, 300]

    Args:
        k: How many.
    """

    dense = False
    settings: ClassVar[tuple[str, ...]] = ("k",)

    def __init__(self, k: int = 5) -> None:
        self.k = check_count("k", k)
        self.steps: list[int] = []

    def observe(self, loss: float, step: int) -> None:
        """Take the weights of an evaluation, and drop the oldest; the loss does not matter."""
        self.steps = [*self.steps, step][-self.k :]

    def spans(self, step: int) -> tuple[Span, ...]:
        """Return the last evaluations."""
        return tuple(Span(each, each) for each in self.steps)

    def needed(self) -> tuple[Span, ...]:
        """Return the last evaluations, each of which will be dropped alone."""
        return self.spans(0)

    def takes(self, step: Any) -> Any:
        """Whether an update between evaluations is averaged: none."""
        return False

    def why_empty(self, step: int) -> str:
        """Say that evaluations are needed."""
        return "call observe after an evaluation, whose weights are averaged"


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
