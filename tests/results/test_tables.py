import csv
import io
import math
from dataclasses import replace

import pytest

from helpers.configs import roles
from helpers.run_tree import PACS, write_run
from swad.results import tables
from swad.results.runs import RunData, find_runs
from swad.results.summary import method_name, valley, warnings
from swad.results.tables import Cell, Row, Table, mark_best, results


def target_values(runs: list[RunData], target: str, average: str) -> list[float]:
    return [
        record.value
        for run in runs
        if run.targets == (target,)
        for record in run.records
        if (record.domain, record.split, record.metric, record.average) == (target, "in", "accuracy", average)
    ]


def test_the_numbers_are_those_of_the_records(runs: list[RunData]) -> None:
    (table,) = results(runs)
    assert table.columns == (*PACS, "Avg.", "In-domain")
    rows = {row.name: row for row in table.rows if row.group == tables.OURS}
    assert list(rows) == ["ERM (best)", "ERM (last)", "EMA", "SWA", "SWAD"]
    for name, average in (("SWAD", "swad"), ("ERM (best)", "best")):
        by_target = [target_values(runs, target, average) for target in PACS]
        for cell, (a, b) in zip(rows[name].cells, by_target, strict=False):
            assert cell.value == pytest.approx(100 * (a + b) / 2)
            assert cell.error == pytest.approx(100 * abs(a - b) / 2 / math.sqrt(2))
        first, second = (sum(values[trial] for values in by_target) / 4 for trial in (0, 1))
        assert rows[name].cells[4].value == pytest.approx(50 * (first + second))
        assert rows[name].cells[4].error == pytest.approx(100 * abs(first - second) / 2 / math.sqrt(2))


def test_the_papers_rows_stand_below_with_their_own_best(runs: list[RunData]) -> None:
    (table,) = results(runs, paper="all")
    paper = [row for row in table.rows if row.group == tables.PAPER]
    few = [row for row in results(runs)[0].rows if row.group == tables.PAPER]
    assert [row.name for row in few] == ["ERM‡", "ERM†", "SWAD", "SWA w/ const"]
    assert len(paper) == 24 + 5
    swad = next(row for row in paper if row.name == "SWAD")
    assert [cell.best for cell in swad.cells] == [True, True, False, False, False, False]
    combined = next(row for row in paper if row.name == "CORAL + SWAD")  # of which the paper prints the mean alone
    assert [cell.printed for cell in combined.cells] == ["–", "–", "–", "–", "88.3 ± 0.1", "–"]
    assert combined.cells[4].best
    assert results(runs, paper="none")[0].rows == table.rows[:5]


def test_fewer_targets_take_the_papers_average_away(runs: list[RunData]) -> None:
    (table,) = results([run for run in runs if run.targets[0] in ("photo", "sketch")])
    assert table.columns == ("photo", "sketch", "Avg.", "In-domain")
    assert table.rows[-1].name == "SWAD"
    assert table.rows[-1].cells[2].value is None


def test_a_mean_over_some_targets_is_not_given(faulty: list[RunData]) -> None:
    (table,) = results(faulty)
    row = next(row for row in table.rows if row.name == "SWAD")
    printed = dict(zip(table.columns, [cell.printed for cell in row.cells], strict=True))
    assert printed["photo"] == printed["Avg."] == "–"
    assert "±" in printed["cartoon"]
    assert "up to 2 trials" in table.notes[0]


def test_algorithms_and_data_sets_are_kept_apart(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("two")
    write_run(root / "a", algorithm="coral")
    write_run(root / "b", algorithm="erm")  # stands first all the same
    write_run(root / "c", dataset="digits", domains=("ink", "outline"), target="ink")
    pacs, digits = results(find_runs(root))
    assert [row.name for row in pacs.rows if row.group == tables.OURS][-2:] == ["CORAL + SWA", "CORAL + SWAD"]
    assert {row.group for row in digits.rows} == {tables.OURS}
    assert "one trial" in digits.notes[0]


TABLE = Table(
    "A & B",
    ("art_painting", "Avg."),
    mark_best(
        [
            Row("ERM", (Cell(85.51, 0.2), Cell(85.5))),
            Row("50% | x_y", (Cell(85.49, 0.1), Cell(None))),
            Row("MMD†", (Cell(1.0), Cell(2.0)), tables.PAPER),
        ]
    ),
    ("100 % *true*.",),
)


def test_equals_as_printed_share_the_bold_and_one_alone_has_none() -> None:
    assert [[cell.best for cell in row.cells] for row in TABLE.rows] == [[True, True], [True, False], [False, False]]


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
            "error": "0.1",
        }
    ]  # fmt: skip


def test_text_shows_every_number_and_no_markup() -> None:
    text = Table("[red]x", ("[b]",), (Row("[/]", (Cell(1.25, decimals=2),)),)).text()
    assert "[red]x" in text
    assert "[/]" in text
    assert "1.25" in text


def test_ranges_and_timings(runs: list[RunData], faulty: list[RunData]) -> None:
    table = tables.ranges(runs)
    state = valley(runs[0], "swad")
    assert state is not None
    assert [cell.value for cell in table.rows[0].cells[1:4]] == [state.start, state.end, state.n_averaged]
    never = next(row for row in tables.ranges(faulty).rows if row.name.startswith("sketch"))
    assert never.cells[-1].printed == "none"
    assert tables.timings(runs).rows[0].cells[1].value == next(
        record.value for record in runs[0].records if record.metric == "seconds_total"
    )
    unfinished = next(row for row in tables.timings(faulty).rows if row.name.startswith("photo"))
    assert unfinished.cells[1].printed == "–"


def test_runs_that_were_not_made_alike_are_named(runs: list[RunData]) -> None:
    config = {**runs[0].config, "network": "vit_tiny_patch16_224", "steps": 7}
    other = replace(runs[0], config=config, roles=roles(config))
    said = warnings([*runs[1:], other])
    assert any("differ in network" in text and "vit_tiny_patch16_224 (1 run)" in text for text in said)
    assert any("differ in steps" in text for text in said)


@pytest.mark.parametrize("machine", [{"engine": "graph"}, {"cache": "/fast/disk"}, {"device": "cuda"}])
def test_runs_that_differ_only_in_the_machine_are_repeats(runs: list[RunData], machine: dict[str, object]) -> None:
    config = {**runs[0].config, **machine}
    again = replace(runs[0], config=config, roles=roles(config))
    said = " ".join(warnings([runs[0], again]))
    assert "2 runs have the same setting" in said
    assert "differ in" not in said


def test_warnings_name_every_fault(runs: list[RunData], faulty: list[RunData]) -> None:
    assert warnings(runs) == []
    said = "\n".join(warnings(faulty))
    assert "target photo, trial 0 is unfinished: it reached step 500 of 1500." in said
    assert "target sketch, trial 0: the validation loss never converged for swad" in said
    assert "target cartoon, trial 0: 2 runs have the same setting" in said
    assert "ERM on PACS: target photo lacks trial 1." in said


def test_method_names() -> None:
    assert method_name("coral", "last") == "CORAL (last)"
    assert method_name("erm", None) == "ERM (chosen step)"
