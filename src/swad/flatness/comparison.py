"""Paired flatness of several models: the same directions and the same images for all.

The effects that directions and images have on both models cancel in the difference, so a difference is known far
better than the two values. Its interval and p-value are those of a paired t-test over directions and images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from swad.flatness.directions import Normalize
from swad.flatness.local_flatness import OF_WEIGHTS, Groups, LocalFlatness, check_radii, local, mean_over
from swad.flatness.losses import LossFn
from swad.flatness.rows import JsonRow
from swad.flatness.weights import State, Weights, chosen_parameters
from swad.tensors.names import Patterns, as_patterns
from swad.util.paired import adjust_p_values
from swad.util.progress import Progress, part_progress
from swad.util.statistics import half_widths, p_values, subtract_contributions

LEVEL = 0.05
"""`sentence` claims a difference if its corrected p-value is below this."""


@dataclass(frozen=True, slots=True)
class DifferenceRow(JsonRow):
    """F_gamma of `first` minus F_gamma of `second`: negative if `first` is flatter."""

    first: str
    second: str
    radius: float
    domain: str | None
    mean: float
    low: float
    high: float
    p: float
    """Two-sided p-value of the paired t-test over directions and images."""


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`: the flatness of every model, and paired differences of any two.

    All models must have been measured at the same radii, in the same directions and on the same images.
    """

    models: dict[str, LocalFlatness]

    def __post_init__(self) -> None:
        first, *others = self.models
        for other in others:
            if mismatches := pairing_mismatches(self.models[first], self.models[other]):
                raise ValueError(
                    f"models are compared on the same radii, directions and images; {first!r} and {other!r} differ in "
                    f"{'; '.join(mismatches)}: measure them together"
                )

    def differences(self, first: str, second: str) -> list[DifferenceRow]:
        """Return F of `first` minus F of `second` at every radius, per domain, group and over all (None)."""
        one, two = self._model(first), self._model(second)
        means = {domain: (one.rises[domain] - two.rises[domain]).mean(0) for domain in one.domains}
        rows = []
        for name, members in one.domain_sets.items():
            contributed = subtract_contributions(one.draw_contributions(members), two.draw_contributions(members))
            assert contributed is not None  # the constructor required the same directions and images
            mean = mean_over(members, means).tolist()
            columns = (one.radii, mean, half_widths(contributed, one.confidence), p_values(mean, contributed))
            rows += [
                DifferenceRow(first, second, radius, name, f, f - half, f + half, p)
                for radius, f, half, p in zip(*columns, strict=True)
            ]
        return rows

    def sentence(self, first: str, second: str, domain: str | None = None) -> str:
        """Say which model is flatter, at which radii, and how sure that is, for these weights and not for a method.

        P-values are corrected for the number of radii (Holm). "At every radius" carries the largest of all radii: the
        claim is as sure as its weakest part. Radius 0 is left out, since both values are 0 there.
        """
        rows = [row for row in self.differences(first, second) if row.domain == domain and row.radius > 0]
        if not rows:
            raise ValueError(f"there is no radius above 0 to compare at on {domain!r}: check radii and domain")
        corrected = adjust_p_values([None if math.isnan(row.p) else row.p for row in rows])
        rows = [row if p is None else replace(row, p=p) for row, p in zip(rows, corrected, strict=True)]
        suffix = f" on {domain}" if domain is not None else ""
        draws = "directions" if self.models[first].n_images is None else "directions and images"
        method = f"paired t-test over {draws}, for these weights only"
        claims = {
            "flatter": [row for row in rows if row.p < LEVEL and row.mean < 0],
            "sharper": [row for row in rows if row.p < LEVEL and row.mean > 0],
        }
        for word, shown in claims.items():
            if len(shown) == len(rows):
                return f"{first} is {word} than {second} at every radius{suffix} (p = {_largest_p(rows)}, {method})"
        parts = [f"{word} at {_radii(shown)} (p = {_largest_p(shown)})" for word, shown in claims.items() if shown]
        unclear = [row for row in rows if not any(row in shown for shown in claims.values())]
        if not parts:
            claim = f"no difference between {first} and {second} is shown at any radius{suffix}"
            return f"{claim} ({_smallest_p(rows)}, {method})"
        claim = f"{first} is " + " and ".join(parts) + f" than {second}{suffix}"
        if unclear:
            claim += f"; no difference is shown at {_radii(unclear)} ({_smallest_p(unclear)})"
        return f"{claim}, {method}"

    def _model(self, name: str) -> LocalFlatness:
        if name not in self.models:
            raise ValueError(f"there is no model {name!r}: the models are {', '.join(self.models)}")
        return self.models[name]


