"""`swad demo` in a process of its own."""

from __future__ import annotations

import json

import pytest

from helpers.commands import swad

pytestmark = pytest.mark.slow


def test_the_demo_prints_a_table_and_writes_a_page(demo):
    folder, text = demo
    for row in ("ERM (best)", "ERM (last)", "SWAD", "SWA", "EMA"):
        assert row in text
    for style in ("board", "clutter", "outline", "paper"):
        assert style in text
        assert (folder / f"{style}-0" / "weights" / "swad.safetensors").exists()
        assert (folder / f"{style}-0" / "done.json").exists()
    page = (folder / "report.html").read_text()
    assert "SWAD" in page
    assert "://" not in page.replace("http://www.w3.org", "")  # nothing to load from anywhere
    assert f"wrote {folder / 'report.html'}" in text.replace("\n", "")


def test_the_table_shows_the_recorded_accuracy(demo):
    folder, text = demo
    scores = json.loads((folder / "paper-0" / "done.json").read_text())["scores"]
    shown = f"{100 * scores['swad']['paper']['in']['accuracy']:.1f}"
    row = next(line for line in text.splitlines() if line.strip().startswith("SWAD"))
    assert shown in row


def test_a_finished_demo_is_not_trained_again(demo):
    folder, _ = demo
    again = swad("demo", "--trial", "0", "--steps", "40", "--output", folder)
    assert "4 of 4" in again.stdout + again.stderr
    assert "step 40/40" not in again.stdout + again.stderr
