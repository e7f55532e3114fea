"""The page's section on comparisons."""

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from helpers.pages import build_page
from swad.testbed.results.page.comparisons import comparison_sections
from swad.testbed.results.run_data import RunData
from swad.testbed.results.selection import collect_results


def test_the_section_has_the_table_and_ranks_where_there_are_several_datasets(runs: list[RunData]) -> None:
    (pacs,) = collect_results(runs)
    (section,) = comparison_sections([pacs])
    assert [table.title for table in section.tables] == ["Comparisons with ERM (best)"]
    assert section.figures == ()
    (section,) = comparison_sections([pacs, pacs], "SWA", "targets")
    table, (ranks,) = section.tables[0], section.figures
    assert table.title.startswith("Comparisons with SWA")
    assert table.rows[0].cells[-1].printed == "4 targets, t"
    assert ranks.drawings[0].svg.startswith("<svg")
    assert ranks.notes[0].startswith("Average rank of 5 methods on 2 datasets")
    assert comparison_sections([]) == []


def test_a_page_of_one_trial_claims_nothing(runs: list[RunData]) -> None:
    text = build_page([run for run in runs if run.trial == 0 and run.targets[0] in ("photo", "sketch")])
    assert 'class="mark"' not in text
    section = text[text.index('id="comparisons-0"') :]
    assert "One trial shows no spread between trainings" in section
    assert "↑" not in section[: section.index("</table>")]
    assert "↓" not in section[: section.index("</table>")]
