"""Measure runs: plan what is missing, state the cost, store every result as soon as it is there.

Rows are appended to the measurement's file in the run directory. A repeated measurement reads them back, and one that
was interrupted measures what is missing. Weights are known by the fingerprint of their file, so weights that were
trained again are measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from swad.testbed.measure.base import Job, MeasuredRun, Measurement
from swad.testbed.results.measurement_rows import RowFile, read_rows
from swad.util.jsonl import json_values
from swad.util.names import counted
from swad.util.progress import Progress

if TYPE_CHECKING:
    import torch

    from swad.testbed.measure.saved_run import SavedRun

PARTS = 1000
"""Parts of an evaluation that progress counts."""


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
        as_stored = {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
        jobs.append(Job(run, of_run, of_run.weights(run, names), as_stored))
    return jobs


def cost(jobs: Sequence[Job], device: torch.device | str = "cpu") -> str:
    """Say what is to be measured, and how much of it is stored."""
    import torch

    name = jobs[0].what.name
    missing = [(job, job.missing(read_rows(job.run.path, job.what.file))) for job in jobs]
    n_by_job = [sum(job.what.n_evaluations(job.run, names) for _, names in cases) for job, cases in missing]
    n_missing = sum(n_by_job)
    n_all = sum(job.what.n_evaluations(job.run, list(job.fingerprints)) * len(job.what.cases()) for job in jobs)
    text = f"{name}: {counted(len(jobs), 'run')}, {counted(n_all, 'evaluation')}, {n_all - n_missing:,} stored"
    first, cases = next((each for each, n in zip(missing, n_by_job, strict=True) if n), (None, []))
    if first is None:
        return f"{text}, nothing to do"
    domains = MeasuredRun(first.run, first.what, torch.device(device)).domains
    of_side = {case.get("side") for case, _ in cases}
    n_all_sides = sum(len(domain) for domain in domains if of_side & {domain.side, None})
    n_images = first.what.passes * n_all_sides // len(of_side)
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

    total = sum(len(names) for job in jobs for _, names in job.missing(read_rows(job.run.path, job.what.file)))
    n_done = 0
    for job in jobs:
        what = job.what
        with RowFile(job.run.path, what.file) as file:  # locked, so another process may have measured some by now
            key = file.add_settings(job.settings)
            fixed = {"key": key, "kind": what.kind}
            for some in _parts(list(job.only or job.fingerprints), what.at_once):
                run = MeasuredRun(job.run, what, torch.device(device), workers)
                for case, names in job.missing(file.rows, some):
                    run.progress = _within(progress, what.name, n_done, len(names), total)
                    for rows in what.measure(run, case, names):
                        marks = ({"fingerprint": job.fingerprints[row["weights"]]} for row in rows)
                        file.append(
                            *(json_values({**fixed, **case, **m, **r}) for m, r in zip(marks, rows, strict=True))
                        )
                        n_done += len({row["weights"] for row in rows})
                        if progress is not None:
                            progress(what.name, PARTS * n_done, PARTS * total)
            if not job.only:
                of_weights = {"weights": list(job.fingerprints), "fingerprints": list(job.fingerprints.values())}
                options = what.options()
                file.mark_shown(key, **of_weights, **({"options": options} if options else {}))
    if jobs and not jobs[0].only and (further := jobs[0].what.then(jobs, torch.device(device))):
        measure(further, device, workers=workers, progress=progress)
    return [job.run.path for job in jobs]


def _parts(names: Sequence[str], at_once: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), at_once):
        yield names[start : start + at_once]


def _within(progress: Progress | None, name: str, n_done: int, n_names: int, total: int) -> Progress | None:
    """Return the progress of one case, as its share of all evaluations."""
    if progress is None:
        return None
    report: Callable[[str, int, int | None], None] = progress

    def part(description: str, done: int, of: int | None) -> None:
        if of:
            report(name, PARTS * n_done + PARTS * n_names * done // of, PARTS * total)

    return part
