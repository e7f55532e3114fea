"""The worst loss within a distance of the weights, found by climbing: a lower bound of the true maximum.

    max over ||delta|| <= gamma of E(theta + delta)

Projected gradient ascent: a step of fixed length along the gradient, back onto the ball where it left it, from the
weights themselves and from random points. Its first step from the weights, of length gamma, is SAM's. Nobody
knows the maximum of a network's loss over a ball; what was seen is what is reported, and it can only be too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from swad.averaging.tensors import Patterns
from swad.flatness._directions import Directions
from swad.flatness._local import checked_radii
from swad.flatness._losses import LossFn, Measured, climbing, measured, parts_of
from swad.flatness._perturb import Weights
from swad.flatness._rows import Progress, Row, plain


@dataclass(frozen=True, slots=True)
class WorstCaseRow:
    """The largest loss seen within one radius."""

    radius: float
    lower_bound: float
    """The largest value seen: the true maximum is this or more."""
    loss: float
    """The value at the weights themselves."""
    sam: float
    """The value at SAM's point, theta + radius g / ||g||; NaN where the gradient is zero."""
    by_domain: dict[str, float]
    """The value of every domain at the worst point (at which their mean, or the domain climbed, is largest)."""
    distance: float
    """How far from the weights the worst point is."""
    evaluations: int
    """Losses evaluated for this radius."""

    @property
    def rise(self) -> float:
        """The lower bound less the loss at the weights."""
        return self.lower_bound - self.loss

    def as_dict(self) -> Row:
        """JSON-able."""
        return {key: plain(value) for key, value in asdict(self).items()}


@dataclass(frozen=True)
class WorstCase:
    """What `worst_case` found, a row for every radius from small to large."""

    rows: list[WorstCaseRow]

    @property
    def lower_bound(self) -> float:
        """The largest loss seen within the largest radius."""
        return self.rows[-1].lower_bound


def worst_case(
    model: nn.Module,
    loss_fn: LossFn,
    radius: float | Sequence[float],
    steps: int = 20,
    restarts: int = 3,
    seed: int = 0,
    *,
    step_size: float | None = None,
    domain: str | None = None,
    measure_fn: LossFn | None = None,
    include: Patterns = None,
    exclude: Patterns = None,
    progress: Progress | None = None,
) -> WorstCase:
    """Climb from the weights to the worst loss within `radius`: a lower bound of the maximum over the ball.

    Climbs `steps` steps from the weights (the first of length `radius`: SAM's point), `restarts` times from random
    points of the sphere, and with several radii also from the worst point of the smaller one, so the bound never
    falls as the radius grows. Later steps are `step_size` times the radius long (2.5 / steps if left out). Every
    point visited counts, the weights themselves included.

    What climbs is the mean over domains, or one `domain`. `measure_fn` judges the points instead of `loss_fn`: give
    the 0-1 error there to climb the cross entropy in its place, as the theorems' loss must lie in [0, 1].

    >>> model = nn.Linear(3, 1, bias=False)
    >>> _ = model.weight.data.zero_()
    >>> found = worst_case(model, lambda model: (model.weight * torch.tensor([0.0, 3.0, 4.0])).sum(), radius=2.0)
    >>> round(found.lower_bound, 4), round(found.rows[0].sam, 4)
    (10.0, 10.0)
    """
    radii = sorted(checked_radii(radius))
    if steps < 1 or restarts < 0:
        raise ValueError(f"steps must be 1 or more and restarts 0 or more, got {steps} and {restarts}")
    length = 2.5 / steps if step_size is None else step_size
    if not length > 0:
        raise ValueError(f"step_size must be above 0, a share of the radius; got {step_size}")
    with Weights(model, include, exclude) as weights:
        weights.warn_of_rounding(min((radius for radius in radii if radius), default=math.inf))
        climber = _Climber(model, loss_fn, measure_fn, domain, weights)
        center, by_domain = climber.judge(None)
        climber.best, climber.best_by_domain = center, by_domain
        starts = Directions(weights, seed, antithetic=False, normalize="sphere")
        total = sum((1 + restarts + (i > 0)) * (steps + 1) for i in range(len(radii)))
        rows: list[WorstCaseRow] = []
        done = 0

        def tick() -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(min(done, total), total)

        for gamma in radii:
            before = climber.evaluations
            inherited = climber.best_point
            climber.sam = math.nan
            climber.climb(None, gamma, steps, length, tick)
            sam = climber.sam
            if inherited is not None:
                climber.climb(inherited, gamma, steps, length, tick)
            for number in range(restarts):
                with torch.no_grad():
                    start = torch._foreach_mul(starts[number], gamma)
                climber.climb(list(start), gamma, steps, length, tick)
            distance = _norm(climber.best_point) if climber.best_point is not None else 0.0
            evaluations = climber.evaluations - before + (not rows)
            values = (climber.best, center, sam, dict(climber.best_by_domain), distance, evaluations)
            rows.append(WorstCaseRow(gamma, *values))
        if progress is not None:
            progress(total, total)
    return WorstCase(rows)


