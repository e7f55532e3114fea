"""Catch Ctrl-C and SIGTERM in the process of a launcher, without interrupting what it is doing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def catch_signals(handle: Callable[[], None]) -> Callable[[], None]:
    """Call `handle` on SIGINT and SIGTERM, and return a function that restores the handlers from before.

    Outside the main thread, where Python cannot catch signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None

    def caught(signum: int, frame: FrameType | None) -> None:
        handle()

    before = {signum: signal.signal(signum, caught) for signum in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for signum, handler in before.items():
            signal.signal(signum, handler if handler is not None else signal.SIG_DFL)

    return restore


@contextmanager
def ignore_sigint() -> Iterator[None]:
    """Start a process with SIGINT ignored: an interrupt during imports would crash it. Training enables it again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt_once(signum: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt on the first signal of a worker outside of a run, and ignore its repetitions."""
    signal.signal(signum, signal.SIG_IGN)
    raise KeyboardInterrupt
