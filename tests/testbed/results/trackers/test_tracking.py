"""Records in the real tools: W&B offline, MLflow in a local store, TensorBoard. Each value arrives once."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.commands import environment
from helpers.run_tree import write_run
from helpers.tracked_values import Values, mlflow_values, tracked_values, wandb_records
from swad.testbed.results.records import Record, lock_run_directory, read_records
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import find_runs
from swad.testbed.results.trackers.base import BaseTracker, Status, metric_name
from swad.testbed.results.trackers.tracking import STATE, Tracking, replay

pytestmark = pytest.mark.slow
TOOLS = ("wandb", "mlflow", "tensorboard")
SETTINGS = {"dataset": "PACS", "algorithm": "erm", "target": "photo", "trial": 0, "hyperparameters": {"lr": 5e-5}}


@pytest.fixture(autouse=True)
def local_tools(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())


def records(*steps: int, average: str | None = None, shift: float = 0.0) -> list[Record]:
    return [
        Record("r", step, domain, "out", metric, step / 8 + shift, average)
        for step in steps
        for domain, metric in (("photo", "loss"), ("sk[e]tch", "loss"), ("photo", "accuracy"))
    ]


def run_of(path: Path) -> RunData:
    return RunData(path, SETTINGS, (), finished=False)


def expected(*groups: list[Record]) -> Values:
    return sorted((metric_name(record), record.step, record.value) for group in groups for record in group)


def fail(name: str, reason: str) -> None:
    raise AssertionError(f"{name}: {reason}")


def test_every_tool_gets_every_value_under_the_same_name(tmp_path):
    odd = [Record("r", 3, None, None, "train_loss", math.inf)]
    seen: list[str] = []
    with Tracking(run_of(tmp_path), TOOLS, warn=fail, log=seen.append) as tracking:
        tracking.log(records(1, 2))
        tracking.log(records(3) + odd)
        tracking.log(records(3, average="swad"))  # another curve at the same step
    found = tracked_values(tmp_path)
    assert set(found) == set(TOOLS)
    for values in found.values():
        assert sorted(values) == expected(records(1, 2, 3), odd, records(3, average="swad"))
    assert [text.split(":")[0] for text in seen] == list(TOOLS)
    (run,) = [record.run for record in wandb_records(tmp_path) if record.WhichOneof("record_type") == "run"]
    assert (run.project, run.display_name, run.run_group) == ("swad", "photo-0", "PACS/erm")
    assert json.loads({item.key: item.value_json for item in run.config.update}["hyperparameters"]) == {"lr": 5e-5}


def test_mlflow_keeps_settings_and_status(tmp_path):
    from mlflow.tracking import MlflowClient

    tracked = run_of(tmp_path)
    with pytest.raises(KeyboardInterrupt), Tracking(tracked, ["mlflow"], warn=fail) as tracking:
        tracking.log(records(1))
        raise KeyboardInterrupt
    state = json.loads((tmp_path / STATE).read_text())["mlflow"]["tool"]
    run = MlflowClient(state["uri"]).get_run(state["run_id"])
    assert (run.info.status, run.info.run_name) == ("KILLED", "photo-0")
    assert run.data.params["hyperparameters.lr"] == "5e-05"
    with Tracking(tracked, ["mlflow"], warn=fail):
        assert MlflowClient(state["uri"]).get_run(state["run_id"]).info.status == "RUNNING"
    assert MlflowClient(state["uri"]).get_run(state["run_id"]).info.status == "FINISHED"


def test_a_resumed_run_continues_without_doubled_steps(tmp_path):
    """The first attempt sent steps 1 to 3 and half of 4; the second starts from a checkpoint at step 2."""
    with pytest.raises(ZeroDivisionError), Tracking(run_of(tmp_path), TOOLS, warn=fail) as tracking:
        tracking.log(records(1, 2, 3))
        tracking.log(records(4)[:1])
        raise ZeroDivisionError
    ids = {name: state["tool"] for name, state in json.loads((tmp_path / STATE).read_text()).items()}
    with Tracking(run_of(tmp_path), TOOLS, [*records(1, 2)], warn=fail) as tracking:
        for step in (3, 4, 5):
            tracking.log(records(step, shift=1e-7))  # as a GPU may compute it
    assert {name: state["tool"] for name, state in json.loads((tmp_path / STATE).read_text()).items()} == ids
    for name, values in tracked_values(tmp_path).items():
        assert [value[:2] for value in sorted(values)] == [value[:2] for value in expected(records(1, 2, 3, 4, 5))]
        # A tool cannot unlearn what it was sent; the files of TensorBoard are written anew from the records.
        first = records(4) if name == "tensorboard" else records(4)[1:]
        for record in (*records(3) * (name == "tensorboard"), *first):
            assert (metric_name(record), record.step, pytest.approx(record.value + 1e-7, abs=2e-8)) in values


KILLED = """
import os, signal, sys
from pathlib import Path
from swad.testbed.results.records import Record
from swad.testbed.results.run_data import RunData
from swad.testbed.results.trackers.tracking import Tracking

