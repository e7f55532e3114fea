"""The page in a real browser: no errors, the records' numbers, sorting by clicks, nothing wider than a phone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.browser import emulate
from helpers.contrast import contrast
from swad.testbed.results.accuracy_table import accuracy_tables
from swad.testbed.results.page.build import write_page
from swad.testbed.results.run_data import RunData
from swad.testbed.results.tables import OURS

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(chromium: Any, runs: list[RunData], tmp_path_factory: pytest.TempPathFactory) -> Any:
    path: Path = write_page(runs, tmp_path_factory.mktemp("page") / "report.html")
    chromium.get(path.as_uri())
    return chromium


def rows(browser: Any) -> list[list[str]]:
    script = """return [...document.querySelectorAll('#e0-results tbody tr')]
        .filter(row => row.offsetParent !== null)
        .map(row => [...row.cells].map(cell => cell.textContent.trim().replace(/\\s+/g, ' ')))"""
    found: list[list[str]] = browser.execute_script(script)
    return found


def click(browser: Any, selector: str, place: int = 0) -> None:
    browser.find_elements("css selector", selector)[place].click()


def test_no_console_errors(browser: Any) -> None:
    assert browser.get_log("browser") == []


def test_the_numbers_are_the_tables(browser: Any, runs: list[RunData]) -> None:
    click(browser, "[data-rows=all]")
    (table,) = accuracy_tables(runs, paper="all")
    expected = [
        [row.name + ("" if row.group == OURS else " paper"), *(cell.printed for cell in row.cells)]
        for row in table.rows
    ]
    assert rows(browser) == expected
    values = browser.execute_script(
        "return [...document.querySelectorAll('#e0-results tbody tr.ours td')].map(cell => Number(cell.dataset.value))"
    )
    assert values == [cell.value for row in table.rows if row.group == OURS for cell in row.cells]


def test_the_papers_rows_can_be_put_away(browser: Any) -> None:
    counts = []
    for choice in ("none", "key", "all"):
        click(browser, f"[data-rows={choice}]")
        counts.append(len(rows(browser)))
    assert counts == [5, 9, 34]


def test_clicking_a_heading_sorts(browser: Any, runs: list[RunData]) -> None:
    click(browser, "[data-rows=all]")
    heading = "#e0-results thead button"
    for column in (1, 5):
        click(browser, heading, column)
        for falling in (True, False):
            if not falling:
                click(browser, heading, column)
            shown = [row[column] for row in rows(browser)]
            known = [float(text.split()[0]) for text in shown if text != "–"]
            assert len(shown) == 34
            assert len(known) == (29 if column == 1 else 34)  # of five rows the paper prints the mean alone
            assert all(text == "–" for text in shown[len(known) :])
            assert known == sorted(known, reverse=falling)
    click(browser, heading, 6)  # in-domain: the paper's rows have none and go last
    assert all(row[6] == "–" for row in rows(browser)[5:])
    click(browser, heading, 0)
    names = [row[0].lower() for row in rows(browser)]
    assert names[0].startswith("arm")
    assert browser.execute_script("return document.querySelectorAll('#e0-results [aria-sort]').length") == 1
    assert browser.get_log("browser") == []


def test_trials_are_switched(browser: Any) -> None:
    shown = "return [...document.querySelectorAll('#e0-t0 .trial')].map(trial => trial.offsetParent !== null)"
    assert browser.execute_script(shown) == [True, False]
    click(browser, "#e0-t0 [data-show]", 1)
    assert browser.execute_script(shown) == [False, True]
    click(browser, "#e0-t0 [data-show]", 0)


def test_the_pointer_reads_values_off_a_curve(browser: Any, runs: list[RunData]) -> None:
    reading = browser.execute_script(
        """const svg = document.querySelector('.panel svg'), frame = svg.getBoundingClientRect();
        svg.dispatchEvent(new PointerEvent('pointermove', {clientX: frame.right - 1, clientY: frame.top + 50}));
        return document.querySelector('.panel .reading').innerText.split('\\n')"""
    )
    assert reading[0] == "Step 1,500"
    frame = runs[0].frame
    domain, value = frame.loc[(frame.step == 1500) & (frame.metric == "loss"), ["domain", "value"]].iloc[0]
    assert reading[reading.index(domain) + 1] == f"{value:.3f}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_text_stands_out_and_nothing_overflows(browser: Any, scheme: str, width: int) -> None:
    emulate(browser, width, scheme)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    pairs = browser.execute_script(
        """const style = (selector, name) => getComputedStyle(document.querySelector(selector))[name];
        return [[style('body', 'color'), style('body', 'backgroundColor')],
                [style('.note', 'color'), style('body', 'backgroundColor')],
                [style('.panel svg text', 'fill'), style('.target', 'backgroundColor')]]"""
    )
    for front, back in pairs:
        assert contrast(front, back) >= 4.5, (front, back)


def test_a_long_name_leaves_room_for_the_numbers_on_a_phone(chromium: Any, runs: list[RunData], tmp_path: Path) -> None:
    named = [replace(run, config={**run.config, "algorithm": "a method with a name of many words"}) for run in runs]
    chromium.get(write_page(named, tmp_path / "report.html").as_uri())
    emulate(chromium, 360, "light")
    share = "return document.querySelector('#e0-results tbody th').offsetWidth / document.body.offsetWidth"
    assert chromium.execute_script(share) < 0.5
