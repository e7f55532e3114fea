"""The report page: one HTML file that needs no network.

It shows accuracies next to the paper's, validation curves with the averaged range, flatness, timings, configs and
warnings. The template escapes every value, and a content security policy forbids the page to load anything, so a
directory name or a config value cannot inject code.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from swad.testbed.results import published
from swad.testbed.results.accuracy_table import accuracy_table, comparable_rows
from swad.testbed.results.comparisons import BASELINE, compare_in_words, find_method
from swad.testbed.results.diagnostics import find_problems
from swad.testbed.results.figures.style import PALETTE
from swad.testbed.results.figures.training import METRICS, shown_runs
from swad.testbed.results.labels import algorithm_label, directory_names, weights_label
from swad.testbed.results.measured_report import MeasuredReport
from swad.testbed.results.metrics import get_metric
from swad.testbed.results.page.comparisons import comparison_sections
from swad.testbed.results.page.measured import measured_sections
from swad.testbed.results.page.mistakes import FindPicture, mistake_sections
from swad.testbed.results.page.sweep import build_sweep, is_sweep, range_of
from swad.testbed.results.run_data import RunData, setting_text
from swad.testbed.results.run_tables import selected_runs_table, timings_table
from swad.testbed.results.runs import RunList, find_runs
from swad.testbed.results.selection import ORACLES, DatasetResults, collect_results
from swad.testbed.results.surface_report import SurfaceReport
from swad.testbed.results.tables import OURS, PAPER, Cell, Row, Table
from swad.testbed.results.training_curves import (
    ByStep,
    Curves,
    Valley,
    final_values,
    last_steps,
    mean_curve,
    source_curves,
    valleys,
)
from swad.util.files import write_text
from swad.util.grouping import group_by
from swad.util.names import NO_TARGET
from swad.util.progress import duration
from swad.util.version import __version__

MAX_FIGURES = 36
MAX_ROWS = 300
"""Tables with a row for each run have at most these rows. The explorer of a sweep lists the runs of a larger one."""
MAX_WARNINGS = 200


@dataclass(frozen=True)
class Trial:
    """The run that is shown for one target and trial."""

    id: str
    number: int
    average: str
    """Name of the average whose range is shown."""
    valley: Valley | None
    steps: int
    finished: bool
    charts: tuple[dict[str, Any], ...]
    """What the page's script draws."""

    def percent(self, step: int | None) -> float:
        """Return a step as a percentage of the run, for the bar of the averaged range."""
        return 0.0 if step is None else round(100 * min(step, self.steps) / (self.steps or 1), 2)


@dataclass(frozen=True)
class Target:
    """The part of the page for one target: its trials and the colors of its sources."""

    id: str
    name: str
    algorithm: str
    legend: tuple[tuple[str, int], ...]
    trials: tuple[Trial, ...]

    @property
    def has_valley(self) -> bool:
        """Whether any of its runs looked for a loss valley."""
        return any(trial.valley is not None for trial in self.trials)


@dataclass(frozen=True)
class Experiment:
    """The part of the page for one dataset."""

    id: str
    name: str
    metric: str
    table: Table
    key_rows: frozenset[str]
    """Names of the paper's rows that are shown at first."""
    headline: str
    targets: tuple[Target, ...]
    selected: Table
    """The runs behind the accuracies."""


