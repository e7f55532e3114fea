"""Ctrl-C and SIGTERM end a run with a checkpoint."""

from __future__ import annotations

import contextlib
import signal
import time

import pytest

from helpers.runs import RecordingCallback, interrupt_at, require_same, short
from swad.testbed.models import networks
from swad.testbed.training import evaluation
from swad.testbed.training.loop import RunInterrupted, train


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path, finished_run, signum):
    run_dir = tmp_path / "run"
    before = signal.getsignal(signal.SIGINT)
    config = short(run_dir, checkpoint_every=None)
    for step in (6, 12, 18):  # between evaluations and at one
        with pytest.raises(RunInterrupted, match=f"again to resume .*run from step {step}") as caught:
            train(config, callback=interrupt_at(step, signum))
        assert (caught.value.run_dir, caught.value.step) == (run_dir, step)
        assert not (run_dir / "done.json").exists()
    callback = RecordingCallback()
    train(config, callback=callback)
    assert callback.events[0] == "start 18/24"
    assert callback.steps == [19, 20, 21, 22, 23, 24]
    assert callback.events[-1] == "end"
    require_same(finished_run, run_dir)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_sigterm_is_ignored(tmp_path):
    """A scheduler signals every process of a job, and the launcher forwards its own signal."""

    def twice() -> None:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(RunInterrupted, match="from step 6"):
        train(short(tmp_path / "run", checkpoint_every=None), callback=RecordingCallback({6: twice}))


def test_an_interrupt_that_an_import_swallows_still_interrupts(tmp_path, monkeypatch):
    def broken(*args, **options):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
            time.sleep(1)
        raise AttributeError("half of a module")

    monkeypatch.setattr(networks, "build", broken)
    with pytest.raises(RunInterrupted, match=r"Run the same command again to train .*run\."):
        train(short(tmp_path / "run"))


@pytest.mark.parametrize(("presses", "step"), [(1, 12), (2, 8)])
def test_ctrl_c_in_an_evaluation_saves_it_and_a_second_one_stops_at_once(
    tmp_path, finished_run, monkeypatch, presses, step
):
    run_dir = tmp_path / "run"
    real, count = evaluation.evaluate_splits, 0

    def interrupted(*args):
        nonlocal count
        count += 1
        if count == 3:
            for _ in range(presses):
                signal.raise_signal(signal.SIGINT)
        return real(*args)

    monkeypatch.setattr(evaluation, "evaluate_splits", interrupted)
    with pytest.raises(RunInterrupted, match=f"from step {step}"):
        train(short(run_dir))
    train(short(run_dir))
    require_same(finished_run, run_dir)
