"""The accuracy of the averaged weights of every window of the segments that a run kept.

Accuracies are appended to `windows.jsonl` in the run directory as soon as they are measured, so an interrupted
measurement resumes. A complete one is read back and needs neither segments, weights nor images.

    runs, notes = measure_windows(["runs/PACS"], WindowsConfig(n_images=500), device="cuda")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swad.testbed.averages.segment_log import last_update, load_segments, read_segment
from swad.testbed.averages.segment_windows import SegmentWindows
from swad.testbed.experiments.report import Report
from swad.testbed.experiments.segment_runs import (
    Evaluate,
    build_evaluation,
    build_fast_network,
    kept_segments,
    merged_by_default,
)
from swad.testbed.measure.finished_runs import finished_runs, skip_notes
from swad.testbed.measure.saved_run import SavedRun, find_device, open_run
from swad.testbed.results.figures.style import require_matplotlib, save_figures
from swad.testbed.results.figures.windows import windows_figure
from swad.testbed.results.measurement_rows import RowFile
from swad.testbed.results.records import RECORDS
from swad.testbed.results.run_data import RunData
from swad.testbed.results.tables import Table
from swad.testbed.results.window_tables import choices_table, compared_windows_csv, windows_csv
from swad.testbed.results.windows import LIVE, SIDES, WINDOWS, RunWindows, by_group, read_windows
from swad.testbed.training.run_dir import SEGMENTS, RunError
from swad.util.files import sha256, write_text
from swad.util.jsonl import stored_path
from swad.util.names import file_stem
from swad.util.progress import Progress


@dataclass(frozen=True)
class WindowsConfig:
    """The settings of a measurement."""

    sides: tuple[str, ...] = SIDES
    """"target": all images of the held-out domain. "validation": the sources' validation splits."""
    n_images: int | None = 500
    """Images of every domain, stratified by class; None: all."""
    every: int | None = None
    """Number of segments to merge into one. None: as few as leave at most 25."""
    average: str = "swad"
    """The average of the run that windows are compared with."""


