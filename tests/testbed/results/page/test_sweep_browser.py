"""The explorer of a sweep in a real browser: numbers, filters, drill-down, hyperparameters, 5,000 runs."""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import synthetic_runs
from helpers.browser import emulate
from helpers.contrast import contrast
from swad.testbed.results.page.build import write_page
from swad.testbed.results.records import LIVE, Record
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import RunList
from swad.testbed.results.selection import DatasetResults, collect_results, run_scores
from swad.testbed.results.training_curves import source_curves

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")
keys = pytest.importorskip("selenium.webdriver.common.keys", reason="needs selenium: pip install selenium").Keys
exceptions = pytest.importorskip("selenium.common.exceptions")
pytestmark = pytest.mark.browser


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Return the first value that is true; an element that is not there yet, or was just replaced, is none."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(exceptions.NoSuchElementException, exceptions.StaleElementReferenceException):
            if value := condition():
                return value
        assert time.monotonic() < end, "the page is not ready"
        time.sleep(0.02)


def open_page(chromium: Any, path: Path) -> Any:
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chromium.get(path.as_uri())
    wait_for(lambda: chromium.execute_script("return document.documentElement.dataset.sweep") == "ready")
    return chromium


@pytest.fixture(scope="module")
def searched() -> list[RunData]:
    """Two datasets, two algorithms, two trials; a grid of three learning rates and two weight decays."""
    configs = synthetic_runs.configs(192, datasets=["PACS", "VLCS"], algorithms=["erm", "coral"], trials=2)
    return [synthetic_runs.run_in_memory(name, config) for name, config in configs]


@pytest.fixture(scope="module")
def results(searched: list[RunData]) -> list[DatasetResults]:
    return collect_results(searched)


