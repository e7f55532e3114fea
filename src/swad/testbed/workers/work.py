"""Train the runs of a list: a worker claims one run after another until none is left.

The directories are the queue: `claims` says who trains a run, its own directory what became of it. So any number of
workers may work on one list, on all machines that share the file system, and any of them may be killed at any moment:
another worker resumes the run from its checkpoint. No process knows what is not in the directories.
"""

from __future__ import annotations

import enum
import gc
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from swad.testbed.results.failures import FAILURE, STARTS, write_failure
from swad.testbed.results.records import DONE, RECORDS
from swad.testbed.training.config import RunConfig
from swad.testbed.workers import claims as c
from swad.testbed.workers.claims import Claim, ClaimLostError, Claims, Watcher, detach
from swad.testbed.workers.run_queue import Queue, Runs
from swad.util.files import guard_writes, read_json, write_json

MAX_STARTS = 3
"""A run that was started this many times in a row without a new record has failed: it ends its process."""
BROKEN_DEVICE, INTERRUPTED = 75, 130
"""Exit status of a worker whose GPU accepts no further work, and of one that was asked to stop."""

Train = Callable[..., Any]
"""Trains one run as `swad.testbed.training.loop.train` does."""


class State(enum.Enum):
    """What the claims tell about a run. Pending: not started, or interrupted. Running: claimed, perhaps by the dead."""

    PENDING, RUNNING, FAILED, DONE = "pending", "running", c.FAILED, c.DONE


def work(runs: Runs, claims: Claims, train: Train | None = None) -> None:
    """Train runs until there is none: all are finished, failed, or trained by other workers, which were seen alive.

    Raises:
        Interrupted: Ctrl-C or SIGTERM. The run saved a checkpoint.
    """
    queue = Queue(runs, claims)
    while (taken := queue.take()) is not None:
        config, claim = taken
        if not attempt(config, claim, train):
            queue.skip(config)


def attempt(config: RunConfig, claim: Claim, train: Train | None = None) -> bool:
    """Train a claimed run, and leave a result, an error, or a run that resumes; False if `swad train` trains it.

    Whichever engine schedules a run calls this, so its files are the same.
    """
    try:
        with guard_writes(claim.require):
            mark = _train(config, claim, train)
            if mark is not None:
                claim.end(mark)
            return mark is not None
    except ClaimLostError:  # the other worker decides what becomes of the run
        return True
    finally:
        claim.release()
        _free_device_memory()


def read_states(configs: Sequence[RunConfig], claims: Claims) -> dict[Path, State]:
    """Return the states of runs by directory, from a few listings."""
    marks = claims.all_marks()
    return {config.output: _state(marks.get(claims.name(config.output))) for config in configs}


def _state(mark: c.Mark | None) -> State:
    if mark is None:
        return State.PENDING
    return State(mark) if isinstance(mark, str) else State.RUNNING


def refresh(configs: Sequence[RunConfig], claims: Claims) -> None:
    """Let runs be trained again whose results or failures were removed. A command calls it when it starts."""
    claims.forget_removed({claims.name(config.output): config.output for config in configs}, (DONE, FAILURE))


def is_abandoned(claims: Claims, watcher: Watcher) -> bool:
    """Whether a run has an owner that died. Call it again and again: where locks do not work, it takes a minute."""
    return any(watcher.is_alive(path)[0] is False for path in claims.held().values())


def _train(config: RunConfig, claim: Claim, train: Train | None) -> str | None:
    """Train a run. An error is stored in its directory; a process that ends leaves the number of its starts there."""
    from swad.testbed.data.device_store import keep_images
    from swad.testbed.training import loop
    from swad.testbed.training.run_dir import RunLockedError

    directory = config.output
    directory.mkdir(parents=True, exist_ok=True)
    names = set(os.listdir(directory))
    if {DONE, FAILURE} & names:
        return c.DONE if DONE in names else c.FAILED
    if claim.number > 1:
        detach(directory / RECORDS)
    mark = c.FAILED
    if _count_start(directory) > MAX_STARTS:
        message = (
            f"{directory}: its process ended {MAX_STARTS} times in a row without a new record; if memory ran out, "
            "train fewer runs at a time or lower batch_size, then retry the failed runs"
        )
        write_failure(directory, message)
    else:
        keep_images()  # for the next run, as imports and compiled kernels
        try:
            (train or loop.train)(config)
            mark = c.DONE
        except RunLockedError:  # nothing was started
            (directory / STARTS).unlink(missing_ok=True)
            return None
        except KeyboardInterrupt:
            (directory / STARTS).unlink(missing_ok=True)
            raise loop.RunInterrupted(directory, 0) from None
        except Exception as error:
            claim.require()  # what failed may be a write that the new owner prevented
            if isinstance(error, loop.RunInterrupted):
                (directory / STARTS).unlink(missing_ok=True)
                raise
            leave_broken_device(directory, error)
            keep_images(False)  # it may have failed for lack of memory
            with suppress(OSError):  # a full disk must not stop the other runs
                write_failure(directory, describe(error), traceback.format_exc().splitlines())
    (directory / STARTS).unlink(missing_ok=True)
    return mark


def _count_start(directory: Path) -> int:
    """Count this start of a run, and return how many there were since its records last grew."""
    records, path = directory / RECORDS, directory / STARTS
    size, count = records.stat().st_size if records.exists() else 0, 0
    with suppress(OSError, ValueError, TypeError, LookupError):  # the first start, or a damaged file
        before = read_json(path)
        count = int(before["count"]) if size <= before["size"] else 0
    write_json(path, {"count": count + 1, "size": size})
    return count + 1


def _free_device_memory() -> None:
    """Return the GPU memory of a run that ended: captured graphs refer to themselves, and torch keeps what it freed."""
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()
        torch.cuda.empty_cache()


def leave_broken_device(directory: Path, error: Exception) -> None:
    """End the process if a failed run left a GPU that accepts no further work: every later run would fail too."""
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        try:
            torch.cuda.synchronize()
        except Exception:
            print(f"{directory}: {describe(error)}; the GPU accepts no more work in this process", file=sys.stderr)
            sys.stderr.flush()
            os._exit(BROKEN_DEVICE)  # not sys.exit: the clean-up of CUDA would fail or hang


def describe(error: Exception) -> str:
    """Return an error in one line; errors that were not written for users start with their class."""
    text = " ".join(str(error).split())
    if type(error).__module__.startswith("swad."):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
