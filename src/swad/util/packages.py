"""Which optional packages are installed."""

from __future__ import annotations

import importlib.util
from functools import cache


@cache
def has_triton() -> bool:
    """Return whether Triton is installed to compile the GPU kernels. Without it, plain PyTorch does their work."""
    return importlib.util.find_spec("triton") is not None