def records(*steps):
    kinds = (("photo", "loss"), ("sk[e]tch", "loss"), ("photo", "accuracy"))
    return [Record("r", step, domain, "out", metric, step / 8) for step in steps for domain, metric in kinds]

run = RunData(Path(sys.argv[1]), {"target": "photo"}, (), False)
tracking = Tracking(run, ["wandb", "tensorboard"], records(1, 2), warn=print)
for step in (3, 4):
    tracking.log(records(step))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_lost_or_doubled_when_a_process_is_killed(tmp_path):
    """W&B loses values that are not on disk yet; those of the attempt before, which ended, are there."""
    with Tracking(run_of(tmp_path), ["wandb", "tensorboard"], [*records(1, 2)], warn=fail):
        pass
    # A process of its own also has its own service of W&B, which dies with it.
    variables = {name: value for name, value in environment().items() if not name.startswith("WANDB_SERVICE")}
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=variables)
    assert killed.returncode == -signal.SIGKILL
    time.sleep(1)  # the process of W&B notices and ends
    with Tracking(run_of(tmp_path), ["wandb", "tensorboard"], [*records(1, 2, 3)], warn=fail) as tracking:
        tracking.log(records(4, 5))
    for tool, values in tracked_values(tmp_path).items():
        assert sorted(values) == expected(records(1, 2, 3, 4, 5)), tool
    ids = {record.run.run_id for record in wandb_records(tmp_path) if record.WhichOneof("record_type") == "run"}
    assert len(ids) == 1


def test_mlflow_is_asked_what_it_has(tmp_path):
    """A process may die after it sent values and before it noted them."""
    with Tracking(run_of(tmp_path), ["mlflow"], [*records(1)], warn=fail) as tracking:
        noted = (tmp_path / STATE).read_text()
        tracking.log(records(2))
    (tmp_path / STATE).write_text(noted)
    with Tracking(run_of(tmp_path), ["mlflow"], [*records(1, 2, 3)], warn=fail):
        pass
    assert sorted(tracked_values(tmp_path)["mlflow"]) == expected(records(1, 2, 3))


def test_a_run_that_was_removed_from_mlflow_is_sent_again(tmp_path):
    from mlflow.tracking import MlflowClient

    for _ in range(2):
        with Tracking(run_of(tmp_path), ["mlflow"], [*records(1, 2)], warn=fail):
            pass
        tool = json.loads((tmp_path / STATE).read_text())["mlflow"]["tool"]
        assert sorted(mlflow_values(**tool)) == expected(records(1, 2))
        MlflowClient(tool["uri"]).delete_run(tool["run_id"])


