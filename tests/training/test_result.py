"""The result of a run."""

from __future__ import annotations

import json

import pytest


def test_the_full_score_combines_the_in_and_out_splits(finished_run):
    scores = json.loads((finished_run / "done.json").read_text())["scores"]["swad"]["paper"]
    n_in, n_out = 449 - int(449 * 0.2), int(449 * 0.2)
    correct = scores["in"]["accuracy"] * n_in + scores["out"]["accuracy"] * n_out
    assert correct / 449 == pytest.approx(scores["full"]["accuracy"])
