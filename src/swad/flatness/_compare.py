"""Several models around which the loss is measured in the same directions and on the same images.

What the directions and images have in common cancels in the difference of two models, so a difference is known far
better than the two values. Its interval and p-value come from resampling both, directions and images, paired.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import nn

from swad.averaging.tensors import Patterns
from swad.flatness._bootstrap import Effects, interval, p_value, resample
from swad.flatness._directions import Normalize
from swad.flatness._local import Groups, LocalFlatness, checked_radii, local, over
from swad.flatness._losses import LossFn
from swad.flatness._perturb import State, Weights, chosen_parameters
from swad.flatness._rows import Progress, Row, Sink, plain

LEVEL = 0.05
"""Below it, `sentence` calls a difference shown."""


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """F_gamma of `first` minus that of `second`: negative where `first` is flatter."""

    first: str
    second: str
    radius: float
    domain: str | None
    mean: float
    low: float
    high: float
    p: float
    """Two-sided, by the paired bootstrap over directions and images."""

    def as_dict(self) -> Row:
        """JSON-able."""
        return {key: plain(value) for key, value in asdict(self).items()}


@dataclass(frozen=True)
class Comparison:
    """What `compare` found: the flatness of every model, and paired differences of any two."""

    models: dict[str, LocalFlatness]

    def differences(self, first: str, second: str) -> list[DifferenceRow]:
        """Differences at every radius, per domain, group and over all domains (None)."""
        one, two = self._of(first), self._of(second)
        effects = {}
        for domain, ours in one.effects.items():
            theirs = two.effects[domain]
            images = None if ours.images is None or theirs.images is None else ours.images - theirs.images
            effects[domain] = Effects(ours.units - theirs.units, images)
        deviations = resample(effects, one.bootstrap, int(one.settings["seed"]))
        means = {domain: effect.units.mean(0) for domain, effect in effects.items()}
        rows = []
        for name, members in one.sets.items():
            mean, spread = over(members, means), over(members, deviations)
            low, high = interval(mean, spread, one.confidence)
            columns = (one.radii, mean.tolist(), low.tolist(), high.tolist(), p_value(mean, spread).tolist())
            rows += [
                DifferenceRow(first, second, radius, name, *values) for radius, *values in zip(*columns, strict=True)
            ]
        return rows

    def sentence(self, first: str, second: str, domain: str | None = None) -> str:
        """Who is flatter, at which radii, and how sure that is.

        "At every radius" carries the largest of the radii's p-values: the claim is as sure as its weakest part.
        Radius 0 is left out, where both are 0.
        """
        rows = [row for row in self.differences(first, second) if row.domain == domain and row.radius > 0]
        if not rows:
            raise ValueError(f"there is nothing to compare at a radius above 0 on {domain!r}: radii or domain missing")
        where = f" on {domain}" if domain is not None else ""
        flatter = [row for row in rows if row.p < LEVEL and row.mean < 0]
        sharper = [row for row in rows if row.p < LEVEL and row.mean > 0]
        method = "paired bootstrap over directions" + ("" if self.models[first].n_images is None else " and images")
        for some, word in ((flatter, "flatter"), (sharper, "sharper")):
            if len(some) == len(rows):
                p = max(row.p for row in rows)
                return f"{first} is {word} than {second} at every radius{where} (p = {p:.2g}, {method})"
        parts = [
            f"{word} at {_radii(some)} (p = {max(row.p for row in some):.2g})"
            for some, word in ((flatter, "flatter"), (sharper, "sharper"))
            if some
        ]
        unclear = [row for row in rows if row not in flatter and row not in sharper]
        if not parts:
            whole = f"no difference between {first} and {second} is shown at any radius{where}"
            return f"{whole} ({_at_least(rows)}, {method})"
        open_ = f"no difference is shown at {_radii(unclear)} ({_at_least(unclear)})" if unclear else ""
        known = f"{first} is " + " and ".join(parts) + f" than {second}{where}"
        return f"{known}; {open_}, {method}" if unclear else f"{known}, {method}"

    def sentences(self, domain: str | None = None) -> list[str]:
        """Every further model against the first."""
        first, *others = self.models
        return [self.sentence(other, first, domain) for other in others]

    def to_rows(self) -> list[Row]:
        """As JSON-able rows in the sink's form; `from_rows` reads them."""
        return [row for name, flat in self.models.items() for row in flat.to_rows(name)]

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Row],
        *,
        groups: Groups | None = None,
        confidence: float = 0.95,
        bootstrap: int = 2000,
    ) -> Comparison:
        """From rows that a sink took, all models with the same number of directions."""
        kept = list(rows)
        names = list(dict.fromkeys(row["model"] for row in kept if row.get("model") is not None))
        return _paired(
            {
                name: LocalFlatness.from_rows(kept, name, groups=groups, confidence=confidence, bootstrap=bootstrap)
                for name in names
            }
        )

    def _of(self, name: str) -> LocalFlatness:
        if name not in self.models:
            raise ValueError(f"there is no model {name!r}: the models are {', '.join(self.models)}")
        return self.models[name]


