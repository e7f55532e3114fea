"""Write the tables of README and docs from the records under benchmarks/results, so that no number is typed.

    python benchmarks/tables.py            # update every block
    python benchmarks/tables.py --check    # fail if a file is out of date

A block names a table and the directory or file of its records; `keep_records.py` and `parity.py` write them:

    <!-- table: accuracies pacs-resnet50 -->
    written here
    <!-- end -->

A table of several datasets names them with a comma: <!-- table: domains pacs-resnet50,office31-resnet50 -->
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from accuracy_tables import (
    accuracies,
    combined,
    differences,
    domains,
    evidence,
    gains,
    kept_runs,
    methods,
    search,
    table3,
    table5,
)
from cost_tables import (
    corruption_speeds,
    costs,
    imagenet_steps,
    perturbed,
    plain_loops,
    report_costs,
    step_parts,
    step_sizes,
    sweep_costs,
    updates,
    whole_run,
)
from swad.testbed.measurements.corruption import Corruption
from swad.testbed.measurements.flatness import Flatness
from swad.testbed.measurements.windows import Windows
from swad.testbed.results.compare import arrow, compare, is_clear, units_of
from swad.testbed.results.measured import measured
from swad.testbed.results.measured_report import PLACE, report
from swad.testbed.results.surfaces import points_table, read_surface
from swad.testbed.results.tables import Cell, Row, Table
from swad.testbed.results.unit_tables import decimals_of, mean_table
from swad.testbed.results.windows import BEST, FIRST, LAST, choices
from swad.util.names import counted
from swad.util.statistics import mean

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- table: (\S+) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
MISSING = "Not measured yet."


def pages() -> list[str]:
    """Return the hand-written pages that have a block: README and those under docs."""
    written = [path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts]
    return [str(path.relative_to(ROOT)) for path in (ROOT / "README.md", *sorted(written)) if has_block(path)]


def has_block(path: Path) -> bool:
    """Return whether a page has a block."""
    return "<!-- table:" in path.read_text()


RADII = (20.0, 40.0)
"""Radii of the question about flatness, fixed before it was measured."""
SIDES = {"seen": "sources", "unseen": "unseen"}


# ------------------------------------------------------------ flatness


def flatness(source: Path) -> Table | None:
    """F of SWAD and of live weights, and their differences, at the radii of the question."""
    values = measured(kept_runs(source), Flatness)
    targets = values.groupby("trial")["target"].nunique()
    values = values[values["trial"].isin(targets.index[targets == values["target"].nunique()])]
    if values.empty:
        return None
    others = sorted({*values["method"]} - {"SWAD"}, reverse=True)
    methods = ["SWAD", *others]
    columns = list(product(SIDES, RADII))
    at = {place: values[(values["side"] == place[0]) & (values["quantity"] == place[1])] for place in columns}
    units = {place: units_of(rows)[methods] for place, rows in at.items()}
    n_targets, n_trials = values["target"].nunique(), values["trial"].nunique()
    names = {place: f"{SIDES[place[0]]}, γ = {place[1]:g}" for place in columns}
    rows = list(mean_table("", {names[place]: units[place] for place in columns}, scale=1, decimals=None).rows)
    tests = compare(units, "SWAD", "trials").itertuples()
    by_cell = {(test.method, test.quantity): test for test in tests}
    differences_of = {name: tuple(_reversed(by_cell[name, place]) for place in columns) for name in others}
    rows += [Row(f"SWAD − {name}", cells) for name, cells in differences_of.items()]
    notes = [
        f"F: rise of the loss at the distance γ; mean over {counted(n_targets, 'target')} and "
        f"{counted(n_trials, 'trial')}, with the settings above. Smaller is flatter. "
        "Window: live weights inside the range that SWAD averaged.",
        "±: standard error over trials; in parentheses 95 % intervals over trials, paired. Bold: p of at most 0.05, "
        f"corrected for the {len(by_cell)} differences of the table (Holm)."
        if n_trials > 1
        else "One trial has no spread between trainings: no interval, and no difference is claimed.",
    ]
    return Table("Flatness", tuple(names.values()), tuple(rows), tuple(notes), corner="F")


def _reversed(test: Any) -> Cell:
    """Show the difference of the baseline from a method."""
    if math.isnan(test.p):
        return Cell(text=f"{-test.difference:+z.3f}")
    text = f"{-test.difference:+z.3f} ({-test.high:+z.3f} to {-test.low:+z.3f})"
    return Cell(text=text, best=is_clear(test))


def curves(source: Path) -> Table:
    """F at every radius as a mean over targets, from the `flatness.json` of a measurement whose rows were not kept."""
    content = json.loads(source.read_text())
    cells: dict[str, dict[str, Cell]] = {}
    for row in content["curves"]:
        if row["group"] == "mean over targets" and row["radius"] > 0:
            numbers = (f"{row[name]:.{decimals_of(row['mean'])}f}" for name in ("mean", "low", "high"))
            cell = Cell(text="{} ({} to {})".format(*numbers))
            cells.setdefault(f"{row['side']}: {row['method']}", {})[f"γ = {row['radius']:g}"] = cell
    names = list(dict.fromkeys(name for by_radius in cells.values() for name in by_radius))
    rows = (Row(name, tuple(by_radius[radius] for radius in names)) for name, by_radius in cells.items())
    notes = ("Mean over targets. In parentheses 95 % intervals over directions and images, for these weights only.",)
    return Table("Flatness", tuple(names), tuple(rows), notes, corner="F")


# ------------------------------------------------------------ windows, robustness


def surfaces(source: Path) -> Table:
    """The loss of live weights and averages, on seen and unseen images, of the runs behind Figure 4."""
    return points_table([surface for run in kept_runs(source) if (surface := read_surface(run)) is not None])


def windows(source: Path) -> Table | None:
    """Accuracy on the target of SWAD's window and of others."""
    values = measured(kept_runs(source), Windows)
    if values.empty:
        return None
    shown = report(values, Windows)
    place = next((place for place in shown.by_place if place[1] == "unseen"), None)
    if place is None:
        return None
    accuracies, differences = shown.by_place[place]
    own = accuracies.rows[0].name
    every = choices(values).query("dataset == @place[0] and side == @place[1] and settings == @place[2]")
    of_test = {row.name.removesuffix(", Accuracy, %"): row.cells for row in differences.rows}
    rows = []
    for row in accuracies.rows:
        steps = _steps(every[every["method"] == row.name])
        difference = Cell(row.cells[0].value - accuracies.rows[0].cells[0].value, decimals=2, signed=True)
        untested = (Cell(text=""),) * 3 if row.name == own else (difference, Cell(), Cell())
        tested = of_test.get(row.name, ())
        rows.append(Row(row.name, (steps, row.cells[0], *((tested[0], tested[1], tested[3]) if tested else untested))))
    columns = ("Steps", "Accuracy, %", f"minus {own}", "95 % interval", "Corrected p")
    return Table(accuracies.title, columns, tuple(rows), accuracies.notes + differences.notes, corner="Average of")


