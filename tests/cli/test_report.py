"""`swad report`."""

from __future__ import annotations

import pytest

from helpers.commands import QUICK

pytestmark = pytest.mark.slow  # needs the demo


@pytest.mark.parametrize(
    ("form", "sign"), [("markdown", "| SWAD"), ("latex", r"\toprule"), ("csv", "SWAD,"), ("text", "Averaged range")]
)
def test_report_in_every_format(demo, here, tmp_path, form, sign):
    folder, _ = demo
    result = here("report", folder, "--format", form, "--output", tmp_path / "page.html")
    assert sign in result.stdout
    assert (tmp_path / "page.html").exists()


def test_report_draws_figures(demo, here, tmp_path):
    folder, _ = demo
    here("report", folder, "--figures", tmp_path / "figures", "--figure-formats", "svg,png", "-o", tmp_path / "p.html")
    names = {file.suffix for file in (tmp_path / "figures").iterdir()}
    assert names == {".svg", ".png"}


def test_an_unwritable_page_is_a_one_line_error(demo, here, tmp_path):
    (tmp_path / "file").touch()
    errors = here("report", demo[0], "-o", tmp_path / "file" / "page.html", code=1).stderr
    assert str(tmp_path / "file") in errors


def test_oracle_best_step_needs_target_evaluations(here, tmp_path, demo):
    folder, _ = demo
    once = here("report", folder, "--select", "oracle_best_step", "-o", tmp_path / "page.html").stdout
    assert "No step can be selected" in once
    here("train", "digits", "-t", "paper", *QUICK, "-o", tmp_path, "--target-every-evaluation")
    text = here("report", tmp_path, "--select", "oracle_best_step").stdout
    assert "ERM (selected step)" in text
    assert "No step can be selected" not in text
    assert "ERM (selected step)" not in here("report", tmp_path).stdout