def compare(
    models: Mapping[str, nn.Module | State],
    loss_fn: LossFn,
    radii: Sequence[float],
    n_directions: int = 100,
    seed: int = 0,
    *,
    model: nn.Module | None = None,
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
) -> Comparison:
    """Measure several models, {"ERM": ..., "SWAD": ...}, in the same directions and on the same images.

    A value is a module, or a state dict, which is put into `model` for the time (a `captured` loss function then
    replays one graph for all). Everything else is as in `local`; `sink` and `done` hold the rows of all models.

    >>> sharp, flat = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    >>> _ = sharp.weight.data.fill_(1.0), flat.weight.data.fill_(0.1)
    >>> both = compare({"sharp": sharp, "flat": flat}, lambda model: model.weight.pow(4).sum(), [0.5], 20)
    >>> print(both.sentence("flat", "sharp"))
    flat is flatter than sharp at every radius (p = 0.0005, paired bootstrap over directions)
    """
    if not models:
        raise ValueError("compare needs at least one model, got none")
    kept = list(done)
    _require_alike(models, model, include, exclude)
    n_radii = len([radius for radius in checked_radii(radii) if radius])
    total = len(models) * n_directions * n_radii
    found: dict[str, LocalFlatness] = {}
    for i, (name, one) in enumerate(models.items()):

        def measure(filled: nn.Module, i: int = i, name: str = name) -> LocalFlatness:
            before = i * n_directions * n_radii
            return local(
                filled,
                loss_fn,
                radii,
                n_directions,
                seed,
                antithetic=antithetic,
                normalize=normalize,
                include=include,
                exclude=exclude,
                groups=groups,
                confidence=confidence,
                bootstrap=bootstrap,
                chunk=chunk,
                sink=sink,
                done=kept,
                progress=None if progress is None else lambda n, _: progress(before + n, total),
                name=name,
            )

        if isinstance(one, nn.Module):
            found[name] = measure(one)
            continue
        assert model is not None
        with torch.no_grad(), Weights(model) as weights:
            weights.put(weights.of(one, f"the weights {name!r}"))
            weights.put_buffers(one)
            found[name] = measure(model)
    return _paired(found)


def _require_alike(
    models: Mapping[str, nn.Module | State], model: nn.Module | None, include: Patterns, exclude: Patterns
) -> None:
    """Directions are the same only for the same parameters."""
    states = [name for name, one in models.items() if not isinstance(one, nn.Module)]
    if states and model is None:
        raise ValueError(f"{states[0]!r} is a state dict: give the model to put it into as model=")
    modules = {name: one for name, one in models.items() if isinstance(one, nn.Module)}
    if states and model is not None:
        modules["model="] = model
    shapes = {
        name: {key: tuple(tensor.shape) for key, tensor in chosen_parameters(one, include, exclude).items()}
        for name, one in modules.items()
    }
    first, *others = shapes
    for other in others:
        if list(shapes[other].items()) != list(shapes[first].items()):
            raise ValueError(
                f"models are compared in the same directions, so they need the same parameters; those of {first!r} and "
                f"{other!r} differ: compare models of one architecture"
            )


def _paired(models: dict[str, LocalFlatness]) -> Comparison:
    first, *others = models
    for other in others:
        if differs := unlike(models[first], models[other]):
            raise ValueError(
                f"models are compared on the same radii, directions and images; {first!r} and {other!r} differ in "
                f"{'; '.join(differs)}: measure them together"
            )
    return Comparison(models)


def unlike(one: LocalFlatness, two: LocalFlatness) -> list[str]:
    """What keeps two measurements from being paired, as "seed (0 and 1)". Weights may differ, and so may their norm."""
    facts = [
        {
            "radii": flat.radii,
            "directions": flat.n_directions,
            "antithetic": flat.antithetic,
            "images": flat.n_images,
            "domains": flat.domains,
            **{name: value for name, value in flat.settings.items() if name != "norm"},
        }
        for flat in (one, two)
    ]
    a, b = facts
    return [f"{name} ({a.get(name)} and {b.get(name)})" for name in {**a, **b} if a.get(name) != b.get(name)]


def _at_least(rows: Sequence[DifferenceRow]) -> str:
    """The smallest p-value of some rows, in words; one that is not known (of one pair of directions) does not count."""
    known = [row.p for row in rows if not math.isnan(row.p)]
    if not known:
        return "too few directions for a p-value"
    return f"p = {min(known):.2g}" + (" or more" if min(known) < 1 else "")


def _radii(rows: Sequence[DifferenceRow]) -> str:
    return "radius " + ", ".join(f"{row.radius:g}" for row in rows)
