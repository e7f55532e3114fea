from __future__ import annotations

import contextlib
import errno
import json
import math
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from helpers import HELPERS
from helpers.run_worker import train_short
from helpers.runs import require_same, short, values, weights
from swad.averaging.segment_log import load_segments
from swad.data.domains import DataError
from swad.models import networks
from swad.results import runs, training_curves
from swad.results.records import RecordWriter, read_records
from swad.results.runs import load_run
from swad.training import evaluator
from swad.training.config import RunConfig
from swad.training.export import load_predictor, read_card
from swad.training.loop import Interrupted, RunError, train
from swad.training.resolve import resolve


class Watch:
    """Notes every call, and can do something at a step."""

    def __init__(self, at: dict[int, object] | None = None) -> None:
        self.calls: list[str] = []
        self.at = at or {}
        self.steps: list[int] = []
        self.kept: dict[int, dict[str, torch.Tensor]] = {}

    def on_start(self, config, total, step):
        self.calls.append(f"start {step}/{total}")

    def on_step(self, step, loss):
        assert loss.ndim == 0
        self.steps.append(step)
        if step in self.at:
            self.at[step]()

    def on_evaluation(self, step, train_loss, losses, statuses):
        self.calls.append(f"evaluation {step}")
        self.losses, self.statuses = losses, statuses

    def on_end(self, result):
        self.calls.append("end")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(short(folder))
    return folder


# --- what a run leaves behind ----------------------------------------------------------------------------------


def test_same_seed_same_records_and_weights(tmp_path, whole):
    before = torch.random.get_rng_state()
    torch.set_num_threads(2)  # which a run on small images does not ask for
    train(short(tmp_path / "run"))
    assert before.equal(torch.random.get_rng_state())
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    require_same(whole, tmp_path / "run")
    other = train(short(tmp_path / "other", seed=1))
    assert values(tmp_path / "other") != values(whole)
    assert other.config.training.seed == 1


def test_the_files_of_a_finished_run(whole):
    assert sorted(path.name for path in whole.iterdir()) == [
        "config.json",
        "done.json",
        "records.jsonl",
        "run.lock",
        "weights",
    ]
    run = load_run(whole)
    assert run.finished
    assert run.targets == ("paper",)
    assert run.config["hyperparameters"] == {"lr": 0.08, "batch_size": 8, "weight_decay": 0.0, "dropout": 0.0}
    assert "output" not in run.config
    assert RunConfig.from_json(json.loads((whole / "config.json").read_text()), whole) == resolve(short(whole))


def test_records_are_what_selection_and_report_read(whole):
    run = load_run(whole)
    sources = {"board", "clutter", "outline"}
    curves = training_curves.source_curves(run, "loss")
    assert set(curves) == sources
    assert curves["board"][0] == [4, 8, 12, 16, 20, 24]
    steps, mean = training_curves.mean_curve(curves.values())
    seen = {r.step: r.value for r in run.records if r.metric == "valley_loss"}
    assert [seen[step] for step in steps] == pytest.approx(mean)
    labels = {"best", "last", "swad", "swa", "ema"}
    for split in ("in", "out", "full"):
        rows = [r for r in run.records if r.domain == "paper" and r.split == split and r.metric == "accuracy"]
        assert {r.average for r in rows} == labels
        assert {r.step for r in rows} == {24}
    for label in labels:
        out = {r.domain for r in run.records if r.average == label and r.split == "out" and r.metric == "accuracy"}
        assert out == {*sources, "paper"}
    assert training_curves.valley_averages(run) == ["swad"]
    valley = training_curves.valley(run, "swad")
    assert valley is not None
    assert valley.start is not None
    assert valley.n_averaged == valley.end - valley.start + 1
    for metric in ("seconds_total", "seconds_per_step", "seconds_evaluation"):
        assert training_curves.final_value(run, metric) > 0


def test_full_is_in_and_out_together(whole):
    scores = json.loads((whole / "done.json").read_text())["scores"]["swad"]["paper"]
    n_in, n_out = 449 - int(449 * 0.2), int(449 * 0.2)
    correct = scores["in"]["accuracy"] * n_in + scores["out"]["accuracy"] * n_out
    assert correct / 449 == pytest.approx(scores["full"]["accuracy"])


