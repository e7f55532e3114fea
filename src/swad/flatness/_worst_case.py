"""The worst loss within a distance of the weights, by gradient ascent: a lower bound of the true maximum.

    max over ||delta|| <= gamma of E(theta + delta)

Projected gradient ascent takes steps of fixed length along the gradient and projects back onto the ball. It starts
from the weights themselves and from random points. Its first step from the weights has length gamma and is SAM's.
The maximum of a network's loss over a ball is not computable; the largest value that was seen is reported, which can
only be too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from swad.averaging.tensors import Patterns
from swad.flatness._directions import Directions
from swad.flatness._json import Row, json_number
from swad.flatness._local import check_radii
from swad.flatness._losses import LossFn, as_losses, loss_parts, selected_loss
from swad.flatness._perturb import Weights
from swad.util.progress import Progress


@dataclass(frozen=True, slots=True)
class WorstCaseRow:
    """The largest loss that ascent found within one radius."""

    radius: float
    lower_bound: float
    """The largest value seen; the true maximum is at least this."""
    loss: float
    """The value at the weights themselves."""
    sam: float
    """The value at SAM's point, theta + radius g / ||g||; NaN where the gradient is zero."""
    by_domain: dict[str, float]
    """The value of every domain at the worst point, where their mean (or the chosen domain) is largest."""
    distance: float
    """Distance of the worst point from the weights."""
    evaluations: int
    """Number of losses evaluated for this radius."""

    @property
    def rise(self) -> float:
        """The lower bound minus the loss at the weights."""
        return self.lower_bound - self.loss

    def as_dict(self) -> Row:
        """Return the row as JSON values."""
        return {key: json_number(value) for key, value in asdict(self).items()}


@dataclass(frozen=True)
class WorstCase:
    """The result of `worst_case`: one row for every radius, from small to large."""

    rows: list[WorstCaseRow]

    @property
    def lower_bound(self) -> float:
        """The lower bound for the largest radius."""
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
    """Search for the worst loss within `radius` of the weights: a lower bound of the maximum over the ball.

    Ascent starts from the weights (its first step has length `radius` and reaches SAM's point), from random points
    on the sphere, and with several radii also from the worst point of the next smaller one, so that the bound never
    falls as the radius grows. Every point visited counts, including the weights themselves.

    Args:
        model: The model at the weights to start from; it is restored exactly.
        loss_fn: A differentiable loss function.
        radius: One radius or several.
        steps: Ascent steps from every start.
        restarts: Number of random starts.
        seed: Seed of the random starts.
        step_size: Length of later steps as a share of the radius; 2.5 / steps by default.
        domain: Maximize the loss of this domain; by default the mean over domains.
        measure_fn: Evaluates the visited points instead of `loss_fn`. The theorems need a loss in [0, 1]: give the
            0-1 error here and the cross entropy as `loss_fn`, whose gradient stands in for the error's.
        include: Name patterns of the parameters to perturb; by default all floating-point parameters.
        exclude: Name patterns of parameters to keep fixed.
        progress: Called after every step.

    >>> model = nn.Linear(3, 1, bias=False)
    >>> _ = model.weight.data.zero_()
    >>> worst = worst_case(model, lambda model: (model.weight * torch.tensor([0.0, 3.0, 4.0])).sum(), radius=2.0)
    >>> round(worst.lower_bound, 4), round(worst.rows[0].sam, 4)
    (10.0, 10.0)
    """
    radii = sorted(check_radii(radius))
    if steps < 1 or restarts < 0:
        raise ValueError(f"steps must be 1 or more and restarts 0 or more, got {steps} and {restarts}")
    step_length = 2.5 / steps if step_size is None else step_size
    if not step_length > 0:
        raise ValueError(f"step_size must be above 0, as a share of the radius; got {step_size}")
    with Weights(model, include, exclude) as weights:
        weights.warn_of_rounding(min((radius for radius in radii if radius), default=math.inf))
        ascent = _Ascent(model, loss_fn, measure_fn, domain, weights)
        center = ascent.start()
        directions = Directions(weights, seed, antithetic=False, normalize="sphere")
        total = sum((1 + restarts + (i > 0)) * (steps + 1) for i in range(len(radii)))
        rows: list[WorstCaseRow] = []
        done = 0

        def tick() -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress("worst case", min(done, total), total)

        for gamma in radii:
            evaluations_before = ascent.evaluations
            previous_worst = ascent.best_point
            ascent.sam = math.nan
            ascent.run(None, gamma, steps, step_length, tick)
            sam = ascent.sam
            if previous_worst is not None:
                ascent.run(previous_worst, gamma, steps, step_length, tick)
            for k in range(restarts):
                with torch.no_grad():
                    point = torch._foreach_mul(directions[k], gamma)
                ascent.run(list(point), gamma, steps, step_length, tick)
            distance = _norm(ascent.best_point) if ascent.best_point is not None else 0.0
            evaluations = ascent.evaluations - evaluations_before + (not rows)
            rows.append(
                WorstCaseRow(gamma, ascent.best, center, sam, dict(ascent.best_by_domain), distance, evaluations)
            )
        if progress is not None:
            progress("worst case", total, total)
    return WorstCase(rows)


