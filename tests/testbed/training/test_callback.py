"""Callbacks receive the events of a run; the display is one."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest
from rich.console import Console

import swad
from helpers.commands import environment
from swad.testbed.training.callback import BarDisplay, RunCallback, combine

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
    options = {"dataset": "digits", "target": "paper", "steps": 120, "evaluate_every": 10, "output": str(tmp_path)}
    command = [sys.executable, "-c", f"import swad; swad.train({options}, progress=True)"]
    process = subprocess.Popen(command, stdout=child, stderr=child, env=environment() | {"TERM": "xterm-256color"})
    os.close(child)
    seen = b""
    deadline = time.time() + 120
    while time.time() < deadline:
        ready, _, _ = select.select([parent], [], [], 0.2)
        if ready:
            try:
                part = os.read(parent, 65536)
            except OSError:
                break
            if not part:
                break
            seen += part
    os.close(parent)
    assert process.wait(timeout=30) == 0
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", seen).decode(errors="replace")
    assert re.search(r"paper-0 .*\d+/120 .*loss \d", text)
    assert "searching" in text or "averaging" in text


def test_the_time_left_of_all_runs_is_known_during_the_first():
    display = BarDisplay(4, Console(file=io.StringIO(), force_terminal=True))
    display.end("a", 10, "")  # finished before, so it does not count
    display.start("b", 10, 0)
    display.advance("b", 5, "")
    overall = display._progress.tasks[0]
    assert (overall.completed, overall.total) == (0.5, 3)
    display.stage("b", "evaluating swad")
    assert display._progress.tasks[1].fields["text"] == "evaluating swad"
    display.end("b", 10, "")
    display.start("c", 10, 5)
    assert overall.completed == 1
    display.advance("c", 6, "")
    assert overall.completed == 1.6


def test_names_with_markup_are_printed_verbatim():
    output = io.StringIO()
    with BarDisplay(1, Console(file=output, force_terminal=True, color_system=None, width=200)) as display:
        display.start("[red]x[/]", 10, 0)
        display.advance("[red]x[/]", 5, "[/]")
        display._progress.refresh()
        assert "[red]x[/]" in output.getvalue()
        output.truncate(0)
        display.end("[red]x[/]", 10, "target accuracy: swad 90.0")
    assert "[red]x[/] target accuracy: swad 90.0" in output.getvalue()
