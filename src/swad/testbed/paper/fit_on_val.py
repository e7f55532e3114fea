"""SWAD fit-on-val of Table 5: the window of a finished run whose average is most accurate on source validation.

The segments that the run kept are averaged over every window, after merging them into at most 25, by the measurement of
windows: an interrupted search resumes. The best average is evaluated as the run's own averages are. The result is
stored in the run directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from swad.averaging.spans import Span
from swad.testbed.averages.segment_windows import SegmentWindows
from swad.testbed.data.splits import DomainSplit
from swad.testbed.measure import engine
from swad.testbed.measure.kept_segments import build_evaluation, build_fast_network, kept_segments, merged_by_default
from swad.testbed.measure.saved_run import SavedRun, find_device, open_run
from swad.testbed.measurements.windows import Windows
from swad.testbed.results.runs import result_checksum
from swad.testbed.results.windows import best_window
from swad.testbed.training.run_dir import RunError, read_stored
from swad.util.files import write_json
from swad.util.grouping import group_by
from swad.util.progress import Progress
from swad.util.statistics import mean

FILE = "fit_on_val.json"


@dataclass(frozen=True)
class FittedWindow:
    """The chosen window and the accuracies of its average."""

    first: int
    last: int
    validation: float
    """Mean accuracy on the sources' validation images, which chose the window."""
    out_of_domain: float
    """Accuracy on the target's in split."""
    in_domain: float
    """Mean accuracy on the sources' test images; on validation images if the run has no test split."""


@dataclass(frozen=True)
class _EveryWindow(Windows):
    """All windows, and no saved weights, on all validation images."""

    file = "fit_on_val.jsonl"

    def weights(self, run: SavedRun, names: Sequence[str]) -> dict[str, str]:
        """Return the windows alone: weights that were removed after selection are not needed."""
        return self.windows(run)


def fit_run(
    path: Path,
    *,
    device: str = "cpu",
    workers: int | None = None,
    data: Path | None = None,
    progress: Progress | None = None,
) -> FittedWindow:
    """Return the best window of a finished run, from its file or by trying all.

    Args:
        path: The run directory.
        device: Device to evaluate on.
        workers: Processes that read images.
        data: Dataset directory, if it moved since training.
        progress: Called after every window.
    """
    if (stored := _stored(path / FILE)) is not None:
        return stored
    run = open_run(path, data)
    segments = kept_segments(path)
    if not segments:
        raise RunError(
            f"{path} kept no segments, which fit-on-val chooses from: train it with keep_segments (--keep-segments)"
        )
    torch_device = find_device(device)
    (job,) = engine.plan([(run, ())], _EveryWindow(images=None, side="seen"), torch_device)
    engine.measure([job], torch_device, workers=workers, progress=progress)
    accuracies = {
        window: mean(row["accuracy"] for row in rows)
        for window, rows in group_by(job.rows(), lambda row: (row["first"], row["last"])).items()
    }
    first, last = best_window(accuracies)
    sources, target = run.held_out
    model = build_fast_network(run, torch_device)
    SegmentWindows(segments, model, merged_by_default(len(segments))).copy_average(Span(first, last))

    def accuracy(parts: Sequence[DomainSplit]) -> float:
        evaluate = build_evaluation(run, model, parts, torch_device, workers, [])
        return mean(score.accuracy for score in evaluate().values())

    validation = accuracies[first, last]
    in_domain = accuracy(sources.test) if sources.test else validation
    fitted = FittedWindow(first, last, validation, accuracy(target.train), in_domain)
    write_json(path / FILE, {**asdict(fitted), "checksum": result_checksum(asdict(fitted))})
    return fitted


def _stored(path: Path) -> FittedWindow | None:
    """Read a result, which earlier versions wrote without a checksum; None if there is none."""
    content: Any = read_stored(path)
    if content is None and not path.exists():
        return None
    try:
        fitted = FittedWindow(**{name: value for name, value in content.items() if name != "checksum"})
        intact = content.get("checksum", result_checksum(asdict(fitted))) == result_checksum(asdict(fitted))
        if intact and all(isinstance(value, int | float) for value in asdict(fitted).values()):
            return fitted
    except (AttributeError, TypeError):
        pass
    raise RunError(f"{path} is damaged: restore the file, or remove it to choose a window again")