def compare(
    models: Mapping[str, nn.Module | State],
    loss_fn: LossFn,
    radii: float | Sequence[float],
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
    on_result: Callable[[str, LocalFlatness], None] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Measure several models in the same directions and on the same images.

    Args:
        models: {name: module or state dict}, e.g. {"ERM": ..., "SWAD": ...}.
        model: The module that state dicts are loaded into, one after the other; it is restored at the end. A
            `captured` loss function replays one graph for all of them.
        on_result: Called with the name and the result of every model as soon as it is measured, e.g. to save it.

    The other arguments are those of `local`.

    >>> sharp, flat = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    >>> _ = sharp.weight.data.fill_(1.0), flat.weight.data.fill_(0.1)
    >>> both = compare({"sharp": sharp, "flat": flat}, lambda model: model.weight.pow(4).sum(), [0.5], 20)
    >>> print(both.sentence("flat", "sharp"))  # doctest: +ELLIPSIS
    flat is flatter than sharp at every radius (p = ..., paired t-test over directions, for these weights only)
    """
    if not isinstance(models, Mapping) or not models:
        got = f"a {type(models).__name__}" if models else "none"
        raise ValueError(f"compare needs models by name, such as {{'ERM': erm, 'SWAD': averaged}}; got {got}")
    # Each model reads these again, so they must not be iterators.
    radii, include, exclude = check_radii(radii), as_patterns(include), as_patterns(exclude)
    _require_same_parameters(models, model, include, exclude)
    results: dict[str, LocalFlatness] = {}

    def measure(module: nn.Module) -> LocalFlatness:
        return local(
            module,
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
            progress=part_progress(progress, len(results), len(models)),
        )

    for name, source in models.items():
        if isinstance(source, nn.Module):
            results[name] = measure(source)
        else:
            assert model is not None
            with torch.no_grad(), Weights(model) as weights:
                weights.put(weights.of(source, f"the weights {name!r}"))
                weights.put_buffers(source, f"the weights {name!r}")
                results[name] = measure(model)
        if on_result is not None:
            on_result(name, results[name])
    return Comparison(results)


def _require_same_parameters(
    models: Mapping[str, nn.Module | State], model: nn.Module | None, include: Patterns, exclude: Patterns
) -> None:
    """Check that all models have the same parameters: only then are the directions the same."""
    states = [name for name, source in models.items() if not isinstance(source, nn.Module)]
    if states and model is None:
        raise ValueError(f"{states[0]!r} is a state dict: give the model to load it into as model=")
    modules = {name: source for name, source in models.items() if isinstance(source, nn.Module)}
    if states and model is not None:
        modules["model="] = model
    shapes = {
        name: {key: tuple(tensor.shape) for key, tensor in chosen_parameters(module, include, exclude).items()}
        for name, module in modules.items()
    }
    first, *others = shapes
    for other in others:
        if list(shapes[other].items()) != list(shapes[first].items()):
            raise ValueError(
                f"models are compared in the same directions, so they need the same parameters; those of {first!r} and "
                f"{other!r} differ: compare models of one architecture"
            )


def pairing_mismatches(one: LocalFlatness, two: LocalFlatness) -> list[str]:
    """List the reasons why two measurements cannot be paired, such as "seed (0 and 1)"; weights may differ."""
    a, b = (
        {
            "radii": flat.radii,
            "directions": flat.n_directions,
            "antithetic": flat.antithetic,
            "images": flat.n_images,
            "domains": flat.domains,
            **{name: value for name, value in flat.settings.items() if name not in OF_WEIGHTS},
        }
        for flat in (one, two)
    )
    return [f"{name} ({a.get(name)} and {b.get(name)})" for name in {**a, **b} if a.get(name) != b.get(name)]


def _largest_p(rows: Sequence[DifferenceRow]) -> str:
    return f"{max(row.p for row in rows):.2g}"


def _smallest_p(rows: Sequence[DifferenceRow]) -> str:
    """Describe the smallest p-value; p-values of a single pair of directions are NaN and do not count."""
    known = [row.p for row in rows if not math.isnan(row.p)]
    if not known:
        return "too few directions for a p-value"
    return f"p = {min(known):.2g}" + (" or more" if min(known) < 1 else "")


def _radii(rows: Sequence[DifferenceRow]) -> str:
    return "radius " + ", ".join(f"{row.radius:g}" for row in rows)