class _Climber:
    """The state of a search: the worst point so far, and how to take a step."""

    def __init__(
        self, model: nn.Module, loss_fn: LossFn, measure_fn: LossFn | None, domain: str | None, weights: Weights
    ) -> None:
        self._model, self._loss_fn, self._measure_fn, self._domain = model, loss_fn, measure_fn, domain
        self._weights = weights
        self.best = -math.inf
        self.best_point: list[Tensor] | None = None
        self.best_by_domain: dict[str, float] = {}
        self.sam = math.nan
        self.evaluations = 0

    def climb(
        self, start: list[Tensor] | None, gamma: float, steps: int, length: float, tick: Callable[[], None]
    ) -> None:
        """Climb from `start` (None: the weights), and remember the worst point seen."""
        if not gamma:
            return
        with torch.no_grad():
            point = [
                torch.zeros_like(t, dtype=d) for t, d in zip(self._weights.live, self._weights.dtypes, strict=True)
            ]
            if start is not None:
                torch._foreach_add_(point, start)
        for step in range(steps):
            values, gradient = self._gradient(point)
            if step or start is not None:
                self._note(values, point)
            norm = _norm(gradient)
            if not math.isfinite(norm) or norm == 0:
                break
            with torch.no_grad():
                whole = step == 0 and start is None  # SAM's step
                torch._foreach_add_(point, gradient, alpha=(1.0 if whole else length) * gamma / norm)
                far = _norm(point)
                if far > gamma:
                    torch._foreach_mul_(point, gamma / far)
            if whole:
                self.sam, _ = found = self.judge(point)
                self._note_value(*found, point)
            tick()
        else:
            self._note_value(*self.judge(point), point)
        tick()

    @torch.no_grad()
    def judge(self, point: list[Tensor] | None) -> tuple[float, dict[str, float]]:
        """The value at the weights plus `point`, and that of every domain."""
        if point is None:
            self._weights.back()
        else:
            self._weights.move(point, 1.0)
        self.evaluations += 1
        return self._value(measured((self._measure_fn or self._loss_fn)(self._model)))

    def _value(self, found: Measured) -> tuple[float, dict[str, float]]:
        values = {domain: losses.double().mean().item() for domain, losses in found.losses.items()}
        if self._domain is None:
            return sum(values.values()) / len(values), values
        if self._domain not in values:
            raise ValueError(f"there is no domain {self._domain!r}: loss_fn gives {', '.join(values)}")
        return values[self._domain], values

    def _gradient(self, point: list[Tensor]) -> tuple[tuple[float, dict[str, float]] | None, list[Tensor]]:
        """The gradient at a point; and the value, where the loss that climbs is also the one that judges."""
        self._weights.move(point, 1.0)
        total = [torch.zeros_like(one) for one in point]
        sums: dict[str, float] = {}
        with self._weights.differentiable() as parameters:
            for piece in parts_of(self._loss_fn, self._model):
                for domain, share in piece.items():
                    sums[domain] = sums.get(domain, 0.0) + share.item()
                loss = climbing(piece, self._domain)
                if loss is None:
                    continue
                found = torch.autograd.grad(loss, parameters, allow_unused=True)
                with torch.no_grad():
                    for one, gradient in zip(total, found, strict=True):
                        if gradient is not None:
                            one += gradient
        self.evaluations += 1
        if self._measure_fn is not None:
            return None, total
        value = sum(sums.values()) / len(sums) if self._domain is None else sums[self._domain]
        return (value, sums), total

    def _note(self, values: tuple[float, dict[str, float]] | None, point: list[Tensor]) -> None:
        self._note_value(*(self.judge(point) if values is None else values), point)

    def _note_value(self, value: float, by_domain: dict[str, float], point: list[Tensor]) -> None:
        if value > self.best:  # a NaN is not
            self.best, self.best_by_domain = value, by_domain
            self.best_point = [tensor.clone() for tensor in point]


def _norm(tensors: Sequence[Tensor]) -> float:
    """In double, as millions of squares are added."""
    squares = [torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64).square() for tensor in tensors]
    return math.sqrt(torch.stack([one.to(squares[0].device) for one in squares]).sum().item())
