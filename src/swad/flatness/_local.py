"""Local flatness: how much the loss rises on average at a distance from the weights.

    F_gamma(theta) = E_d [E(theta + gamma d) - E(theta)],   d uniform on the unit sphere

(The paper prints the condition as ||theta'|| = ||theta|| + gamma, a misprint for ||theta' - theta|| = gamma.) For small
gamma it is gamma^2 tr(H) / (2 dim), and for a quadratic at every gamma (the kinks of ReLUs, which a Hessian does not
see, add to it). As in the published code a direction is used at all radii. Unlike there, directions come in opposite
pairs, which cancels the slope: `antithetic=False` draws each on its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from swad.averaging.tensors import Patterns, as_patterns
from swad.flatness._bootstrap import Effects, interval, resample
from swad.flatness._directions import Directions, Normalize
from swad.flatness._losses import LossFn, first_measured, measured
from swad.flatness._perturb import Weights
from swad.flatness._rows import (
    HEAD,
    Progress,
    Row,
    Sink,
    Tally,
    found_in,
    packed,
    part_row,
    plain,
    require_same,
    unpacked,
)

Groups = Mapping[str, Sequence[str]]
"""Names for sets of domains whose mean is wanted too: {"seen": ["photo", "sketch"]}."""

SECONDS = 10.0
"""Least work between two rows for the sink, where `chunk` says nothing."""


@dataclass(frozen=True, slots=True)
class FlatnessRow:
    """F_gamma at one radius, on one domain (None: the mean over all domains) or group of domains."""

    radius: float
    domain: str | None
    mean: float
    low: float
    high: float
    loss: float
    """E(theta), at the weights themselves."""
    n_directions: int
    n_images: int | None
    """None where the loss function gave no losses by image: then only directions were resampled."""

    def as_dict(self) -> Row:
        """JSON-able."""
        return {key: plain(value) for key, value in asdict(self).items()}


@dataclass(frozen=True)
class LocalFlatness:
    """What `local` found: `rows`, and what they come from, the mean loss of every direction and the sums of images."""

    radii: tuple[float, ...]
    antithetic: bool
    settings: Row
    """Seed, normalization, patterns, number and norm of the chosen weights."""
    loss: dict[str, float]
    """E(theta) by domain."""
    losses: dict[str, Tensor]
    """By domain: mean loss at every direction and radius (directions x radii, float64)."""
    image_loss: dict[str, Tensor]
    """By domain: loss of every image at theta. Empty for scalar losses."""
    image_sums: dict[str, Tensor]
    """By domain: for every radius and image the loss summed over directions (radii x images)."""
    named: bool = True
    groups: Groups = field(default_factory=dict)
    confidence: float = 0.95
    bootstrap: int = 2000

    @property
    def domains(self) -> list[str]:
        """The domains, in the loss function's order."""
        return list(self.loss)

    @property
    def n_directions(self) -> int:
        """Directions measured; the two of a pair count as two."""
        return len(next(iter(self.losses.values())))

    @property
    def n_images(self) -> dict[str, int] | None:
        """Images by domain, None for scalar losses."""
        return {domain: len(losses) for domain, losses in self.image_loss.items()} or None

    @cached_property
    def rows(self) -> list[FlatnessRow]:
        """Mean and interval at every radius: for each domain that has a name, each group, and all domains (None)."""
        deviations = resample(self.effects, self.bootstrap, int(self.settings["seed"]))
        sizes = self.n_images
        rows = []
        for name, members in self.sets.items():
            mean = over(members, {domain: one.units.mean(0) for domain, one in self.effects.items()})
            low, high = interval(mean, over(members, deviations), self.confidence)
            loss = sum(self.loss[domain] for domain in members) / len(members)
            n = None if sizes is None else sum(sizes[domain] for domain in members)
            columns = zip(self.radii, mean.tolist(), low.tolist(), high.tolist(), strict=True)
            rows += [FlatnessRow(radius, name, f, a, b, loss, self.n_directions, n) for radius, f, a, b in columns]
        return rows

    def __iter__(self) -> Iterator[FlatnessRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sets(self) -> dict[str | None, list[str]]:
        """What there are rows for: domains, groups, and None for all."""
        single: dict[str | None, list[str]] = {domain: [domain] for domain in self.domains} if self.named else {}
        return {**single, **{name: list(members) for name, members in self.groups.items()}, None: self.domains}

    def row(self, radius: float, domain: str | None = None) -> FlatnessRow:
        """The row of one radius and domain or group."""
        for row in self.rows:
            if row.radius == radius and row.domain == domain:
                return row
        raise KeyError(f"no row for radius {radius} and {domain!r}: radii {self.radii}, and {list(self.sets)}")

    @cached_property
    def effects(self) -> dict[str, Effects]:
        """Rise of the loss by unit of directions (an antithetic pair is one) and by image, for resampling."""
        unit = 2 if self.antithetic else 1
        found = {}
        for domain in self.domains:
            rise = self.losses[domain] - self.loss[domain]
            units = rise.view(-1, unit, len(self.radii)).mean(1)
            images = None
            if domain in self.image_sums:
                images = (self.image_sums[domain] / self.n_directions - self.image_loss[domain]).T
            found[domain] = Effects(units, images)
        return found

    def to_rows(self, model: str | None = None) -> list[Row]:
        """As JSON-able rows in the sink's form; `from_rows` reads them."""
        head = {
            "kind": HEAD,
            "model": model,
            "radii": list(self.radii),
            "antithetic": self.antithetic,
            "settings": self.settings,
            "named": self.named,
            "loss": {domain: plain(value) for domain, value in self.loss.items()},
            "image_loss": {domain: packed(values) for domain, values in self.image_loss.items()},
        }
        return [head, part_row(model, 0, self.n_directions, self.losses, self.image_sums)]

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Row],
        model: str | None = None,
        *,
        groups: Groups | None = None,
        confidence: float = 0.95,
        bootstrap: int = 2000,
    ) -> LocalFlatness:
        """From rows that a sink took; a run cut short gives what it had measured."""
        found = found_in(rows, model)
        if found is None or not found.stop:
            raise ValueError(
                f"the rows hold no measured direction of the model {model!r}: run local again with this sink"
            )
        return cls(
            radii=tuple(found.head["radii"]),
            antithetic=found.head["antithetic"],
            settings=found.head["settings"],
            loss={domain: float(value) for domain, value in found.head["loss"].items()},
            losses=found.losses,
            image_loss={domain: unpacked(text) for domain, text in found.head["image_loss"].items()},
            image_sums=found.image_sums,
            named=found.head["named"],
            groups=checked_groups(groups, list(found.head["loss"])),
            confidence=confidence,
            bootstrap=bootstrap,
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
    bootstrap: int = 2000,
    chunk: int | None = None,
    sink: Sink | None = None,
    done: Iterable[Row] = (),
    progress: Progress | None = None,
    name: str | None = None,
) -> LocalFlatness:
    """Measure F_gamma around a model's weights at many radii, per domain, with confidence intervals.

    Every floating-point parameter is moved (batch norms' scale and shift and the head too, as published), or those
    that `include` and `exclude` choose by name patterns. The model is evaluated in evaluation mode and left exactly
    as it was. `n_directions` counts single directions; with `antithetic` it must be even.

    Intervals come from `bootstrap` resamples of directions and, within each domain, of images. `groups` names sets of
    domains whose mean is wanted besides ({"seen": [...]}).

    `sink` is given JSON-able rows as they are computed: first one of the settings, then one for every `chunk`
    directions (None: for about ten seconds of work). Given back as `done`, in order, they are not computed again,
    and the result is the unbroken run's to the last bit on a CPU. More directions than before may be asked for.
    `name` marks the rows, so that several models share a file.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = model.weight.data.fill_(1.0)
    >>> flat = local(model, lambda model: 3 * (model.weight - 1).square().sum(), radii=[0.5, 1.0], n_directions=4)
    >>> [round(row.mean, 6) for row in flat]
    [0.75, 3.0]
    """
    radii = checked_radii(radii)
    _require_counts(n_directions, antithetic, chunk, bootstrap, confidence)
    with torch.no_grad(), Weights(model, include, exclude) as weights:
        directions = Directions(weights, seed, antithetic, normalize)
        settings = _settings(weights, seed, normalize, include, exclude)
        # Radii of normalized directions are shares of the weights.
        shortest = min((radius for radius in radii if radius), default=math.inf)
        weights.warn_of_rounding(shortest * (1.0 if normalize == "sphere" else settings["norm"]))
        base = first_measured(loss_fn(model))
        head = {
            "kind": HEAD,
            "model": name,
            "radii": list(radii),
            "antithetic": antithetic,
            "settings": settings,
            "named": base.named,
            "loss": {domain: plain(losses.double().mean().item()) for domain, losses in base.losses.items()},
            "image_loss": {domain: packed(losses) for domain, losses in base.losses.items() if base.by_image},
        }
        checked_groups(groups, list(base.losses))
        before = found_in(done, name)
        rows: list[Row] = []
        if before is None:
            rows.append(head)
            if sink is not None:
                sink(head)
        else:
            require_same(before.head, head)
            rows += [before.head, before.part()][: 2 if before.stop else 1]
            if before.stop > n_directions:
                raise ValueError(
                    f"the rows already hold {before.stop} directions, more than the {n_directions} asked for: "
                    f"ask for at least {before.stop}"
                )
        tally = Tally(base, radii, before, name)
        total = n_directions * len([radius for radius in radii if radius])
        per_direction = total // n_directions
        begun = time.monotonic()
        for tensors, members in directions.units(tally.stop, n_directions):
            for number, sign in members:
                for i, radius in enumerate(radii):
                    if not radius:  # no move: the loss is the one measured first
                        tally.add(number, i, base)
                        continue
                    weights.move(tensors, sign * radius)
                    tally.add(number, i, measured(loss_fn(model)))
                    if progress is not None:
                        progress(number * per_direction + len([r for r in radii[: i + 1] if r]), total)
            stop = members[-1][0] + 1
            waited = time.monotonic() - begun >= SECONDS if chunk is None else stop - tally.start >= chunk
            if stop == n_directions or waited:
                row = tally.close(stop)
                rows = [
                    {**one, "image_sums": {}} if "image_sums" in one else one for one in rows
                ]  # only the last count
                rows.append(row)
                if sink is not None:
                    sink(row)
                begun = time.monotonic()
    return LocalFlatness.from_rows(rows, name, groups=groups, confidence=confidence, bootstrap=bootstrap)


