"""Ctrl-C and SIGTERM: handle them for a while, as a request to stop, and report that they ended something."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object] | signal.Handlers


class Interrupted(RuntimeError):  # noqa: N818 - nothing went wrong
    """Ctrl-C or SIGTERM ended work that can be resumed; the message says how."""


@contextmanager
def handle_signals(
    handler: Handler, signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)
) -> Iterator[None]:
    """Handle signals in the block with `handler`. Outside the main thread, where Python cannot, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.signal(signum, handler) for signum in signals}
    try:
        yield
    finally:
        for signum, earlier in before.items():
            signal.signal(signum, earlier if earlier is not None else signal.SIG_DFL)


def interrupt_once(signum: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt on the first signal of a worker outside of a run, and ignore its repetitions."""
    signal.signal(signum, signal.SIG_IGN)
    raise KeyboardInterrupt


class StopRequest:
    """Whether the run was asked to stop.

    The first signal sets `requested`, and the training loop acts on it after the step, and after the evaluation if one
    runs. Inside `immediate`, or on a second Ctrl-C, a signal raises KeyboardInterrupt at once. Repeated SIGTERMs are
    ignored: a scheduler signals every process of a job and the command forwards its own, so a duplicate is not a
    request to abort.
    """

    def __init__(self) -> None:
        self.requested = False
        self.raised = False
        """Whether KeyboardInterrupt was raised. A package that is being imported may have swallowed it."""
        self._immediate = False
        self._pid = os.getpid()

    @contextmanager
    def immediate(self) -> Iterator[None]:
        """Interrupt the block at once. For work that is repeated after a restart anyway, such as loading data."""
        self._immediate = True
        try:
            yield
        finally:
            self._immediate = False

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """Handle SIGINT or SIGTERM."""
        if os.getpid() != self._pid:
            # A data loader's worker inherits this handler. It ignores Ctrl-C, which the terminal sends to it too,
            # because its parent shuts it down. SIGTERM must still end it.
            if signum == signal.SIGTERM:
                signal.signal(signum, signal.SIG_DFL)
                os.kill(os.getpid(), signum)
            return
        if self.requested and signum == signal.SIGTERM:
            return
        if self.requested or self._immediate:
            self.requested = self.raised = True
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def catch_interrupts() -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM in the block. Outside the main thread, where Python cannot, nothing is caught."""
    stop = StopRequest()
    with handle_signals(stop.handle):
        yield stop
