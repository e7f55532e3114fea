"""The report page: one HTML file with everything in it, which opens without a network.

Results beside the paper's, the validation curves of every target with the averaged range, timings,
configs, and what a reader should be warned of. The template escapes whatever it prints, and the page
forbids itself to load anything, so a folder name or a config value can do no harm.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from swad import __version__
from swad.results import published, summary, tables
from swad.results.figures import training
from swad.results.page.flatness import flatness_sections, surface_sections
from swad.results.runs import RunData, find_runs
from swad.results.selection import SelectionError, select

KEY_ROWS = 4
"""How many of the paper's rows show before the reader asks for all."""


@dataclass(frozen=True)
class Panel:
    """One drawing, with what the pointer needs to read values off it."""

    id: str
    title: str
    svg: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """The run shown for one target and trial."""

    id: str
    number: int
    valley: summary.Valley | None
    steps: int
    finished: bool
    panels: tuple[Panel, ...]

    def percent(self, step: int | None) -> float:
        """Give a step's place along the run, for the bar of the averaged range."""
        return 0.0 if step is None else round(100 * min(step, self.steps) / (self.steps or 1), 2)


@dataclass(frozen=True)
class Target:
    """All that the page shows of a target: its trials and the colors of its sources."""

    id: str
    name: str
    algorithm: str
    legend: tuple[tuple[str, int], ...]
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class Experiment:
    """A dataset's part of the page."""

    id: str
    name: str
    table: tables.Table
    key_rows: frozenset[str]
    headline: str
    targets: tuple[Target, ...]


def write(
    source: str | os.PathLike[str] | Sequence[RunData],
    path: str | os.PathLike[str],
    *,
    method: str = "iid",
    split: str = "in",
    search_trial: int | None = None,
    title: str = "SWAD report",
    flatness: Sequence[RunData] | None = None,
) -> Path:
    """Write the page for a folder of runs, or runs already read, and return its path."""
    found = find_runs(source) if isinstance(source, (str, os.PathLike)) else list(source)
    text = build(found, method=method, split=split, search_trial=search_trial, title=title, flatness=flatness)
    path = Path(path)
    # A browser that reloads while a run is being reported must never find half a page.
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OSError(f"cannot write the page {path}: {reason}; see to it or choose another file (--output)") from None
    return path


def build(
    found: Sequence[RunData],
    *,
    method: str = "iid",
    split: str = "in",
    search_trial: int | None = None,
    title: str = "SWAD report",
    flatness: Sequence[RunData] | None = None,
) -> str:
    """Return the page as text. `method`, `split` and `search_trial` are those of `swad.results.selection.select`.

    `flatness` are the runs whose flatness and surfaces are shown, where they were measured; by default all.
    """
    if not found:
        raise ValueError("a report needs one run at least, got none")
    made = tables.results(found, method, split=split, paper="all", search_trial=search_trial)
    experiments = []
    for place, table in enumerate(made):
        members = [run for run in found if run.dataset == table.title]
        shown = shown_runs(members, method, search_trial)
        experiments.append(_experiment(f"e{place}", table, members, shown))
    template = _environment().from_string(_asset("page.html"))
    text: str = template.render(
        title=title,
        facts=_facts(found, method),
        warnings=summary.warnings(found),
        experiments=experiments,
        flatness=flatness_sections(found if flatness is None else flatness),
        surfaces=surface_sections(found if flatness is None else flatness),
        timings=tables.timings(found),
        spent=_spent(found),
        common=_common(found),
        varying=_varying(found),
        panels={
            panel.id: panel.data
            for experiment in experiments
            for target in experiment.targets
            for trial in target.trials
            for panel in trial.panels
        },
        paper=published.paper(),
        version=__version__,
        css=_asset("page.css"),
        js=_asset("page.js"),
    )
    return text