def test_golden_losses(whole):
    """A change here changes results: say so in the changelog."""
    losses = [r.value for r in read_records(whole) if r.metric == "valley_loss" and r.average is None]
    # Rounding, which differs between machines, grows from step to step: the later ones tell nothing.
    assert losses[:4] == pytest.approx([2.35311, 2.33323, 2.30999, 2.29899], abs=5e-4)


def test_swad_equals_the_mean_of_the_stored_weights(tmp_path):
    """One step before an evaluation is enough: snapshots of every step, then the plain mean over the range."""
    result = train(short(tmp_path / "run", snapshots=range(1, 25)))
    stored = weights(tmp_path / "run")
    span = result.ranges["swad"]
    assert 1 < span["start_step"] < span["end_step"] < 24
    for label, steps in (
        ("swad", range(span["start_step"], span["end_step"] + 1)),
        ("swa", [20 + 4]),
    ):
        for name, tensor in stored[label].items():
            mean = torch.stack([stored[f"step-{i:06d}"][name].double() for i in steps]).mean(0)
            torch.testing.assert_close(tensor.double(), mean, rtol=1e-6, atol=1e-7)
    assert all(stored["last"][name].equal(stored["step-000024"][name]) for name in stored["last"])


def test_erm_best_is_the_best_validation_accuracy(tmp_path):
    result = train(short(tmp_path / "run", snapshots=range(4, 25, 4), averages=()))
    found: dict[int, list[float]] = {}
    for r in read_records(tmp_path / "run"):
        if r.metric == "accuracy" and r.average is None:
            found.setdefault(r.step, []).append(r.value)
    means = {step: math.fsum(some) / 3 for step, some in found.items()}
    best = max(means, key=lambda step: (means[step], -step))
    stored = weights(tmp_path / "run")
    assert all(stored["best"][name].equal(stored[f"step-{best:06d}"][name]) for name in stored["best"])
    assert result.source_accuracy("best") == pytest.approx(means[best])


def test_weights_load_and_have_a_card(whole):
    path = whole / "weights" / "swad.safetensors"
    predictor = load_predictor(path)
    assert not predictor.model.training
    card = read_card(path)
    done = json.loads((whole / "done.json").read_text())
    assert card["scores"] == done["scores"]["swad"]
    assert card["range"] == done["ranges"]["swad"]
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["format"] == "pt"
    text = path.with_suffix(".md").read_text()
    assert "load_predictor" in text
    assert f"Averaged steps: {card['range']['spans']}" in text


# --- going on --------------------------------------------------------------------------------------------------


def test_killed_at_random_moments_and_resumed(tmp_path, whole):
    # A server that has imported everything already: its children begin at once.
    start = multiprocessing.get_context("forkserver")
    start.set_forkserver_preload(
        ["helpers.run_worker", "swad.training.loop", "swad.data.benchmarks.digits", "sklearn.datasets"]
    )
    draw = random.Random(0)
    folder, kills = tmp_path / "run", 0
    began = time.monotonic()
    while not (folder / "done.json").exists():
        child = start.Process(target=train_short, args=(folder, {}))
        child.start()
        if kills < 6:
            # Once it writes, a moment later: in a step, an evaluation, a checkpoint or the end.
            size = _size(folder)
            while _size(folder) == size and child.is_alive():
                time.sleep(0.002)
            time.sleep(draw.uniform(0, 0.15))
            if child.is_alive():
                os.kill(child.pid, signal.SIGKILL)
                kills += 1
        child.join(60)
        assert time.monotonic() - began < 60
    assert kills >= 2
    require_same(whole, folder)
    assert not (folder / "checkpoint").exists()
    assert not list(folder.rglob("*.partial"))


def _size(folder: Path) -> int:
    path = folder / "records.jsonl"
    return path.stat().st_size if path.exists() else -1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_a_run_to_go_on_with(tmp_path, whole, number):
    folder = tmp_path / "run"
    before = signal.getsignal(signal.SIGINT)
    config = short(folder, checkpoint_every=None)
    for step in (6, 12, 18):  # between evaluations and at one
        with pytest.raises(Interrupted, match=f"again to resume .*run from step {step}") as caught:
            train(config, callback=Watch({step: lambda: os.kill(os.getpid(), number)}))
        assert (caught.value.run_dir, caught.value.step) == (folder, step)
        assert not (folder / "done.json").exists()
    watch = Watch()
    train(config, callback=watch)
    assert watch.calls[0] == "start 18/24"
    assert watch.steps == [19, 20, 21, 22, 23, 24]
    assert watch.calls[-1] == "end"
    require_same(whole, folder)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_sigterm_does_not_cost_the_checkpoint(tmp_path):
    """Who ends all processes of a job sends one, and the process that started this one passes on its own."""

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="from step 6"):
        train(short(tmp_path / "run", checkpoint_every=None), callback=Watch({6: twice}))


