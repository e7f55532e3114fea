"""Measure runs: plan what is missing, state the cost, store every result as soon as it is there.

Rows are appended to the measurement's file in the run directory. A repeated measurement reads them back, and one that
was interrupted measures what is missing. Weights are known by the fingerprint of their file, so weights that were
trained again are measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from swad.testbed.measure.base import Job, MeasuredRun, Measurement, Store, as_stored
from swad.testbed.results.measurement_rows import RowFile
from swad.testbed.training.run_dir import RunError
from swad.util.names import counted
from swad.util.progress import Progress

if TYPE_CHECKING:
    import torch

    from swad.testbed.measure.saved_run import SavedRun

PARTS = 1000
"""Parts of an evaluation that progress counts."""


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


def plan(
    chosen: Sequence[tuple[SavedRun, Sequence[str]]], what: Measurement, device: torch.device | str = "cpu"
) -> list[Job]:
    """Return a job for each run and its weights, after checking what would end the measurement later.

    Args:
        chosen: Runs, and the names of the weights to measure.
        what: The measurement.
        device: Device to measure on.
    """
    import torch

    from swad.testbed.measure.saved_run import WINDOW

    device = torch.device(device)
    what.check_together([run for run, _ in chosen])
    jobs = []
    for run, given in chosen:
        names = run.full_names(given) if what.of_saved else list(given)
        if WINDOW in names and not what.of_window:
            raise ValueError(f"{what.name} is measured of single weights: leave out {WINDOW!r}, or name snapshots")
        of_run = what.on(run, device)
        of_device = {"device": device.type} if what.of_device else {}
        settings = {**of_run.settings(), **run.image_settings(what.images), **of_device}
        jobs.append(Job(run, of_run, of_run.weights(run, names), as_stored(settings)))
    return jobs


def cost(jobs: Sequence[Job], device: torch.device | str = "cpu") -> str:
    """Say what is to be measured, and how much of it is stored."""
    import torch

    name = jobs[0].what.name
    missing = [(job, job.missing()) for job in jobs]
    n_by_job = [sum(job.what.n_evaluations(job.run, names) for _, names in cases) for job, cases in missing]
    n_missing = sum(n_by_job)
    n_all = sum(job.what.n_evaluations(job.run, list(job.fingerprints)) * len(job.what.cases()) for job in jobs)
    n_models = sum(len(job.places) for job in jobs)
    measured = counted(n_models, "model") if n_models else counted(len(jobs), "run")
    text = f"{name}: {measured}, {counted(n_all, 'evaluation')}, {n_all - n_missing:,} stored"
    first, cases = next((each for each, n in zip(missing, n_by_job, strict=True) if n), (None, []))
    if first is None:
        return f"{text}, nothing to do"
    run = MeasuredRun(first.run, first.what, torch.device(device))
    n_images = first.what.passes * sum(first.what.n_images(run, case) for case, _ in cases) // len(cases)
    # Runs differ by some images; the number of evaluations is exact.
    return f"{text}, {n_missing:,} to do with {n_images:,} images each: about {n_missing * n_images:,} forward passes"


def measure(
    jobs: Sequence[Job],
    device: torch.device | str = "cpu",
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Measure what is missing in several runs, and return their directories.

    Args:
        jobs: Runs and weights, from `plan`.
        device: Device to measure on.
        workers: Processes that read images.
        progress: Called after every result and part of it, with the share of all runs together.
    """
    import torch

    total, n_done, most = sum(len(names) for job in jobs for _, names in job.missing()), 0, 0

    def report(done: int) -> None:
        nonlocal most
        most = max(most, done)  # parts of a case may differ in size
        if progress is not None:
            progress(jobs[0].what.name, most, PARTS * total)

    for job in jobs:
        what = job.what
        with ExitStack() as stack:  # locked, so another process may have measured some by now
            files = {each: stack.enter_context(RowFile(each, what.file)) for each in job.directories}
            store = Store(job, files)
            for some in _parts(list(job.only or job.fingerprints), what.at_once):
                missing = job.missing(store.stored, some)
                share = PARTS * sum(len(names) for _, names in missing)
                run = MeasuredRun(job.run, what, torch.device(device), workers, store=store)
                if progress is not None:
                    run.progress = _within(report, PARTS * n_done, share)
                for case, rows in what.measure_all(run, missing):
                    store.append(case, rows)
                    n_done += len({row["weights"] for row in rows})
                    report(PARTS * n_done)
            if not job.only:
                store.mark_shown()
    if jobs and not jobs[0].only and (further := jobs[0].what.then(jobs, torch.device(device))):
        measure(further, device, workers=workers, progress=progress)
    return list(dict.fromkeys(directory for job in jobs for directory in job.directories))


def _parts(names: Sequence[str], at_once: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), at_once):
        yield names[start : start + at_once]


def _within(report: Callable[[int], None], start: int, share: int) -> Progress:
    """Return the progress of the missing cases of a job, as their share of all evaluations."""

    def part(description: str, done: int, total: int | None) -> None:
        if total:
            report(start + share * done // total)

    return part
