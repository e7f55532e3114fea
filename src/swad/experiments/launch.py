"""Several runs: one after the other, or side by side in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from swad.experiments.pace import Pace
from swad.experiments.progress import Bars, Show, Watcher
from swad.util.cpu import available_cores

if TYPE_CHECKING:
    from swad.training.config import RunConfig
    from swad.training.result import RunResult


def train_all(configs: Sequence[RunConfig], jobs: int | None = 1) -> list[RunResult]:
    """Train one run after the other, or `jobs` side by side in processes of their own, and show how it goes.

    None: as many as are found to pay on a GPU, one on the CPU.
    """
    from swad.training.loop import train
    from swad.training.run_dir import read_result

    given, configs = configs, [config.resolved() for config in configs]  # all faults before the first step of any
    remarks = [line for config, complete in zip(given, configs, strict=True) for line in config.remarks(complete)]
    console = Console(stderr=True)
    show = Bars(len(configs), console) if console.is_terminal else Show(len(configs))
    with show:
        for line in remarks if os.environ.get("RANK", "0") == "0" else []:
            show.note(line)
        rest = [config for config in configs if read_result(config) is None]
        finds_out = jobs is None and all(config.device.startswith("cuda") for config in rest)
        most = len(rest) if finds_out else min(jobs or 1, len(rest))
        if most > 1:
            for config in configs:
                if config not in rest:
                    train(config, callback=Watcher(config.name, show))  # finished before: answers at once
            _side_by_side(rest, most, show, Pace(most) if finds_out else None)
            return [train(config) for config in configs]
        return [train(config, callback=Watcher(config.name, show)) for config in configs]


def _side_by_side(configs: Sequence[RunConfig], jobs: int, show: Show, pace: Pace | None = None) -> None:
    """Small networks do not fill the machine: several runs with a share of it each are faster than one with all.

    With a `pace` one run begins alone, and others join it as long as that pays.
    """
    from swad.training.loop import Interrupted

    context = multiprocessing.get_context("spawn")
    tasks, events = context.Queue(), context.Queue()  # a simple queue would be full, and wait, after some eighty runs
    for task in (*configs, *[None] * jobs):
        tasks.put(task)
    workers: list[Any] = []

    def add_worker() -> None:
        workers.append(context.Process(target=_work, args=(tasks, events, _threads(jobs))))
        with _deaf():
            workers[-1].start()

    trouble: BaseException | None = None
    stops: list[tuple[int, str]] = []

    def begin_nothing_new() -> None:
        with suppress(queue.Empty):  # a worker may be faster
            while True:
                tasks.get(timeout=0.1)
        for _ in range(jobs):
            tasks.put(None)

    with _passing_on(workers) as told:
        for _ in range(jobs if pace is None else 1):
            add_worker()
        while any(worker.is_alive() for worker in workers) or not events.empty():
            try:
                if told.is_set():
                    told.clear()
                    raise KeyboardInterrupt
                kind, arguments = events.get(timeout=0.2)
            except queue.Empty:
                continue
            except KeyboardInterrupt:
                # Every process has it, from the terminal or from here: those that train leave a checkpoint and say so.
                stops.append((0, str(configs[0].output)))
                begin_nothing_new()
                continue
            if kind == "trouble":
                what, text, more = arguments
                if what == "stop":
                    stops.append((more, text))
                else:
                    trouble = trouble or _trouble(text, more)
                begin_nothing_new()  # what is under way comes to its end
            else:
                getattr(show, kind)(*arguments)
                if pace is not None and not stops:
                    _follow(pace, kind, arguments, add_worker, show, configs[0].device)
        if told.is_set():  # and all were gone before it was looked at
            stops.append((0, str(configs[0].output)))
    if stops and trouble is None:
        step, folder = max(stops)  # of those that were under way, the one that got furthest
        trouble = Interrupted(Path(folder), step)
    if trouble is None and any(worker.exitcode for worker in workers):
        trouble = _trouble("a training process was killed: run the same command again, with fewer --jobs", "")
    if trouble is not None:
        raise trouble


def _threads(jobs: int) -> int:
    """One run's share of the cores."""
    return max(1, available_cores() // jobs)


def _follow(
    pace: Pace, kind: str, arguments: tuple[Any, ...], add_worker: Callable[[], None], show: Show, device: str
) -> None:
    now, known = time.monotonic(), len(pace.rates)
    if kind in ("move", "evaluated"):
        pace.moved(arguments[0], arguments[1], now)
    elif kind == "end":
        pace.ended(arguments[0])
    if pace.runs < pace.limit and not _another_fits(pace.runs, device):
        pace.limit = pace.runs
    if pace.wants_more(now):
        add_worker()
    if len(pace.rates) > known:
        show.note(pace.describe())


def _another_fits(runs: int, device: str) -> bool:
    """Whether a GPU has room for one more of what it holds."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return free > 1.2 * (total - free) / runs


@contextmanager
def _passing_on(workers: Sequence[Any]) -> Iterator[threading.Event]:
    """Pass SIGTERM on to the processes started here, who would never hear of it; the event says that it came."""
    told = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield told
        return

    def pass_on(number: int, frame: FrameType | None) -> None:
        told.set()
        for worker in workers:
            if worker.pid is not None and worker.exitcode is None:
                worker.terminate()

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield told
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes started here do not hear Ctrl-C until they train: packages do not survive it while they load."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(tasks: Any, events: Any, threads: int) -> None:
    """Train what the queue holds, one after the other. Errors travel as text: not every exception can be pickled."""
    import torch

    from swad.training.loop import Interrupted, train

    torch.set_num_threads(threads)
    signal.signal(signal.SIGTERM, _stop_once)  # until here, while packages load, it ends the process
    _follow_parent(events)

    class Sender:
        def __getattr__(self, kind: str) -> Any:
            return lambda *arguments: events.put((kind, arguments))

    sender: Any = Sender()
    try:
        while (config := tasks.get()) is not None:
            try:
                train(config, callback=Watcher(config.name, sender))
            except Interrupted as stop:
                events.put(("trouble", ("stop", str(stop.run_dir), stop.step)))
                return
            except (ValueError, OSError, RuntimeError) as error:
                events.put(("trouble", ("error", f"{config.name}: {error}", traceback.format_exc())))
    except KeyboardInterrupt:  # between two runs, or while one begins
        sys.exit(128 + signal.SIGTERM)


def _stop_once(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _follow_parent(events: Any) -> None:
    """Stop when the parent is gone: killed, it cannot say so. Nobody reads the events then, so they are not kept."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        events.cancel_join_thread()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()


def _trouble(text: str, trace: str) -> BaseException:
    from swad.training.loop import RunError

    if os.environ.get("SWAD_TRACEBACK"):
        print(trace, file=sys.stderr)
    return RunError(text)
