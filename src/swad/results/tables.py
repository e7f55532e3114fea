"""Tables: one object, printed as text, Markdown, LaTeX or CSV; ours above the paper's.

>>> table = Table("Accuracy", ("photo", "Avg."), mark_best([Row("ERM", (Cell(85.5, 0.2), Cell(85.5))),
...                                                        Row("SWAD", (Cell(88.1, 0.1), Cell(88.1)))]))
>>> print(table.markdown())
### Accuracy
<BLANKLINE>
| Method | photo | Avg. |
|:--|--:|--:|
| ERM | 85.5 ± 0.2 | 85.5 |
| SWAD | **88.1 ± 0.1** | **88.1** |
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from swad.results import published
from swad.results.runs import RunData
from swad.results.selection import Outcome, SelectionError, Summary, select, source_accuracy, summarize
from swad.results.summary import algorithm_name, final_value, method_name, valley, valley_averages

if TYPE_CHECKING:
    import rich.table

OURS = "ours"
PAPER = "paper"

Paper = Literal["few", "all", "none"]
"""Which of the paper's rows: ERM, SWAD and what is named as one of ours; all; none."""


@dataclass(frozen=True)
class Cell:
    """A number with its standard error, or a word, or nothing."""

    value: float | None = None
    error: float | None = None
    text: str | None = None
    best: bool = False
    decimals: int = 1

    @property
    def number(self) -> str:
        """The value as printed, without its error."""
        if self.text is not None:
            return self.text
        if self.value is None:
            return "–"
        return f"{self.value:,.{self.decimals}f}"

    @property
    def printed(self) -> str:
        """The cell as plain text."""
        if self.error is None or self.value is None:
            return self.number
        return f"{self.number} ± {self.error:.{self.decimals}f}"


@dataclass(frozen=True)
class Row:
    """A named row; rows of one group stand together and compete for the bold type."""

    name: str
    cells: tuple[Cell, ...]
    group: str = OURS


