"""Workers and trainings that are disturbed: killed, stopped, without locks, with wrong clocks.

Workers find the functions by name, so they live here. `python -m helpers.worker_runs '{"folder": ..., "n": 2}'` is a
worker on `n` short runs; `start` starts it from a test.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from helpers import few_digits, forked
from helpers.commands import environment
from helpers.runs import require_same, short
from swad.testbed.data.benchmarks import digits
from swad.testbed.results.records import DONE, LOCK
from swad.testbed.training.config import RunConfig
from swad.testbed.training.loop import train
from swad.testbed.training.state import TrainingState
from swad.testbed.workers import claims, ranks
from swad.testbed.workers.claims import Claims
from swad.testbed.workers.work import work
from swad.util import files, jsonl

WRITES = "writes.log"
"""One line for every write that the fence allowed: the process, and the file."""


def with_helpers() -> dict[str, str]:
    """The environment of a process that finds this module by its name."""
    plain = environment()
    return plain | {"PYTHONPATH": os.pathsep.join([plain["PYTHONPATH"], str(Path(__file__).parents[1])])}


def configs(folder: Path, n: int = 3, **changes: Any) -> tuple[RunConfig, ...]:
    """Short runs with different seeds."""
    return tuple(short(folder / f"run-{i}", seed=i, **changes) for i in range(n))


def start(folder: Path, n: int = 1, **settings: Any) -> forked.Process:
    """Start a worker; see `main` for its settings."""
    return forked.Process(["-m", "helpers.worker_runs", json.dumps({"folder": str(folder), "n": n, **settings})])


def main(
    folder: str,
    n: int,
    train: str = "train_slowly",
    flock: bool = False,
    beat: float = 0.4,
    skew: float = 0.0,
    stop_at: str = "",
    die_at: str = "",
) -> None:
    """Work on runs, by default where `flock` is refused.

    Args:
        folder: Where they are.
        n: How many.
        train: Function of this module that trains a run.
        flock: Whether files can be locked.
        beat: Seconds between two heartbeats.
        skew: How far the clock of this machine is ahead.
        stop_at: Stop (SIGSTOP) once in the middle of a write, after the fence allowed it: "records" before the fifth
            line is written; "create" before the second checkpoint's temporary file; "rename" between it and its rename.
        die_at: "claim": die (SIGKILL) in the middle of a claim, when its file exists and is empty.
    """
    import torch

    torch.set_num_threads(1)
    claims.BEAT = beat
    if not flock:
        _refuse_flock()
    clock = time.time
    time.time = lambda: clock() + skew
    if die_at:
        claims.secrets.token_hex = lambda n=None: os.kill(os.getpid(), signal.SIGKILL)
    _log_writes(Path(folder), stop_at)
    runs = partial(configs, Path(folder), n)
    work(runs, Claims(Path(folder) / "claims"), globals()[train])


def _refuse_flock() -> None:
    import fcntl

    def refuse(fd: int, mode: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    fcntl.flock = refuse


def _log_writes(folder: Path, stop_at: str) -> None:
    """Log what the guard allowed, and stop once after it: before a line, or at a side of a checkpoint's file."""
    require, append, create, replace = files.require_writable, os.write, files._create, os.replace
    counts = {"records": 0, "create": 0, "rename": 0}

    def count(where: str, limit: int) -> None:
        counts[where] += 1
        if where == stop_at and counts[where] == limit:
            os.kill(os.getpid(), signal.SIGSTOP)

    def log(path: object) -> None:
        with (folder / WRITES).open("a") as file:
            file.write(f"{os.getpid()} {path}\n")

    def logged_create(partial: Path, path: Path) -> None:
        if path.name == "state.pt":
            count("create", 2)
        create(partial, path)
        log(path)

    def guarded() -> None:
        require()
        count("records", 5)

    def logged_write(fd: int, data: bytes) -> int:
        written = append(fd, data)
        log(os.readlink(f"/proc/self/fd/{fd}"))
        return written

    def counted_replace(partial: Path, path: Path) -> None:
        if Path(path).name == "state.pt":
            count("rename", 2)
        replace(partial, path)

    files._create, files.os = logged_create, _Replaced(os, replace=counted_replace)
    jsonl.require_writable, jsonl.os = guarded, _Replaced(os, write=logged_write)


