"""Tables that can be written as text, Markdown, LaTeX or CSV, with our rows above the paper's.

>>> table = Table("Accuracy", ("photo", "Avg."), (Row("ERM", (Cell(85.5, 0.2), Cell(85.5))),
...                                               Row("SWAD", (Cell(88.1, 0.1, best=True), Cell(88.1, best=True)))))
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
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from swad.util.grouping import group_by
from swad.util.statistics import summarize
from swad.util.terminal import make_console, printable

if TYPE_CHECKING:
    import rich.table
    import rich.text

OURS = "ours"
PAPER = "paper"

NARROW = 9
"""Characters to which names and headings are broken at most, where a terminal is too narrow for a table."""

LONG_TEXT = 24
"""Characters above which the text of a cell is aligned as a text, not as a number."""

BROKEN_TEXT = 40
"""Characters to which the texts in cells are broken before names are."""


@dataclass(frozen=True)
class Cell:
    """A number with its standard error, or a text; empty by default."""

    value: float | None = None
    error: float | None = None
    text: str | None = None
    best: bool = False
    """Whether the number is bold: the highest of its column."""
    decimals: int = 1
    mark: str = ""
    """A sign that a note explains."""
    signed: bool = False
    """Whether a positive number has a plus sign, as a difference has."""
    shade: float = 0.0
    """How strong the color is that the page shows behind the number, from 0 to 1."""

    @property
    def number(self) -> str:
        """The value as text, without its error."""
        if self.text is not None:
            return self.text
        if self.value is None:
            return "–"
        return f"{self.value:{'+' if self.signed else ''}z,.{self.decimals}f}"  # z: no -0.0

    @property
    def printed(self) -> str:
        """The cell as text, with its error."""
        if self.error is None or self.value is None:
            return f"{self.number}{self.mark}"
        return f"{self.number} ± {self.error:.{self.decimals}f}{self.mark}"


@dataclass(frozen=True)
class Row:
    """A named row. Rows of one group, ours or the paper's, stand together."""

    name: str
    cells: tuple[Cell, ...]
    group: str = OURS


@dataclass(frozen=True)
class Table:
    """Rows and columns, with notes on how to read the numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    corner: str = "Method"

    def groups(self) -> list[tuple[str, list[Row]]]:
        """Return the rows by group, in order of appearance."""
        return list(group_by(self.rows, lambda row: row.group).items())

    def has_error(self, column: int) -> bool:
        """Return whether any number of a column has an error."""
        return column in self._with_error

    def has_long_text(self, column: int) -> bool:
        """Return whether a column has texts to read, which start at its left edge and may be broken into lines."""
        return column in self._with_long_text

    @cached_property  # the page asks for every cell
    def _with_error(self) -> set[int]:
        return {i for row in self.rows for i, cell in enumerate(row.cells) if cell.error is not None}

    @cached_property
    def _with_long_text(self) -> set[int]:
        return {
            i
            for row in self.rows
            for i, cell in enumerate(row.cells)
            if cell.value is None and len(cell.text or "") > LONG_TEXT
        }

    def rich(self, width: int = 110) -> rich.table.Table:
        """Return the table for a terminal of this width: names and headings are broken into lines, numbers never.

        Print it with `crop=False`: if the numbers alone need more than the width, the table is wider.
        """
        try:
            import rich.box
            import rich.table
            from rich.text import Text
        except ImportError:
            raise ImportError("tables as text need rich: pip install 'swad[report]'") from None
        # Names are handed over as `Text`, which rich prints verbatim: in a string, it interprets [red] and :smile:.
        out = rich.table.Table(
            title=Text(self.title, "table.title", no_wrap=True, overflow="ignore"),
            box=rich.box.SIMPLE_HEAD,
            title_justify="left",
            pad_edge=False,
        )
        marks = [max((len(row.cells[i].mark) for row in self.rows), default=0) for i in range(len(self.columns))]
        texts = {id(row): list(map(_rich_cell, row.cells, marks)) for row in self.rows}
        needed = [max((cells[i].cell_len for cells in texts.values()), default=0) for i in range(len(self.columns))]
        name_width = max(map(len, [self.corner, *map(_label, self.rows)]))
        gaps = 3 * len(self.columns) + 2
        numeric = [any(row.cells[i].value is not None for row in self.rows) for i in range(len(self.columns))]
        widths = list(map(max, needed, map(len, self.columns)))
        is_narrow = name_width + sum(widths) + gaps > width
        broken = sum(size if number else min(size, BROKEN_TEXT) for size, number in zip(widths, numeric, strict=True))
        out.add_column(Text(self.corner), no_wrap=name_width + broken + gaps <= width, overflow="fold")
        least = min(name_width, NARROW) + gaps
        for i, heading in enumerate(self.columns):
            parts = textwrap.wrap(heading, max(needed[i], NARROW)) if numeric[i] and is_narrow else [heading]
            justify: Literal["left", "right"] = "left" if self.has_long_text(i) else "right"
            out.add_column(Text("\n".join(parts)), justify=justify, no_wrap=numeric[i], overflow="fold")
            least += max(needed[i], *map(len, parts)) if numeric[i] else min(needed[i], NARROW)
        if least > width:
            out.width = least
        for group, rows in self.groups():
            for row in rows:
                out.add_row(Text(_label(row)), *texts[id(row)], style=None if group == OURS else "dim")
            out.add_section()
        return out

    def text(self, width: int = 110) -> str:
        """Return the table as plain text with its notes below."""
        console = make_console(file=io.StringIO(), width=width, color_system=None)
        with console.capture() as capture:
            console.print(self.rich(width), crop=False)
        lines = [line.rstrip() for line in capture.get().rstrip().splitlines()]
        return "\n".join([*lines, *map(printable, self.notes)])

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
        r"""Return a LaTeX `tabular` in the style of booktabs."""
        lines = [
            _latex_comment(f"{self.title}; needs \\usepackage{{booktabs}}"),
            rf"\begin{{tabular}}{{l{'r' * len(self.columns)}}}",
            r"\toprule",
            " & ".join(_latex(name) for name in (self.corner, *self.columns)) + r" \\",
        ]
        for _, rows in self.groups():
            lines.append(r"\midrule")
            lines += [" & ".join([_latex(_label(row)), *map(_latex_cell, row.cells)]) + r" \\" for row in rows]
        lines += [r"\bottomrule", r"\end{tabular}"]
        return "\n".join([*lines, *map(_latex_comment, self.notes)])

    def csv(self, header: bool = True) -> str:
        """Return comma-separated values in full precision: one line per number, so that tables can be concatenated."""
        lines: list[list[object]] = []
        if header:
            lines.append(["table", self.corner.lower(), "group", "column", "value", "error", "bold", "mark"])
        for row in self.rows:
            for column, cell in zip(self.columns, row.cells, strict=True):
                value = cell.text if cell.text is not None else cell.value
                if value is not None:
                    marks = int(cell.best), cell.mark.strip()
                    lines.append([self.title, row.name, row.group, column, value, cell.error, *marks])
        return csv_text(lines)


def percent_cell(fractions: Iterable[float], decimals: int = 1) -> Cell:
    """Show the mean of fractions in percent, with its standard error if there are several; empty without any.

    >>> percent_cell([0.5, 0.75]).printed, percent_cell([0.5]).printed, percent_cell([]).printed
    ('62.5 ± 8.8', '50.0', '–')
    """
    values = list(fractions)
    if not values:
        return Cell()
    summary = summarize(values)
    return Cell(100 * summary.mean, percent(summary.error), decimals=decimals)


def mean_cell(summary: Any, scale: float = 100, decimals: int = 1) -> Cell:
    """Show a row of `swad.testbed.results.compare.means`: mean and standard error, or nothing without a mean."""
    if math.isnan(summary["mean"]):
        return Cell()
    error = None if math.isnan(summary["error"]) else scale * summary["error"]
    return Cell(scale * summary["mean"], error, decimals=decimals)


def percent(fraction: float | None) -> float | None:
    """Return a fraction in percent; None stays None."""
    return None if fraction is None else 100 * fraction


def csv_text(lines: Iterable[Iterable[object]]) -> str:
    """Return lines of values as comma-separated values; None is an empty field."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


