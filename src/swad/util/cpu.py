"""The number of CPU cores that this process may use, which containers and job schedulers often limit."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Return the number of CPU cores that this process is allowed to run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have no CPU affinity
        return os.cpu_count() or 1
