"""The page's section on comparisons: every method against a baseline, and ranks where there are several datasets."""

from __future__ import annotations

from collections.abc import Sequence

from swad.testbed.results.comparisons import compare_over_datasets, default_baseline, not_compared
from swad.testbed.results.figures.critical_difference import critical_difference_figure
from swad.testbed.results.figures.style import themed_svg
from swad.testbed.results.method_ranks import rank_results
from swad.testbed.results.page.section import Drawing, Figures, Section
from swad.testbed.results.selection import DatasetResults
from swad.testbed.results.unit_tables import comparisons_tables


def comparison_sections(
    results: Sequence[DatasetResults], baseline: str | None = None, unit: str = "auto"
) -> list[Section]:
    """Build the section; none if there is nothing to compare."""
    baseline = baseline or default_baseline(results)
    if baseline is None:
        return []
    tests = compare_over_datasets(results, baseline, unit=unit)
    if tests.empty:
        return []
    figures = []
    if len(results) > 1 and (ranked := rank_results(results)) is not None:
        figure = critical_difference_figure(ranked, bare=True)
        drawing = Drawing(themed_svg(figure, "ranks", ranked.summary), figure.get_figwidth())
        figures.append(Figures("Ranks", drawings=(drawing,), notes=(ranked.summary,)))
    tables = comparisons_tables(tests, not_compared(results, tests, baseline))
    return [Section("comparisons", "Comparisons", figures=tuple(figures), tables=tuple(tables))]