class _Ascent:
    """Projected gradient ascent, and the worst point that it has seen so far."""

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

    def start(self) -> float:
        """Evaluate the weights themselves, the first candidate for the worst point."""
        self.best, self.best_by_domain = self._evaluate(None)
        return self.best

    def run(
        self,
        start: list[Tensor] | None,
        gamma: float,
        steps: int,
        step_length: float,
        tick: Callable[[], None],
    ) -> None:
        """Ascend from `start` (None: the weights) within radius `gamma`, and remember the worst point seen."""
        if not gamma:
            return
        with torch.no_grad():
            point = [
                torch.zeros_like(tensor, dtype=dtype)
                for tensor, dtype in zip(self._weights.live, self._weights.dtypes, strict=True)
            ]
            if start is not None:
                torch._foreach_add_(point, start)
        for step in range(steps):
            value, gradient = self._gradient(point)
            if step or start is not None:
                self._update_best(point, value)
            norm = _norm(gradient)
            if not math.isfinite(norm) or norm == 0:
                break
            is_sam_step = step == 0 and start is None
            with torch.no_grad():
                torch._foreach_add_(point, gradient, alpha=(1.0 if is_sam_step else step_length) * gamma / norm)
                distance = _norm(point)
                if distance > gamma:
                    torch._foreach_mul_(point, gamma / distance)
            if is_sam_step:
                value = self._evaluate(point)
                self.sam = value[0]
                self._update_best(point, value)
            tick()
        else:
            self._update_best(point)
        tick()

    @torch.no_grad()
    def _evaluate(self, point: list[Tensor] | None) -> tuple[float, dict[str, float]]:
        """Return the value at the weights plus `point`, and the value of every domain."""
        if point is None:
            self._weights.back()
        else:
            self._weights.move(point, 1.0)
        self.evaluations += 1
        losses = as_losses((self._measure_fn or self._loss_fn)(self._model)).losses
        by_domain = {domain: values.double().mean().item() for domain, values in losses.items()}
        if self._domain is None:
            return sum(by_domain.values()) / len(by_domain), by_domain
        if self._domain not in by_domain:
            raise ValueError(f"there is no domain {self._domain!r}: loss_fn gives {', '.join(by_domain)}")
        return by_domain[self._domain], by_domain

    def _gradient(self, point: list[Tensor]) -> tuple[tuple[float, dict[str, float]] | None, list[Tensor]]:
        """Return the gradient at a point, and the value there unless `measure_fn` has to evaluate it."""
        self._weights.move(point, 1.0)
        gradient = [torch.zeros_like(tensor) for tensor in point]
        by_domain: dict[str, float] = {}
        with self._weights.differentiable() as parameters:
            for part in loss_parts(self._loss_fn, self._model):
                for domain, term in part.items():
                    by_domain[domain] = by_domain.get(domain, 0.0) + term.item()
                loss = selected_loss(part, self._domain)
                if loss is None:
                    continue
                terms = torch.autograd.grad(loss, parameters, allow_unused=True)
                with torch.no_grad():
                    for total, term in zip(gradient, terms, strict=True):
                        if term is not None:
                            total += term
        self.evaluations += 1
        if self._measure_fn is not None:
            return None, gradient
        value = sum(by_domain.values()) / len(by_domain) if self._domain is None else by_domain[self._domain]
        return (value, by_domain), gradient

    def _update_best(self, point: list[Tensor], value: tuple[float, dict[str, float]] | None = None) -> None:
        """Keep a point if it is the worst so far; it is evaluated unless its value is given."""
        loss, by_domain = self._evaluate(point) if value is None else value
        if loss > self.best:  # never true for NaN
            self.best, self.best_by_domain = loss, by_domain
            self.best_point = [tensor.clone() for tensor in point]


def _norm(tensors: Sequence[Tensor]) -> float:
    """Return the norm over all tensors, in double precision since it sums millions of squares."""
    squares = [torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64).square() for tensor in tensors]
    return math.sqrt(torch.stack([square.to(squares[0].device) for square in squares]).sum().item())
