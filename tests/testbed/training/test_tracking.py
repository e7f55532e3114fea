"""Trackers of a run that trains: live values, a run that is killed and resumed, and a tool that fails."""

from __future__ import annotations

import pytest

from helpers.runs import RecordingCallback, crash_at, short, values
from helpers.tracked_values import tracked_values
from swad.testbed.results.records import read_records
from swad.testbed.results.trackers.base import metric_name
from swad.testbed.training.config import ConfigError
from swad.testbed.training.loop import train

pytestmark = pytest.mark.slow
TOOLS = ("wandb", "mlflow", "tensorboard")
for tool in TOOLS:
    pytest.importorskip(tool)


@pytest.fixture(autouse=True)
def local_tools(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())


def curves(run_dir):
    return sorted((metric_name(record), record.step, record.value) for record in read_records(run_dir))


def test_values_arrive_while_the_run_trains_and_once_if_it_is_killed(tmp_path, finished_run):
    config = short(tmp_path / "run", log=TOOLS, checkpoint_every=8)
    with pytest.raises(ZeroDivisionError):
        train(config, callback=crash_at(14))  # records up to step 12, a checkpoint at step 8
    recorded = curves(config.output)
    assert {step for _, step, _ in recorded} == {4, 8, 12}
    live = tracked_values(config.output)
    assert sorted(live["mlflow"]) == sorted(live["wandb"]) == recorded
    events = RecordingCallback()
    train(config, callback=events)
    assert events.events[0] == "start 8/24"
    for tool, found in tracked_values(config.output).items():
        assert [value[:2] for value in sorted(found)] == [value[:2] for value in curves(config.output)]
        assert [value[2] for value in sorted(found)] == pytest.approx([v[2] for v in curves(config.output)]), tool
    # Trackers change nothing in the run.
    assert values(config.output) == values(finished_run)


def test_a_tool_that_fails_stops_no_training(tmp_path, monkeypatch, finished_run):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    events = RecordingCallback()
    train(short(tmp_path / "run", log="mlflow"), callback=events)
    (warning,) = [message for message in events.messages if "mlflow" in message]
    assert warning.startswith("warning: mlflow failed, so the run continues without it (")
    assert f"`swad log {tmp_path / 'run'} --to mlflow` sends the records later" in warning
    assert values(tmp_path / "run") == values(finished_run)


def test_an_unknown_tool_is_refused_before_the_run(tmp_path):
    with pytest.raises(ConfigError, match="a tracker must be one of wandb, mlflow, tensorboard, got 'wandbb'"):
        train(short(tmp_path / "run", log=("wandbb",)))
    assert not (tmp_path / "run").exists()
