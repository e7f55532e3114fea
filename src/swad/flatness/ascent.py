"""The worst loss within a distance of the weights, by gradient ascent: a lower bound of the true maximum.

    max over ||delta|| <= gamma of E(theta + delta)

Projected gradient ascent starts from the weights themselves and from random points. Its first step has a length of
about one radius; from the weights it is SAM's. The later ones have the lengths of Barzilai and Borwein (1988), which
follow from the curvature along the last step. On the sphere only the gradient's component along the sphere counts: the
other one leaves the ball, and with it the search would be a power iteration, which is slow if eigenvalues are similar.

The maximum of a network's loss over a ball is not computable; the largest value that was seen is reported, which can
only be too small. On quadratics of up to 1,000 dimensions whose maximum is on the sphere (the Hessian has a positive
eigenvalue, or the gradient is large), the default finds at least 94 % of the rise, usually more than 99 %. It may find
much less where most eigenvalues are negative and far larger than the positive ones, as no minimum has them, and of a
maximum inside the ball, where the loss falls again in every direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from swad.flatness.directions import Directions
from swad.flatness.local_flatness import check_radii
from swad.flatness.losses import LossFn, LossFunction, as_loss_function, selected_loss
from swad.flatness.rows import JsonRow
from swad.flatness.weights import Weights, add_terms, norm
from swad.tensors.names import Patterns
from swad.util.progress import Progress, count_progress

STEPS = 25
RESTARTS = 3
ASCENT = "tangential"
"""Names this search in the settings of stored results, so that those of earlier ones are not taken for its own."""
LONGEST = 4.0
"""The longest step in radii. Where the loss is almost linear, the step length has no bound of its own. A step along the
sphere is scaled back onto it, so one of 4 radii turns by 76 degrees, and even an endless one by no more than 90."""
SHORTER = 1 / LONGEST
"""Factor of the step length after a step to a loss that is not finite: the longest step becomes one of a radius."""
ON_SPHERE = 1e-5
"""A point is on the sphere if its distance from it is at most this share of the radius: fp32 rounds."""


@dataclass(frozen=True, slots=True)
class WorstCaseRow(JsonRow):
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
    """Number of losses and gradients evaluated for this radius."""

    @property
    def rise(self) -> float:
        """The lower bound minus the loss at the weights."""
        return self.lower_bound - self.loss


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
    steps: int = STEPS,
    restarts: int = RESTARTS,
    seed: int = 0,
    *,
    step_size: float = 1.0,
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
        steps: Ascent steps from every start. Each costs a gradient, so the whole search costs steps x (1 + restarts)
            gradients per radius, and steps more for all radii but the first.
        restarts: Number of random starts.
        seed: Seed of the random starts.
        step_size: Length of the first step from random points as a share of the radius. Later steps adapt to the
            curvature.
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
    if not 0 < step_size < math.inf:
        raise ValueError(f"step_size must be above 0, as a share of the radius; got {step_size}")
    with Weights(model, include, exclude) as weights:
        weights.warn_of_rounding(min((radius for radius in radii if radius), default=math.inf))
        function = as_loss_function(loss_fn)
        measure = None if measure_fn is None else as_loss_function(measure_fn)
        function.fit(model)
        if measure is not None:
            measure.fit(model)
        total = sum((1 + restarts + (i > 0)) * steps for i in range(len(radii)))
        report = count_progress(progress, "worst case", total)
        ascent = _Ascent(weights, function, measure, domain, steps, step_size, report)
        center = ascent.start()
        directions = Directions(weights, seed, antithetic=False, normalize="sphere")
        rows: list[WorstCaseRow] = []
        for gamma in radii:
            evaluations_before, previous_worst = ascent.evaluations, ascent.best_point
            sam = ascent.run(None, gamma)
            if previous_worst is not None:
                ascent.run(previous_worst, gamma)
            for k in range(restarts):
                with torch.no_grad():
                    point = torch._foreach_mul(directions[k], gamma)
                ascent.run(list(point), gamma)
            distance = norm(ascent.best_point) if ascent.best_point is not None else 0.0
            evaluations = ascent.evaluations - evaluations_before + (not rows)
            rows.append(
                WorstCaseRow(gamma, ascent.best, center, sam, dict(ascent.best_by_domain), distance, evaluations)
            )
        report(total)
    return WorstCase(rows)


class _Ascent:
    """Projected gradient ascent, and the worst point that it has seen so far."""

    def __init__(
        self,
        weights: Weights,
        loss_fn: LossFunction,
        measure_fn: LossFunction | None,
        domain: str | None,
        steps: int,
        step_size: float,
        report: Callable[[int], None],
    ) -> None:
        self._weights, self._loss_fn, self._measure_fn, self._domain = weights, loss_fn, measure_fn, domain
        self._steps, self._step_size, self._report, self._done = steps, step_size, report, 0
        self.best = -math.inf
        self.best_point: list[Tensor] | None = None
        self.best_by_domain: dict[str, float] = {}
        self.evaluations = 0

    def start(self) -> float:
        """Evaluate the weights themselves, the first candidate for the worst point."""
        self.best, self.best_by_domain = self._evaluate(None)
        return self.best

    def run(self, start: list[Tensor] | None, gamma: float) -> float:
        """Ascend from `start` (None: the weights) within radius `gamma`, and remember the worst point seen.

        Return the value at SAM's point; NaN if the ascent did not go there.
        """
        sam, step_size = math.nan, self._step_size
        if not gamma:
            return sam
        with torch.no_grad():
            point = [
                torch.zeros_like(tensor, dtype=dtype)
                for tensor, dtype in zip(self._weights.live, self._weights.dtypes, strict=True)
            ]
            if start is not None:
                torch._foreach_add_(point, start)
        _, gradient, _ = self._visit(point)
        before: tuple[list[Tensor], list[Tensor]] | None = None
        for step in range(self._steps):
            with torch.no_grad():
                ascent = _within_ball(point, gradient, gamma)
                slope = norm(ascent)
                if not math.isfinite(slope) or slope == 0:
                    break
                is_sam_step = step == 0 and start is None
                length = gamma * (1.0 if is_sam_step else step_size)
                if before is not None:
                    length = min(_step_size(point, ascent, *before, long=step % 2 == 0) * slope, LONGEST * gamma)
                trial = list(torch._foreach_add(point, ascent, alpha=length / slope))
                distance = norm(trial)
                if distance > gamma:
                    torch._foreach_mul_(trial, gamma / distance)
            trial_height, trial_gradient, value = self._visit(trial)
            if is_sam_step:
                sam = value
            if math.isfinite(trial_height):
                before = point, ascent
                point, gradient = trial, trial_gradient
            else:  # too far: try a shorter step from the same point
                before, step_size = None, SHORTER * length / gamma
            self._done += 1
            self._report(self._done)
        return sam

    def _visit(self, point: list[Tensor]) -> tuple[float, list[Tensor], float]:
        """Return loss and gradient at a point for the ascent, and the measured value; keep the worst point."""
        by_domain, gradient = self._gradient(point)
        height = self._total(by_domain)
        value, measured = (height, by_domain) if self._measure_fn is None else self._evaluate(point)
        if value > self.best:  # never true for NaN
            self.best, self.best_by_domain = value, measured
            self.best_point = [tensor.clone() for tensor in point]
        return height, gradient, value

    @torch.no_grad()
    def _evaluate(self, point: list[Tensor] | None) -> tuple[float, dict[str, float]]:
        """Return the value at the weights plus `point`, and the value of every domain."""
        if point is None:
            self._weights.back()
        else:
            self._weights.move(point, 1.0)
        self.evaluations += 1
        by_domain = (self._measure_fn or self._loss_fn).losses(self._weights.given).checked().means
        return self._total(by_domain), by_domain

    def _total(self, by_domain: Mapping[str, float]) -> float:
        """Return the mean over domains, or the value of the chosen one."""
        if self._domain is None:
            return sum(by_domain.values()) / len(by_domain)
        if self._domain not in by_domain:
            raise ValueError(f"there is no domain {self._domain!r}: loss_fn gives {', '.join(map(repr, by_domain))}")
        return by_domain[self._domain]

    def _gradient(self, point: list[Tensor]) -> tuple[dict[str, float], list[Tensor]]:
        """Return the loss of every domain and the gradient of the mean (or of the chosen domain) at a point."""
        self._weights.move(point, 1.0)
        gradient = [torch.zeros_like(tensor) for tensor in point]
        by_domain: dict[str, float] = {}
        with self._weights.differentiable() as parameters:
            for part in self._loss_fn.parts(self._weights.given):
                for domain, term in part.items():
                    by_domain[domain] = by_domain.get(domain, 0.0) + term.item()
                if (loss := selected_loss(part, self._domain)) is not None:
                    add_terms(gradient, torch.autograd.grad(loss, parameters, allow_unused=True))
        self.evaluations += 1
        return by_domain, gradient


def _within_ball(point: list[Tensor], gradient: list[Tensor], gamma: float) -> list[Tensor]:
    """Return the gradient, without its component that would leave the ball at a point on the sphere."""
    outward = _dot(point, gradient)
    if outward <= 0 or norm(point) < (1 - ON_SPHERE) * gamma:
        return gradient
    return list(torch._foreach_sub(gradient, point, alpha=outward / _dot(point, point)))


def _step_size(
    point: list[Tensor], ascent: list[Tensor], last_point: list[Tensor], last_ascent: list[Tensor], long: bool
) -> float:
    """Return Barzilai and Borwein's step size: 1 / curvature along the last step, in one of its two forms."""
    moved, change = torch._foreach_sub(point, last_point), torch._foreach_sub(ascent, last_ascent)
    along = abs(_dot(moved, change))
    numerator, denominator = (_dot(moved, moved), along) if long else (along, _dot(change, change))
    return numerator / denominator if denominator else math.inf


def _dot(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    """Return the inner product over all tensors, in double precision."""
    products = [(a.double() * b.double()).sum() for a, b in zip(first, second, strict=True)]
    return torch.stack([product.to(products[0].device) for product in products]).sum().item()
