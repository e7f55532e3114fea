import csv
import io
import re

import pytest

from swad.testbed.results.tables import PAPER, Cell, Row, Table

TABLE = Table(
    "A & B",
    ("art_painting", "Avg."),
    (
        Row("ERM", (Cell(85.51, 0.2, best=True), Cell(85.5, best=True))),
        Row("50% | x_y", (Cell(85.49, 0.1, best=True), Cell(None))),
        Row("MMD†", (Cell(1.0), Cell(2.0)), PAPER),
    ),
    ("100 % *true*.",),
)


def test_markdown() -> None:
    assert TABLE.markdown().splitlines() == [
        "### A & B",
        "",
        "| Method | art\\_painting | Avg. |",
        "|:--|--:|--:|",
        "| ERM | **85.5 ± 0.2** | **85.5** |",
        "| 50% \\| x\\_y | **85.5 ± 0.1** | – |",
        "| MMD† (paper) | 1.0 | 2.0 |",
        "",
        "100 % \\*true\\*.",
    ]


def test_latex() -> None:
    assert TABLE.latex().splitlines() == [
        r"% A & B; needs \usepackage{booktabs}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"Method & art\_painting & Avg. \\",
        r"\midrule",
        r"ERM & \textbf{85.5} {\scriptsize$\pm$0.2} & \textbf{85.5} \\",
        r"50\% | x\_y & \textbf{85.5} {\scriptsize$\pm$0.1} & -- \\",
        r"\midrule",
        r"MMD$^\dagger$ (paper) & 1.0 & 2.0 \\",
        r"\bottomrule",
        r"\end{tabular}",
        "% 100 % *true*.",
    ]


def test_csv_keeps_full_precision() -> None:
    rows = list(csv.DictReader(io.StringIO(TABLE.csv())))
    assert float(rows[0]["value"]) == 85.51
    second = [row for row in rows if row["method"] == "50% | x_y"]
    assert second == [
        {
            "table": "A & B", "method": "50% | x_y", "group": "ours", "column": "art_painting", "value": "85.49",
            "error": "0.1", "bold": "1", "mark": "",
        }
    ]  # fmt: skip


def test_latex_prints_minus_signs_and_comparisons() -> None:
    row = Row("group-dro a < b", (Cell(-1.25, decimals=2), Cell(text="-0.40 to -1e-5"), Cell(text="p <0.0001")))
    (line,) = [line for line in Table("x", ("a", "b", "c"), (row,)).latex().splitlines() if "group" in line]
    assert line == r"group-dro a $<$ b & $-$1.25 & $-$0.40 to $-$1e-5 & p $<$0.0001 \\"


def test_text_shows_every_number_and_no_markup() -> None:
    text = Table("[red]x", ("[b]",), (Row("[/]", (Cell(1.25, decimals=2),)),)).text()
    assert "[red]x" in text
    assert "[/]" in text
    assert "1.25" in text


def test_a_title_that_is_longer_than_the_table_stays_on_one_line() -> None:
    title = "digits, paper: F on seen domains"
    assert title in Table(title, ("a",), (Row("m", (Cell(1.25, decimals=2),)),)).text()


def test_names_are_printed_verbatim_in_the_terminal() -> None:
    name = "[red]x[/] [/] :smile: \\"
    rows = [Row(name, (Cell(text=name), Cell(2.0))), Row("b", (Cell(), Cell(1.0)))]
    table = Table(name, (name, "b"), tuple(rows), corner=name)
    assert table.text(width=200).count(name) == 5


def test_what_rounds_to_zero_has_no_minus() -> None:
    assert [Cell(-0.004, signed=signed, decimals=2).number for signed in (True, False)] == ["+0.00", "0.00"]
    assert Cell(-0.006, signed=True, decimals=2).number == "-0.01"


@pytest.mark.parametrize("width", [40, 90, 110])
def test_a_narrow_terminal_breaks_names_and_headings_and_no_number(width: int) -> None:
    cells = (Cell(81.25, 1.5), Cell(96.75, 0.25, mark="↓"), Cell(85.5), *[Cell(70.0, 12.5)] * 3)
    rows = (Row("ERM (DomainBed, selected step)", cells), Row("CORAL", cells[::-1]))
    text = Table("Accuracy", ("art_painting", "cartoon", "photo", "sketch", "Avg.", "In-domain"), rows).text(width)
    for number in ("81.2±1.5", "96.8±0.2↓", "85.5"):
        assert text.count(number) == 2
    assert text.count("70.0±12.5") == 6
    assert "…" not in text
    assert "ERM" in text
    if width > 60:
        assert max(map(len, text.splitlines())) <= width


def test_texts_are_broken_before_names() -> None:
    name = "mean over targets, over 3 trials: ERM (window) against SWAD"
    verdict = Cell(text="significantly different in 2 of 12 pairs of trials")
    text = Table("Differences", ("on seen domains", "on unseen domains"), (Row(name, (verdict, verdict)),)).text(160)
    assert name in text
    assert max(map(len, text.splitlines())) <= 160


def test_long_texts_start_at_the_left_and_numbers_end_at_the_right() -> None:
    rows = (
        Row("a", (Cell(text="flatter at every radius (p = 0.01)"), Cell(1.0))),
        Row("b", (Cell(text="open"), Cell(100.0))),
    )
    *_, first, second = Table("Verdicts", ("verdict", "points"), rows).text().splitlines()
    assert first.index("flatter") == second.index("open")
    assert len(first) == len(second)


@pytest.mark.parametrize("line_break", ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029"])
def test_no_line_break_ends_a_comment_or_a_row_of_latex(line_break: str) -> None:
    name = rf"art{line_break}\input{{/etc/passwd}}"
    table = Table(f"Accuracy on {name}", (name,), (Row(name, (Cell(text=name),)),), (f"Without {name}",), corner=name)
    lines = re.split(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]", table.latex())
    assert len(lines) == 9
    assert lines[0].startswith("% Accuracy on art ")
    assert lines[-1].startswith("% Without art ")
    assert not any(r"\input{" in line for line in lines[1:-1])


def test_escape_sequences_reach_no_written_table() -> None:
    name = "art\x1b[2J\x07"
    table = Table(name, (name,), (Row(name, (Cell(text=name),)),), (name,))
    for written in (table.latex(), table.markdown(), table.text()):
        assert "\x1b" not in written
        assert r"\x1b[2J" in written.replace(r"\textbackslash{}", "\\").replace("\\\\", "\\").replace(r"\[", "[")