def _steps(values: Any) -> Cell:
    """Show the first and the last step of one window, or the ranges of several."""
    texts = []
    for quantity in (FIRST, LAST):
        of_runs = values[values["quantity"] == quantity]["value"]
        if of_runs.empty:
            return Cell(text="")
        low, high = int(of_runs.min()), int(of_runs.max())
        texts.append(f"{low:,}" if low == high else f"{low:,}–{high:,}")
    return Cell(text=" to ".join(texts))


def window_choices(source: Path) -> Table:
    """Points of windows and live weights above SWAD, with their intervals, on several datasets and both sides."""
    shown = report(measured(kept_runs(source), Windows), Windows)
    places = sorted(shown.by_place, key=lambda place: (place[0], list(BEST).index(place[1])))
    columns, own, differences = [], [], {}
    for place in places:
        is_place = [tuple(each) == place for each in shown.means[list(PLACE)].itertuples(index=False)]
        of_place = shown.means[is_place].query("quantity == 'Accuracy, %'").set_index("method")["mean"]
        columns.append(f"{place[0]}, {'target' if place[1] == 'unseen' else 'validation'}")
        own.append(Cell(text=f"{of_place.iloc[0]:.1f} %"))
        is_test = [tuple(each) == place for each in shown.tests[list(PLACE)].itertuples(index=False)]
        cells = {test.method: _points(test) for test in shown.tests[is_test].itertuples()}
        best = BEST[place[1]]
        cells[best] = Cell(text=f"({of_place[best] - of_place.iloc[0]:+z.1f})")
        differences[place] = cells
    labels = dict.fromkeys(label for cells in differences.values() for label in cells)
    rows = [Row(label, tuple(differences[place][label] for place in places)) for label in labels]
    n_runs = int(shown.tests["n"].max())
    note = (
        f"Accuracy of SWAD, and points above it with the 95 % interval over {n_runs} runs. ↑ and ↓: p of at most 0.05 "
        "after Holm's correction for the rows of a column. In parentheses: chosen on these very images, so without an "
        "interval."
    )
    return Table("Windows", tuple(columns), (Row("SWAD", tuple(own)), *rows), (note,), corner="Average of")