def test_ctrl_c_that_a_package_swallows_while_it_loads(tmp_path, monkeypatch):
    def broken(*args, **options):
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        raise AttributeError("half of a module")

    monkeypatch.setattr(networks, "build", broken)
    with pytest.raises(Interrupted, match=r"Run the same command again to start .* again"):
        train(short(tmp_path / "run"))


def test_ctrl_c_in_an_evaluation_goes_back_to_the_checkpoint(tmp_path, whole, monkeypatch):
    folder = tmp_path / "run"
    real, count = evaluator.evaluate_splits, 0

    def interrupted(*args):
        nonlocal count
        count += 1
        if count == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return real(*args)

    monkeypatch.setattr(evaluator, "evaluate_splits", interrupted)
    with pytest.raises(Interrupted, match="from step 8"):
        train(short(folder))
    train(short(folder))
    require_same(whole, folder)


def test_a_crash_before_the_first_checkpoint_begins_again(tmp_path, whole):
    folder = tmp_path / "run"

    def crash() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(short(folder, checkpoint_every=None), callback=Watch({10: crash}))
    assert values(folder)
    train(short(folder))
    require_same(whole, folder)


def test_and_so_it_does_with_segments_already_written(tmp_path):
    def crash() -> None:
        raise ZeroDivisionError

    settings = {"checkpoint_every": None, "keep_segments": True}
    with pytest.raises(ZeroDivisionError):
        train(short(tmp_path / "run", **settings), callback=Watch({10: crash}))
    assert load_segments(tmp_path / "run" / "segments")
    train(short(tmp_path / "run", **settings))
    train(short(tmp_path / "unbroken", **settings))
    require_same(tmp_path / "unbroken", tmp_path / "run")
    assert len(load_segments(tmp_path / "run" / "segments")) == len(load_segments(tmp_path / "unbroken" / "segments"))


