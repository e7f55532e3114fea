import re
from xml.etree import ElementTree

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from helpers.measured_runs import write_measured_run
from helpers.pages import build_page
from swad.testbed.results.measurement_rows import FLATNESS, SURFACE


@pytest.mark.slow
def test_the_page_shows_what_was_measured(measured_runs):
    text = build_page(measured_runs)
    assert "<h2" in text
    assert "F on PACS" in text
    assert "Loss surfaces on PACS" in text
    assert "Loss on the plane through step-000050, step-000070, step-000090, on PACS" in text
    assert "distance from the plane" in text
    for svg in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL):
        ElementTree.fromstring(svg)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_a_page_without_measurements_has_no_such_section(tmp_path):
    run = write_measured_run(tmp_path / "a")
    (run.path / FLATNESS).unlink()
    (run.path / SURFACE).unlink()
    text = build_page([run])
    assert "F on PACS" not in text
    assert "Loss surfaces" not in text


def test_names_in_the_page_are_escaped(tmp_path):
    evil = "<img src=x onerror=alert(1)>"
    text = build_page([write_measured_run(tmp_path / "a", target=evil, dataset=evil)])
    assert "<img" not in text
