"""The processes of this machine: how many cores this one may use, and whether one that left a file behind has ended."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
from functools import cache

MARK = r"\d+-[0-9a-f]{8}(?:[0-9a-f]{8})?"
"""Matches what `process_mark` returns, and the shorter marks of earlier versions, which do not name the machine."""


def available_cores() -> int:
    """Return the number of CPU cores that this process may run on, which containers and schedulers often limit."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have no CPU affinity
        return os.cpu_count() or 1


def process_mark() -> str:
    """Return text for the name of a file that this process will remove: its ID, its machine, and a random number.

    >>> re.fullmatch(MARK, process_mark()) is not None
    True
    """
    return f"{os.getpid()}-{_machine()}{secrets.token_hex(4)}"


def has_ended(mark: str) -> bool:
    """Whether a process of this machine made the mark and has ended; False if that cannot be known.

    >>> has_ended(process_mark())
    False
    """
    if re.fullmatch(MARK, mark) is None:
        return False
    pid, _, rest = mark.partition("-")
    if len(rest) != 16 or not rest.startswith(_machine()):
        return False
    return not is_running(int(pid))


def is_running(pid: int) -> bool:
    """Whether there is a process with this ID; True if that cannot be known."""
    if os.name != "posix":  # there, this call would end the process
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # of another user
        return True
    return True


@cache
def _machine() -> str:
    """Return a hash of the machine's name and of the container in which process IDs count."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return hashlib.blake2b(f"{socket.gethostname()} {namespace}".encode(), digest_size=4).hexdigest()