def test_what_goes_wrong_in_the_final_report_does_not_lose_the_training(tmp_path, whole, monkeypatch):
    measure, calls = evaluator.Evaluator.final_scores, []

    def unreadable(*arguments):
        calls.append(1)
        if len(calls) == 3:  # two models are measured and recorded by then
            raise DataError("cannot decode image x.jpg")
        return measure(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(evaluator.Evaluator, "final_scores", unreadable)
        with pytest.raises(DataError):
            train(short(tmp_path / "run", checkpoint_every=None))
    watch = Watch({})
    train(short(tmp_path / "run"), callback=watch)
    assert watch.calls == ["start 24/24", "end"]
    require_same(whole, tmp_path / "run")


def test_a_run_that_failed_before_it_measured_anything_is_no_column_of_the_table(tmp_path):
    train(short(tmp_path / "paper-0"))
    with pytest.raises(ZeroDivisionError):
        train(short(tmp_path / "board-0", target="board"), callback=Watch({1: lambda: 1 / 0}))
    found = runs.find_runs(tmp_path)
    assert [run.targets for run in found] == [("paper",)]


def test_ones_own_folder_is_the_same_by_any_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = resolve(RunConfig.from_options(dataset="folder", target="a", output="run", data_dir=Path("images")))
    other = resolve(one.replace(data_dir=tmp_path / "x" / ".." / "images"))
    assert not other.differences(one.to_json())
    stored = one.to_json()
    stored["config"]["data"]["data_dir"] = "images"
    assert not other.differences(stored)


def test_a_finished_run_answers_at_once(whole):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    watch = Watch()
    began = time.perf_counter()
    result = train(short(whole), callback=watch)
    assert time.perf_counter() - began < 0.5
    assert watch.calls == ["end"]
    assert result.target_accuracy("swad") == result.scores["swad"]["paper"]["in"]["accuracy"]
    assert before == {path: path.stat().st_mtime_ns for path in whole.rglob("*")}


def test_a_run_that_failed_before_it_measured_anything_does_not_keep_its_folder(tmp_path, tree):
    settings = {"dataset": "folder", "network": "test_resnet", "weights": "random", "averages": (), "steps": 1}
    settings |= {"hyperparameters": {"batch_size": 2}, "evaluate_every": 1, "target": "snow", "workers": 0}
    with pytest.raises(DataError, match="is not one"):
        train(short(tmp_path / "run", **settings, data_dir=tmp_path / "nowhere"))
    assert train(short(tmp_path / "run", **settings, data_dir=tree)).steps == 1
    with pytest.raises(RunError, match="contains a run with other settings"):
        train(short(tmp_path / "run", **settings, data_dir=tmp_path / "nowhere"))


def test_other_settings_are_refused_and_named(tmp_path, whole):
    with pytest.raises(RunError, match=r"trial was 0, now 1\): use the same settings"):
        train(short(whole, trial=1))
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(short(folder), callback=Watch({6: lambda: os.kill(os.getpid(), signal.SIGINT)}))
    with pytest.raises(RunError) as caught:
        train(short(folder, hyperparameters={"batch_size": 8, "lr": 0.1}))
    assert "(lr was 0.08, now 0.1)" in str(caught.value)
    assert "\n" not in str(caught.value)
    train(short(folder, workers=1, checkpoint_every=8))  # how it is computed may change
    require_same(whole, folder)


def test_two_runs_in_one_folder_are_refused(tmp_path):
    folder = tmp_path / "run"
    with RecordWriter(folder, "other"), pytest.raises(RunError, match="is being written by process"):
        train(short(folder))
    assert sorted(path.name for path in folder.iterdir()) == ["records.jsonl", "run.lock"]


# --- disks -----------------------------------------------------------------------------------------------------


def _worker(folder: Path, changes: dict[str, object], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(HELPERS / "run_worker.py"), str(folder), json.dumps(changes)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_disk_that_fills_up(tmp_path, whole):
    """The kernel refuses the checkpoint half way; with room again the run goes on as if nothing had been."""
    folder = tmp_path / "run"
    out, err = _worker(folder, {}, LIMIT_FILE_SIZE="100000").communicate(timeout=60)
    assert out.startswith("RunError: cannot write "), out + err
    assert "File too large" in out
    assert len(out.splitlines()) == 1
    assert not list(folder.rglob("*.partial"))
    train(short(folder))
    require_same(whole, folder)


@pytest.mark.parametrize("place", ["checkpoint", "weights"])
def test_no_space_left(tmp_path, whole, monkeypatch, place):
    folder = tmp_path / "run"
    real = os.replace

    def full(source, target):
        if place in str(target):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(
            RunError, match="No space left on device; check the disk, then run the same command again"
        ) as caught:
            train(short(folder))
    assert "\n" not in str(caught.value)
    assert not list(folder.rglob("*.partial"))
    train(short(folder))
    require_same(whole, folder)


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(RunError, match="is a file: choose a directory"):
        train(short(file))
    with pytest.raises(RunError, match=r"(?i)not a directory"):
        train(short(file / "run"))

    def read_only(*args):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(RunError, match=r"(?i)read-only file system"):
        train(short(tmp_path / "run"))


# --- several processes -----------------------------------------------------------------------------------------


def test_two_processes_equal_one(tmp_path):
    changes = {"hyperparameters": {"batch_size": 8, "dropout": 0.5, "lr": 1e-4}, "snapshots": [1, 4]}
    train(short(tmp_path / "one", **changes))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    workers = [_worker(tmp_path / "two", changes, RANK=str(rank), **world) for rank in range(2)]
    outs = [worker.communicate(timeout=90) for worker in workers]
    assert all(worker.returncode == 0 for worker in workers), outs
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in outs)
    for key in ("scores", "ranges", "weights", "steps"):
        assert first[key] == second[key]
    one, two = values(tmp_path / "one"), values(tmp_path / "two")
    assert [(*row[:5], row[6]) for row in one] == [(*row[:5], row[6]) for row in two]
    for mine, theirs in zip(one, two, strict=True):
        assert mine[5] == pytest.approx(theirs[5], abs=1e-5), mine
    for name, tensors in weights(tmp_path / "one").items():
        for key, tensor in tensors.items():
            torch.testing.assert_close(weights(tmp_path / "two")[name][key], tensor, rtol=0, atol=1e-5)


# --- options ---------------------------------------------------------------------------------------------------


def test_the_target_is_not_looked_at_before_the_end(tmp_path, monkeypatch):
    looked: list[tuple[str, int]] = []
    step = 0
    real = evaluator.EvalLoader

    class Spy(real):
        def __init__(self, part, *args, **options):
            looked.append((part.name, step))
            super().__init__(part, *args, **options)

    monkeypatch.setattr(evaluator, "EvalLoader", Spy)

    class Count(Watch):
        def on_step(self, now, loss):
            nonlocal step
            step = now

    train(short(tmp_path / "run"), callback=Count())
    assert {at for name, at in looked if name == "paper"} == {24}
    looked.clear()
    train(short(tmp_path / "asked", target_every_evaluation=True), callback=Count())
    assert min(at for name, at in looked if name == "paper") == 4
    rows = [r for r in read_records(tmp_path / "asked") if r.domain == "paper" and r.average is None]
    assert sorted({r.step for r in rows}) == [4, 8, 12, 16, 20, 24]
    # Looking changes nothing else.
    same = [row for row in values(tmp_path / "asked") if row[2] != "paper" or row[6] is not None]
    assert same == values(tmp_path / "run")


def test_the_published_schedule(tmp_path):
    train(short(tmp_path / "run", schedule="reference", averages=("swad", "swa")))
    run = load_run(tmp_path / "run")
    steps = training_curves.source_curves(run, "loss")["board"][0]
    assert steps == [1, 5, 9, 13, 17, 21, 25]
    done = json.loads((tmp_path / "run" / "done.json").read_text())
    assert done["steps"] == 25
    assert done["ranges"]["swa"]["spans"] == "25-25"


def test_a_last_evaluation_comes_in_any_case(tmp_path):
    train(short(tmp_path / "run", steps=10, averages=("swa",)))
    assert training_curves.source_curves(load_run(tmp_path / "run"), "loss")["board"][0] == [4, 8, 10]


def test_three_way_split(tmp_path):
    result = train(short(tmp_path / "run", split="60/20/20", averages=("ema",)))
    assert set(result.scores["ema"]["paper"]) == {"in", "out", "test", "full"}
    assert set(result.scores["ema"]["board"]) == {"out", "test"}


def test_two_targets(tmp_path):
    result = train(short(tmp_path / "run", target=("paper", "board"), averages=("ema",)))
    assert load_run(tmp_path / "run").targets == ("paper", "board")
    assert set(result.scores["ema"]) == {"clutter", "outline", "paper", "board"}


def test_segments_are_kept(tmp_path, whole):
    train(short(tmp_path / "run", keep_segments=True))
    files = load_segments(tmp_path / "run" / "segments")
    assert [path.stem for path in files] == [f"segment-{step:08d}" for step in (4, 8, 12, 16, 20, 24)]
    assert values(tmp_path / "run") == values(whole)


def test_early_stop_waits_for_what_was_asked(tmp_path):
    swad = ("swad:n_converge=2,n_tolerance=1,tolerance_ratio=0",)
    slow = {"hyperparameters": {"batch_size": 2, "lr": 0.08}, "averages": swad}
    alone = train(short(tmp_path / "alone", report_live=False, **slow))
    assert alone.steps < 24
    assert set(alone.scores) == {"swad"}
    for name, more in {
        "erm": {},
        "asked": {"report_live": False, "early_stop": False},
        "ema": {"report_live": False, "averages": (*swad, "ema")},
        "snapshot": {"report_live": False, "snapshots": (24,)},
    }.items():
        other = train(short(tmp_path / name, **{**slow, **more}))
        assert other.steps == 24, name
        assert other.ranges["swad"] == alone.ranges["swad"]


def test_the_demos_loss_turns_and_swad_finds_both_ends(tmp_path):
    options = {"dataset": "digits", "target": "paper", "averages": ("swad",), "report_live": False}
    result = train(RunConfig.from_options(output=tmp_path / "run", **options))
    found = result.ranges["swad"]
    assert found["phase"] == "stopped"
    assert 60 <= found["start_step"] < found["end_step"] < result.steps < 600


def test_a_subsample_changes_the_averaged_range_but_not_the_trajectory(tmp_path, whole):
    config = short(tmp_path / "run", validation_subsample=10)
    with pytest.raises(Interrupted):
        train(config, callback=Watch({6: lambda: os.kill(os.getpid(), signal.SIGINT)}))
    result = train(config)
    done = json.loads((whole / "done.json").read_text())
    assert result.scores["last"] == done["scores"]["last"], "the final evaluation uses all images"
    losses, full_losses = (
        [r.value for r in read_records(run) if r.metric == "valley_loss"] for run in (tmp_path / "run", whole)
    )
    assert len(losses) == len(full_losses) == 6
    assert not set(losses) & set(full_losses)


def test_cyclic_rates_resume_too(tmp_path):
    options = {"lr_schedule": "cyclic", "steps": 100, "evaluate_every": 20, "averages": ("swa",)}
    result = train(short(tmp_path / "whole", **options))
    assert result.ranges["swa"]["spans"].startswith("82-82, 84-84")
    with pytest.raises(Interrupted):
        train(short(tmp_path / "cut", **options), callback=Watch({91: lambda: os.kill(os.getpid(), signal.SIGINT)}))
    train(short(tmp_path / "cut", **options))
    require_same(tmp_path / "whole", tmp_path / "cut")
    plain = train(short(tmp_path / "plain", **{**options, "lr_schedule": "constant"}))
    assert plain.scores["last"] != result.scores["last"]


def test_other_options_run(tmp_path):
    train(
        short(
            tmp_path / "run",
            steps=4,
            precision="bf16",
            clip=0.1,
            deterministic=True,
            tensorboard=True,
            augment_validation=True,
            averages=("swad",),
        )
    )
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_loss_that_is_not_finite_is_reported(tmp_path):
    with pytest.raises(RunError, match=r"step \d+: the validation loss must be finite, got \w+") as caught:
        train(short(tmp_path / "run", hyperparameters={"lr": 1e30, "batch_size": 8}))
    assert "\n" not in str(caught.value)
    lost = [r.value for r in read_records(tmp_path / "run") if r.metric == "valley_loss"]
    assert not math.isfinite(lost[-1])


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """Files: 3 domains of 2 classes of 10 images each, dark and light."""
    image = pytest.importorskip("PIL.Image")
    root = tmp_path_factory.mktemp("tree")
    for domain, tint in {"dusk": (90, 60, 60), "noon": (120, 120, 90), "snow": (110, 120, 140)}.items():
        for label, shift in {"dark": -50, "light": 80}.items():
            (root / domain / label).mkdir(parents=True)
            for i in range(10):
                color = tuple(c + shift + i for c in tint)
                image.new("RGB", (40 + i, 50), color).save(root / domain / label / f"{i}.png")
    return root


def test_a_folder_of_ones_own_with_a_timm_network(tmp_path, tree):
    timm = pytest.importorskip("timm")
    options = {
        "dataset": "folder",
        "data_dir": tree,
        "target": "snow",
        "network": "test_resnet",
        "weights": "random",
        "steps": 3,
        "evaluate_every": 1,
        "hyperparameters": {"batch_size": 2, "lr": 1e-4},
        "averages": ("swad", "ema"),
    }
    train(short(tmp_path / "plain", **options, workers=0))
    stop = {2: lambda: os.kill(os.getpid(), signal.SIGINT)}
    with pytest.raises(Interrupted, match="from step 2"):
        train(short(tmp_path / "read", **options, workers=1), callback=Watch(stop))
    some = next((tree / "snow").rglob("*.png"))
    more = some.with_name("new.png")
    more.write_bytes(some.read_bytes())
    with pytest.raises(RunError, match=r"the data changed since .* began \(snow \d+ then, \d+ now\): put"):
        train(short(tmp_path / "read", **options, workers=1))
    more.unlink()
    train(short(tmp_path / "read", **options, workers=1))
    require_same(tmp_path / "plain", tmp_path / "read")
    for tensors in weights(tmp_path / "read").values():
        timm.create_model("test_resnet", num_classes=2).load_state_dict(tensors, strict=True)
    first = timm.create_model("test_resnet", num_classes=2).state_dict()
    for name, tensor in weights(tmp_path / "read")["swad"].items():
        if "running" in name:
            assert tensor.equal(first[name]), "frozen statistics must not move"
    assert 'timm.create_model("test_resnet", num_classes=2)' in (tmp_path / "read/weights/swad.md").read_text()
    with pytest.raises(DataError, match="has no domain 'rain'"):
        train(short(tmp_path / "rain", **{**options, "target": "rain"}))
