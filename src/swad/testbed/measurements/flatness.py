"""Local flatness: how much the loss rises on average at a distance from the weights, on seen and unseen domains.

All weights are measured in the same random directions and on the same images, which stay on the device: each is
evaluated a thousand times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from swad.testbed.measure.base import MeasuredRun, Measurement, SourceSplit
from swad.testbed.results.measured import Quantity
from swad.testbed.results.measurement_rows import FLATNESS, Row

if TYPE_CHECKING:
    import torch

    from swad.testbed.measure.saved_run import SavedRun

PUBLISHED_RADII = tuple(5.0 * k for k in range(13))
"""0 to 60 in steps of 5, as in the published code, which measured ResNet-50."""
SMALL_RADII = tuple(2.0 * k for k in range(13))
"""For the small network, whose loss rises from hundredths to a few units over them."""
SHARES = tuple(k / 10 for k in range(11))
"""Shares of the weights' norm, for directions that are normalized by layer or filter."""
MOST_DIRECTIONS = 10_000


@dataclass(frozen=True)
class Flatness(Measurement):
    """Measure how much the loss rises around saved weights, on seen and unseen domains (the paper's Figure 3).

    Args:
        images: Images of every domain, stratified by class. None: all.
        radii: Distances, e.g. 0:60:5 as published, the default; 0:24:2 for the small network, 0:1:0.1 for normalized
            directions.
        directions: Random directions, in opposite pairs; an even number of at least 4.
        normalize: sphere (as published), or scale directions to each layer or filter; radii are then shares of the
            weights' norm.
        seed: Seed of the directions.
        include: Perturb only these parameters: name patterns, e.g. 'head.*,*.bias'.
        exclude: Keep these parameters fixed: name patterns.
        source_split: Images of the source domains: training, validation, or all of them as in the published script.
        logits: raw, or normalized: scale the logits of all weights to the same size, because F on unseen images grows
            with their size.
        precision: Precision of the network: fp32 (exact, without TF32) or bf16. Default: the precision of the training
            on a GPU, else fp32.
    """

    name, title, axis, heading = "flatness", "F", "radius γ", "γ = {:g}"
    file, kind, fields, scale, decimals = FLATNESS, "row", ("radius",), 1.0, None
    columns: ClassVar[Mapping[str, Any]] = {"radius": float, "mean": float}
    of_device, of_window = True, True
    note = "F: average rise of the loss at that distance; smaller is flatter."
    radii: tuple[float, ...] = ()
    directions: int = 100
    normalize: Literal["sphere", "filter", "layer"] = "sphere"
    seed: int = 0
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    source_split: SourceSplit = "training"
    logits: Literal["raw", "normalized"] = "raw"
    precision: Literal["fp32", "bf16"] | None = None

    def problems(self) -> list[str]:
        """Check the directions, too."""
        found = super().problems()
        if not found and (self.directions % 2 or not 4 <= self.directions <= MOST_DIRECTIONS):
            found.append(
                f"directions must be an even number of at least 4 and at most {MOST_DIRECTIONS:,}: they come in "
                f"opposite pairs, and a single pair has no spread; got {self.directions}"
            )
        return found

    @property
    def passes(self) -> int:
        """Every direction at every radius, and the weights themselves."""
        return 1 + self.directions * len(self.radii)

    def on(self, run: SavedRun, device: torch.device) -> Self:
        """Fill in radii by network, and the precision of the training on a GPU."""
        from swad.flatness import check_radii

        distances = SMALL_RADII if run.config.network == "small" else PUBLISHED_RADII
        default = distances if self.normalize == "sphere" else SHARES
        trained: Literal["fp32", "bf16"] = (
            "bf16" if device.type == "cuda" and run.config.precision == "bf16" else "fp32"
        )
        radii = tuple(check_radii(self.radii or default))
        return replace(self, radii=radii, precision=self.precision or trained)

    def settings(self) -> dict[str, Any]:
        """Leave out defaults that came later than stored rows."""
        settings = {
            "radii": self.radii,
            "directions": self.directions,
            "normalize": self.normalize,
            "seed": self.seed,
        }
        measure = {} if self.of == "loss" else {"measure": self.of}
        return {**settings, **changed_settings(self, logits=self.logits, precision=self.precision), **measure}

    def measure(self, run: MeasuredRun, case: Row, weights: Sequence[str]) -> Iterator[list[Row]]:
        """Measure one set of weights after the other; the window is the mean of its snapshots."""
        from swad.flatness import average_flatness, captured, compare, image_losses
        from swad.testbed.measure.saved_run import WINDOW

        images, on_gpu = run.images, run.device.type == "cuda"
        members = {name: run.run.window_snapshots if name == WINDOW else (name,) for name in weights}
        model = run.run.model(next(iter(members.values()))[0], run.device)
        if on_gpu:
            model = model.to(memory_format=_channels_last())
        losses = image_losses(
            images.by_domain,
            batch_size=run.run.batch_size(run.device),
            measure="error" if self.of == "error" else "loss",
            logits=self.logits,
            logits_of=images.seen,
            precision=self.precision or "fp32",
            channels_last=on_gpu,
        )
        loss_fn = captured(losses, model)  # one graph for all weights
        n_done, n_all = 0, sum(map(len, members.values()))
        for name, states in members.items():
            results = []
            for state in states:
                found = compare(
                    {state: run.run.state(state)},
                    loss_fn,
                    self.radii,
                    self.directions,
                    self.seed,
                    model=model,
                    normalize=self.normalize,
                    include=self.include,
                    exclude=self.exclude,
                    progress=run.part(n_done, n_all),
                )
                results.append(found.models[state])
                n_done += 1
            result = average_flatness(results) if len(results) > 1 else results[0]
            yield [
                {"weights": name, "domain": row.domain, "side": images.side_of(row.domain), **_numbers(row)}
                for row in result.rows
                if row.domain is not None
            ]

    @classmethod
    def numbers(cls, rows: Sequence[Row]) -> dict[Quantity, float]:
        """F by radius; at radius 0 it is 0."""
        return {row["radius"]: row["mean"] for row in sorted(rows, key=lambda row: row["radius"]) if row["radius"]}


def changed_settings(what: Any, **further: Any) -> dict[str, Any]:
    """Return the settings that differ from the default, so that earlier results keep the key they have without."""
    settings = {"include": what.include, "exclude": what.exclude, "split": what.source_split, **further}
    defaults = {"include": (), "exclude": (), "split": "training", "logits": "raw", "precision": "fp32"}
    return {name: value for name, value in settings.items() if value != defaults[name]}


def _numbers(row: Any) -> Row:
    return {name: getattr(row, name) for name in ("radius", "mean", "low", "high", "loss")}


def _channels_last() -> Any:
    import torch

    return torch.channels_last


MEASUREMENT = Flatness
