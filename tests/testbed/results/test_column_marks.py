"""The marks of a column: which means are bold, and which are shown to be lower."""

import numpy as np

from helpers.accuracies import noisy, results_of
from swad.testbed.results.column_marks import legend, mark_column
from swad.testbed.results.compare import lower_than_best
from swad.testbed.results.tables import Cell, Row


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
