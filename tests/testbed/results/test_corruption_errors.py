"""Errors under corruption over trials: against textbook formulas, in tables, in the figure and as JSON."""

from __future__ import annotations

import json
import math
from statistics import mean, stdev

import pytest

from swad.testbed.results.corruption_errors import (
    CLEAN,
    CorruptionErrors,
    compare_errors,
    severity_curves,
    severity_differences,
)
from swad.testbed.results.corruption_tables import comparison_table, corruption_summary, corruption_table

FOG = [("fog", 1), ("fog", 5)]
T_3 = 4.302653
"""The 97.5 % quantile of Student's t of three values."""

# By method and trial, the errors on clean images, at severity 1 and at severity 5, of the first target. The second
# target has twice these errors.
BY_TRIAL = {
    "ERM": [(0.10, 0.20, 0.30), (0.12, 0.20, 0.36), (0.17, 0.28, 0.31)],
    "SWAD": [(0.12, 0.16, 0.27), (0.11, 0.165, 0.32), (0.16, 0.24, 0.275)],
}


def measured(by_trial=BY_TRIAL, targets=("a", "b")) -> CorruptionErrors:
    return CorruptionErrors(
        "digits",
        "unseen",
        {
            method: {
                (target, trial): dict(zip([CLEAN, *FOG], (factor * error for error in errors), strict=True))
                for trial, errors in enumerate(trials)
                for factor, target in enumerate(targets, start=1)
            }
            for method, trials in by_trial.items()
        },
    )


def textbook(values):
    return mean(values), T_3 * stdev(values) / math.sqrt(3)


def p_of_three(values):
    """The two-sided p-value of Student's t with two degrees of freedom has a closed form."""
    t = abs(mean(values)) / (stdev(values) / math.sqrt(3))
    return 1 - t / math.sqrt(2 + t * t)


# Over two targets, of which the second has twice the errors, every mean is 1.5 times that of the first.
CLEAN_ERRORS = {method: [1.5 * clean for clean, *_ in trials] for method, trials in BY_TRIAL.items()}
CORRUPTED = {method: [1.5 * (one + five) / 2 for _, one, five in trials] for method, trials in BY_TRIAL.items()}


def test_cells_have_the_interval_over_trials():
    table = corruption_table(measured())
    assert table.columns == ("Clean", "Corrupted", "Added", "weather")
    for row in table.rows:
        clean, corrupted = CLEAN_ERRORS[row.name], CORRUPTED[row.name]
        added = [one - other for one, other in zip(corrupted, clean, strict=True)]
        for cell, values in zip(row.cells, (clean, corrupted, added, corrupted), strict=True):
            assert (cell.value / 100, cell.error / 100) == pytest.approx(textbook(values))
    assert "mean over 2 targets, ± half of the 95 % interval over 3 trials" in table.notes[0]


@pytest.mark.parametrize(
    ("version", "corruption", "noted"), [(1, "frost", True), (2, "frost", True), (3, "frost", False), (2, "fog", False)]
)
def test_a_table_with_the_earlier_frost_says_so(version, corruption, noted):
    errors = {"ERM": {("a", 0): {CLEAN: 0.1, (corruption, 1): 0.2}}}
    table = corruption_table(CorruptionErrors("digits", "unseen", errors, settings={"version": version}))
    assert any("Frost was measured with an earlier texture" in note for note in table.notes) == noted


def test_differences_are_paired_over_trials_and_corrected():
    by_name = compare_errors(measured())
    p = {}
    for name, errors in (("Clean", CLEAN_ERRORS), ("Corrupted", CORRUPTED)):
        (comparison,) = by_name[name]
        differences = [one - other for one, other in zip(errors["SWAD"], errors["ERM"], strict=True)]
        center, half = textbook(differences)
        test = comparison.test
        assert (test.difference, test.low, test.high) == pytest.approx((center, center - half, center + half))
        assert (test.n, comparison.n_trials) == (3, 3)
        assert test.p == pytest.approx(p_of_three(differences))
        p[name] = test.p
    # Holm's correction of two: twice the smaller one.
    assert by_name["Corrupted"][0].corrected_p == pytest.approx(2 * p["Corrupted"])
    assert by_name["Clean"][0].corrected_p == pytest.approx(p["Clean"])
    verdicts = {row.name: row.cells[-1].text for row in comparison_table(measured()).rows}
    assert verdicts == {"SWAD, clean": "no difference shown", "SWAD, corrupted": "lower"}


