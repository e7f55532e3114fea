"""Ctrl-C and SIGTERM: handle them for a while, and report that they ended something."""

from __future__ import annotations

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
