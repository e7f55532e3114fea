"""Averages follow the trajectory exactly, and a training resumes from its state to the last bit."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from helpers.forked import CONTEXT
from helpers.run_worker import train_short
from helpers.runs import crash_at, interrupt_at, require_same, short, values, weights
from swad.testbed.averages.segment_log import load_segments
from swad.testbed.data import benchmarks
from swad.testbed.data.splits import hold_out
from swad.testbed.results.records import read_records
from swad.testbed.training.distributed import Dist
from swad.testbed.training.loop import RunInterrupted, train
from swad.testbed.training.resolve import resolve
from swad.testbed.training.state import build_algorithm


@pytest.mark.all_digits
def test_swad_equals_the_mean_of_the_snapshots_in_its_range(tmp_path):
    """The slow, obvious twin: keep the weights of every step, then average those in the range."""
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


def test_an_algorithm_knows_the_run_and_its_images(tmp_path):
    config = resolve(short(tmp_path / "run", algorithm="er", seed=7))
    sources, _ = hold_out(benchmarks.load("digits"), ("paper",), trial=0)
    algorithm = build_algorithm(config, sources, Dist(torch.device("cpu")))
    run_info = algorithm.run_info
    assert run_info.seed == 7
    assert run_info.domain_sizes == tuple(len(split.keys) for split in sources.train)
    assert (run_info.image_mean, run_info.image_std) == (sources.image_spec.mean, sources.image_spec.std)
    assert run_info.image_shape == (3, 28, 28)


def test_best_has_the_highest_validation_accuracy(tmp_path):
    result = train(short(tmp_path / "run", snapshots=range(4, 25, 4), averages=()))
    accuracies: dict[int, list[float]] = {}
    for r in read_records(tmp_path / "run"):
        if r.metric == "accuracy" and r.average is None:
            accuracies.setdefault(r.step, []).append(r.value)
    means = {step: math.fsum(values) / 3 for step, values in accuracies.items()}
    best = max(means, key=lambda step: (means[step], -step))
    stored = weights(tmp_path / "run")
    assert all(stored["best"][name].equal(stored[f"step-{best:06d}"][name]) for name in stored["best"])
    assert result.source_accuracy("best") == pytest.approx(means[best])


@pytest.mark.all_digits
@pytest.mark.slow
def test_training_stops_early_only_if_nothing_else_is_requested(tmp_path):
    swad = ("swad:n_converge=2,n_tolerance=1,tolerance_ratio=0",)
    slow = {"hyperparameters": {"batch_size": 2, "lr": 0.08}, "averages": swad}
    alone = train(short(tmp_path / "alone", report_live=False, **slow))
    assert alone.steps < 24
    assert set(alone.scores) == {"swad"}
    for name, more in {
        "live": {},
        "no early stop": {"report_live": False, "early_stop": False},
        "ema": {"report_live": False, "averages": (*swad, "ema")},
        "snapshot": {"report_live": False, "snapshots": (24,)},
    }.items():
        other = train(short(tmp_path / name, **{**slow, **more}))
        assert other.steps == 24, name
        assert other.ranges["swad"] == alone.ranges["swad"]


def test_segments_are_kept_on_request(tmp_path, finished_run):
    train(short(tmp_path / "run", keep_segments=True))
    files = load_segments(tmp_path / "run" / "segments")
    assert [path.stem for path in files] == [f"segment-{step:08d}" for step in (4, 8, 12, 16, 20, 24)]
    assert values(tmp_path / "run") == values(finished_run)


@pytest.mark.slow
def test_a_run_killed_at_random_moments_resumes_to_the_same_bits(tmp_path, finished_run):
    draw = random.Random(0)
    run_dir, kills = tmp_path / "run", 0
    began = time.monotonic()
    while not (run_dir / "done.json").exists():
        child = CONTEXT.Process(target=train_short, args=(run_dir, {}))
        child.start()
        if kills < 6:
            # Kill it shortly after it writes: in a step, an evaluation, a checkpoint or the report.
            size = _size(run_dir)
            while _size(run_dir) == size and child.is_alive():
                time.sleep(0.002)
            time.sleep(draw.uniform(0, 0.15))
            if child.is_alive():
                os.kill(child.pid, signal.SIGKILL)
                kills += 1
        child.join(60)
        assert time.monotonic() - began < 300
    assert kills >= 2
    require_same(finished_run, run_dir)
    (run_dir / "checkpoint").mkdir(exist_ok=True)  # as after a kill between the result and its removal
    train(short(run_dir))
    assert not (run_dir / "checkpoint").exists()
    assert not list(run_dir.rglob("*.partial"))


def _size(run_dir: Path) -> int:
    path = run_dir / "records.jsonl"
    return path.stat().st_size if path.exists() else -1


def test_a_run_that_crashed_before_its_first_checkpoint_starts_again(tmp_path, finished_run):
    run_dir = tmp_path / "run"
    with pytest.raises(ZeroDivisionError):
        train(short(run_dir, checkpoint_every=None), callback=crash_at(10))
    assert values(run_dir)
    train(short(run_dir))
    require_same(finished_run, run_dir)


@pytest.mark.slow
def test_segments_written_before_a_crash_are_replaced(tmp_path):
    settings = {"checkpoint_every": None, "keep_segments": True}
    with pytest.raises(ZeroDivisionError):
        train(short(tmp_path / "run", **settings), callback=crash_at(10))
    assert load_segments(tmp_path / "run" / "segments")
    train(short(tmp_path / "run", **settings))
    train(short(tmp_path / "unbroken", **settings))
    require_same(tmp_path / "unbroken", tmp_path / "run")
    assert len(load_segments(tmp_path / "run" / "segments")) == len(load_segments(tmp_path / "unbroken" / "segments"))


@pytest.mark.slow
def test_a_cyclic_learning_rate_resumes_to_the_same_bits(tmp_path):
    options = {"lr_schedule": "cyclic", "steps": 100, "evaluate_every": 20, "averages": ("swa",)}
    result = train(short(tmp_path / "whole", **options))
    assert result.ranges["swa"]["spans"] == "82-100 every 2"
    with pytest.raises(RunInterrupted):
        train(short(tmp_path / "cut", **options), callback=interrupt_at(91))
    train(short(tmp_path / "cut", **options))
    require_same(tmp_path / "whole", tmp_path / "cut")
    plain = train(short(tmp_path / "plain", **{**options, "lr_schedule": "constant"}))
    assert plain.scores["last"] != result.scores["last"]