def test_a_failing_tracker_warns_once_and_the_others_continue(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    warnings: list[tuple[str, str]] = []
    with Tracking(run_of(tmp_path), TOOLS, warn=lambda *pair: warnings.append(pair)) as tracking:
        tracking.log(records(1))
        tracking.log(records(2))
    ((name, reason),) = warnings
    assert name == "mlflow"
    assert "127.0.0.1" in reason
    assert "\n" not in reason
    found = tracked_values(tmp_path)
    assert sorted(found["tensorboard"]) == sorted(found["wandb"]) == expected(records(1, 2))


def test_a_tool_that_fails_halfway_is_sent_only_the_rest_later(tmp_path, monkeypatch):
    got: list[int] = []

    class Halting(BaseTracker):
        def start(self) -> str:
            return "nowhere"

        def log(self, step: int, values: Mapping[str, float]) -> None:
            if got == [1, 2]:
                got.append(0)  # the failure
                raise OSError("the server does not answer")
            got.append(step)

        def finish(self, status: Status) -> None:
            pass

    monkeypatch.setitem(sys.modules, "swad.testbed.results.trackers.halting", SimpleNamespace(Tracker=Halting))
    problems: list[str] = []
    for _ in range(2):
        halting = Tracking(
            run_of(tmp_path), ["halting"], records(1, 2, 3, 4), warn=lambda name, reason: problems.append(reason)
        )
        halting.finish("finished")
    assert got == [1, 2, 0, 3, 4]
    assert problems == ["the server does not answer"]


def test_replay_sends_all_runs_once(tmp_path):
    for name in ("one", "two"):
        write_run(tmp_path / "runs" / name, target="photo" if name == "one" else "sketch", finished=name == "one")
    progress: list[tuple[str, int, int | None]] = []
    for _ in range(2):
        assert replay(find_runs(tmp_path / "runs"), TOOLS, lambda *state: progress.append(state)) == []
    assert progress[-1] == ("sending records to wandb, mlflow, tensorboard", 2, 2)
    for name in ("one", "two"):
        for tool, values in tracked_values(tmp_path / "runs" / name).items():
            wanted = expected(read_records(tmp_path / "runs" / name))
            assert [value[:2] for value in sorted(values)] == [value[:2] for value in wanted], tool
            assert [value[2] for value in sorted(values)] == pytest.approx([value[2] for value in wanted])


def test_replay_names_the_runs_that_failed(tmp_path, monkeypatch):
    write_run(tmp_path / "runs" / "one")
    runs = find_runs(tmp_path / "runs")
    with lock_run_directory(tmp_path / "runs" / "one"):
        (problem,) = replay(runs, ["tensorboard"])
    assert "is being written by process" in problem
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://x")
    (problem,) = replay(runs * 3, ["mlflow", "tensorboard"])
    assert problem.startswith(f"mlflow failed for {tmp_path / 'runs' / 'one'} (")
    assert problem.endswith("); 2 other runs were not sent to it")
    assert tracked_values(tmp_path / "runs" / "one")["tensorboard"]


def test_runs_of_one_imported_file_are_sent_one_by_one(tmp_path: Path):
    arguments = {"test_envs": [[0], [1]], "dataset": "PACS", "algorithm": "ERM", "trial_seed": 0}
    lines = [
        {"args": {**arguments, "real_test_envs": [env]}, "step": 0, "env0_in": 0.5, "env1_in": 0.25} for env in (0, 1)
    ]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    imported = find_runs(tmp_path)
    assert replay(imported, ["tensorboard"]) == []
    assert all(len(tracked_values(run.path)["tensorboard"]) == 2 for run in imported)
    assert [run.path for run in find_runs(tmp_path)] == [run.path for run in imported]


def test_wandb_without_credentials_says_what_to_do_and_asks_for_no_key(tmp_path, monkeypatch):
    import wandb

    wandb.teardown()  # it keeps the settings of the first run of a process
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))  # no ~/.netrc
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    warnings: list[tuple[str, str]] = []
    with Tracking(run_of(tmp_path), ["wandb"], [*records(1)], warn=lambda *pair: warnings.append(pair)):
        pass
    wandb.teardown()
    assert warnings == [("wandb", "not logged in: run `wandb login`, or set WANDB_MODE=offline")]


@pytest.mark.parametrize("content", ["", "[]", '{"tensorboard": 1}', '{"tensorboard": {"tool": {}, "sent": [1]}}'])
def test_a_damaged_state_is_forgotten(tmp_path: Path, content: str):
    (tmp_path / STATE).write_text(content)
    with Tracking(run_of(tmp_path), ["tensorboard"], [*records(1)], warn=fail):
        pass
    assert sorted(tracked_values(tmp_path)["tensorboard"]) == expected(records(1))
