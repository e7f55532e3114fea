"""Reproduce items of the paper: state the cost, train what is missing, measure, build, write, and index.

OUTPUT/sweep.json, runs/   the runs of all items, which share them: a sweep
OUTPUT/table2/             table2.txt, .md, .tex and .csv; item.json, for the index
OUTPUT/figure3/            the same, and the figures
OUTPUT/index.md            links to everything that was built
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swad.testbed.data import benchmarks
from swad.testbed.paper.items import ITEMS
from swad.testbed.paper.paper_config import PaperConfig
from swad.testbed.paper.reproduction import PaperRuns, Reproduction
from swad.testbed.results.figures.style import require_matplotlib
from swad.testbed.results.report import Report
from swad.testbed.results.tables import Table
from swad.testbed.sweep.checks import require_valid
from swad.testbed.sweep.directory import SweepDir
from swad.testbed.sweep.estimate import describe_costs, estimate
from swad.testbed.sweep.plan import SweepPlan, merge
from swad.testbed.sweep.run import Start, run_sweep
from swad.testbed.sweep.spec import SweepSpec
from swad.testbed.sweep.status import SweepStatus
from swad.util.files import read_json, write_json, write_text
from swad.util.progress import Progress

ITEM = "item.json"
INDEX = "index.md"


@dataclass(frozen=True)
class RunCounts:
    """The runs that items need."""

    total: int
    finished: int
    plan: SweepPlan

    @property
    def missing(self) -> int:
        """Runs that must still be trained, with those that wait for a choice of hyperparameters."""
        return self.total - self.finished


def item_specs(items: Sequence[Reproduction], config: PaperConfig) -> list[SweepSpec]:
    """Return the sweeps of several items, each once. Items that the trials cannot give are an error."""
    if 0 not in config.trials and (lacking := [item.name for item in items if item.snapshots]):
        raise ValueError(
            f"{' and '.join(lacking)} cannot be made: only runs of trial 0 keep snapshots; add 0 to the trials "
            "(--trial)"
        )
    specs: list[SweepSpec] = []
    for item in items:
        specs += [spec for spec in item.specs(config) if spec not in specs]
    return specs


def cost_of(items: Sequence[Reproduction], config: PaperConfig) -> RunCounts:
    """Count the runs of several items; a run that two of them need counts once."""
    sweep = SweepDir(config.output)
    return _cost(sweep, sweep.plan(item_specs(items, config)))


def item_costs(items: Sequence[Reproduction], config: PaperConfig) -> dict[str, RunCounts]:
    """Return the cost of every item by name, and that of "all" together. Sweeps that items share are expanded once."""
    sweep = SweepDir(config.output)
    plans: list[tuple[SweepSpec, SweepPlan]] = []
    costs = {}
    for item in items:
        own = []
        for spec in item.specs(config):
            plan = next((plan for known, plan in plans if known == spec), None)
            if plan is None:
                plan = sweep.plan([spec])
                plans.append((spec, plan))
            own.append(plan)
        costs[item.name] = _cost(sweep, merge(own))
    return {**costs, "all": _cost(sweep, merge([plan for _, plan in plans]))}


def _cost(sweep: SweepDir, plan: SweepPlan) -> RunCounts:
    return RunCounts(plan.total, len(plan.runs) - len(sweep.unfinished(plan).runs), plan)


def cost_lines(items: Sequence[Reproduction], config: PaperConfig, cost: RunCounts) -> list[str]:
    """State the cost of several items: runs, and what is measured after training."""
    names = ", ".join(item.name for item in items)
    datasets = sorted({name for item in items for name in config.measured_datasets(item.datasets)})
    missing = sorted({name for item in items for name in item.datasets if name not in config.datasets})
    lines = [
        f"{names}: scale {config.scale}, protocol {config.protocol}, datasets {', '.join(datasets) or 'none'}"
        + (f"; not found: {', '.join(missing)}" if missing else ""),
        f"runs: {cost.total:,} in total, {cost.finished:,} finished, {cost.missing:,} to train, in {config.output}",
    ]
    if measured := list(dict.fromkeys(item.measures for item in items if item.measures)):
        lines.append(f"measured after training: {'; '.join(measured)}")
    return lines


def estimate_line(
    config: PaperConfig, cost: RunCounts, slots: int | None, processes: int = 1, progress: Progress | None = None
) -> str:
    """State the time and disk space of the runs that are missing, from a few measured steps; empty if none is.

    Args:
        config: Data and scale.
        cost: The runs.
        slots: How many runs train at a time, if it is known.
        processes: How many processes train a run together.
        progress: Called before every measurement.
    """
    if not cost.missing:
        return ""
    missing = SweepDir(config.output).unfinished(cost.plan)
    at_hand = [benchmarks.label(name, config.data) for name in config.datasets]
    estimates = estimate(missing, at_hand, config.device, slots and slots * processes, progress)
    return f"cost: {describe_costs(estimates, slots, processes)}"


def train_missing(
    items: Sequence[Reproduction],
    config: PaperConfig,
    start: Start,
    *,
    retry_failed: bool = False,
) -> SweepStatus:
    """Train the runs that are missing, and return where they stand then.

    Args:
        config: Data and scale.
        start: Starts the workers.
        retry_failed: Also train runs that failed before.
    """
    require_matplotlib()  # before training for hours
    sweep, specs = SweepDir(config.output), item_specs(items, config)
    for spec in specs:
        require_valid(spec)
    for spec in specs:
        sweep.add(spec)
    sweep.path.mkdir(parents=True, exist_ok=True)
    return run_sweep(sweep, start, specs=specs, retry_failed=retry_failed)


def build_item(item: Reproduction, paper_runs: PaperRuns) -> Report:
    """Measure and build one item from its finished runs, and write its files."""
    config, folder = paper_runs.config, paper_runs.folder(item.name)
    report = item.build(paper_runs)
    written = (*_write_tables(report.tables, folder, item.name), *report.written)
    write_json(
        folder / ITEM,
        {
            "name": item.name,
            "title": item.title,
            "scale": config.scale,
            "protocol": config.protocol,
            "datasets": list(config.measured_datasets(item.datasets)),
            "files": [str(path.relative_to(config.output)) for path in written],
        },
    )
    write_index(config.output)
    return Report(report.tables, written, report.row_files)


def _write_tables(contents: Sequence[Table | str], folder: Path, name: str) -> list[Path]:
    """Write tables and notes as text, Markdown, LaTeX and comma-separated values."""
    tables = [entry for entry in contents if isinstance(entry, Table)]

    def joined(render: Any, comment: str = "") -> str:
        parts = [comment + entry if isinstance(entry, str) else render(entry) for entry in contents]
        return "\n\n".join(parts) + "\n"

    texts = {
        "txt": joined(lambda table: table.text(160)),
        "md": joined(lambda table: table.markdown()),
        "tex": joined(lambda table: table.latex(), comment="% "),
        "csv": "".join(table.csv(header=index == 0) for index, table in enumerate(tables)),
    }
    written = []
    for suffix, text in texts.items():
        path = folder / f"{name}.{suffix}"
        write_text(path, text)
        written.append(path)
    return written


def write_index(output: Path) -> Path:
    """Write the page that links everything that was built so far."""
    lines = [
        "# The paper, reproduced",
        "",
        "| Item | Title | Scale | Datasets | Files |",
        "|:--|:--|:--|:--|:--|",
    ]
    pictures: list[str] = []
    for name in ITEMS:
        try:
            content = read_json(output / name / ITEM)
            files = [str(file) for file in content["files"]]
            cells = (content["title"], content["scale"], ", ".join(content["datasets"]) or "–")
        except (OSError, ValueError, KeyError, TypeError):
            continue
        links = ", ".join(f"[{Path(file).name}]({file})" for file in files)
        lines.append(f"| {name} | {' | '.join(map(str, cells))} | {links} |")
        pictures += _pictures(name, str(content["title"]), files)
    path = output / INDEX
    write_text(path, "\n".join([*lines, "", *pictures]))
    return path


def _pictures(name: str, title: str, files: Sequence[str]) -> list[str]:
    """Embed each figure once, in the format that browsers show best."""
    for suffix in (".svg", ".png"):
        chosen = [file for file in files if file.endswith(suffix)]
        if chosen:
            return [f"## {name}: {title}", "", *(f"![{Path(file).stem}]({file})\n" for file in chosen)]
    return []
