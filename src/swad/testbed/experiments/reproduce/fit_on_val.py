"""SWAD fit-on-val of Table 5: the window of a finished run whose average is most accurate on source validation.

The segments that the run kept are averaged over every window, after merging them into at most 25, and the best average
is evaluated as the run's own averages are. The result is stored in the run directory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from swad.testbed.averages.segment_log import load_segments
from swad.testbed.averages.segment_windows import fit_on_val
from swad.testbed.data.splits import DomainSplit
from swad.testbed.experiments.saved_run import find_device, open_run
from swad.testbed.experiments.segment_runs import build_evaluation, build_fast_network, merged_by_default
from swad.testbed.training.run_dir import SEGMENTS, RunError, read_stored
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
    stored = read_stored(path / FILE)
    if isinstance(stored, dict) and stored.keys() == FittedWindow.__dataclass_fields__.keys():
        return FittedWindow(**stored)
    run = open_run(path, data)
    segments = load_segments(path / SEGMENTS)
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
    write_json(path / FILE, asdict(fitted))
    return fitted