def test_curves_and_their_differences_have_intervals_over_trials():
    curves, differences = severity_curves(measured()), severity_differences(measured())
    assert list(differences) == ["SWAD"]
    for place, severity in enumerate((0, 1, 5)):
        values = {method: [1.5 * errors[place] for errors in trials] for method, trials in BY_TRIAL.items()}
        for method in BY_TRIAL:
            point = curves[method][severity]
            assert (point.mean, point.half) == pytest.approx(textbook(values[method]))
        point = differences["SWAD"][severity]
        expected = textbook([one - other for one, other in zip(values["SWAD"], values["ERM"], strict=True)])
        assert (point.mean, point.half) == pytest.approx(expected)


def test_one_trial_has_no_interval_and_no_verdict():
    results = measured({method: trials[:1] for method, trials in BY_TRIAL.items()})
    assert all(cell.error is None for row in corruption_table(results).rows for cell in row.cells)
    assert "one trial" in corruption_table(results).notes[0]
    table = comparison_table(results)
    assert {tuple(cell.printed for cell in row.cells[1:]) for row in table.rows} == {("–", "–", "1", "–")}
    assert "nothing is claimed" in table.notes[0]
    assert severity_differences(results) == {}


def test_a_trial_that_lacks_targets_is_left_out_with_a_note():
    errors = {method: dict(units) for method, units in measured().errors.items()}
    whole = corruption_table(measured({method: trials[:2] for method, trials in BY_TRIAL.items()}))
    for method in errors:
        del errors[method]["b", 2]
    table = corruption_table(CorruptionErrors("digits", "unseen", errors))
    assert table.rows == whole.rows
    assert table.notes[1] == "Without trial 2, which lacks targets."
    assert "over 2 trials" in table.notes[0]
    # Without any trial that has all targets there is no interval, and the numbers are marked.
    errors["SWAD"] = {unit: cases for unit, cases in errors["SWAD"].items() if unit in (("a", 0), ("b", 1))}
    results = CorruptionErrors("digits", "unseen", errors)
    marked = corruption_table(results).rows[1].cells[0]
    assert (marked.printed, marked.value) == ("17.0*", pytest.approx(100 * (0.12 + 2 * 0.11) / 2))
    assert comparison_table(results).rows == ()
    assert severity_differences(results) == {}


def test_the_summary_is_json_of_the_same_numbers():
    (content,) = json.loads(json.dumps(corruption_summary([measured()])))
    assert content["targets"] == ["a", "b"]
    assert content["corruptions"] == ["fog"]
    swad = content["errors"]["SWAD"]
    center, half = textbook(CORRUPTED["SWAD"])
    assert swad["corrupted"] == pytest.approx({"mean": 100 * center, "half": 100 * half})
    assert list(swad["by_severity"]) == ["0", "1", "5"]
    assert swad["trials"] == [0, 1, 2]
    assert [(c["method"], c["error"], c["verdict"]) for c in content["comparisons"]] == [
        ("SWAD", "clean", "no difference shown"),
        ("SWAD", "corrupted", "lower"),
    ]


def test_the_figure_shows_intervals_and_paired_differences_within_0_and_100_percent():
    pytest.importorskip("matplotlib")
    from swad.testbed.results.figures.robustness import severity_figure

    # Means and intervals at both ends of the scale.
    errors = {"ERM": [(0.0, 0.9, 1.0), (0.01, 1.0, 1.0)], "SWAD": [(0.0, 0.6, 1.0), (0.0, 1.0, 1.0)]}
    results = measured(errors, targets=("a",))
    figure = severity_figure([results])
    above, below = figure.axes
    assert above.get_ylim() == (0, 100)
    assert [len(container.lines[2]) for container in above.containers] == [1, 1]  # bars of both methods
    assert below.get_ylabel() == "difference from\nERM (points)"
    assert list(below.containers[1].lines[0].get_ydata()) == pytest.approx([-0.5, -15.0, 0.0])
    assert figure.legends[0].get_title().get_text() == "Bars: 95 % intervals over trials."
    assert len(severity_figure([results], bare=True).axes) == 1
    single = severity_figure([measured({method: trials[:1] for method, trials in errors.items()}, targets=("a",))])
    assert len(single.axes) == 1
    assert not single.legends[0].get_title().get_text()


def test_differences_by_severity_are_over_the_trials_that_both_methods_have():
    results = measured({**BY_TRIAL, "ERM": BY_TRIAL["ERM"][:2]})
    expected = severity_differences(measured({method: trials[:2] for method, trials in BY_TRIAL.items()}))
    assert severity_differences(results) == expected != {}