@dataclass(frozen=True)
class Table:
    """Rows under columns, and the notes without which the numbers would mislead."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    corner: str = "Method"

    def groups(self) -> list[tuple[str, list[Row]]]:
        """Return the rows by group, in order of appearance."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.group, []).append(row)
        return list(found.items())

    def has_error(self, place: int) -> bool:
        """Tell if any number of a column has an error beside it."""
        return any(row.cells[place].error is not None for row in self.rows)

    def rich(self) -> rich.table.Table:
        """Return the table for a terminal."""
        try:
            import rich.box
            import rich.table
            from rich.markup import escape
        except ImportError:
            raise ImportError("tables as text need rich: pip install 'swad[report]'") from None
        out = rich.table.Table(title=escape(self.title), box=rich.box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
        out.add_column(self.corner, no_wrap=True)
        for column in self.columns:
            out.add_column(escape(column), justify="right")
        for group, rows in self.groups():
            for row in rows:
                style = None if group == OURS else "dim"
                # Close together: four targets with errors then fit into 80 columns.
                texts = [escape(cell.printed.replace(" ± ", "±")) for cell in row.cells]
                cells = (f"[bold]{t}[/]" if c.best else t for t, c in zip(texts, row.cells, strict=True))
                out.add_row(escape(_label(row)), *cells, style=style)
            out.add_section()
        return out

    def text(self, width: int = 110) -> str:
        """Return the table as plain text with its notes below."""
        from rich.console import Console

        console = Console(file=io.StringIO(), width=width, color_system=None)
        with console.capture() as capture:
            console.print(self.rich())
        lines = [line.rstrip() for line in capture.get().rstrip().splitlines()]
        return "\n".join([*lines, *self.notes])

    def markdown(self) -> str:
        """Return the table as GitHub-flavored Markdown."""
        lines = [
            f"### {_markdown(self.title)}",
            "",
            _markdown_row([self.corner, *self.columns]),
            "|:--|" + "--:|" * len(self.columns),
        ]
        for row in self.rows:
            cells = [_markdown(cell.printed) for cell in row.cells]
            cells = [f"**{text}**" if cell.best else text for cell, text in zip(row.cells, cells, strict=True)]
            lines.append("| " + " | ".join([_markdown(_label(row)), *cells]) + " |")
        return "\n".join([*lines, *(f"\n{_markdown(note)}" for note in self.notes)])

    def latex(self) -> str:
        r"""Return a `tabular` in the style of booktabs, to stand in a `table`."""
        lines = [
            f"% {self.title}; needs \\usepackage{{booktabs}}".replace("\n", " "),
            rf"\begin{{tabular}}{{l{'r' * len(self.columns)}}}",
            r"\toprule",
            " & ".join(_latex(name) for name in (self.corner, *self.columns)) + r" \\",
        ]
        for _, rows in self.groups():
            lines.append(r"\midrule")
            lines += [" & ".join([_latex(_label(row)), *map(_latex_cell, row.cells)]) + r" \\" for row in rows]
        lines += [r"\bottomrule", r"\end{tabular}"]
        return "\n".join([*lines, *(f"% {note}".replace("\n", " ") for note in self.notes)])

    def csv(self, header: bool = True) -> str:
        """Return comma-separated values in full precision, a line for each number, so that tables can be joined."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        if header:
            writer.writerow(["table", self.corner.lower(), "group", "column", "value", "error"])
        for row in self.rows:
            for column, cell in zip(self.columns, row.cells, strict=True):
                value = cell.text if cell.text is not None else cell.value
                if value is not None:
                    writer.writerow(
                        [self.title, row.name, row.group, column, value, "" if cell.error is None else cell.error]
                    )
        return out.getvalue()


def mark_best(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Mark the greatest number of each column in each group, as printed: equals share the honour."""
    rows = tuple(rows)
    tops: dict[tuple[str, int], float] = {}
    for row in rows:
        for place, cell in enumerate(row.cells):
            if cell.value is not None and math.isfinite(cell.value):
                key = (row.group, place)
                tops[key] = max(tops.get(key, -math.inf), round(cell.value, cell.decimals))
    sizes = {group: sum(row.group == group for row in rows) for group in {row.group for row in rows}}
    return tuple(
        replace(
            row,
            cells=tuple(
                replace(
                    cell,
                    # Alone in its group, a row is not the best of anything.
                    best=sizes[row.group] > 1
                    and cell.value is not None
                    and round(cell.value, cell.decimals) == tops.get((row.group, place)),
                )
                for place, cell in enumerate(row.cells)
            ),
        )
        for row in rows
    )


def _label(row: Row) -> str:
    return row.name if row.group == OURS else f"{row.name} ({row.group})"


def _markdown(text: str) -> str:
    for mark in ("\\", "|", "*", "_", "`", "<", "["):
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split())


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(map(_markdown, cells)) + " |"


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "†": r"$^\dagger$",
        "‡": r"$^\ddagger$",
        "Π": r"$\Pi$",
        "±": r"$\pm$",
        "–": "--",
        "\n": " ",
    }
)


def _latex(text: str) -> str:
    return text.translate(_LATEX)


def _latex_cell(cell: Cell) -> str:
    number = _latex(cell.number)
    if cell.best:
        number = rf"\textbf{{{number}}}"
    if cell.error is None or cell.value is None:
        return number
    return rf"{number} {{\scriptsize$\pm${cell.error:.{cell.decimals}f}}}"


# ------------------------------------------------------------ the tables of a report


def averages(runs: Iterable[RunData], method: str = "iid") -> list[str | None]:
    """Name the methods that runs measured on their targets: plain training first, SWAD last.

    None, the live weights at a step that selection chooses, is a row of its own only where `method` asks the target
    at every step, or where there are neither best nor last weights.
    """
    names: dict[str | None, None] = {}
    for run in runs:
        for record in run.records:
            if record.metric == "accuracy" and record.domain in run.targets:
                names[record.average] = None
    if method != "oracle_best_step" and any(name is not None and name.startswith("erm_") for name in names):
        names.pop(None, None)  # the live weights are already there, as best and as last

    def order(name: str | None) -> int:
        if name is None or name.startswith("erm_"):
            return 0
        return 2 if name.startswith("swad") else 1

    return sorted(names, key=order)


