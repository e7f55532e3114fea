"""Tasks for launchers, training functions that disturb them, and what must hold at the end.

The functions are found by their names in worker processes, so they live here and not in a test.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from helpers.runs import require_same, short
from swad.testbed.experiments.launchers.base import Launcher, Outcome, Task
from swad.testbed.results.records import LOCK
from swad.testbed.training.loop import train


def tasks(folder: Path, n: int = 3, **changes: Any) -> list[Task]:
    """Short runs with different seeds."""
    return [Task(f"task-{i}", short(folder / f"run-{i}", seed=i, **changes)) for i in range(n)]


def wait_for_all(launcher: Launcher, n: int, seconds: float = 300) -> dict[str, Outcome]:
    """The outcomes of `n` tasks by key; each must have one."""
    outcomes: dict[str, Outcome] = {}
    deadline = time.time() + seconds
    while len(outcomes) < n:
        assert time.time() < deadline, outcomes
        for outcome in launcher.wait(timeout=1):
            assert outcome.task.key not in outcomes
            outcomes[outcome.task.key] = outcome
    assert launcher.wait(timeout=0) == []
    return outcomes


def require_plain_records(launched: Sequence[Task], folder: Path) -> None:
    """Require the records and weights that the same tasks have without a launcher, bit by bit."""
    for task in launched:
        plain = train(task.config.replace(output=folder / task.key)).run_dir
        require_same(plain, task.config.output)


def wait_until(condition: Callable[[], object], seconds: float = 180) -> None:
    deadline = time.time() + seconds
    while not condition():
        assert time.time() < deadline
        time.sleep(0.02)


def has_checkpoint(task: Task) -> bool:
    return (task.config.output / "checkpoint" / "state.pt").exists()


def process_of(task: Task) -> int:
    """The process that trains a task."""
    lock, texts = task.config.output / LOCK, [""]
    # The file is emptied before the next process writes its number.
    wait_until(lambda: texts.append(lock.read_text()) or texts[-1].strip())
    return int(texts[-1])


class _Slow:
    def on_step(self, step: int, loss: object) -> None:
        time.sleep(0.05)


def train_slowly(config: Any, *, callback: object | None = None) -> None:
    """Slow enough to be disturbed from outside."""
    train(config, callback=_Slow())


def train_and_die(config: Any, *, callback: object | None = None) -> None:
    """Every attempt kills its process, except that a run with seed 0 dies only once."""
    deaths = config.output.with_suffix(".deaths")
    if config.seed != 0 or not deaths.exists():
        with deaths.open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)


def train_forever(config: Any, *, callback: object | None = None) -> None:
    """Note the process and its GPU, and wait for a signal if the run has seed 2."""
    config.output.mkdir(parents=True)
    (config.output / "pid").write_text(f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}")
    time.sleep(600 if config.seed == 2 else 0.2)
