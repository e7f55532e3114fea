"""The page's section on comparisons: every method against a baseline, and ranks where there are several datasets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swad.testbed.results.comparison_tables import comparisons_table
from swad.testbed.results.comparisons import compare_over_datasets, default_baseline, not_compared
from swad.testbed.results.figures.critical_difference import critical_difference_figure
from swad.testbed.results.figures.style import themed_svg
from swad.testbed.results.method_ranks import rank_results
from swad.testbed.results.selection import DatasetResults
from swad.testbed.results.tables import Table


@dataclass(frozen=True)
class ComparisonSection:
    """The table of comparisons, and the diagram of ranks with its caption; both are empty on a single dataset."""

    table: Table
    ranks: str = ""
    caption: str = ""


def comparison_section(
    results: Sequence[DatasetResults], baseline: str | None = None, unit: str = "auto"
) -> ComparisonSection | None:
    """Build the section; None if there is nothing to compare."""
    baseline = baseline or default_baseline(results)
    if baseline is None:
        return None
    tests = compare_over_datasets(results, baseline, unit=unit)
    if tests.empty:
        return None
    table = comparisons_table(tests, not_compared(results, tests, baseline))
    ranked = rank_results(results) if len(results) > 1 else None
    if ranked is None:
        return ComparisonSection(table)
    figure = critical_difference_figure(ranked, bare=True)
    return ComparisonSection(table, themed_svg(figure, "ranks", ranked.summary), ranked.summary)