def shown_runs(found: Sequence[RunData], method: str = "iid", search_trial: int | None = None) -> list[RunData]:
    """Take one run for each algorithm, target and trial: the selected, or else the one that got furthest."""
    groups: dict[tuple[str, str, int], list[RunData]] = {}
    for run in found:
        if len(run.targets) == 1:
            groups.setdefault((run.algorithm, run.targets[0], run.trial), []).append(run)
    shown = []
    for (algorithm, target, trial), members in sorted(groups.items(), key=_plain_first):
        chosen = max(members, key=summary.last_step)
        related = [run for run in found if run.algorithm == algorithm and target in run.targets]
        names = summary.valley_averages(chosen)
        try:
            outcomes = select(
                related,
                method,
                names[0] if names else "best",
                search_trial=search_trial,
                targets=[target],
            )
            chosen = next((outcome.run for outcome in outcomes if outcome.trial == trial), chosen)
        except SelectionError:
            pass  # the table's notes say so; the curves need no selection
        shown.append(chosen)
    return shown


def _plain_first(item: tuple[tuple[str, str, int], list[RunData]]) -> tuple[bool, str, str, int]:
    algorithm, target, trial = item[0]
    return algorithm != "erm", algorithm, target, trial


# ------------------------------------------------------------ the parts of the page


def _experiment(id: str, table: tables.Table, members: Sequence[RunData], shown: Sequence[RunData]) -> Experiment:
    domains = sorted({name for run in members for name in (*run.targets, *summary.source_curves(run, "loss"))})
    groups: dict[tuple[str, str], list[RunData]] = {}
    for run in shown:
        groups.setdefault((run.algorithm, run.targets[0]), []).append(run)
    targets = []
    for place, ((algorithm, target), group) in enumerate(groups.items()):
        prefix = f"{id}-t{place}"
        sources = sorted({name for run in group for name in summary.source_curves(run, "loss")})
        targets.append(
            Target(
                prefix,
                target,
                summary.algorithm_name(algorithm),
                tuple((name, domains.index(name) % len(training.PALETTE) + 1) for name in sources),
                tuple(_trial(f"{prefix}-{run.trial}", run, domains) for run in group),
            )
        )
    return Experiment(id, table.title, table, _key_rows(table), _headline(table), tuple(targets))


def _headline(table: tables.Table) -> str:
    """Say what came out in one sentence, for better or worse; nothing if either row is incomplete."""
    place = table.columns.index("Avg.")
    means = {row.name: row.cells[place] for row in table.rows if row.group == tables.OURS}
    ours, plain = means.get("SWAD"), means.get("ERM (best)")
    if ours is None or plain is None or ours.value is None or plain.value is None:
        return ""
    gap = round(ours.value, 1) - round(plain.value, 1)
    if abs(gap) < 0.05:
        verdict = "as much as"
    else:
        verdict = f"{abs(gap):.1f} points {'more' if gap > 0 else 'less'} than"
    targets = f"{place} targets" if place > 1 else "one target"
    return f"SWAD reaches {ours.printed} % over {targets}, {verdict} ERM at its best step ({plain.printed} %)."


def _key_rows(table: tables.Table) -> frozenset[str]:
    """Name the paper's rows to show first: ERM, SWAD, and the strongest of the others."""
    average = len(table.columns) - 2
    rows = [row for row in table.rows if row.group == tables.PAPER]
    rows.sort(key=lambda row: row.cells[average].value or 0.0, reverse=True)
    first = [row.name for row in rows if row.name.rstrip("†‡") in ("ERM", "SWAD")]
    return frozenset((first + [row.name for row in rows if row.name not in first])[:KEY_ROWS])


def _trial(id: str, run: RunData, domains: Sequence[str]) -> Trial:
    names = summary.valley_averages(run)
    panels = tuple(
        _panel(f"{id}-{metric}", run, metric, domains)
        for metric in training.LABELS
        if summary.source_curves(run, metric)
    )
    steps = run.config.get("steps")
    return Trial(
        id,
        run.trial,
        summary.valley(run, names[0]) if names else None,
        max(steps if isinstance(steps, int) else 0, summary.last_step(run)),  # the published schedule makes one more
        run.finished,
        panels,
    )


