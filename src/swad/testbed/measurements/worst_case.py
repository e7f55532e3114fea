"""The worst loss and the worst 0-1 error within a distance of the weights, on the source domains together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from swad.testbed.measure.base import MeasuredRun, Measurement, SourceSplit
from swad.testbed.measurements.flatness import changed_settings
from swad.testbed.results.measured import Quantity
from swad.testbed.results.measurement_rows import FLATNESS, Row

if TYPE_CHECKING:
    import torch

    from swad.testbed.measure.saved_run import SavedRun


@dataclass(frozen=True)
class WorstCase(Measurement):
    """Search for the worst loss and 0-1 error within some radii of saved weights, on images of all sources.

    Both are lower bounds of the maximum. For the error, ascent follows the cross entropy's gradient.

    Args:
        images: Images of every domain, stratified by class. None: all.
        radii: Largest distances from the weights; much smaller than those of F.
        steps: Steps of gradient ascent from each start.
        restarts: Random starts, besides the weights themselves.
        include: Perturb only these parameters: name patterns, e.g. 'head.*,*.bias'.
        exclude: Keep these parameters fixed: name patterns.
        source_split: Images of the source domains: training, validation or all.
    """

    name, title, heading = "worst_case", "Worst case", "{}"
    file, kind, fields, scale, decimals = FLATNESS, "worst_case", ("measure", "radius"), 1.0, 4
    columns: ClassVar[Mapping[str, Any]] = {"measure": str, "radius": float, "loss": float, "lower_bound": float}
    of_device = True
    note = "Found by gradient ascent. These are lower bounds: the true maximum within the radius is at least this."
    radii: tuple[float, ...] = (0.05,)
    steps: int = 25
    restarts: int = 3
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    source_split: SourceSplit = "training"

    @property
    def passes(self) -> int:
        """A gradient, which costs about three passes, for every step from every start, for loss and error."""
        return 2 * 3 * self.steps * (1 + self.restarts) * len(self.radii)

    def on(self, run: SavedRun, device: torch.device) -> Self:
        """Check the radii before anything is measured."""
        from swad.flatness import check_radii

        check_radii(self.radii)
        return self

    def settings(self) -> dict[str, Any]:
        """The settings of the search, and its version."""
        from swad.flatness.ascent import ASCENT

        search = {"steps": self.steps, "restarts": self.restarts, "ascent": ASCENT}
        return {"worst_radii": sorted(self.radii), **search, **changed_settings(self)}

    def measure(self, run: MeasuredRun, case: Row, weights: Sequence[str]) -> Iterator[list[Row]]:
        """Search from one set of weights after the other."""
        from swad.flatness import image_losses, worst_case

        seen, batch_size = run.images.side("seen"), run.run.batch_size(run.device)
        for number, name in enumerate(weights):
            rows = []
            for i, measure in enumerate(("loss", "error")):
                of_error = image_losses(seen, batch_size=batch_size, measure="error") if measure == "error" else None
                result = worst_case(
                    run.model(name),
                    image_losses(seen, batch_size=batch_size),
                    list(self.radii),
                    self.steps,
                    self.restarts,
                    measure_fn=of_error,
                    include=self.include,
                    exclude=self.exclude,
                    progress=run.part(2 * number + i, 2 * len(weights)),
                )
                place = {"weights": name, "domain": "seen", "side": "seen", "measure": measure}
                rows += [{**place, **row.as_dict()} for row in result.rows]
            yield rows

    @classmethod
    def numbers(cls, rows: Sequence[Row]) -> dict[Quantity, float]:
        """Loss and error at the weights, and the worst within each radius."""
        found: dict[Quantity, float] = {}
        for measure, label in (("loss", "Loss"), ("error", "0-1 error")):
            of_measure = sorted((row for row in rows if row["measure"] == measure), key=lambda row: row["radius"])
            for row in of_measure:
                found[label] = row["loss"]
                found[f"{label}, γ = {row['radius']:g}"] = row["lower_bound"]
        return found


MEASUREMENT = WorstCase