def _rich_cell(cell: Cell, mark_width: int) -> rich.text.Text:
    from rich.text import Text

    # Without spaces around ±, four targets with errors fit into 80 columns. A number without a mark stands above those
    # with one.
    text = cell.printed.replace(" ± ", "±")
    if cell.value is not None:
        text += " " * (mark_width - len(cell.mark))
    return Text(text, "bold" if cell.best else "")


def _label(row: Row) -> str:
    return row.name if row.group == OURS else f"{row.name} ({row.group})"


def _markdown(text: str) -> str:
    text = printable(" ".join(text.split()))
    for mark in ("\\", "|", "*", "_", "`", "<", "["):
        text = text.replace(mark, "\\" + mark)
    return text


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
        "<": "$<$",  # in the default encoding of fonts, these two print as Spanish punctuation
        ">": "$>$",
        "†": r"$^\dagger$",
        "‡": r"$^\ddagger$",
        "Π": r"$\Pi$",
        "Δ": r"$\Delta$",
        "α": r"$\alpha$",
        "ε": r"$\epsilon$",
        "ρ": r"$\rho$",
        "↑": r"$\uparrow$",
        "↓": r"$\downarrow$",
        "−": "$-$",
        "±": r"$\pm$",
        "–": "--",
        "’": "'",
    }
)


def _latex(text: str) -> str:
    # Before a number, - is a minus sign; elsewhere it is a hyphen.
    return re.sub(r"(?<!\w)-(?=\d)", "−", _one_line(text)).translate(_LATEX)


def _latex_comment(text: str) -> str:
    """Return a comment; LaTeX would read on after any line break, a carriage return too."""
    return f"% {_one_line(text)}"


def _one_line(text: str) -> str:
    return printable(re.sub(r"\s", " ", text))


def _latex_cell(cell: Cell) -> str:
    number = _latex(cell.number)
    if cell.best:
        number = rf"\textbf{{{number}}}"
    if cell.error is None or cell.value is None:
        return number + _latex(cell.mark)
    return rf"{number} {{\scriptsize$\pm${cell.error:.{cell.decimals}f}}}" + _latex(cell.mark)
