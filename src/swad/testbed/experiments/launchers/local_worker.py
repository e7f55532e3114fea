"""The process of a local worker: it takes tasks from a pipe and trains them one after another.

Each worker has a pipe of its own. A queue that workers share has a lock, and a worker that is killed while it holds the
lock would stop all others.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from swad.testbed.experiments.launchers.base import Task
from swad.testbed.experiments.launchers.work import Train, leave_broken_device, train_task
from swad.util.signals import interrupt_once


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker must know before it imports torch.

    Args:
        threads: CPU threads of torch.
        gpu: The only GPU that the worker sees. None: all.
        display: Whether the events of runs are sent to the launcher.
        train: Function that trains a run. None: the default.
    """

    threads: int
    gpu: str | None
    display: bool
    train: Train | None


def work(connection: Connection[Any, Any], options: WorkerOptions) -> None:
    """Train the tasks that arrive until None arrives, the launcher ends, or a signal stops the process."""
    if options.gpu is not None:  # before CUDA starts, which reads it once
        os.environ["CUDA_VISIBLE_DEVICES"] = options.gpu
    import torch

    import swad.testbed.training.loop

    assert swad.testbed.training.loop  # imported now, before SIGTERM is caught: until here it simply ends the process
    torch.set_num_threads(options.threads)
    connection.send(("ready",))
    outbox = _Outbox(connection)
    signal.signal(signal.SIGTERM, interrupt_once)
    _stop_with_parent()
    try:
        try:
            while (task := connection.recv()) is not None:
                callback = _display_callback(task, outbox) if options.display else None
                outcome = train_task(task, options.train, callback)
                leave_broken_device(outcome)
                if outcome.status == "interrupted" and not outcome.elsewhere:
                    outbox.put("signalled")
                outbox.put("outcome", outcome)
        finally:  # a signal that arrives from here on has nothing left to stop
            for signum in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signum, signal.SIG_IGN)
    except (KeyboardInterrupt, EOFError, OSError):  # a signal between two tasks, or the launcher is gone
        pass
    finally:
        outbox.close()


class _Outbox:
    """Sends messages in a thread of its own: a signal that interrupts the main thread cannot tear a message."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._messages: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def put(self, *message: Any) -> None:
        self._messages.put(message)

    def close(self) -> None:
        """Send what is left."""
        self._messages.put(None)
        self._thread.join()

    def _send(self) -> None:
        try:
            while (message := self._messages.get()) is not None:
                self._connection.send(message)
        except OSError:  # the launcher is gone: nobody reads
            pass


class _RemoteDisplay:
    """Passes the calls of a display to the launcher's."""

    def __init__(self, outbox: _Outbox) -> None:
        self._outbox = outbox

    def __getattr__(self, event: str) -> Any:
        return lambda *arguments: self._outbox.put("display", event, *arguments)


def _display_callback(task: Task, outbox: _Outbox) -> object:
    from swad.testbed.training.display import DisplayCallback

    display: Any = _RemoteDisplay(outbox)
    return DisplayCallback(task.name or task.key, display)


def _stop_with_parent() -> None:
    """Stop when the launcher's process dies: if it is killed, it cannot stop its workers."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait_for_parent() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait_for_parent, daemon=True).start()
