"""Errors under corruption as tables, for the terminal and the page, and as JSON values and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swad.testbed.results.comparison_tables import interval_cell
from swad.testbed.results.comparisons import Comparison, p_text
from swad.testbed.results.corruption_errors import (
    CLEAN,
    SIDES,
    STORED,
    CorruptionErrors,
    TrialMean,
    compare_errors,
    mean_over_trials,
    severity_curves,
)
from swad.testbed.results.flatness_stats import NO_DIFFERENCE
from swad.testbed.results.tables import Cell, Row, Table, csv_text, percent
from swad.util.names import NO_TARGET, counted

LACKS_TARGETS = "*"
"""Mark of numbers of a method that has no trial with all targets."""


def corruption_table(results: CorruptionErrors) -> Table:
    """Build the table of errors in percent: clean, corrupted, what corruption adds, and by kind of corruption."""
    rows = [
        Row(method, tuple(_error_cell(each, results, method) for each in _means(results, method).values()))
        for method in results.methods
    ]
    cases = results.cases()
    names, severities = {name for name, _ in cases}, sorted({severity for _, severity in cases})
    at = f"{'severity' if len(severities) == 1 else 'severities'} {', '.join(map(str, severities))}"
    notes = [
        f"Error in % on {SIDES[results.side]}; corrupted: mean over {counted(len(names), 'corruption')} at "
        f"{at}; {_averaged_over(results)}.",
    ]
    if left_out := _left_out(results):
        notes.append(left_out)
    if results.side != STORED:
        notes.append(
            "Corruptions are computed here by the definitions of ImageNet-C, frost with a computed texture: do not "
            "compare with errors on its stored images."
        )
    if results.has_dark_frost:
        notes.append("Frost was measured with an earlier texture, which was darker than the frost of ImageNet-C.")
    if results.partial:
        notes.append("Partial: do not compare it with published numbers.")
    columns = tuple(results.quantities(results.methods[0]))
    return Table(f"Corruption error: {results.title}", columns, tuple(rows), tuple(notes))


def comparison_table(results: CorruptionErrors) -> Table | None:
    """Compare the errors of every method with those of the first, paired by trial; None for one method."""
    baseline, *others = results.methods
    if not others:
        return None
    by_quantity = compare_errors(results)
    rows = []
    for name, comparisons in by_quantity.items():
        for comparison in comparisons:
            cells = (
                Cell(100 * comparison.difference, decimals=2, signed=True),
                interval_cell(comparison.test),
                Cell(text=p_text(comparison.corrected_p)),
                Cell(comparison.n_trials, decimals=0),
                Cell(text=_verdict(comparison)),
            )
            rows.append(Row(f"{comparison.method}, {name.lower()}", cells))
    compared = [comparison for comparisons in by_quantity.values() for comparison in comparisons]
    note = (
        "Difference of the error in points, paired by trial, with its 95 % interval over trials; p corrected by Holm "
        "for this table. A difference is claimed if p is at most 0.05; intervals are not corrected."
    )
    if any(comparison.n_trials == 1 for comparison in compared):
        note += " One trial has no spread between trainings: nothing is claimed from it."
    columns = ("Difference", "95 % interval", "p", "Trials", "Verdict")
    return Table(f"Compared with {baseline}: {results.title}", columns, tuple(rows), (note,))


def corruption_summary(results: Sequence[CorruptionErrors]) -> list[dict[str, Any]]:
    """Return every number of the tables and of the figure as JSON values; errors and differences are in percent."""
    return [
        {
            "dataset": each.dataset,
            "side": each.side,
            "settings": dict(each.settings),
            "targets": each.targets,
            "corruptions": sorted({name for name, _ in each.cases()}),
            "errors": {
                method: {
                    "trials": each.complete_trials(method),
                    **{name.lower(): _json_mean(mean) for name, mean in _means(each, method).items()},
                    "by_severity": {str(severity): _json_mean(mean) for severity, mean in curve.items()},
                }
                for method, curve in severity_curves(each).items()
            },
            "comparisons": [
                {
                    "method": comparison.method,
                    "baseline": comparison.baseline,
                    "error": name.lower(),
                    "difference": 100 * comparison.difference,
                    "low": percent(comparison.test.low),
                    "high": percent(comparison.test.high),
                    "p": comparison.test.p,
                    "corrected_p": comparison.corrected_p,
                    "trials": comparison.n_trials,
                    "test": comparison.test.test,
                    "verdict": _verdict(comparison),
                }
                for name, comparisons in compare_errors(each).items()
                for comparison in comparisons
            ],
        }
        for each in results
    ]


def cases_csv(results: Sequence[CorruptionErrors]) -> str:
    """Return the error of every corruption and severity as comma-separated values: percent, mean over targets."""
    rows: list[list[object]] = [
        ["dataset", "side", "method", "corruption", "severity", "error", "half_interval", "trials"]
    ]
    for each in results:
        for method in each.methods:
            for case in [*[CLEAN] * each.has_clean, *each.cases()]:
                mean = _json_mean(mean_over_trials(each.trial_means(method, each.mean_errors(method, [case]))))
                n_trials = len(each.complete_trials(method))
                rows.append([each.dataset, each.side, method, *case, mean["mean"], mean["half"], n_trials])
    return csv_text(rows)


def _means(results: CorruptionErrors, method: str) -> dict[str, TrialMean]:
    quantities = results.quantities(method)
    return {name: mean_over_trials(results.trial_means(method, by_unit)) for name, by_unit in quantities.items()}


def _error_cell(mean: TrialMean, results: CorruptionErrors, method: str) -> Cell:
    mark = "" if results.complete_trials(method) else LACKS_TARGETS
    return Cell(100 * mean.mean, percent(mean.half), mark=mark)


def _json_mean(mean: TrialMean) -> dict[str, float | None]:
    return {"mean": 100 * mean.mean, "half": percent(mean.half)}


def _verdict(comparison: Comparison) -> str:
    if comparison.n_trials == 1:
        return "–"
    return ("lower" if comparison.difference < 0 else "higher") if comparison.is_clear else NO_DIFFERENCE


def _averaged_over(results: CorruptionErrors) -> str:
    """Say what the means of a table are over, and what ± is."""
    n = len(results.targets)
    over = "no target" if results.targets == [NO_TARGET] else f"mean over {counted(n, 'target')}"
    counts = sorted({max(1, len(results.complete_trials(method))) for method in results.methods})
    trials = f"{counts[0]} trials" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} trials"
    return f"{over}, one trial" if counts[-1] == 1 else f"{over}, ± half of the 95 % interval over {trials}"


def _left_out(results: CorruptionErrors) -> str:
    """Say which runs the means lack, because their trial lacks targets."""
    if not all(map(results.complete_trials, results.methods)):
        return f"{LACKS_TARGETS} No trial of this method has all targets: do not compare it with other rows."
    by_method = {method: {trial for _, trial in results.errors[method]} for method in results.methods}
    incomplete = sorted({n for method in by_method for n in by_method[method] - {*results.complete_trials(method)}})
    return f"Without trial {', '.join(map(str, incomplete))}, which lacks targets." if incomplete else ""
