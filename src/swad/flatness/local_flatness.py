"""Local flatness: how much the loss rises on average at a distance from the weights.

    F_gamma(theta) = E_d [E(theta + gamma d) - E(theta)],   d uniform on the unit sphere

The paper prints the condition as ||theta'|| = ||theta|| + gamma, a misprint for ||theta' - theta|| = gamma. For small
gamma, F_gamma is gamma^2 tr(H) / (2 dim); for a quadratic loss it is so at every gamma. The kinks of ReLUs, which the
Hessian does not see, add to it.

As in the published code, each direction is used at all radii. Unlike there, directions come in opposite pairs, which
cancels the slope; `antithetic=False` draws each direction independently.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from swad.flatness.directions import Directions, Normalize
from swad.flatness.losses import Losses, LossFn, as_loss_function
from swad.flatness.points import Point, walk
from swad.flatness.rows import JsonRow, Row, pack, unpack
from swad.flatness.weights import Weights, norm
from swad.tensors.names import Patterns, as_patterns
from swad.util.jsonl import json_values
from swad.util.progress import Progress, count_progress
from swad.util.statistics import Contributions, contributions, half_widths

Groups = Mapping[str, Sequence[str]]
"""Named sets of domains whose mean is reported too: {"seen": ["photo", "sketch"]}."""

OF_WEIGHTS = ("norm", "logit_scale")
"""The settings that belong to the weights; all others must be equal for a paired comparison."""

KIND = "flatness"
"""The `kind` of a JSON row that holds a `LocalFlatness`."""


@dataclass(frozen=True, slots=True)
class FlatnessRow(JsonRow):
    """F_gamma at one radius, on one domain, on a group of domains, or averaged over all domains (None)."""

    radius: float
    domain: str | None
    mean: float
    low: float
    high: float
    loss: float
    """E(theta), the loss at the weights themselves."""
    n_directions: int
    n_images: int | None
    """None if the loss function gave no per-image losses; then the interval covers directions only."""


@dataclass(frozen=True)
class LocalFlatness:
    """The result of `local`: `rows` of F_gamma, and the losses they are computed from."""

    radii: tuple[float, ...]
    antithetic: bool
    settings: Row
    """Seed, normalization, name patterns, device, number and norm of the perturbed parameters, scale of the logits."""
    loss: dict[str, float]
    """E(theta) by domain."""
    losses: dict[str, Tensor]
    """By domain: the mean loss at every direction and radius (directions x radii, float64)."""
    image_loss: dict[str, Tensor]
    """By domain: the loss of every image at theta. Empty for scalar losses."""
    image_sums: dict[str, Tensor]
    """By domain: the loss summed over directions, for every radius and image (radii x images)."""
    named: bool = True
    """Whether the loss function named its domains."""
    errors: LocalFlatness | None = None
    """The same of the 0-1 error instead of the loss, if the loss function gave both."""
    groups: Groups = field(default_factory=dict)
    confidence: float = 0.95

    def __repr__(self) -> str:
        """Show F at every radius over all domains, without the tensors behind it."""
        means = mean_over(self.domains, {domain: rises.mean(0) for domain, rises in self.rises.items()})
        values = ", ".join(f"{mean:.4g} at {radius:g}" for radius, mean in zip(self.radii, means.tolist(), strict=True))
        return f"LocalFlatness(F = {values}; {self.n_directions} directions; intervals in .rows)"

    @property
    def domains(self) -> list[str]:
        """The domains, in the loss function's order."""
        return list(self.loss)

    @property
    def n_directions(self) -> int:
        """The number of directions; an opposite pair counts as two."""
        return len(next(iter(self.losses.values())))

    @property
    def n_images(self) -> dict[str, int] | None:
        """The number of images by domain; None for scalar losses."""
        return {domain: len(losses) for domain, losses in self.image_loss.items()} or None

    @cached_property
    def rows(self) -> list[FlatnessRow]:
        """Mean and interval at every radius: for each named domain, each group, and all domains (None)."""
        means = {domain: rises.mean(0) for domain, rises in self.rises.items()}
        sizes = self.n_images
        rows = []
        for name, members in self.domain_sets.items():
            mean = mean_over(members, means)
            halves = half_widths(self.draw_contributions(members), self.confidence)
            loss = sum(self.loss[domain] for domain in members) / len(members)
            n_images = None if sizes is None else sum(sizes[domain] for domain in members)
            for radius, f, half in zip(self.radii, mean.tolist(), halves, strict=True):
                rows.append(FlatnessRow(radius, name, f, f - half, f + half, loss, self.n_directions, n_images))
        return rows

    def __iter__(self) -> Iterator[FlatnessRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def domain_sets(self) -> dict[str | None, list[str]]:
        """The sets of domains that have rows: single domains, groups, and all domains under None."""
        single: dict[str | None, list[str]] = {domain: [domain] for domain in self.domains} if self.named else {}
        return {**single, **{name: list(members) for name, members in self.groups.items()}, None: self.domains}

    def row(self, radius: float, domain: str | None = None) -> FlatnessRow:
        """Return the row of one radius and one domain or group."""
        for row in self.rows:
            if row.radius == radius and row.domain == domain:
                return row
        raise KeyError(f"no row for radius {radius} and {domain!r}: radii {self.radii}, and {list(self.domain_sets)}")

    @cached_property
    def rises(self) -> dict[str, Tensor]:
        """The rise of the loss by domain, for every draw and radius. An antithetic pair is one draw."""
        pair = 2 if self.antithetic else 1
        return {
            domain: (self.losses[domain] - self.loss[domain]).view(-1, pair, len(self.radii)).mean(1)
            for domain in self.domains
        }

    def draw_contributions(self, domains: Sequence[str]) -> Contributions:
        """Return the contribution of every direction and image to the mean rise over `domains`."""
        by_source: dict[Hashable, Any] = {"directions": contributions(mean_over(domains, self.rises).numpy())}
        for domain in domains:
            if domain in self.image_sums:
                rises = (self.image_sums[domain] / self.n_directions - self.image_loss[domain]).T
                by_source["images", domain] = contributions(rises.numpy()) / len(domains)
        return by_source

    def to_row(self, model: str | None = None) -> Row:
        """Return the whole measurement as one JSON object, which `from_row` reads; `model` names the weights."""
        return {
            "kind": KIND,
            "model": model,
            "radii": list(self.radii),
            "antithetic": self.antithetic,
            "settings": self.settings,
            "named": self.named,
            "n_directions": self.n_directions,
            "loss": json_values(self.loss),
            "losses": json_values({domain: table.tolist() for domain, table in self.losses.items()}),
            "image_loss": {domain: pack(values) for domain, values in self.image_loss.items()},
            "image_sums": {domain: pack(values) for domain, values in self.image_sums.items()},
        }

    @classmethod
    def from_row(cls, row: Row, *, groups: Groups | None = None, confidence: float = 0.95) -> LocalFlatness:
        """Read a measurement that `to_row` wrote; the other arguments are those of `local`."""
        radii = tuple(row["radii"])
        return cls(
            radii=radii,
            antithetic=row["antithetic"],
            settings=row["settings"],
            loss={domain: float(value) for domain, value in row["loss"].items()},
            losses={
                domain: torch.tensor([[float(value) for value in values] for values in table], dtype=torch.float64)
                for domain, table in row["losses"].items()
            },
            image_loss={domain: unpack(text) for domain, text in row["image_loss"].items()},
            image_sums={domain: unpack(text).view(len(radii), -1) for domain, text in row["image_sums"].items()},
            named=row["named"],
            groups=_check_groups(groups, list(row["loss"])),
            confidence=confidence,
        )


def local(
    model: nn.Module,
    loss_fn: LossFn,
    radii: float | Sequence[float],
    n_directions: int = 100,
    seed: int = 0,
    *,
    antithetic: bool = True,
    normalize: Normalize = "sphere",
    include: Patterns = None,
    exclude: Patterns = None,
    groups: Groups | None = None,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> LocalFlatness:
    """Measure F_gamma around a model's weights at several radii, per domain, with confidence intervals.

    The model is evaluated in evaluation mode and restored exactly. The same seed gives the same directions on the
    same kind of device, whatever the radii and the number of directions.

    Args:
        model: The model at the weights to measure.
        loss_fn: `loss_fn(model)` returns a scalar, per-image losses, or {domain: per-image losses}. If the losses have
            a second column of 0-1 errors, `errors` of the result holds their rise.
        radii: Distances from the weights; shares of the weights' norm if directions are normalized.
        n_directions: Number of directions; an opposite pair counts as two, so it must be even with `antithetic`.
        seed: Seed of the directions.
        antithetic: Draw directions in opposite pairs.
        normalize: "sphere" as published; "layer" and "filter" scale each direction to the weights of every layer or
            filter.
        include: Name patterns of the parameters to perturb. By default all floating-point parameters are, including
            batch-norm scale and shift and the head, as published.
        exclude: Name patterns of parameters to keep fixed.
        groups: Named sets of domains whose mean is reported too.
        confidence: Coverage of the intervals. They cover the choice of directions and, within each domain, of images.
        progress: Called after every evaluation.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = model.weight.data.fill_(1.0)
    >>> flat = local(model, lambda model: 3 * (model.weight - 1).square().sum(), radii=[0.5, 1.0], n_directions=4)
    >>> [round(row.mean, 6) for row in flat]
    [0.75, 3.0]
    """
    radii, include, exclude = check_radii(radii), as_patterns(include), as_patterns(exclude)
    _check_counts(n_directions, antithetic, confidence)
    function = as_loss_function(loss_fn)
    with torch.no_grad(), Weights(model, include, exclude) as weights:
        directions = Directions(weights, seed, antithetic, normalize)
        settings = _settings(weights, seed, normalize, include, exclude)
        smallest = min((radius for radius in radii if radius), default=math.inf)
        # Radii of normalized directions are shares of the weights' norm.
        distance = smallest * (1.0 if normalize == "sphere" else settings["norm"])
        weights.warn_of_rounding(distance, torch.bfloat16 if function.precision == "bf16" else None)
        if (scale := function.fit(model)) is not None:
            settings["logit_scale"] = scale
        center = function.losses(model).checked()
        groups = _check_groups(groups, list(center.losses))
        sums = [_LossSums(measure, len(radii)) for measure in center.measures]

        def add(radius_index: int, measured: Losses) -> None:
            for total, measure in zip(sums, measured.measures, strict=False):
                total.add(radius_index, measure)

        for i, radius in enumerate(radii):
            for _ in range(0 if radius else n_directions):
                add(i, center)
        moved = [(i, radius) for i, radius in enumerate(radii) if radius]
        points = (
            Point(i, [(tensors, sign * radius)])
            for tensors, sign in directions.signed(n_directions)
            for i, radius in moved
        )
        report = count_progress(progress, "local flatness", n_directions * len(moved))
        for point, measured in walk(weights, function, points, progress=report):
            add(point.key, measured)

        flat, *errors = (
            LocalFlatness(
                radii=radii,
                antithetic=antithetic,
                settings=settings,
                loss=at_center.means,
                losses=total.losses(),
                image_loss=at_center.copy_image_losses(),
                image_sums=total.image_sums(),
                named=at_center.named,
                groups=groups,
                confidence=confidence,
            )
            for at_center, total in zip(center.measures, sums, strict=True)
        )
        return replace(flat, errors=errors[0]) if errors else flat


class _LossSums:
    """The losses of all directions, accumulated on their device so that the host never waits for it."""

    def __init__(self, center: Losses, n_radii: int) -> None:
        self._by_image = center.by_image
        self._sizes = {domain: len(losses) for domain, losses in center.losses.items()}
        device = next(iter(center.losses.values())).device
        self._sums = torch.zeros(n_radii, sum(self._sizes.values()), dtype=torch.float64, device=device)
        self._means: list[list[Tensor]] = [[] for _ in range(n_radii)]

    def add(self, radius_index: int, measured: Losses) -> None:
        """Add the losses of the next direction at a radius."""
        sizes = {domain: len(losses) for domain, losses in measured.losses.items()}
        if sizes != self._sizes:
            raise ValueError(
                f"loss_fn must return the same domains and images every time; got {sizes} after {self._sizes}"
            )
        losses = [measured.losses[domain].double() for domain in self._sizes]
        self._means[radius_index].append(torch.stack([values.mean() for values in losses]))
        if self._by_image:
            self._sums[radius_index] += torch.cat(losses)

    def losses(self) -> dict[str, Tensor]:
        """Return mean losses (directions x radii) by domain, on the CPU."""
        table = torch.stack([torch.stack(means) for means in self._means], 1).cpu()
        return {domain: table[:, :, i].contiguous() for i, domain in enumerate(self._sizes)}

    def image_sums(self) -> dict[str, Tensor]:
        """Return the sums over directions (radii x images) by domain, on the CPU; none for scalar losses."""
        if not self._by_image:
            return {}
        parts = torch.split(self._sums.cpu(), list(self._sizes.values()), 1)
        # Contiguous, as they are when read back: the layout decides the last bits of later sums.
        return {domain: part.contiguous() for domain, part in zip(self._sizes, parts, strict=True)}


def _settings(weights: Weights, seed: int, normalize: str, include: Sequence[str], exclude: Sequence[str]) -> Row:
    return {
        "seed": seed,
        "normalize": normalize,
        "include": list(include),
        "exclude": list(exclude),
        "device": weights.device.type,
        "parameters": weights.dim,
        "norm": norm(weights.base),
    }


def average_flatness(results: Sequence[LocalFlatness]) -> LocalFlatness:
    """Average the flatness of several weights that were measured in the same directions and on the same images.

    F is a mean of losses, so its average is F of the averaged losses, and the intervals follow from them.
    """
    first = results[0]

    def mean(tables: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {domain: torch.stack([table[domain] for table in tables]).mean(0) for domain in tables[0]}

    errors = [result.errors for result in results if result.errors is not None]
    return replace(
        first,
        settings={
            name: sum(result.settings[name] for result in results) / len(results) if name in OF_WEIGHTS else value
            for name, value in first.settings.items()
        },
        loss={domain: sum(result.loss[domain] for result in results) / len(results) for domain in first.loss},
        losses=mean([result.losses for result in results]),
        image_loss=mean([result.image_loss for result in results]),
        image_sums=mean([result.image_sums for result in results]),
        errors=average_flatness(errors) if len(errors) == len(results) else None,
    )


def check_radii(radii: float | Sequence[float]) -> tuple[float, ...]:
    """Return radii as a tuple of floats; they must be finite, 0 or more, and all different.

    A single number of Python, numpy or torch is one radius.

    >>> check_radii(0.5), check_radii(torch.tensor([1.0, 2.0]))
    ((0.5,), (1.0, 2.0))
    """
    values = tuple(_floats(radii))
    valid = all(math.isfinite(radius) and radius >= 0 for radius in values)
    if not values or not valid or len(set(values)) < len(values):
        raise ValueError(f"radii must be different numbers of 0 or more, at least one; got {list(values)}")
    return values


def _floats(values: float | Iterable[float]) -> list[float]:
    try:
        return [float(value) for value in values]  # type: ignore[union-attr]
    except TypeError:  # a number, or an array without dimensions
        return [float(values)]  # type: ignore[arg-type]


def _check_groups(groups: Groups | None, domains: Sequence[str]) -> Groups:
    groups = {name: list(members) for name, members in (groups or {}).items()}
    for name, members in groups.items():
        unknown = [member for member in members if member not in domains]
        if unknown or not members or name in domains:
            raise ValueError(
                f"a group must hold some of the domains {', '.join(domains)} and must not be named like one; got "
                f"{name!r}: {members}"
            )
    return groups


def _check_counts(n_directions: int, antithetic: bool, confidence: float) -> None:
    if n_directions < 1 or (antithetic and n_directions % 2):
        rule = "an even number, as directions come in pairs (or use antithetic=False)" if antithetic else "1 or more"
        raise ValueError(f"n_directions must be {rule}; got {n_directions}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1; got {confidence}")


def mean_over(domains: Sequence[str], values: Mapping[str, Tensor]) -> Tensor:
    """Return the mean over some domains; each counts the same."""
    return torch.stack([values[domain] for domain in domains]).mean(0)
