"""The result of a run."""

from __future__ import annotations

import json

import pytest

from helpers.runs import short
from swad.testbed.training.loop import train
from swad.testbed.training.result import RunResult


def test_the_full_score_combines_the_in_and_out_splits(finished_run):
    scores = json.loads((finished_run / "done.json").read_text())["scores"]["swad"]["paper"]
    n_in, n_out = 36, 9
    correct = scores["in"]["accuracy"] * n_in + scores["out"]["accuracy"] * n_out
    assert correct / 45 == pytest.approx(scores["full"]["accuracy"])


def test_weights_that_a_run_has_not_are_named(finished_run):
    result = train(short(finished_run))
    for accuracy in (result.target_accuracy, result.source_accuracy):
        with pytest.raises(ValueError, match=r"has the weights best, last, swad, .*; got 'sma'$"):
            accuracy("sma")


def test_a_result_is_read_back_from_json(finished_run):
    result = train(short(finished_run))
    content = json.loads(json.dumps(result.to_json()))
    assert "config" not in content
    assert RunResult.from_json(content, result.config) == result
    assert result.source_accuracy("swad") == pytest.approx(
        sum(result.scores["swad"][name]["out"]["accuracy"] for name in ("board", "clutter", "outline")) / 3
    )
