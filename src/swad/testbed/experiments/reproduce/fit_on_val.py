"""SWAD fit-on-val of Table 5: the window of a finished run whose average is most accurate on source validation.

The segments that the run kept are averaged over every window, after merging them into at most 25, and the best average
is evaluated as the run's own averages are. The result is stored in the run directory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from swad.testbed.averages.segment_windows import fit_on_val
from swad.testbed.data.splits import DomainSplit
from swad.testbed.measure.kept_segments import build_evaluation, build_fast_network, kept_segments, merged_by_default
from swad.testbed.measure.saved_run import find_device, open_run
from swad.testbed.results.runs import result_checksum
from swad.testbed.training.run_dir import RunError, read_stored
from swad.util.files import write_json
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
        raise RunError(f"{path} kept no segments, which fit-on-val chooses from: train it with --keep-segments")
    torch_device = find_device(device)
    sources, target = run.held_out
    model = build_fast_network(run, torch_device)

    def mean_accuracy(parts: Sequence[DomainSplit]) -> Callable[[], float]:
        evaluate = build_evaluation(run, model, parts, torch_device, workers, [])
        return lambda: mean(score.accuracy for score in evaluate().values())

    on_validation = mean_accuracy(sources.val)
    choice = fit_on_val(segments, model, lambda _: on_validation(), progress, every=merged_by_default(len(segments)))
    fitted = FittedWindow(
        choice.first,
        choice.last,
        choice.score,
        mean_accuracy(target.train)(),
        (mean_accuracy(sources.test) if sources.test else on_validation)(),
    )
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
