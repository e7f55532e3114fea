"""The accuracy of the average of every window of the segments that a run kept, beside that of SWAD."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from swad.testbed.measure.base import MeasuredRun, Measurement
from swad.testbed.results import windows
from swad.testbed.results.measured import Quantity
from swad.testbed.results.measurement_rows import WINDOWS, Row
from swad.util.options import Bounds

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from matplotlib.figure import Figure
    from torch import Tensor

    from swad.testbed.measure.saved_run import SavedRun


@dataclass(frozen=True)
class Windows(Measurement):
    """Measure the average of every window of a training, to see whether the start and the end that SWAD finds matter.

    Needs runs that were trained with --keep-segments. A window is any range of whole segments, the updates between two
    evaluations. Windows are compared with the first average in --weights, by default the run's SWAD.

    Args:
        images: Images of every domain, stratified by class. None: all.
        every: Merge this many segments into one. Default: as few as leave at most 25 segments.
        side: unseen (images of the target), seen (validation images of the sources), or both.
    """

    name, title, file = "windows", "Windows", WINDOWS
    scale, decimals, compared = 1.0, 2, (windows.ACCURACY,)
    columns: ClassVar[Mapping[str, Any]] = {"accuracy": float}
    by_algorithm, unit, untested = True, "auto", windows.BEST
    at_once = 10**6
    bounds: ClassVar[Mapping[str, Bounds]] = {"every": Bounds(minimum=1)}
    note = (
        "Each run chooses its own windows. Those that are the best on a side have no test there, since they were "
        "chosen by the accuracy shown, which is therefore too high; SWAD and the best live weights were chosen on "
        "validation images, too."
    )
    images: int | None = 500
    every: int | None = None
    side: Literal["both", "unseen", "seen"] = "both"

    def lacking(self, run: SavedRun) -> str:
        """Without segments there are no windows."""
        from swad.testbed.measure.kept_segments import kept_segments

        if self.side == "unseen" and not run.config.targets:
            return "it has no target (use --side seen)"
        if kept_segments(run.path):
            return ""
        return "it kept no segments (train with --keep-segments; show what was measured with --stored)"

    def on(self, run: SavedRun, device: torch.device) -> Self:
        """Fill in how many segments are merged, and leave out the target where there is none."""
        from swad.testbed.measure.kept_segments import kept_segments, merged_by_default

        side = self.side if run.config.targets else "seen"
        return replace(self, every=self.every or merged_by_default(len(kept_segments(run.path))), side=side)

    def check_together(self, runs: Sequence[SavedRun]) -> None:
        """Refuse runs whose windows cannot be compared, before hours of evaluation."""
        from swad.testbed.measure.kept_segments import kept_segments, merged_by_default, merged_segments

        first: dict[tuple[str, str], tuple[SavedRun, list[tuple[int, int]]]] = {}
        for run in runs:
            files = kept_segments(run.path)
            spans = merged_segments(files, self.every or merged_by_default(len(files)))
            other, of_other = first.setdefault((run.config.dataset, run.config.algorithm), (run, spans))
            if spans != of_other:
                raise ValueError(
                    f"windows are compared over runs, so runs of one dataset and algorithm must have the same segments,"
                    f" but {other.path} and {run.path} do not: measure them one at a time"
                )

    def settings(self) -> dict[str, Any]:
        """A further side extends a measurement."""
        return {"images": self.images, "every": self.every}

    def weights(self, run: SavedRun, names: Sequence[str]) -> dict[str, str]:
        """Return the average first, then other saved weights, then every window."""
        averages = [name for name in names if run.ranges.get(name, {}).get("start_step") is not None]
        if set(names) == set(run.reported):
            averages.sort(key=lambda name: not name.startswith("swad"))
        if not averages:
            known = ", ".join(name for name, steps in run.ranges.items() if steps.get("start_step") is not None)
            raise ValueError(
                f"windows are compared with an average of the run: name one of {known or 'none'} in --weights, "
                f"got {', '.join(names)} of {run.path}"
            )
        saved = dict.fromkeys([averages[0], *names])
        return {name: run.fingerprint(name) for name in saved} | self.windows(run)

    def windows(self, run: SavedRun) -> dict[str, str]:
        """Return every window."""
        from swad.testbed.averages.segment_windows import all_windows
        from swad.testbed.measure.kept_segments import kept_segments, merged_segments
        from swad.testbed.measure.saved_run import fingerprint
        from swad.testbed.results.records import RECORDS

        spans = merged_segments(kept_segments(run.path), self.every or 1)
        of_run = fingerprint(run.path / RECORDS)  # another training has other segments
        return {f"{first}-{last}": of_run for first, last in all_windows(spans)}

    def cases(self) -> Sequence[Row]:
        """One side after the other."""
        return [{"side": side} for side in ("unseen", "seen") if self.side in ("both", side)]

    def measure(self, run: MeasuredRun, case: Row, weights: Sequence[str]) -> Iterator[list[Row]]:
        """Evaluate saved weights, then the windows, whose sums grow segment by segment."""
        from swad.averaging.spans import Span
        from swad.testbed.averages.segment_windows import SegmentWindows
        from swad.testbed.measure.kept_segments import build_evaluation, build_fast_network, kept_segments

        saved, held_out = run.run, run.run.held_out
        model = build_fast_network(saved, run.device)
        parts = held_out.target.full if case["side"] == "unseen" else held_out.sources.val
        chosen = [saved.subset(part, self.images) for part in parts]
        evaluate = build_evaluation(saved, model, chosen, run.device, run.workers, [])

        def rows(name: str, **steps: int) -> list[Row]:
            place = {"weights": name, "side": case["side"], **steps}
            return [{**place, "domain": domain, "accuracy": score.accuracy} for domain, score in evaluate().items()]

        wanted = {Span(*window): name for name in weights if (window := windows.window_of(name)) is not None}
        for name in weights:
            if name not in wanted.values():
                steps = saved.ranges.get(name, {})
                has_steps = steps.get("start_step") is not None
                model.load_state_dict(saved_state(saved, name))
                yield rows(name, **({"first": steps["start_step"], "last": steps["end_step"]} if has_steps else {}))
        for span in SegmentWindows(kept_segments(saved.path), model, self.every or 1).averages(wanted):
            yield rows(wanted[span], first=span.first, last=span.last)

    @classmethod
    def numbers(cls, rows: Sequence[Row]) -> dict[Quantity, float]:
        """Accuracy, and the steps that an average is of."""
        (row,) = rows
        found: dict[Quantity, float] = {windows.ACCURACY: 100 * row["accuracy"]}
        return found | ({windows.FIRST: row["first"], windows.LAST: row["last"]} if "first" in row else {})

    @classmethod
    def shown(cls, values: pd.DataFrame) -> pd.DataFrame:
        """Tables show the windows that matter."""
        return windows.choices(values)

    @classmethod
    def differences(cls, values: pd.DataFrame) -> pd.DataFrame:
        """The heat map shows all windows."""
        return windows.compare_windows(values)

    @classmethod
    def remarks(cls, differences: pd.DataFrame) -> str:
        """Count the windows that differ."""
        return windows.window_counts(differences)

    @classmethod
    def draw(cls, report: Any, dataset: str) -> Figure:
        """Draw the heat map."""
        return windows.windows_figure(report, dataset)


def saved_state(run: SavedRun, name: str) -> dict[str, Tensor]:
    """Read saved weights; an average gets the buffers of its last update, as every window does.

    Batch norms that are not frozen have statistics there that were not estimated again; with others, the average would
    have an advantage.
    """
    from swad.testbed.averages.segment_log import last_update, load_segments, read_segment
    from swad.testbed.training.run_dir import SEGMENTS

    end = run.ranges.get(name, {}).get("end_step")
    files = [file for file in load_segments(run.path / SEGMENTS) if last_update(file) == end]
    return {**run.state(name), **(read_segment(files[0]).buffers if files else {})}


MEASUREMENT = Windows
