import math

import pytest

from helpers.run_tree import PACS, write_run
from swad.results.run_tables import accuracy_tables, ranges_table, timings_table
from swad.results.runs import RunData, find_runs
from swad.results.tables import OURS, PAPER
from swad.results.training_curves import valley


def target_values(runs: list[RunData], target: str, average: str) -> list[float]:
    return [
        record.value
        for run in runs
        if run.targets == (target,)
        for record in run.records
        if (record.domain, record.split, record.metric, record.average) == (target, "in", "accuracy", average)
    ]


def test_the_numbers_are_those_of_the_records(runs: list[RunData]) -> None:
    (table,) = accuracy_tables(runs)
    assert table.columns == (*PACS, "Avg.", "In-domain")
    rows = {row.name: row for row in table.rows if row.group == OURS}
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
    (table,) = accuracy_tables(runs, paper="all")
    paper = [row for row in table.rows if row.group == PAPER]
    few = [row for row in accuracy_tables(runs)[0].rows if row.group == PAPER]
    assert [row.name for row in few] == ["ERM‡", "ERM†", "SWAD", "SWA w/ const"]
    assert len(paper) == 24 + 5
    swad = next(row for row in paper if row.name == "SWAD")
    assert [cell.best for cell in swad.cells] == [True, True, False, False, False, False]
    combined = next(row for row in paper if row.name == "CORAL + SWAD")  # of which the paper prints the mean alone
    assert [cell.printed for cell in combined.cells] == ["–", "–", "–", "–", "88.3 ± 0.1", "–"]
    assert combined.cells[4].best
    assert accuracy_tables(runs, paper="none")[0].rows == table.rows[:5]


def test_fewer_targets_take_the_papers_average_away(runs: list[RunData]) -> None:
    (table,) = accuracy_tables([run for run in runs if run.targets[0] in ("photo", "sketch")])
    assert table.columns == ("photo", "sketch", "Avg.", "In-domain")
    assert table.rows[-1].name == "SWAD"
    assert table.rows[-1].cells[2].value is None


def test_a_mean_over_some_targets_is_not_given(faulty: list[RunData]) -> None:
    (table,) = accuracy_tables(faulty)
    row = next(row for row in table.rows if row.name == "SWAD")
    printed = dict(zip(table.columns, [cell.printed for cell in row.cells], strict=True))
    assert printed["photo"] == printed["Avg."] == "–"
    assert "±" in printed["cartoon"]
    assert "up to 2 trials" in table.notes[0]


def test_algorithms_and_datasets_have_their_own_rows_and_tables(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("two")
    write_run(root / "a", algorithm="coral")
    write_run(root / "b", algorithm="erm")  # stands first all the same
    write_run(root / "c", dataset="digits", domains=("ink", "outline"), target="ink")
    pacs, digits = accuracy_tables(find_runs(root))
    assert [row.name for row in pacs.rows if row.group == OURS][-2:] == ["CORAL + SWA", "CORAL + SWAD"]
    assert {row.group for row in digits.rows} == {OURS}
    assert "one trial" in digits.notes[0]


def test_ranges_and_timings(runs: list[RunData], faulty: list[RunData]) -> None:
    table = ranges_table(runs)
    state = valley(runs[0], "swad")
    assert state is not None
    assert [cell.value for cell in table.rows[0].cells[1:4]] == [state.start, state.end, state.n_averaged]
    never = next(row for row in ranges_table(faulty).rows if row.name.startswith("sketch"))
    assert never.cells[-1].printed == "none"
    assert timings_table(runs).rows[0].cells[1].value == next(
        record.value for record in runs[0].records if record.metric == "seconds_total"
    )
    unfinished = next(row for row in timings_table(faulty).rows if row.name.startswith("photo"))
    assert unfinished.cells[1].printed == "–"