def write_page(
    source: str | os.PathLike[str] | Sequence[RunData],
    path: str | os.PathLike[str],
    *,
    method: str = "iid",
    split: str = "in",
    title: str = "SWAD report",
    measured: Sequence[MeasuredReport | SurfaceReport] = (),
    allow_missing_targets: bool = False,
    baseline: str | None = None,
    unit: str = "auto",
    results: Sequence[DatasetResults] | None = None,
    problems: Sequence[str] | None = None,
    find_picture: FindPicture | None = None,
    follow_link: bool = False,
) -> Path:
    """Write the page, and return its path.

    Args:
        source: The runs to show, or a directory of runs.
        path: The HTML file.
        method: The model selection; see `swad.testbed.results.selection`.
        split: The split of the held-out domain to report: "in", "out", "full" or "test".
        title: Title of the page.
        measured: What was measured of the runs' weights, from `swad.testbed.measurements.stored_reports`.
        allow_missing_targets: Show means that lack a target, with a mark. By default there is no mean then.
        baseline: The method that the others are compared with; by default ERM (best).
        unit: Unit of the paired test: "auto", "runs", "trials" or "targets"; see `swad.testbed.results.comparisons`.
        results: The results of `collect_results` with this method and split, if they are known already.
        problems: Warnings to show; by default what `find_problems` says of the runs.
        find_picture: Finds the image of a mistake; by default mistakes are only named.
        follow_link: Replace the file that a symbolic link at `path` points to, instead of the link.
    """
    runs = find_runs(source, warn=False) if isinstance(source, (str, os.PathLike)) else RunList.of(source)
    if not runs:
        raise ValueError("a report needs at least one run, got none")
    by_dataset = collect_results(runs, method, split) if results is None else results
    baseline = None if baseline is None else find_method(by_dataset, baseline)
    tables = [accuracy_table(each, "all", allow_missing_targets) for each in by_dataset]
    sweep = build_sweep(runs, by_dataset, tables) if is_sweep(runs) else None
    # The explorer of a sweep draws the curves of any run, so the page need not hold hundreds of figures.
    groups = {(run.dataset, run.algorithm, run.targets, run.trial) for run in runs if len(run.targets) < 2}
    draw_curves = sweep is None or len(groups) <= MAX_FIGURES
    experiments = [
        _experiment(f"e{number}", each, table, compare_in_words(each, baseline or BASELINE, unit=unit), draw_curves)
        for number, (each, table) in enumerate(zip(by_dataset, tables, strict=True))
    ]
    noted = [f"Not in the tables: {entry.name}: {entry.reason}." for entry in runs.skipped]
    noted += find_problems(runs) if problems is None else problems
    sections = comparison_sections(by_dataset, baseline, unit) + mistake_sections(by_dataset, find_picture)
    sections += [section for number, each in enumerate(measured) for section in measured_sections(f"m{number}", each)]
    template = _environment().get_template("page.html")
    page = template.render(
        title=title,
        facts=_facts(runs, method, by_dataset[0].select_by if by_dataset else "accuracy"),
        n_warnings=len(noted),
        warnings=noted[:MAX_WARNINGS],
        target_use=_target_use(method) if any(run.targets for run in runs) else "",
        no_target=NO_TARGET,
        sweep=sweep,
        max_rows=MAX_ROWS,
        experiments=experiments,
        sections=sections,
        timings=timings_table(runs) if len(runs) <= MAX_ROWS else None,
        total_time=_total_time(runs),
        common=_common_settings(runs),
        varying=_varying_settings(runs) if len(runs) <= MAX_ROWS else None,
        charts={
            **{trial.id: trial.charts for each in experiments for target in each.targets for trial in target.trials},
            **{group.id: group.charts for section in sections for group in section.figures if group.charts},
        },
        paper=published.paper(),
        version=__version__,
        css=_asset("page.css") + (_asset("sweep.css") if sweep else ""),
        js=_asset("page.js") + (_asset("sweep.js") if sweep else ""),
    )
    # Atomically, so a browser that reloads in the meantime never reads half a page.
    write_text(path, page, follow_link=follow_link)
    return Path(path)


# ------------------------------------------------------------ parts of the page


def _experiment(id: str, results: DatasetResults, table: Table, headline: str, draw_curves: bool) -> Experiment:
    shown = RunList(shown_runs(results) if draw_curves else ())
    losses = dict(zip((run.path for run in shown), source_curves(shown, "loss"), strict=True))
    domains = sorted(
        {*results.targets, *results.missing_targets, *(name for curves in losses.values() for name in curves)}
    )
    groups = group_by(shown, lambda run: (run.algorithm, run.target))
    targets = []
    for number, ((algorithm, target), group) in enumerate(groups.items()):
        prefix = f"{id}-t{number}"
        sources = sorted({name for run in group for name in losses[run.path]})
        targets.append(
            Target(
                prefix,
                target,
                algorithm_label(algorithm),
                tuple((name, domains.index(name) % len(PALETTE) + 1) for name in sources),
                tuple(_trial(f"{prefix}-{run.trial}", run, domains) for run in group),
            )
        )
    by_group = dict(table.groups())
    key_rows = comparable_rows(by_group.get(PAPER, ()), by_group.get(OURS, ()), results.members)
    return Experiment(
        id,
        results.dataset,
        get_metric(results.metric).title,
        table,
        frozenset(row.name for row in key_rows),
        headline,
        tuple(targets),
        selected_runs_table(results),
    )


def _target_use(method: str) -> str:
    """Say what the target is used for."""
    if method not in ORACLES:
        return "The target is used neither for the range nor to select the run."
    return f"The range does not depend on the target, but the run was selected by its accuracy there ({method})."