def results(
    runs: Sequence[RunData],
    method: str = "iid",
    *,
    split: str = "in",
    paper: Paper = "few",
    search_trial: int | None = None,
) -> list[Table]:
    """Make one table for each dataset: every algorithm and average on every target, in percent.

    `method` and `search_trial` are those of `swad.results.selection.select`. `paper` says which published rows follow
    where the paper has that dataset: the few that ours compare with, all, or none.
    """
    by_dataset: dict[str, list[RunData]] = {}
    for run in runs:
        by_dataset.setdefault(run.dataset, []).append(run)
    return [
        _dataset_table(dataset, members, method, split, paper, search_trial) for dataset, members in by_dataset.items()
    ]


def _dataset_table(
    dataset: str, runs: Sequence[RunData], method: str, split: str, paper: Paper, search_trial: int | None
) -> Table:
    targets = sorted({run.targets[0] for run in runs if len(run.targets) == 1})
    rows: list[Row] = []
    faults: dict[str, list[str]] = {}
    # What others are compared with stands first.
    for algorithm in sorted(dict.fromkeys(run.algorithm for run in runs), key=lambda name: name != "erm"):
        members = [run for run in runs if run.algorithm == algorithm]
        for average in averages(members, method):
            outcomes: list[Outcome] = []
            for target in targets:
                try:
                    outcomes += select(
                        [run for run in members if target in run.targets and run.targets != ()],
                        method,
                        average,
                        split=split,
                        search_trial=search_trial,
                        targets=[target],
                    )
                except SelectionError as error:
                    faults.setdefault(str(error), []).append(f"{method_name(algorithm, average)} on {target}")
            if outcomes:
                rows.append(Row(method_name(algorithm, average), _cells(outcomes, targets, average)))
    notes = [f"Not shown: {', '.join(rows_lost)}: {error}." for error, rows_lost in faults.items()]
    if not targets:
        notes.append("No run holds out one domain alone; runs that hold out two serve the selection lodo.")
    if method == "oracle_best_step" and not any(None in averages([run], method) for run in runs):
        notes.append("No step to choose: the target was measured at the end only (--target-every-evaluation).")
    marked = mark_best(rows)
    if paper != "none":
        like = {"ERM", "SWAD", *(row.name for row in rows), *(algorithm_name(run.algorithm) for run in runs)}
        if "SWA" in like:
            like |= {"SWA w/ cyclic" if run.config.get("lr_schedule") == "cyclic" else "SWA w/ const" for run in runs}
        theirs = _published(dataset, targets)
        marked += mark_best(row for row in theirs if paper == "all" or row.name.rstrip("†‡") in like)
    if any("†" in row.name or "‡" in row.name for row in marked):
        notes.append("Rows of the paper: † from DomainBed’s search, ‡ from the paper’s own.")
    part = {"in": "training part", "out": "validation part", "full": "whole", "test": "test part"}.get(split, split)
    said = f"Accuracy in % on the {part} of the target, selected by {SELECTIONS.get(method, method)}; "
    said += f"{_trials(runs)}. In-domain: mean over the sources’ held-out splits."
    return Table(dataset, (*targets, "Avg.", "In-domain"), marked, (said, *notes))


SELECTIONS = {
    "iid": "source validation accuracy (iid)",
    "last": "last step",
    "lodo": "leaving one source out too (lodo)",
    "oracle": "target validation accuracy at the last step (oracle)",
    "oracle_best_step": "target validation accuracy (oracle, best step)",
}


def _trials(runs: Iterable[RunData]) -> str:
    found: dict[tuple[str, tuple[str, ...]], set[int]] = {}
    for run in runs:
        found.setdefault((run.algorithm, run.targets), set()).add(run.trial)
    counts = {len(trials) for trials in found.values()}
    if counts == {1}:
        return "one trial"
    upto = "" if len(counts) == 1 else "up to "
    return f"mean ± standard error over {upto}{max(counts)} trials"


