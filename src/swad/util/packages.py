"""Which optional packages are installed."""

from __future__ import annotations

import importlib.util
from functools import cache


@cache
def has_triton() -> bool:
    """Whether Triton is installed, so that the GPU kernels can be compiled. Without it plain PyTorch does their work."""
    return importlib.util.find_spec("triton") is not None
