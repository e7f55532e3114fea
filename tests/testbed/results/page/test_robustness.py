"""The section of the page on errors under corruption."""

import re
from itertools import product
from xml.etree import ElementTree

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from helpers.measured_runs import write_measured_run
from helpers.pages import build_page
from swad.testbed.results.corruption_errors import ROBUSTNESS
from swad.testbed.results.imagenet_parts import BENCHMARK
from swad.testbed.results.measurement_rows import RowFile
from swad.testbed.results.page.robustness import robustness_sections


def test_the_page_shows_errors_against_the_severity(tmp_path):
    run = write_measured_run(tmp_path / "a")
    assert robustness_sections([run]) == []
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
        file.mark_shown("k", weights=["best", "swad"])
    own, stored = robustness_sections([run])
    titles = [[plot.title for plot in section.figures[0].plots] for section in (own, stored)]
    assert titles == [
        ["Validation images of the sources", "Images of the held-out domain"],
        ["The stored images of ImageNet-C"],
    ]
    legend = own.figures[0].legend
    assert [(entry.name, entry.dashed) for entry in legend] == [("ERM (best)", False), ("SWAD", True)]
    text = build_page([run])
    assert "Errors under corruption on PACS" in text
    assert "Errors under corruption on ImageNet-C" in text
    assert "Compared with ERM (best): PACS, unseen" in text
    for svg in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL):
        ElementTree.fromstring(svg)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_the_legend_shows_the_lines_as_they_are_drawn(tmp_path):
    run = write_measured_run(tmp_path / "a")
    weights = [f"swad_{number}" for number in range(5)]
    with RowFile(run.path, ROBUSTNESS) as file:
        for name, (corruption, severity) in product(weights, {"none": 0, "fog": 1}.items()):
            row = {"weights": name, "domain": "seen", "side": "seen", "corruption": corruption, "severity": severity}
            file.append({"key": "k", "fingerprint": "f", "kind": "error", **row, "error": 0.1, "n": 10})
        file.append({"key": "k", "kind": "settings"})
        file.mark_shown("k", weights=weights)
    (section,) = robustness_sections([run])
    assert [entry.dashed for entry in section.figures[0].legend] == [False, True, True, True, False], (
        "there are four styles"
    )
