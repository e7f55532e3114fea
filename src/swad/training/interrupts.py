"""Ctrl-C and SIGTERM end a run between two steps, so that it can be written down and gone on with."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether someone asked the run to stop.

    The first request is only noted, and acted on after the step. Inside `at_once`, and at a second Ctrl-C, it raises
    KeyboardInterrupt on the spot. A second SIGTERM is no impatience: who ends all processes of a job sends one, and
    the process that started this one passes on its own.
    """

    def __init__(self) -> None:
        self.asked = False
        self.raised = False
        self._at_once = False
        self._owner = os.getpid()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """For work that is repeated after a restart anyway, such as an evaluation."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        if os.getpid() != self._owner:
            # A worker that reads images inherits this handler. Ctrl-C reaches it too, and its parent will end
            # it in good order; told to terminate, it must.
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        if self.asked and number == signal.SIGTERM:
            return
        if self.asked or self._at_once:
            self.asked = self.raised = True
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Catch the two signals for the block; outside the main thread, where Python cannot, nothing is caught."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
