"""The names of curves, and which trackers there are."""

from __future__ import annotations

import posixpath
import re

from hypothesis import given
from hypothesis import strategies as st

from swad.testbed.results.records import Record
from swad.testbed.results.trackers.base import metric_name, name_problems

texts = st.text(min_size=1)


@given(texts, st.none() | texts, st.sampled_from([None, "in", "out"]), st.none() | texts)
def test_every_tool_accepts_the_name_of_any_curve(metric, domain, split, average):
    name = metric_name(Record("r", 1, domain, split, metric, 0.5, average))
    # The rules of MLflow, which are the strictest.
    assert re.fullmatch(r"[/\w.\- :]+", name)
    assert posixpath.normpath(name) == name
    assert ".." not in name.split("/")


def test_no_name_continues_another():
    """A store of files could not hold both."""
    live = metric_name(Record("r", 1, "photo", "out", "loss", 0.5))
    average = metric_name(Record("r", 1, "photo", "out", "loss", 0.5, "swad"))
    assert (live, average) == ("loss/photo/out/live", "loss/photo/out/swad")
    assert metric_name(Record("r", 1, None, None, "valley_loss", 0.5)) == "valley_loss"


def test_unknown_and_missing_tools_are_named_together(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "mlflow" else object())
    assert name_problems(["wandb", "tensorbord", "mlflow"]) == [
        "a tracker must be one of wandb, mlflow, tensorboard, got 'tensorbord': did you mean 'tensorboard'?",
        'mlflow is not installed: pip install "swad[log]", or leave it off',
    ]
