"""Train several runs: one after another in this process, or several at a time in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from swad.training.display import DisplayCallback, LogDisplay, make_display
from swad.util.cpu import available_cores

if TYPE_CHECKING:
    from swad.training.config import RunConfig
    from swad.training.result import RunResult


def train_all(configs: Sequence[RunConfig], jobs: int = 1) -> list[RunResult]:
    """Train every run and display the progress; finished runs are returned at once, interrupted ones resume.

    Args:
        configs: The runs. All settings are checked before the first step of any run.
        jobs: How many runs train at a time, each in a process of its own with its share of the cores. Small networks
            do not fill a machine: several runs at a time finish sooner than one after another.
    """
    from swad.training.loop import train
    from swad.training.resolve import resolution_notes, resolve
    from swad.training.run_dir import read_result

    requested, configs = configs, [resolve(config) for config in configs]
    notes = [
        note for config, resolved in zip(requested, configs, strict=True) for note in resolution_notes(config, resolved)
    ]
    names = display_names(configs)
    with make_display(len(configs)) as display:
        for line in notes if os.environ.get("RANK", "0") == "0" else []:
            display.log(line)
        unfinished = [config for config in configs if read_result(config) is None]
        if min(jobs, len(unfinished)) > 1:
            for name, config in zip(names, configs, strict=True):
                if config not in unfinished:
                    train(config, callback=DisplayCallback(name, display))
            named = [(name, config) for name, config in zip(names, configs, strict=True) if config in unfinished]
            _ParallelRuns(named, min(jobs, len(unfinished)), display).train()
            return [train(config) for config in configs]
        return [
            train(config, callback=DisplayCallback(name, display)) for name, config in zip(names, configs, strict=True)
        ]


def display_names(configs: Sequence[RunConfig]) -> list[str]:
    """Return the name of every run in the display: target and trial, after the algorithm where there are several."""
    several = len({config.training.algorithm for config in configs}) > 1
    return [f"{config.training.algorithm} {config.name}" if several else config.name for config in configs]


class _ParallelRuns:
    """Worker processes that take runs from a queue, and the queue of their events.

    After an error or an interrupt no further run starts, and runs in progress come to a clean end.
    """

    def __init__(self, runs: Sequence[tuple[str, RunConfig]], n_workers: int, display: LogDisplay) -> None:
        self._runs, self._n_workers, self._display = runs, n_workers, display
        context = multiprocessing.get_context("spawn")
        # Not SimpleQueue: its pipe holds about eighty configs, and putting one more would block.
        self._tasks, self._events = context.Queue(), context.Queue()
        threads = threads_per_run(n_workers)
        self._workers = [
            context.Process(target=_work, args=(self._tasks, self._events, threads)) for _ in range(n_workers)
        ]
        self._interrupts: list[tuple[int, str]] = []  # step and run directory
        self._error: BaseException | None = None

    def train(self) -> None:
        """Train all runs; raises the first error, or `Interrupted`."""
        for task in (*self._runs, *[None] * self._n_workers):
            self._tasks.put(task)
        with _forward_sigterm(self._workers) as terminated:
            with _ignore_sigint():
                for worker in self._workers:
                    worker.start()
            while any(worker.is_alive() for worker in self._workers) or not self._events.empty():
                try:
                    if terminated.is_set():
                        terminated.clear()
                        raise KeyboardInterrupt
                    event, arguments = self._events.get(timeout=0.2)
                except queue.Empty:
                    continue
                except KeyboardInterrupt:
                    # The workers received the signal too: from the terminal, or forwarded from here. They write a
                    # checkpoint and report the step.
                    self._interrupted(0, str(self._runs[0][1].output))
                else:
                    self._handle(event, arguments)
            if terminated.is_set():  # the workers ended before the signal was noticed above
                self._interrupted(0, str(self._runs[0][1].output))
        self._raise_problem()

    def _handle(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "interrupted":
            self._interrupted(*arguments)
        elif event == "failed":
            self._error = self._error or _run_error(*arguments)
            self._start_no_more_runs()
        else:
            getattr(self._display, event)(*arguments)

    def _interrupted(self, step: int, run_directory: str) -> None:
        self._interrupts.append((step, run_directory))
        self._start_no_more_runs()

    def _start_no_more_runs(self) -> None:
        with suppress(queue.Empty):  # a worker may take a task first
            while True:
                self._tasks.get(timeout=0.1)
        for _ in self._workers:
            self._tasks.put(None)

    def _raise_problem(self) -> None:
        from swad.training.loop import Interrupted

        if self._error is not None:
            raise self._error
        if self._interrupts:
            step, run_directory = max(self._interrupts)  # the run that got furthest
            raise Interrupted(Path(run_directory), step)
        if any(worker.exitcode for worker in self._workers):
            raise _run_error("a training process was killed: run the same command again, with fewer --jobs", "")


def threads_per_run(jobs: int) -> int:
    """Return one run's share of the cores."""
    return max(1, available_cores() // jobs)


@contextmanager
def _forward_sigterm(workers: Sequence[Any]) -> Iterator[threading.Event]:
    """Forward SIGTERM to the workers, which a scheduler may not know of; the event tells that it arrived."""
    terminated = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield terminated
        return

    def forward(number: int, frame: FrameType | None) -> None:
        terminated.set()
        for worker in workers:
            if worker.pid is not None and worker.exitcode is None:
                worker.terminate()

    before = signal.signal(signal.SIGTERM, forward)
    try:
        yield terminated
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


@contextmanager
def _ignore_sigint() -> Iterator[None]:
    """Start workers with SIGINT ignored: an interrupt during imports would crash them. Training enables it again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(tasks: Any, events: Any, threads: int) -> None:
    """Train the runs of the queue, one after another. Errors travel as text: not every exception can be pickled."""
    import torch

    from swad.training.loop import Interrupted, train

    torch.set_num_threads(threads)
    signal.signal(signal.SIGTERM, _interrupt_once)  # during the imports above SIGTERM simply ends the process
    _exit_with_parent(events)

    class RemoteDisplay:
        def __getattr__(self, event: str) -> Any:
            return lambda *arguments: events.put((event, arguments))

    display: Any = RemoteDisplay()
    try:
        while (task := tasks.get()) is not None:
            name, config = task
            try:
                train(config, callback=DisplayCallback(name, display))
            except Interrupted as interrupt:
                events.put(("interrupted", (interrupt.step, str(interrupt.run_dir))))
                return
            except Exception as error:
                kind = "" if type(error).__module__.startswith("swad.") else f"{type(error).__name__}: "
                hint = "" if not kind else "; set SWAD_TRACEBACK=1 to see the traceback"
                events.put(("failed", (f"{name}: {kind}{error}{hint}", traceback.format_exc())))
    except KeyboardInterrupt:  # between two runs, or while one starts
        sys.exit(128 + signal.SIGTERM)


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _exit_with_parent(events: Any) -> None:
    """Stop when the parent dies: a killed parent cannot tell its workers. Nobody reads the events then: drop them."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait_for_parent() -> None:
        parent.join()
        events.cancel_join_thread()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait_for_parent, daemon=True).start()


def _run_error(text: str, trace: str) -> BaseException:
    from swad.training.run_dir import RunError

    if os.environ.get("SWAD_TRACEBACK"):
        print(trace, file=sys.stderr)
    return RunError(text)
