"""Weights that no result uses: a search trains many runs and needs the weights of a few.

Records, settings and model cards stay, so the table of a sweep is the same before and after the weights are removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from swad.testbed.results.records import lock_run_directory
from swad.testbed.results.run_data import RunData
from swad.testbed.results.selection import DatasetResults
from swad.util.files import require_no_link

Group = tuple[str, str, int]
"""Algorithm, target and trial: the runs among which one is selected."""


def unselected_weights(results: Iterable[DatasetResults]) -> list[Path]:
    """Return the weights files of finished runs that were not selected for any weights of their method.

    The files of a run stay while a run that it competes with is unfinished, or if no run was selected. A run with two
    targets is never selected itself: it only gives an accuracy to the selection "lodo".

    Args:
        results: What `collect_results` returned, for the selection whose weights are kept.
    """
    return sorted(path for dataset in results for path in _of_dataset(dataset))


def _of_dataset(results: DatasetResults) -> Iterator[Path]:
    selected: set[Path] = set()
    settled: set[Group] = set()
    for row in results.results.itertuples():
        selected.add(results.runs[row.run].path)
        settled.add((row.algorithm, row.target, row.trial))
    others = [entry.run for entry in results.skipped if entry.run is not None]
    for run in (*results.members, *others):
        if not run.finished:
            settled.difference_update(_groups(run))
    for run in results.members:
        if run.finished and run.path not in selected and settled.issuperset(_groups(run)):
            yield from run.path.glob("weights/*.safetensors")


def _groups(run: RunData) -> set[Group]:
    return {(run.algorithm, target, run.trial) for target in run.targets or (run.target,)}


def remove_weights(files: Iterable[Path]) -> None:
    """Remove weights files, each while no other process writes to its run directory."""
    for path in files:
        require_no_link(path.parent)  # in a run from somebody else, it may lead to other files
        with lock_run_directory(path.parent.parent):
            path.unlink(missing_ok=True)