def measure_windows(
    paths: Sequence[Path | str],
    config: WindowsConfig | None = None,
    *,
    data: Path | str | None = None,
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[list[RunWindows], list[str]]:
    """Measure the windows of finished runs, or read those that are stored; return them and notes on skipped runs.

    Args:
        paths: Run directories, or directories of runs.
        config: Images, segments and what is measured.
        data: Where the dataset is now, if it moved since training.
        device: Device to evaluate on.
        workers: Processes that read images.
        progress: Called after every evaluation.
    """
    require_matplotlib()  # before measuring for minutes
    config = config or WindowsConfig()
    found, notes = finished_runs(paths)
    skipped: dict[str, list[Path]] = {}
    available = []
    for run in found:
        plan = _plan(run, config, data)
        if isinstance(plan, str):
            skipped.setdefault(plan, []).append(run.path)
        else:
            available.append(plan)
    notes += skip_notes(skipped)
    if not available:
        raise RunError(f"there is no run with windows to measure: {'; '.join(notes)}")
    total, done, runs = sum(plan.n_evaluations for plan in available), 0, []

    def advance(n: int = 1) -> None:
        nonlocal done
        done += n
        if progress is not None:
            progress("evaluating windows", done, total)

    for plan in available:
        if plan.stored is None:
            notes += _measure(plan, config, find_device(device), workers, advance)
        elif plan.saved is not None and plan.stored != read_windows(plan.run)[-1]:
            with RowFile(plan.run.path, WINDOWS) as file:  # requested last, so --stored shows it from now on
                file.mark_shown(file.add_settings(plan.stored.settings))
        runs.append(plan.result())
    return runs, notes


def stored_windows(paths: Sequence[Path | str]) -> tuple[list[RunWindows], list[str]]:
    """Read the last measurement of every run, which needs neither segments, weights nor images."""
    found, notes = finished_runs(paths)
    stored = {run.path: read_windows(run) for run in found}
    runs = [measured[-1] for measured in stored.values() if measured]
    if not runs:
        raise RunError(f"no {WINDOWS} has a complete measurement: run `swad windows` first")
    notes += skip_notes({"its measurement is not complete": [path for path in stored if not stored[path]]})
    return runs, notes


def report_windows(
    runs: Sequence[RunWindows], folder: Path, formats: Sequence[str] = ("svg",), notes: Sequence[str] = ()
) -> Report:
    """Write the windows of all runs and the heat maps, and return the tables.

    Args:
        runs: The accuracies of the windows of each run.
        folder: Directory for the files.
        formats: Formats of the figures: svg, pdf, png.
        notes: Notes of the measurement.
    """
    tables: list[Table | str] = []
    written = [folder / "windows.csv"]
    groups, group_notes = by_group(runs)
    write_text(written[0], windows_csv(runs))
    for group in groups:
        name = file_stem(group.runs[0].group)
        compared = {side: group.compare_windows(side) for side in group.sides}
        for side, windows in compared.items():
            tables.append(choices_table(group, side, windows))
            written.append(folder / f"{name}-{side}.csv")
            write_text(written[-1], compared_windows_csv(group, windows))
        figure = windows_figure(group, compared)
        written += save_figures(figure, folder / name, formats)
    row_files = tuple(stored_path(run.run.path / WINDOWS) for run in runs)
    return Report(tuple(tables), tuple(written), row_files, (*notes, *group_notes))


# ------------------------------------------------------------ which windows


@dataclass(frozen=True)
class _Plan:
    """What a run needs: nothing if its windows are stored, else the settings to measure with."""

    run: RunData
    sides: tuple[str, ...]
    saved: SavedRun | None
    settings: Mapping[str, Any]
    stored: RunWindows | None

    @property
    def n_evaluations(self) -> int:
        n = len(self.settings.get("segments", ()))
        return 0 if self.stored is not None else len(self.sides) * (n * (n + 1) // 2)

    def result(self) -> RunWindows:
        return self.stored if self.stored is not None else read_windows(self.run)[-1]


def _plan(run: RunData, config: WindowsConfig, data: Path | str | None) -> _Plan | str:
    """Find out which windows are stored and which are missing, or return why the run must be skipped."""
    sides = tuple(side for side in config.sides if side == "validation" or run.targets)
    if not sides:
        return "it has no target (use --evaluate-on validation)"
    stored = read_windows(run)
    files = kept_segments(run)
    if not files:
        if fitting := [each for each in stored if _fits_request(each, config, sides)]:
            return _Plan(run, sides, None, {}, fitting[-1])
        if stored:
            return "it has no segments any more, and its stored windows have other settings (show them with --stored)"
        return "it kept no segments (train with --keep-segments)"
    saved = open_run(run.path, data)
    averages = [name for name, steps in saved.ranges.items() if steps.get("start_step") is not None]
    if config.average not in averages:
        return f"it has no average {config.average!r} (use --average with one of: {', '.join(averages) or 'none'})"
    settings = _settings(saved, files, config)
    fitting = [each for each in stored if each.settings.items() >= settings.items() and set(sides) <= set(each.windows)]
    return _Plan(run, sides, saved, settings, fitting[-1] if fitting else None)


def _settings(run: SavedRun, files: Sequence[Path], config: WindowsConfig) -> dict[str, Any]:
    """Return all settings but the device, which a complete measurement need not have in common with a new one."""
    chosen = run.ranges[config.average]
    every = config.every or merged_by_default(len(files))
    lasts = [last_update(file) for file in files]
    lasts = [*lasts[every - 1 : -1 : every], lasts[-1]]
    return {
        "average": config.average,
        "range": [chosen["start_step"], chosen["end_step"]],
        "segments": [[before + 1, last] for before, last in zip([0, *lasts[:-1]], lasts, strict=True)],
        "every": every,
        **run.image_settings(config.n_images),
        "records": sha256(run.path / RECORDS),
    }


def _fits_request(stored: RunWindows, config: WindowsConfig, sides: Sequence[str]) -> bool:
    return (
        (stored.average, stored.images) == (config.average, config.n_images)
        and config.every in (None, stored.settings["every"])
        and set(sides) <= set(stored.windows)
    )


# ------------------------------------------------------------ measuring


def _measure(
    plan: _Plan, config: WindowsConfig, device: torch.device, workers: int | None, advance: Callable[..., None]
) -> list[str]:
    """Measure what a run's file lacks, and return notes on how."""
    run, notes = plan.saved, list[str]()
    assert run is not None
    with RowFile(run.path, WINDOWS) as file:
        key = file.add_settings({**plan.settings, "device": device.type})
        rows = [row for row in file.rows_of(key) if row["kind"] in ("window", "saved")]
        done = {(row["side"], row.get("weights") or (row["first"], row["last"])) for row in rows}
        model = build_fast_network(run, device)
        windows = SegmentWindows(load_segments(run.path / SEGMENTS), model, plan.settings["every"])
        for side in plan.sides:
            missing = [window for window in windows.all() if (side, (window.first, window.last)) not in done]
            advance(len(windows.all()) - len(missing))
            states = {name: state for name, state in _saved_states(run, config.average) if (side, name) not in done}
            if not missing and not states:
                continue
            parts = run.held_out.sources.val if side == "validation" else run.held_out.target.full
            chosen = [run.subset(part, config.n_images) for part in parts]
            evaluate = build_evaluation(run, model, chosen, device, workers, notes)

            def measure(kind: str, what: Mapping[str, Any], side: str = side, evaluate: Evaluate = evaluate) -> None:
                accuracy = {domain: score.accuracy for domain, score in evaluate().items()}
                file.append({"key": key, "kind": kind, "side": side, **what, "accuracy": accuracy})

            for name, state in states.items():
                model.load_state_dict(state)
                measure("saved", {"weights": name})
            for window in windows.averages(missing):
                measure("window", {"first": window.first, "last": window.last})
                advance()
        file.mark_shown(key)
    return notes


def _saved_states(run: SavedRun, average: str) -> list[tuple[str, dict[str, Tensor]]]:
    """Read the average that windows are compared with, and the live weights whose files still are there.

    An average gets the buffers of its last update, as every window does. Batch norms that are not frozen have
    statistics there that were not estimated again; with others, the average would have an advantage.
    """
    end = run.ranges[average]["end_step"]
    buffers = [read_segment(f).buffers for f in load_segments(run.path / SEGMENTS) if last_update(f) == end]
    states = [(average, {**run.state(average), **(buffers[0] if buffers else {})})]
    return states + [(name, run.state(name)) for name in LIVE if (run.path / run.weights.get(name, "-")).is_file()]