def _trial(id: str, run: RunData, domains: Sequence[str]) -> Trial:
    runs = RunList([run])
    averaged = next(iter(valleys(runs)[0].values()), None)
    curves = {metric: source_curves(runs, metric)[0] for metric in METRICS}
    charts = tuple(_chart(metric, each, averaged, domains) for metric, each in curves.items() if each)
    steps = run.config.get("steps")
    return Trial(
        id,
        run.trial,
        "" if averaged is None else weights_label(run, averaged.average),
        averaged,
        max(steps if isinstance(steps, int) else 0, *last_steps(runs)),  # the published schedule has one step more
        run.finished,
        charts,
    )


def _chart(metric: str, curves: Curves, averaged: Valley | None, domains: Sequence[str]) -> dict[str, Any]:
    """Return the validation curves of every source and their mean, with the averaged range."""
    scale = 100 if metric == "accuracy" else 1
    series = [
        {"name": name, "color": domains.index(name) % len(PALETTE) + 1, "at": _points(curve, scale)}
        for name, curve in curves.items()
    ]
    if len(curves) > 1:
        series.append({"name": "mean", "color": 0, "at": _points(mean_curve(curves.values()), scale)})
    return {
        "title": METRICS[metric],
        "isLoss": metric == "loss",
        "range": None if averaged is None else range_of(averaged),
        "series": series,
    }


def _points(curve: ByStep, scale: int) -> list[list[float | str]]:
    # JSON cannot express nan and infinities as numbers, so they are text.
    return [[step, round(scale * value, 5) if value - value == 0 else str(value)] for step, value in curve.items()]


def _facts(runs: Sequence[RunData], method: str, select_by: str) -> list[tuple[str, str]]:
    def join(values: Iterable[str]) -> str:
        return ", ".join(dict.fromkeys(values))

    finished = sum(run.finished for run in runs)
    return [
        ("Dataset", join(run.dataset for run in runs)),
        ("Algorithm", join(algorithm_label(run.algorithm) for run in runs)),
        ("Targets", str(len({(run.dataset, run.targets) for run in runs if run.targets}) or NO_TARGET)),
        ("Trials", str(len({run.trial for run in runs}))),
        (
            "Runs",
            f"{finished:,} finished" if finished == len(runs) else f"{finished:,} of {len(runs):,} finished",
        ),
        ("Selection", method if select_by == "accuracy" else f"{method}, by {get_metric(select_by).label}"),
    ]


def _total_time(runs: Sequence[RunData]) -> str:
    """Return the total time in one sentence; empty if no run recorded it."""
    totals = [seconds for seconds in final_values(runs, "seconds_total") if seconds is not None]
    if not totals:
        return ""
    time = duration(sum(totals))
    return f"{len(totals)} runs took {time} in total." if len(totals) > 1 else f"The run took {time}."


ROLES = ("identity", "hyperparameter", "protocol", "machine", "output")
"""Roles of settings in the order in which they are shown."""


def _common_settings(runs: Sequence[RunData]) -> list[tuple[str, str]]:
    first = runs[0].config
    same = [key for key in first if all(key in run.config and run.config[key] == first[key] for run in runs)]
    return [(key, setting_text(first[key])) for key in sorted(same)]


def _varying_settings(runs: Sequence[RunData]) -> Table:
    common = {key for key, _ in _common_settings(runs)}
    keys = list(dict.fromkeys(key for role in ROLES for run in runs for key in run.settings(role) if key not in common))
    rows = [
        Row(name, tuple(Cell(text=setting_text(run.config[key]) if key in run.config else "–") for key in keys))
        for run, name in zip(runs, directory_names(runs), strict=True)
    ]
    return Table("Differing settings", tuple(keys), tuple(rows), corner="Run")


# ------------------------------------------------------------ the template


def _asset(name: str) -> str:
    """Return a file of the page: template, styles or script."""
    return files("swad.testbed.results.page").joinpath(name).read_text(encoding="utf-8")


def _environment() -> Any:
    """Return the environment that renders the page's templates, in which every value is escaped."""
    try:
        import jinja2
    except ImportError:
        raise ImportError("the report page needs jinja2: pip install 'swad[report]'") from None
    templates = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["sort_value"] = _sort_value
    templates.tests["ours"] = lambda row: row.group == OURS
    return templates


def _sort_value(cell: Cell) -> str:
    """Return the value that a column is sorted by: the number in full precision, or the text."""
    if cell.value is not None:
        return repr(float(cell.value))
    return cell.text or ""
