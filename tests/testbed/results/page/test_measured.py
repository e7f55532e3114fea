"""The sections of the page on measurements, and their curves."""

import re
from xml.etree import ElementTree

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from helpers.measured_runs import write_measured_run
from helpers.pages import build_page
from swad.testbed.measurements import stored_reports
from swad.testbed.results.imagenet_parts import BENCHMARK
from swad.testbed.results.measurement_rows import ROBUSTNESS, RowFile
from swad.testbed.results.page.measured import measured_sections


@pytest.fixture
def run(tmp_path):
    run = write_measured_run(tmp_path / "a")
    mark = {"key": "k", "fingerprint": "f"}
    with RowFile(run.path, ROBUSTNESS) as file:
        for weights in ("best", "swad"):
            for side in ("seen", "unseen"):
                for name, severity, error in (("none", 0, 0.1), ("fog", 1, 0.2), ("fog", 5, 0.4)):
                    row = {"kind": "error", "weights": weights, "domain": side, "side": side}
                    file.append({**mark, **row, "corruption": name, "severity": severity, "error": error, "n": 10})
            row = {"kind": BENCHMARK, "weights": weights, "part": "imagenet-c/fog/3", "expected": 50_000}
            file.append({**mark, **row, "missing": [], "correct": 5, "n": 10})
        file.append({"key": "k", "kind": "settings"})
        file.mark_shown("k", weights=["best", "swad"], fingerprints=["f", "f"])
    return run


def test_the_page_shows_every_measurement(run):
    reports, problems = stored_reports([run])
    assert not problems
    by_name = {
        report.what.name: measured_sections("m", report) for report in reports if report.tables[0].title != "Loss"
    }
    (own,), (stored,) = by_name["corruption"], by_name["imagenet-c"]
    (figures,), (stored_figures,) = own.figures, stored.figures
    titles = [[chart["title"] for chart in group.charts] for group in (figures, stored_figures)]
    assert titles == [["PACS, seen", "PACS, unseen"], ["ImageNet-C, partial, stored"]]
    curve = figures.charts[1]["series"][1]
    assert (curve["name"], curve["at"], curve["band"]) == ("SWAD", [[0.0, 10.0], [1.0, 20.0], [5.0, 40.0]], [])
    assert [(entry.name, entry.dashed) for entry in figures.legend] == [("ERM (best)", False), ("SWAD", True)]
    text = build_page([run])
    assert "Corruption error on PACS" in text
    assert "Corruption error on ImageNet-C, partial" in text
    assert "Compared with ERM (best): PACS, unseen" in text
    for svg in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL):
        ElementTree.fromstring(svg)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_a_damaged_file_is_named_and_does_not_cost_the_page(run):
    with RowFile(run.path, ROBUSTNESS) as file:
        file.append({**file.rows[0], "error": None})
    with pytest.warns(UserWarning, match="the page lacks measurements: .*robustness.jsonl, line 17 is damaged"):
        text = build_page([run])
    assert "Measurements are missing here: " in text
    assert "Corruption error on PACS" not in text
