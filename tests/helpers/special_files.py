"""What stands in the place of a file and cannot be read to its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SPECIAL = ("pipe", "device", "sparse")


def replace_by(kind: str, path: Path) -> None:
    """Put a pipe, a link to /dev/zero or a sparse file of 20 GB in the place of a file."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(20 * 10**9)


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer, such as a read that never ends."""

    def stop(*_: object) -> None:
        pytest.fail(f"still running after {seconds} s")  # a TimeoutError would be one of the disk's

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