def _cells(outcomes: Sequence[Outcome], targets: Sequence[str], average: str | None) -> tuple[Cell, ...]:
    cells = []
    for target in targets:
        values = [outcome.value for outcome in outcomes if outcome.target == target]
        cells.append(_cell(summarize(values)) if values else Cell())
    cells.append(_over_targets({(o.target, o.trial): o.value for o in outcomes}, targets))
    inside = {
        (o.target, o.trial): source_accuracy(o.run, average, o.step if average is None else None) for o in outcomes
    }
    cells.append(_over_targets({place: v for place, v in inside.items() if v is not None}, targets))
    return tuple(cells)


def _over_targets(values: dict[tuple[str, int], float], targets: Sequence[str]) -> Cell:
    """Average over targets within each trial, then over trials: the error is one of the whole table."""
    if {target for target, _ in values} != set(targets):
        return Cell()  # a mean over some targets would not compare with one over all
    trials = sorted({trial for _, trial in values})
    if all((target, trial) in values for target in targets for trial in trials):
        within = [summarize(values[target, trial] for target in targets).mean for trial in trials]
        return _cell(summarize(within))
    means = [summarize(v for (name, _), v in values.items() if name == target).mean for target in targets]
    return Cell(100 * math.fsum(means) / len(means))


def _cell(summary: Summary) -> Cell:
    return Cell(100 * summary.mean, None if summary.error is None else 100 * summary.error)


def _published(dataset: str, targets: Sequence[str]) -> list[Row]:
    rows = []
    for row in published.targets(dataset):
        if not any(target in row.cells for target in targets):
            continue
        numbers = [row.cells.get(target) for target in targets]
        # Their average is over all targets; beside fewer of ours it would mislead.
        numbers.append(row.average if set(row.cells) == set(targets) else None)
        cells = [Cell() if number is None else Cell(number.value, number.error) for number in numbers]
        rows.append(Row(row.name, (*cells, Cell()), PAPER))
    if any(set(row.cells) == set(targets) for row in published.targets(dataset)):
        for row in published.averages(dataset):
            assert row.average is not None
            mean = Cell(row.average.value, row.average.error)
            rows.append(Row(row.name, (*(Cell() for _ in targets), mean, Cell()), PAPER))
    return rows


def ranges(runs: Iterable[RunData]) -> Table:
    """Tabulate what every valley average took: first and last step, how many weights, the threshold."""
    rows = []
    for run in runs:
        for average in valley_averages(run):
            state = valley(run, average)
            if state is None:
                continue
            rows.append(
                Row(
                    f"{'+'.join(run.targets)}, trial {run.trial}",
                    (
                        Cell(text=method_name(run.algorithm, average)),
                        _count(state.start),
                        _count(state.end),
                        _count(state.n_averaged),
                        Cell(state.threshold, decimals=4) if state.threshold is not None else Cell(text="none"),
                    ),
                )
            )
    columns = ("Average", "First step", "Last step", "Weights", "Threshold")
    return Table("Averaged range", columns, tuple(rows), corner="Target")


def _count(value: int | None) -> Cell:
    return Cell() if value is None else Cell(value, decimals=0)


def timings(runs: Iterable[RunData]) -> Table:
    """Tabulate where the time went in every run."""
    rows = []
    for run in runs:
        total, step, evaluation = (
            final_value(run, metric) for metric in ("seconds_total", "seconds_per_step", "seconds_evaluation")
        )
        share = 100 * evaluation / total if total and evaluation is not None else None
        rows.append(
            Row(
                f"{'+'.join(run.targets)}, trial {run.trial}",
                (
                    Cell(text=method_name(run.algorithm, None).removesuffix(" (chosen step)")),
                    Cell(total),
                    Cell(None if step is None else 1000 * step),
                    Cell(evaluation),
                    Cell(share),
                ),
            )
        )
    columns = ("Algorithm", "Total, s", "Step, ms", "Evaluation, s", "Evaluation, %")
    return Table("Timings", columns, tuple(rows), corner="Target")
