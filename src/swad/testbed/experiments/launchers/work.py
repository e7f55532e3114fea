"""Train one task: what every launcher does with a run, on whichever machine, so that its files are the same.

A process that trains several tasks keeps its imports, its compiled kernels and the images it has opened for the next.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from swad.testbed.experiments.launchers.base import Outcome, Task
from swad.testbed.results.failures import read_failure, write_failure
from swad.testbed.training.config import RunConfig

LOCK_SECONDS = 30.0
"""How long a task waits for a run directory: the process that trained the run before may still be ending."""

MAX_ATTEMPTS = 3
"""A run that ends its process this many times in a row has failed."""

BROKEN_DEVICE = 75
"""Exit status of a worker whose GPU accepts no further work."""


Train = Callable[..., Any]
"""A function that trains one run as `swad.testbed.training.loop.train` does: `train(config, callback=callback)`."""


def train_task(
    task: Task, train: Train | None = None, callback: object | None = None, lock_seconds: float = LOCK_SECONDS
) -> Outcome:
    """Train one task in this process. An error becomes an outcome, and `failure.json` in the run directory.

    Args:
        task: The task. If its run is finished, that is the outcome; an unfinished run is resumed.
        train: Function that trains it. Default: `swad.testbed.training.loop.train`.
        callback: Receives the events of the run.
        lock_seconds: How long to wait while another process writes the run.
    """
    from swad.testbed.data.device_store import keep_images
    from swad.testbed.training.loop import Interrupted
    from swad.testbed.training.run_dir import RunLockedError

    start = time.perf_counter()
    keep_images()
    try:
        _train_unlocked(task.config, train, callback, start + lock_seconds)
    except RunLockedError as error:
        return Outcome(task, "interrupted", str(error), time.perf_counter() - start, elsewhere=True)
    except (Interrupted, KeyboardInterrupt) as error:
        interrupt = error if isinstance(error, Interrupted) else Interrupted(task.config.output, 0)
        return Outcome(task, "interrupted", str(interrupt), time.perf_counter() - start, interrupt.step)
    except Exception as error:
        keep_images(False)  # it may have failed for lack of memory
        return failed(task, describe(error), time.perf_counter() - start, traceback.format_exc().splitlines())
    finally:
        _free_device_memory()
    return Outcome(task, "finished", seconds=time.perf_counter() - start)


def _train_unlocked(config: RunConfig, train: Train | None, callback: object | None, deadline: float) -> None:
    """Train, and try again until `deadline` while another process holds the run directory."""
    from swad.testbed.training import loop
    from swad.testbed.training.run_dir import RunLockedError

    train = train or loop.train
    while True:
        try:
            train(config, callback=callback)
        except RunLockedError:
            if time.perf_counter() >= deadline:
                raise
            time.sleep(0.5)
        else:
            return


def _free_device_memory() -> None:
    """Return the GPU memory of a run that ended: captured graphs refer to themselves, and torch keeps what it freed."""
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()
        torch.cuda.empty_cache()


def failed(task: Task, message: str, seconds: float = 0.0, lines: Sequence[str] = ()) -> Outcome:
    """Store in its directory why a run failed, and return the outcome, which arrives also if the disk is full."""
    with suppress(OSError):
        write_failure(task.config.output, message, lines)
    return Outcome(task, "failed", message, seconds)


def describe(error: Exception) -> str:
    """Return an error in one line; errors that were not written for users start with their class."""
    text = " ".join(str(error).split())
    if type(error).__module__.startswith("swad."):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def leave_broken_device(outcome: Outcome) -> None:
    """End the process if a failed run left a GPU that accepts no further work: every later run would fail too.

    The launcher sees a killed worker and starts the run again in a new process, a limited number of times.
    """
    if outcome.status != "failed" or "torch" not in sys.modules:
        return
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    try:
        torch.cuda.synchronize()
    except Exception:
        failure = read_failure(outcome.task.config.output)
        if failure is not None and failure.attempts < MAX_ATTEMPTS:
            os._exit(BROKEN_DEVICE)  # not sys.exit: the clean-up of CUDA would fail or hang