def _panel(id: str, run: RunData, metric: str, domains: Sequence[str]) -> Panel:
    figure = training.valley_figure(run, metrics=(metric,), size=(4.4, 2.45), domains=domains, bare=True)
    title = training.LABELS[metric]
    svg = training.theme_svg(figure, id, f"{title} of every source against the step, target {run.targets[0]}")
    # Layout is settled once drawn; from it the pointer's place can be turned into a step.
    axes = figure.axes[0]
    box = axes.get_position()
    width, height = figure.get_size_inches() * 72
    curves = summary.source_curves(run, metric)
    scale = 100 if metric == "accuracy" else 1
    series = [
        {"name": name, "color": domains.index(name) % len(training.PALETTE) + 1, "at": _points(curve, scale)}
        for name, curve in curves.items()
    ]
    if len(curves) > 1:
        series.append({"name": "mean", "color": 0, "at": _points(summary.mean_curve(curves.values()), scale)})
    return Panel(
        id,
        title,
        svg,
        {
            "box": [box.x0 * width, (1 - box.y1) * height, box.x1 * width, (1 - box.y0) * height],
            "steps": list(axes.get_xlim()),
            "digits": 1 if metric == "accuracy" else 3,
            "series": series,
        },
    )


def _points(curve: summary.Curve, scale: int) -> list[list[float | str]]:
    # JSON has no NaN; the page prints the word.
    return [
        [step, round(scale * value, 5) if value - value == 0 else str(value)]
        for step, value in zip(*curve, strict=True)
    ]


def _facts(found: Sequence[RunData], method: str) -> list[tuple[str, str]]:
    def several(values: Iterable[str]) -> str:
        return ", ".join(dict.fromkeys(values))

    finished = sum(run.finished for run in found)
    return [
        ("Data", several(run.dataset for run in found)),
        ("Algorithm", several(summary.algorithm_name(run.algorithm) for run in found)),
        ("Targets", str(len({(run.dataset, run.targets) for run in found}))),
        ("Trials", str(len({run.trial for run in found}))),
        (
            "Runs",
            f"{finished} finished" if finished == len(found) else f"{finished} of {len(found)} finished",
        ),
        ("Selection", method),
    ]


def _spent(found: Sequence[RunData]) -> str:
    """Sum the time up in one sentence, or say nothing where no run told."""
    totals = [seconds for run in found if (seconds := summary.final_value(run, "seconds_total")) is not None]
    if not totals:
        return ""
    seconds = sum(totals)
    spent = f"{seconds / 3600:.1f} hours" if seconds >= 7200 else f"{seconds / 60:.1f} minutes"
    if seconds < 120:
        spent = f"{seconds:.0f} seconds"
    return f"{len(totals)} runs took {spent} together." if len(totals) > 1 else f"The run took {spent}."


ROLES = ("identity", "hyperparameter", "protocol", "machine", "output")
"""The order in which settings are shown."""


def _common(found: Sequence[RunData]) -> list[tuple[str, str]]:
    first = found[0].config
    same = [key for key in first if all(key in run.config and run.config[key] == first[key] for run in found)]
    return [(key, _shown(first[key])) for key in sorted(same)]


def _varying(found: Sequence[RunData]) -> tables.Table:
    common = {key for key, _ in _common(found)}
    keys = list(
        dict.fromkeys(key for role in ROLES for run in found for key in run.settings(role) if key not in common)
    )
    # The run's directory, relative to what all have in common, names the row.
    root = Path(os.path.commonpath([run.path for run in found]))
    rows = [
        tables.Row(
            str(run.path.relative_to(root)) if run.path != root else run.path.name,
            tuple(tables.Cell(text=_shown(run.config[key]) if key in run.config else "–") for key in keys),
        )
        for run in found
    ]
    return tables.Table("What differs", tuple(keys), tuple(rows), corner="Run")


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


# ------------------------------------------------------------ the template


def _asset(name: str) -> str:
    return files("swad.results.page").joinpath(name).read_text(encoding="utf-8")


def _environment() -> Any:
    try:
        import jinja2
    except ImportError:
        raise ImportError("the report page needs jinja2: pip install 'swad[report]'") from None
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["sort_value"] = _sort_value
    environment.tests["ours"] = lambda row: row.group == tables.OURS
    return environment


def _sort_value(cell: tables.Cell) -> str:
    """Give what a column is sorted by: the full number, or the word."""
    if cell.text is not None:
        return cell.text
    return "" if cell.value is None else repr(float(cell.value))