def _points(test: Any) -> Cell:
    points = f"{test.difference:+z.1f}"
    if math.isnan(test.low):
        return Cell(text=points)
    claim = f" {arrow(test)}" if is_clear(test) else ""
    return Cell(text=f"{points}{claim} [{test.low:+z.1f}, {test.high:+z.1f}]", best=is_clear(test))


def robustness(source: Path, side: str = "unseen") -> Table | None:
    """Errors on the unseen domain, clean and under corruption."""
    tables = _corruption_tables(source, side)
    return tables[0] if tables else None


def robustness_differences(source: Path, side: str = "unseen") -> Table | None:
    """Errors on the unseen domain compared with those of the weights that were named first."""
    tables = _corruption_tables(source, side)
    return tables[1] if len(tables) > 1 else None


def robustness_seen(source: Path) -> Table | None:
    """Errors on validation images of the sources, clean and under corruption."""
    return robustness(source, "seen")


def robustness_differences_seen(source: Path) -> Table | None:
    """Errors on validation images of the sources compared with those of the weights that were named first."""
    return robustness_differences(source, "seen")


def _corruption_tables(source: Path, side: str) -> Sequence[Table]:
    values = measured(kept_runs(source), Corruption)
    of_side = values[values["side"] == side]
    return report(of_side, Corruption).tables if len(of_side) else ()


# ------------------------------------------------------------ parity


def parity(source: Path) -> Table:
    """Target accuracy by implementation and trial: best step, last step, and mean over the steps that all evaluated."""
    implementations = json.loads(source.read_text())["curves"]
    runs = [run.rpartition("-") for by_run in implementations.values() for run in by_run]
    targets, trials = sorted({target for target, *_ in runs}), sorted({int(trial) for *_, trial in runs})
    every = [curve for by_run in implementations.values() for curve in by_run.values()]
    steps = sorted(set.intersection(*(set(curve["steps"]) for curve in every)))[1:]  # the first is before training
    rows = []
    for (name, by_run), trial in product(implementations.items(), trials):
        cells = []
        for curve in (by_run.get(f"{target}-{trial}") for target in targets):
            if curve is None:
                cells += [Cell(None)] * 3
                continue
            index = [curve["steps"].index(step) for step in steps]
            target, sources = ([curve[key][i] for i in index] for key in ("target", "sources"))
            cells += [Cell(target[sources.index(max(sources))]), Cell(target[-1]), Cell(mean(target))]
        if any(cell.value is not None for cell in cells):
            rows.append(Row(f"{name}: trial {trial}", tuple(cells)))
    columns = tuple(f"{target}, {which}" for target in targets for which in ("best", "last", "mean"))
    note = (
        "Accuracy in % of the live weights on the target. Best: highest validation accuracy on the sources. Last: "
        f"after {steps[-1]:,} steps. Mean: over the {len(steps)} evaluations at the same steps."
    )
    return Table("Parity", columns, tuple(rows), (note,), corner="Implementation")


# ------------------------------------------------------------ false starts


def false_starts(source: Path) -> Table:
    """What the paper's rule and `restart=True` average on simulated curves, from a file of `false_starts.py`."""
    rules = {"paper": "paper's rule", "restart": "restart"}
    measured = {"share of bad updates": 3, "evaluations averaged": 1, "restarts": 2, "share warned of": 3}
    rows = [
        Row(f"{curve}: {label}", tuple(Cell(by_rule[rule][name], decimals=n) for name, n in measured.items()))
        for curve, by_rule in json.loads(source.read_text())["simulated"].items()
        for rule, label in rules.items()
    ]
    return Table("False starts", tuple(measured), tuple(rows), (), corner="Curve: rule")


