"""Finished runs in and below directories, the weights of them to measure, and notes on what is skipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from swad.testbed.measure.saved_run import SavedRun, open_run
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import find_runs
from swad.testbed.training.run_dir import RunError
from swad.util.names import listed

if TYPE_CHECKING:
    from swad.testbed.measure.base import Measurement


def finished_runs(paths: Sequence[Path | str]) -> tuple[list[RunData], list[str]]:
    """Return the finished runs, each once, and a note on each reason to skip others.

    Args:
        paths: Run directories, or directories of runs.
    """
    runs: dict[Path, RunData] = {}
    skipped: dict[str, list[Path]] = {}
    for path in paths:
        found = find_runs(path, warn=False)
        for entry in found.skipped:
            skipped.setdefault(entry.reason, []).append(entry.path)
        for run in found:
            if not run.finished:
                skipped.setdefault("unfinished", []).append(run.path)
            else:
                runs[run.path] = run
    return list(runs.values()), skip_notes(skipped)


def skip_notes(skipped: Mapping[str, Sequence[Path]]) -> list[str]:
    """Return one note for each reason for which runs were skipped."""
    return [f"{listed(paths, 1)} skipped: {reason}" for reason, paths in skipped.items() if paths]


def open_runs(paths: Sequence[Path | str], data: Path | str | None = None) -> tuple[list[SavedRun], list[str]]:
    """Open all finished runs in and below some directories, and return them with notes on those that were skipped."""
    runs, notes = finished_runs(paths)
    if not runs:
        reason = "; ".join(notes) or "no directory was given"
        again = "run `swad train` or `swad sweep run` again to finish one"
        raise RunError(f"there is no finished run to measure ({reason}): {again}")
    return [open_run(run.path, data) for run in runs], notes


def choose_weights(
    runs: Sequence[SavedRun], names: Sequence[str], what: Measurement | None = None
) -> tuple[list[tuple[SavedRun, list[str]]], list[str]]:
    """Return each run with those of the named weights that it has, without names all that it reports; and notes.

    A name that no run has is an error. A run that has none of the named weights is skipped, and one that lacks what a
    measurement needs.
    """
    chosen, notes = [], []
    for run in runs:
        present = [name for name in names if _has_weights(run, name)] if names else list(run.reported)
        for name in names:
            if not any(_has_weights(other, name) for other in runs):
                run.full_name(name)  # raises the error that lists the weights there are
        if what is not None and (reason := what.lacking(run)):
            notes.append(f"skipped {run.path}: {reason}")
        elif present:
            chosen.append((run, present))
        else:
            notes.append(f"skipped {run.path}, which has none of {', '.join(names)}")
    if not chosen:
        raise RunError(f"there is no run to measure: {'; '.join(notes)}")
    return chosen, notes


def _has_weights(run: SavedRun, name: str) -> bool:
    try:
        run.full_name(name)
    except RunError:
        return False
    return True
