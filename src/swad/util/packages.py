"""Kernels for GPUs, written in Triton; each has a plain twin that it is tested against."""

from __future__ import annotations

import importlib.util
from functools import cache


@cache
def has_triton() -> bool:
    """Whether kernels can be made here."""
    return importlib.util.find_spec("triton") is not None