def _settings(weights: Weights, seed: int, normalize: str, include: Patterns, exclude: Patterns) -> Row:
    squares = [torch.linalg.vector_norm(tensor, dtype=torch.float64).square() for tensor in weights.base]
    norm = math.sqrt(torch.stack([square.to(weights.device) for square in squares]).sum().item())
    return {
        "seed": seed,
        "normalize": normalize,
        "include": list(as_patterns(include)),
        "exclude": list(as_patterns(exclude)),
        "device": weights.device.type,
        "parameters": weights.dim,
        "norm": norm,
    }


def checked_radii(radii: float | Sequence[float]) -> tuple[float, ...]:
    """Radii as floats: 0 or more, finite, each once. A number of whatever kind (numpy, torch) is one radius.

    >>> checked_radii(0.5), checked_radii(torch.tensor([1.0, 2.0]))
    ((0.5,), (1.0, 2.0))
    """
    found = tuple(_floats(radii))
    if not found or any(not math.isfinite(radius) or radius < 0 for radius in found) or len(set(found)) < len(found):
        raise ValueError(f"radii must be different numbers of 0 or more, at least one; got {list(found)}")
    return found


def _floats(values: float | Iterable[float]) -> list[float]:
    """One number or several, of Python, numpy or torch, as a list of floats."""
    try:
        return [float(value) for value in values]  # type: ignore[union-attr]
    except TypeError:  # no sequence, or one without dimensions
        return [float(values)]  # type: ignore[arg-type]


def checked_groups(groups: Groups | None, domains: Sequence[str]) -> Groups:
    """Groups whose members exist and whose names are no domain's."""
    for name, members in (groups or {}).items():
        unknown = [member for member in members if member not in domains]
        if unknown or not members or name in domains:
            raise ValueError(
                f"a group names some of the domains {', '.join(domains)}, under a name of its own; got "
                f"{name!r}: {list(members)}"
            )
    return {name: list(members) for name, members in (groups or {}).items()}


def _require_counts(n_directions: int, antithetic: bool, chunk: int | None, bootstrap: int, confidence: float) -> None:
    if n_directions < 1 or (antithetic and n_directions % 2):
        rule = "an even number, as directions come in pairs (or antithetic=False)" if antithetic else "1 or more"
        raise ValueError(f"n_directions must be {rule}; got {n_directions}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be 1 or more directions, or None; got {chunk}")
    if bootstrap < 100 or not 0 < confidence < 1:
        raise ValueError(
            f"bootstrap must be 100 resamples or more and confidence between 0 and 1; got {bootstrap} and {confidence}"
        )


def over(members: Sequence[str], values: Mapping[str, Tensor]) -> Tensor:
    """The mean over domains."""
    return torch.stack([values[domain] for domain in members]).mean(0)
