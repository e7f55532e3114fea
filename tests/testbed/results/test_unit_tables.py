"""Comparisons as tables and CSV, and the marks of a column: what is bold, and what is shown to be lower."""

import csv
import io
import math

import numpy as np
import pytest

from helpers.accuracies import noisy, results_of
from helpers.run_tree import write_run
from swad.testbed.results.compare import is_clear, lower_than_best
from swad.testbed.results.comparisons import ALL_DOMAINS, compare_methods, compare_over_datasets
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import find_runs
from swad.testbed.results.selection import DatasetResults, collect_results
from swad.testbed.results.tables import Cell, Row
from swad.testbed.results.unit_tables import (
    FIELDS,
    comparisons_csv,
    comparisons_tables,
    legend,
    mark_column,
)


@pytest.fixture(scope="module")
def results(runs: list[RunData], tmp_path_factory: pytest.TempPathFactory) -> list[DatasetResults]:
    """PACS with two trials, and another dataset with one."""
    root = tmp_path_factory.mktemp("other")
    for target in ("ink", "outline"):
        write_run(root / target, dataset="digits", domains=("ink", "outline"), target=target)
    return collect_results([*runs, *find_runs(root)])


def test_the_table_shows_every_number_of_a_comparison(results: list[DatasetResults]) -> None:
    comparisons = compare_methods(results[0])
    (table,) = comparisons_tables(comparisons)
    assert table.title == "Comparisons with ERM (best)"
    assert table.columns == ("Points", "95 % interval", "p", "Corrected p", "n")
    shown = {row.name: [cell.printed for cell in row.cells] for row in table.rows}
    swad = next(test for test in comparisons.itertuples() if test.method == "SWAD")
    assert is_clear(swad)
    assert shown["SWAD"] == [
        f"{100 * swad.difference:+.2f} ↑",
        f"{100 * swad.low:+.2f} to {100 * swad.high:+.2f}",
        "0.0078",  # 2 of 256 sign patterns
        "0.031",  # of four methods
        "8 runs",
    ]
    assert r"$\uparrow$" in table.latex()
    assert not any("One trial" in note for note in table.notes)
    assert "Over runs: a difference would hold for another training on these targets." in table.notes[0]


def test_one_trial_shows_differences_and_claims_nothing(results: list[DatasetResults]) -> None:
    (table,) = comparisons_tables(compare_methods(results[1]))
    for row in table.rows:
        assert [cell.printed for cell in row.cells[1:]] == ["–", "–", "–", "2 runs"]
        assert row.cells[0].mark == ""
    assert any(note.startswith("One trial shows no spread") for note in table.notes)
    assert not any("p is exact" in note for note in table.notes)


def test_few_units_are_marked_with_t(results: list[DatasetResults]) -> None:
    (table,) = comparisons_tables(compare_methods(results[0], unit="trials"))
    assert {row.cells[-1].printed for row in table.rows} == {"2 trials, t"}


def test_several_datasets_have_a_table_each(results: list[DatasetResults]) -> None:
    comparisons = compare_over_datasets(results)
    tables = comparisons_tables(comparisons)
    assert [table.title.removeprefix("Comparisons with ERM (best): ") for table in tables] == [
        "PACS",
        "digits",
        ALL_DOMAINS,
    ]
    assert [bool(table.notes) for table in tables] == [False, False, True]
    assert sum(len(table.rows) for table in tables) == len(comparisons)
    assert comparisons_tables(comparisons[:0]) == []
    assert comparisons_tables(comparisons, ["Further."])[-1].notes[-1] == "Further."
    assert comparisons_tables(comparisons[:1], ["Further."])[0].notes[-1] == "Further."


def test_the_csv_has_full_precision_and_a_verdict(results: list[DatasetResults]) -> None:
    comparisons = compare_over_datasets(results)
    rows = list(csv.DictReader(io.StringIO(comparisons_csv(comparisons))))
    assert tuple(rows[0]) == tuple(FIELDS)
    assert len(rows) == len(comparisons)
    for row, comparison in zip(rows, comparisons.itertuples(), strict=True):
        assert float(row["difference"]) == 100 * comparison.difference
        assert row["p"] == ("" if math.isnan(comparison.p) else str(comparison.p))
    verdicts = {(row["dataset"], row["method"]): row["verdict"] for row in rows}
    assert verdicts["PACS", "SWAD"] == "better"
    assert verdicts["PACS", "ERM (last)"] == "worse"
    assert verdicts["digits", "SWAD"] == "no test"


def test_identical_differences_are_explained() -> None:
    base = np.full((1, 3), 0.5)
    comparisons = compare_methods(results_of({"ERM (best)": base, "SWAD": base + 0.1}, targets="a"))
    assert any(
        note.startswith("No test where all paired differences") for note in comparisons_tables(comparisons)[0].notes
    )


def test_the_report_of_nothing_is_empty(results: list[DatasetResults]) -> None:
    nothing = compare_methods(results[0])[:0]
    assert comparisons_tables(nothing) == []
    assert comparisons_csv(nothing).count("\n") == 1


# The marks of a column.


def marks(values: dict[str, np.ndarray], tests: bool = True) -> dict[str, str]:
    """Return by method whether it is bold, and its mark."""
    cells = {label: Cell(100 * float(each.mean())) for label, each in values.items()}
    marked, error = mark_column(cells, results_of(values).units, tests)
    assert not error
    assert {label: cell.value for label, cell in marked.items()} == {label: cell.value for label, cell in cells.items()}
    return {label: "bold" * cell.best + cell.mark for label, cell in marked.items()}


def test_arrows_mark_what_is_shown_to_be_lower() -> None:
    values = noisy({"low": -0.05, "good": 0.0, "best": 0.001}, noise=0.005)
    assert marks(values) == {"low": "↓", "good": "", "best": "bold"}
    assert marks(values, tests=False) == {"low": "", "good": "", "best": "bold"}
    # The pairing counts: a spread that both methods share does not hide a small gain, even one that is not printed.
    base = values["low"]
    gain = 0.0001 + np.random.default_rng(0).normal(0, 0.00001, base.shape)
    assert marks({"a": base, "b": base + gain}) == {"a": "↓", "b": "bold"}


def test_equal_means_are_bold_and_nan_has_no_mark() -> None:
    base = noisy({"a": 0})["a"]
    worse = base - 0.1 + np.linspace(0, 0.01, 12).reshape(4, 3)
    values = {"a": base, "same": base, "worse": worse, "nan": base * np.nan}
    assert marks(values) == {"a": "bold", "same": "bold", "worse": "↓", "nan": ""}
    assert marks({"a": base}) == {"a": ""}
    assert marks({}) == {}


def test_a_higher_method_of_shared_trials_is_not_marked() -> None:
    units = results_of(noisy({"low": 0.0, "high": 0.1}, noise=0.001)).units
    assert lower_than_best(units, "high") == {"low"}
    assert lower_than_best(units, "low") == set()  # whose mean is higher by a trial of its own


def test_a_table_without_bold_has_no_legend() -> None:
    assert legend([Row("a", (Cell(1.0),))]) == ""
    assert legend([Row("a", (Cell(1.0, 0.1, best=True),))]).startswith("Bold: the highest mean in the column. No other")
