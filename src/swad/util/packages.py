"""Which optional packages are installed, and what to install where one is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@cache
def has_triton() -> bool:
    """Return whether Triton is installed to compile the GPU kernels. Without it, plain PyTorch does their work."""
    return importlib.util.find_spec("triton") is not None


@contextmanager
def require_extra(feature: str, extra: str = "") -> Iterator[None]:
    """Say what to install where the imports of the block miss a package of another project.

    Args:
        feature: What needs the package.
        extra: The extra of this package that installs it. By default the package is to be installed alone.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "swad"):
            raise
        install = f"'swad[{extra}]'" if extra else package
        raise ImportError(f"{feature} needs {package}: pip install {install}") from error
