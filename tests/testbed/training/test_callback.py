"""Callbacks receive the events of a run; the display is one."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import time

import pytest
import torch
from rich.console import Console

import swad
from helpers import forked
from helpers.commands import environment
from swad.testbed.training import callback as callback_module
from swad.testbed.training.callback import Display, RunCallback, combine
from swad.testbed.training.config import RunConfig

OPTIONS = {
    "dataset": "digits",
    "target": "paper",
    "steps": 8,
    "evaluate_every": 4,
    "hyperparameters": {"batch_size": 8},
}


class Partial:
    """Has one of the methods of a callback."""

    def __init__(self) -> None:
        self.accuracies: list[dict[str, float]] = []

    def on_evaluation(self, step, train_loss, losses, accuracies, statuses) -> None:
        assert accuracies.keys() == losses.keys()
        self.accuracies.append(dict(accuracies))


def test_plain_options_and_a_partial_callback(tmp_path, capfd):
    callback = Partial()
    options = {**OPTIONS, "output": str(tmp_path / "run"), "averages": "swad:n_converge=2,ema", "device": "auto"}
    result = swad.train(options, callback=callback, progress=True)
    assert result.config.averages == ("swad:n_converge=2", "ema")
    assert result.config.device in ("cpu", "cuda")
    assert [sorted(accuracies) for accuracies in callback.accuracies] == [["board", "clutter", "outline"]] * 2
    assert all(0 <= accuracy <= 1 for accuracies in callback.accuracies for accuracy in accuracies.values())
    out, _ = capfd.readouterr()
    assert "paper-0: 8 steps" in out
    assert "paper-0: finished" in out


def test_the_work_after_the_last_step_is_reported(tmp_path):
    stages = []

    class Stages(RunCallback):
        def on_stage(self, description: str) -> None:
            stages.append(description)

    swad.train({**OPTIONS, "output": tmp_path / "run", "averages": "ema"}, callback=Stages())
    assert [stage for stage in stages if "ema" in stage] == ["evaluating ema", "saving ema"]


def test_an_object_without_any_event_is_refused():
    with pytest.raises(TypeError, match="a callback needs at least one of the methods on_start"):
        combine([print])


@pytest.mark.slow
def test_bars_in_a_terminal(tmp_path):
    """On a real pseudo-terminal: bars with the loss, the phase and the time left."""
    parent, child = pty.openpty()
    options = {"dataset": "digits", "target": "paper", "steps": 60, "evaluate_every": 10, "output": str(tmp_path)}
    code = f"""
import os, swad
for standard in (1, 2):
    os.dup2(os.open({os.ttyname(child)!r}, os.O_RDWR), standard)
swad.train({options}, progress=True)
"""
    process = forked.Process(["-c", code], env=environment() | {"TERM": "xterm-256color"})
    seen = b""
    deadline = time.time() + 120
    while process.returncode is None or select.select([parent], [], [], 0)[0]:
        assert time.time() < deadline
        if select.select([parent], [], [], 0.1)[0]:
            seen += os.read(parent, 65536)
    os.close(parent)
    os.close(child)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", seen).decode(errors="replace")
    assert re.search(r"paper-0 .*\d+/60 .*loss \d", text)
    assert "searching" in text or "averaging" in text


class Result:
    """A result whose only average has an accuracy of 0.9 on the target."""

    config = RunConfig.from_options(output="run", dataset="digits", target="paper")
    scores = ("swad",)

    def target_accuracy(self, label):
        return 0.9


def test_the_time_left_of_all_runs_is_known_during_the_first(monkeypatch):
    monkeypatch.setattr(callback_module, "REFRESH_SECONDS", 0)
    display, loss = Display(4, Console(file=io.StringIO(), force_terminal=True)), torch.zeros(())
    display.of_run("a").on_end(Result())  # finished before, so it does not count
    display.of_run("b").on_start(Result.config, 10, 0)
    display.on_step(5, loss)
    overall = display._bars.tasks[0]
    assert (overall.completed, overall.total) == (0.5, 3)
    display.on_stage("evaluating swad")
    assert display._bars.tasks[1].fields["text"] == "evaluating swad"
    display.on_end(Result())
    display.of_run("c").on_start(Result.config, 10, 5)
    assert overall.completed == 1
    display.on_step(6, loss)
    assert overall.completed == 1.6


def test_names_with_markup_are_printed_verbatim():
    output = io.StringIO()
    with Display(1, Console(file=output, force_terminal=True, color_system=None, width=200)) as display:
        display.of_run("[red]x[/]").on_start(Result.config, 10, 0)
        display.on_step(5, torch.zeros(()))
        display._bars.refresh()
        assert "[red]x[/]" in output.getvalue()
        output.truncate(0)
        display.on_end(Result())
    assert "[red]x[/] target accuracy: swad 90.0" in output.getvalue()