class _Replaced:
    """A module with some functions replaced."""

    def __init__(self, module: Any, **functions: Any) -> None:
        self._module = module
        vars(self).update(functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def train_slowly(config: RunConfig) -> None:
    """Slow enough to be disturbed from outside."""
    train(config, callback=_Slow())


class _Slow:
    def on_step(self, step: int, loss: object) -> None:
        time.sleep(0.05)


def train_and_log(config: RunConfig) -> None:
    """Train, and note that it was started."""
    with (config.output.parent / "starts.log").open("a") as file:
        file.write(f"{config.output.name}\n")
    train_slowly(config)


def train_and_tell(config: RunConfig) -> None:
    """Write what Ray gave to the task: a variable of its environment, and its share of the resource `fast`."""
    import ray

    fast = ray.get_runtime_context().get_assigned_resources().get("fast", 0)
    config.output.with_suffix(".seen").write_text(f"{os.environ.get('SWAD_TEST')} {fast}")
    train(config)


def train_and_die(config: RunConfig) -> None:
    """Every attempt kills its process, except that a run with seed 0 dies only once."""
    deaths = config.output.with_suffix(".deaths")
    if config.seed != 0 or not deaths.exists():
        with deaths.open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
    train(config)


def train_and_note(config: RunConfig) -> None:
    """Note the process and its GPU."""
    config.output.mkdir(parents=True, exist_ok=True)
    (config.output / "pid").write_text(f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}")
    train(config)


def train_or_fail(config: RunConfig) -> None:
    """A run with seed 1 fails."""
    if config.seed == 1:
        raise ValueError("the disk is full")
    train(config)


def train_as_rank(config: RunConfig) -> Any:
    """Train on few digits as one of two ranks. The name of the run says what happens to it.

    "disturbed": rank 0 gets SIGTERM at step 10, rank 1 SIGKILL at step 14, and rank 0 at step 18 while rank 1 hears
    nothing of it, as in NCCL, once each. "fails": rank 1 fails at step 10. "hangs": the same, unheard by rank 0.
    """
    name, rank, train_step = config.output.name, int(os.environ["RANK"]), TrainingState.train_step

    def disturbed(training: TrainingState, number: int, inputs: Any) -> Any:
        once = config.output.with_suffix(f".{number}-{rank}")
        if name == "disturbed" and number in (10, 14, 18) and not once.exists():
            once.write_text(str(os.getpid()))
            signum = {(10, 0): signal.SIGTERM, (14, 1): signal.SIGKILL, (18, 0): signal.SIGKILL}.get((number, rank))
            if signum is not None:
                os.kill(os.getpid(), signum)
            elif number == 18:
                time.sleep(600)
        if number == 10 and name in ("fails", "hangs"):
            if rank == 1:
                raise ArithmeticError("no memory is left")
            if name == "hangs":
                ranks.GRACE_SECONDS = 0.1
                time.sleep(600)
        return train_step(training, number, inputs)

    digits.render = few_digits.render
    with mock.patch.object(TrainingState, "train_step", disturbed):
        return train(config)


class QuickRank:
    """Rank 1, from the fork server."""

    def __init__(self, share: ranks.Share) -> None:
        self._process = forked.CONTEXT.Process(target=_run_share, args=(share,))
        self._process.start()

    def wait(self) -> int:
        self._process.join()
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def _run_share(share: ranks.Share) -> None:
    sys.exit(share.run(1, 1))


def start_quickly(share: ranks.Share) -> list[QuickRank]:
    return [QuickRank(share)]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def ended(config: RunConfig) -> str:
    """Return "done", "failed" or "" as the directory of a run says, which decides."""
    names = {DONE: "done", "failure.json": "failed"}
    return next((state for name, state in names.items() if (config.output / name).exists()), "")


def has_checkpoint(config: RunConfig) -> bool:
    return (config.output / "checkpoint" / "state.pt").exists()


def process_of(config: RunConfig) -> int:
    """The process that trains a run."""
    lock, texts = config.output / LOCK, [""]
    # The file is emptied before the next process writes its number.
    wait_until(lambda: texts.append(lock.read_text()) or texts[-1].strip())
    return int(texts[-1])


def wait_until(condition: Callable[[], object], seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def require_plain(runs: Sequence[RunConfig], folder: Path) -> None:
    """Require the records and weights that the same runs have without workers, bit by bit."""
    for config in runs:
        require_same(train(config.replace(output=folder / "plain" / config.output.name)).run_dir, config.output)


def in_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Call a function in a thread; the list gets its result or its error."""
    result: list[Any] = []

    def call() -> None:
        try:
            result.append(function())
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return thread, result


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