@pytest.fixture(scope="module")
def browser(chromium: Any, searched: list[RunData], tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("sweep") / "report.html"
    # The figures of the selected runs have tests of their own and take seconds.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("swad.testbed.results.page.build.MAX_FIGURES", 0)
        write_page(searched, path)
    return open_page(chromium, path)


def texts(browser: Any, selector: str) -> list[list[str]]:
    """The visible rows of a table, cell by cell."""
    script = f"""return [...document.querySelectorAll('{selector} tbody tr')].filter(row => row.offsetParent !== null)
        .map(row => [...row.cells].map(cell => cell.textContent.trim().replace(/\\s+/g, ' ')))"""
    found: list[list[str]] = browser.execute_script(script)
    return found


def choose(browser: Any, form: str, **values: str) -> None:
    """Fill in a form; options of a list are chosen by their text."""
    for name, value in values.items():
        browser.execute_script(
            """const field = document.getElementById(arguments[0]).elements[arguments[1]];
            if (field.options) field.value = [...field.options].find(each => each.text === arguments[2]).value;
            else field.value = arguments[2];
            field.dispatchEvent(new Event('input', {bubbles: true}));""",
            form,
            name,
            value,
        )


@pytest.fixture(autouse=True)
def clean(request: pytest.FixtureRequest) -> None:
    if "browser" in request.fixturenames:
        browser = request.getfixturevalue("browser")
        choose(browser, "method-filters", words="", algorithm="all", weights="all")
        choose(browser, "run-filters", words="")
        browser.execute_script("document.getElementById('run').close()")


def test_a_heading_sorts_the_methods(browser: Any) -> None:
    heading = browser.find_elements("css selector", "#methods-table thead button")
    heading[1].click()
    falling = [float(row[1].split()[0]) for row in texts(browser, "#methods-table")]
    assert falling == sorted(falling, reverse=True)
    assert len(falling) == 10
    heading[0].click()
    names = [row[0] for row in texts(browser, "#methods-table")]
    assert names == sorted(names, key=str.lower)


def test_filters_narrow_methods(browser: Any) -> None:
    choose(browser, "method-filters", words="swa coral")
    assert {row[0] for row in texts(browser, "#methods-table")} == {"CORAL + SWA", "CORAL + SWAD"}
    choose(browser, "method-filters", words="", weights="swad")
    assert {row[0] for row in texts(browser, "#methods-table")} == {"SWAD", "CORAL + SWAD"}
    choose(browser, "method-filters", algorithm="ERM")
    assert [row[0] for row in texts(browser, "#methods-table")] == ["SWAD"]
    assert browser.find_element("css selector", "#method-filters output").text == "1 of 10 methods"
    choose(browser, "method-filters", words="nothing")
    assert texts(browser, "#methods-table") == []


def test_a_cell_leads_to_targets_trials_and_a_run_by_keyboard(
    browser: Any, searched: list[RunData], results: list[DatasetResults]
) -> None:
    labels = results[0].methods
    button = browser.find_element(
        "css selector", f"button[data-method='{labels.index('CORAL + SWAD')}'][data-dataset='1']"
    )
    button.send_keys(keys.ENTER)
    rows = results[1].results
    chosen = list(rows[rows.method == "CORAL + SWAD"].itertuples())
    shown = texts(browser, "#drill")
    assert [row[0] for row in shown] == list(results[1].targets)
    for target, *trials, mean in shown:
        accuracies = [100 * result.value for result in chosen if result.target == target]
        assert trials == [f"{accuracy:.1f}" for accuracy in accuracies]
        assert float(mean.split()[0]) == pytest.approx(sum(accuracies) / 2, abs=0.051)
    browser.find_element("css selector", "#drill td button").send_keys(keys.ENTER)
    dialog = wait_for(lambda: browser.find_element("css selector", "dialog[open]"))
    run = results[1].runs[chosen[0].run]
    title = browser.find_element("id", "run-title").text
    assert title == f"CORAL on VLCS, target {run.targets[0]}, trial {run.trial}"
    assert run.path.name in dialog.text
    settings = dict(
        zip(
            (each.text for each in dialog.find_elements("css selector", "dl dt")),
            (each.text for each in dialog.find_elements("css selector", "dl dd")),
            strict=True,
        )
    )
    assert float(settings["lr"]) == run.hyperparameters["lr"]
    # Four curves in each panel: three sources and their mean.
    assert [
        len(each.find_elements("css selector", ".curve"))
        for each in dialog.find_elements("css selector", ".panel > svg")
    ] == [
        4,
        4,
    ]
    # Target accuracies of this run: only where it was selected.
    selected = {
        result.weights: result.value
        for result in results[1].results.itertuples()
        if results[1].runs[result.run] is run and result.algorithm == "coral"
    }
    for weights, _, target in texts(browser, "dialog .scroll:first-of-type")[:5]:
        assert target == (f"{100 * selected[weights]:.1f}" if weights in selected else "–")
    dialog.send_keys(keys.ESCAPE)
    wait_for(lambda: not browser.find_elements("css selector", "dialog[open]"))
    assert browser.get_log("browser") == []


def test_the_pointer_reads_values_off_a_run(browser: Any, searched: list[RunData]) -> None:
    number = next(i for i, run in enumerate(searched) if run.dataset == "PACS" and run.targets == ("photo",))
    browser.execute_script("return showRun(arguments[0])", number)
    reading = browser.execute_script(
        """const svg = document.querySelector('dialog svg'), frame = svg.getBoundingClientRect();
        svg.dispatchEvent(new PointerEvent('pointermove', {clientX: frame.right - 1, clientY: frame.top + 50}));
        return document.querySelector('dialog .reading').innerText.split('\\n')"""
    )
    assert reading[0] == "Step 5,000"
    for domain, curve in source_curves([searched[number]], "loss")[0].items():
        assert float(reading[reading.index(domain) + 1]) == pytest.approx(list(curve.values())[-1], abs=1e-3)


def test_candidates_of_a_search_lead_to_each_other(browser: Any, searched: list[RunData]) -> None:
    browser.execute_script("return showRun(0)")
    others = [run for run in searched if (run.algorithm, run.targets, run.trial) == ("erm", searched[0].targets, 0)]
    assert f"Candidates of this target and trial: {len(others)}" in browser.find_element("id", "run").text
    browser.execute_script("document.querySelector('dialog tr:not([aria-current]) button.link').click()")
    best = max(others, key=lambda run: validation_accuracy(run, "swad") or 0)
    wait_for(lambda: best.path.name in browser.find_element("css selector", "dialog .path").text)


def test_every_run_is_a_point_over_each_hyperparameter(browser: Any, searched: list[RunData]) -> None:
    choose(browser, "search-filters", dataset="VLCS", weights="swa")
    titles = [each.text for each in browser.find_elements("css selector", "#search-charts figcaption")]
    assert titles == ["lr", "weight_decay"]
    assert [each.text for each in browser.find_elements("css selector", "#search-legend li")] == ["ERM", "CORAL"]
    members = [run for run in searched if run.dataset == "VLCS"]
    for figure in browser.find_elements("css selector", "#search-charts figure"):
        paths = [each.get_attribute("d") for each in figure.find_elements("css selector", ".curve")]
        for algorithm, path in zip(("erm", "coral"), paths, strict=True):
            assert path.count("M") == sum(run.algorithm == algorithm for run in members)
    assert not browser.find_elements("css selector", "#search-filters [name=value]")  # the target's is for oracles
    reading = browser.execute_script(
        """const svg = document.querySelector('#search-charts svg'), frame = svg.getBoundingClientRect();
        svg.dispatchEvent(new PointerEvent('pointermove', {clientX: frame.right - 1, clientY: frame.top + 50}));
        return document.querySelector('#search-charts .reading').innerText.split('\\n')"""
    )
    rate = max(run.hyperparameters["lr"] for run in members)
    alike = [run for run in members if run.algorithm == "coral" and run.hyperparameters["lr"] == rate]
    best = max(100 * (validation_accuracy(run, "swa") or 0) for run in alike)
    assert reading[reading.index("CORAL") + 1] == f"{best:.1f}"


def test_runs_are_filtered_sorted_and_paged(browser: Any, searched: list[RunData]) -> None:
    assert browser.find_element("css selector", "#run-filters output").text == "192 of 192 runs"
    rows = texts(browser, "#runs-table")
    assert len(rows) == 50
    names = [cell.text for cell in browser.find_elements("css selector", "#runs-table thead th")]
    place = names.index("Validation")
    best = sorted((100 * (validation_accuracy(run, "swad") or 0) for run in searched), reverse=True)
    assert [row[place] for row in rows] == [f"{value:.1f}" for value in best[:50]]
    browser.execute_script("document.querySelector('.pages [name=next]').click()")
    assert [row[place] for row in texts(browser, "#runs-table")] == [f"{value:.1f}" for value in best[50:100]]
    choose(browser, "run-filters", words="coral photo lr=1e-05")
    expected = [
        run
        for run in searched
        if (run.algorithm, run.targets) == ("coral", ("photo",)) and run.hyperparameters["lr"] == 1e-5
    ]
    assert len(texts(browser, "#runs-table")) == len(expected) > 0
    browser.execute_script("document.querySelector('#runs-table tbody button').click()")
    wait_for(lambda: "target photo" in browser.find_element("id", "run-title").text)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_text_stands_out_and_nothing_overflows(browser: Any, scheme: str, width: int) -> None:
    emulate(browser, width, scheme)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    pairs = browser.execute_script(
        """const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
        const plain = (color) => {
            canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
            return `rgb(${[...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).join(', ')})`;
        };
        return [...document.querySelectorAll('.filters select, .pages button:enabled')].map(cell => {
            const style = getComputedStyle(cell);
            return [plain(style.color), plain(style.backgroundColor)];
        })"""
    )
    assert min(contrast(front, back) for front, back in pairs) >= 4.5


def test_targets_can_be_seen_where_there_is_no_mean(
    chromium: Any, searched: list[RunData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swad.testbed.results.page.build.MAX_FIGURES", 0)
    runs = [run for run in searched if run.dataset == "VLCS" or run.targets == ("photo",)]
    page = open_page(chromium, write_page(runs, tmp_path / "report.html"))
    shown = texts(page, "#methods-table")
    assert {row[1] for row in shown} == {"partial"}
    assert all("±" in row[2] for row in shown)
    assert {row[3] for row in shown} == {"–"}
    page.execute_script("document.querySelector('#methods-table td button').click()")
    assert [row[0] for row in texts(page, "#drill")] == ["photo"]


def test_runs_without_averages_are_explored_too(
    chromium: Any, searched: list[RunData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of DomainBed have accuracies of live weights alone."""
    monkeypatch.setattr("swad.testbed.results.page.build.MAX_FIGURES", 0)
    runs = []
    for run in searched[:32] + searched[64:96]:
        records = [record for record in run.records if record.average is None and record.metric == "accuracy"]
        records += [Record("r", 100 * k, run.targets[0], "in", "accuracy", 0.5) for k in range(1, 51)]
        runs.append(dataclasses.replace(run, records=tuple(records)))
    page = open_page(chromium, write_page(runs, tmp_path / "report.html"))
    assert {row[1] for row in texts(page, "#methods-table")} == {"50.0 ± 0.0"}
    assert len(texts(page, "#runs-table")) == 50
    page.execute_script("return showRun(0)")
    best = validation_accuracy(runs[0], LIVE)
    assert texts(page, "dialog .scroll")[0] == ["selected step", f"{100 * (best or 0):.1f}", "–"]
    assert page.get_log("browser") == []


def test_a_diverged_loss_is_legible(
    chromium: Any, searched: list[RunData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swad.testbed.results.page.build.MAX_FIGURES", 0)
    runs = [run for run in searched if run.algorithm == "erm" or run.trial == 0]
    first = next(run for run in runs if run.algorithm == "coral")
    records = [
        dataclasses.replace(record, value=5e12) if record.metric == "loss" and record.step == 4000 else record
        for record in first.records
    ]
    other = Record("r", 5000, "photo", "out", "accuracy", 0.5, "swad_text")  # of one run alone
    runs[runs.index(first)] = dataclasses.replace(first, records=(*records, other))
    page = open_page(chromium, write_page(runs, tmp_path / "report.html"))
    chosen = "return document.getElementById('run-filters').elements.weights.selectedOptions[0].text"
    assert page.execute_script(chosen) == "swad"
    page.execute_script(f"return showRun({[run.path for run in runs].index(first.path)})")
    ticks = [each.text for each in page.find_elements("css selector", "dialog figure:first-of-type svg text")]
    assert "1e12" in ticks
    assert max(map(len, ticks)) < 6
    assert "threshold" in page.find_element("css selector", "dialog .legend").text
    for low, high in ((-1.1, 0.95), (-0.9, 1.9), (-1.4, 3.4), (-1.2, 8.1), (-2, 38)):  # powers of ten
        values = page.execute_script("return logTicks(...arguments)", low, high)
        assert 3 <= len(values) <= 6
        assert all(10**low <= value <= 10**high for value in values)
    assert page.get_log("browser") == []


def validation_accuracy(run: RunData, weights: str) -> float | None:
    return run_scores(RunList([run]), "iid", [weights]).get((0, weights))


# ------------------------------------------------------------ 5,000 runs


@pytest.fixture(scope="module")
def many() -> list[RunData]:
    """5,000 runs, whose records repeat, because drawing them all would take longer than the test."""
    tables: dict[tuple[object, ...], tuple[Any, ...]] = {}
    runs = []
    for number, (name, config) in enumerate(synthetic_runs.configs(5000)):
        key = (config["dataset"], config["target"], number % 3)
        if key not in tables:
            tables[key] = synthetic_runs.run_in_memory(name, config).frame
        roles = synthetic_runs.stored_config(config)["roles"]
        runs.append(RunData(Path("runs", name), config, tables[key], True, roles))
    return runs


@pytest.mark.slow
def test_5000_runs_stay_fluid(chromium: Any, many: list[RunData], tmp_path: Path) -> None:
    path = write_page(many, tmp_path / "report.html")
    assert path.stat().st_size < 8e6
    start = time.monotonic()
    browser = open_page(chromium, path)
    assert time.monotonic() - start < 20  # about 1 s on two idle cores
    browser.execute_script(
        """window.longest = 0;
        new PerformanceObserver(list => {
            for (const entry of list.getEntries()) window.longest = Math.max(window.longest, entry.duration);
        }).observe({type: 'longtask', buffered: true});"""
    )
    assert browser.execute_script("return document.querySelectorAll('*').length") < 20_000
    choose(browser, "method-filters", words="swad")
    choose(browser, "method-filters", words="")
    browser.find_elements("css selector", "#methods-table thead button")[2].click()
    browser.execute_script(
        """const field = document.getElementById('search-filters').elements.dataset;
        field.selectedIndex = field.options.length - 1;
        field.dispatchEvent(new Event('input', {bubbles: true}));"""
    )
    choose(browser, "run-filters", words="vlcs coral lr=5e-05")
    choose(browser, "run-filters", words="")
    for place in (0, 1, 4):
        browser.execute_script(f"document.querySelectorAll('#runs-table thead button')[{place}].click()")
    assert len(texts(browser, "#runs-table")) == 50
    browser.execute_script("return showRun(4000)")
    assert "target" in browser.find_element("id", "run-title").text
    # An idle machine needs 150 ms for the longest, and work for every pair of runs would need minutes.
    assert browser.execute_script("return window.longest") < 5000
    assert browser.get_log("browser") == []