def recorded_starts(source: Path) -> Table:
    """The evaluations that either rule averages of two recorded false starts, and its verdicts on true valleys."""
    recorded = json.loads(source.read_text())["recorded"]
    rows = [
        Row(name, tuple(Cell(text="{} to {}".format(*of_rule)) for of_rule in by_rule.values()))
        for name, by_rule in recorded["averaged evaluations"].items()
    ]
    verdicts = (f"{recorded['warned of']} warned of", f"{recorded['restarted']} restarted")
    rows.append(Row(f"{recorded['trainings on PACS']} trainings on PACS", tuple(Cell(text=text) for text in verdicts)))
    return Table("Recorded", ("paper's rule", "restart"), tuple(rows), (), corner="Evaluations averaged")


# ------------------------------------------------------------ files

TABLES: dict[str, Callable[..., Table | None]] = {
    table.__name__: table
    for table in (
        accuracies,
        differences,
        domains,
        evidence,
        table3,
        table5,
        methods,
        gains,
        combined,
        search,
        flatness,
        curves,
        surfaces,
        windows,
        window_choices,
        robustness,
        robustness_differences,
        robustness_seen,
        robustness_differences_seen,
        parity,
        false_starts,
        recorded_starts,
        costs,
        step_parts,
        step_sizes,
        whole_run,
        plain_loops,
        updates,
        imagenet_steps,
        perturbed,
        corruption_speeds,
        sweep_costs,
        report_costs,
    )
}


def write_blocks(text: str, results: Path) -> str:
    """Return a text with every block made anew from the records under `results`. A note appears once in a text."""
    shown: set[str] = set()

    def block(match: re.Match[str]) -> str:
        start, name, source, end = match.groups()
        if name not in TABLES:
            raise ValueError(f"a block must name one of the tables {', '.join(TABLES)}; got {name!r}")
        sources = [results / each for each in source.split(",")]
        table = TABLES[name](*sources) if all(each.exists() for each in sources) else None
        if table is None:
            return f"{start}\n{MISSING}\n\n{end}"
        body = _markdown(table, shown)
        if (records := origin(sources)) not in shown:
            body += f"\n\n{records}"
            shown.add(records)
        return f"{start}\n{body}\n\n{end}"

    return BLOCK.sub(block, text)


def origin(sources: Sequence[Path]) -> str:
    """Say where the records of a table are; of a file of a benchmark also its command, date and machine.

    The commands of trainings are on the pages, because older records have older options.
    """
    return f"Records: {'; '.join(map(_origin, sources))}."


def _origin(source: Path) -> str:
    name = f"`{source.relative_to(ROOT) if source.is_relative_to(ROOT) else source.name}`"
    if source.is_dir():
        return name
    content = json.loads(source.read_text())
    command = re.sub(r" --(json|figure) \S+", "", str(content.get("command", "")))
    machine = content.get("gpu") or (f"{content['cpu_count']} CPU cores" if "cpu_count" in content else None)
    by = f"`{command}`" if command.startswith("python benchmarks/") else None
    known = [str(each) for each in (by, content.get("date"), machine) if each]
    return f"{name} ({', '.join(known)})" if known else name


def _markdown(table: Table, shown: set[str]) -> str:
    """Return a table without its title, which the heading above the block gives, and what is new in its notes."""
    notes = " ".join(filter(None, (_new(note, shown) for note in table.notes)))
    return replace(table, notes=(notes,)).markdown().split("\n", 2)[2].rstrip()


def _new(note: str, shown: set[str]) -> str:
    """Return the clauses of a note that no earlier note of the page had."""
    clauses = re.split(r"(?<=[.;]) ", note)
    kept = [clause for clause in clauses if clause.rstrip(".;") not in shown]
    shown.update(clause.rstrip(".;") for clause in clauses)
    text = " ".join(kept)
    if text and kept[0] != clauses[0] and text[1].isalpha():  # a symbol such as p stays as it is
        text = text[0].upper() + text[1:]
    return re.sub(";$", ".", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, and fail if a file is out of date")
    arguments = parser.parse_args()
    outdated = []
    for path in (ROOT / name for name in pages()):
        before = path.read_text()
        if (after := write_blocks(before, ROOT / "benchmarks" / "results")) != before:
            outdated.append(path.relative_to(ROOT))
            if not arguments.check:
                path.write_text(after)
    names = ", ".join(map(str, outdated))
    if arguments.check and outdated:
        sys.exit(f"{names} differ from the records: run python benchmarks/tables.py")
    print(f"wrote {names}" if outdated else "all tables are up to date")


if __name__ == "__main__":
    main()
