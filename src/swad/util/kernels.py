"""Launching Triton kernels, and compiling all those of a network at once before the first launch.

A kernel takes about half a second to compile, and a network needs a dozen. Most of that time is spent in other programs
and outside Python's lock, so threads compile them side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import triton

_THREADS = 8
_needed: dict[Hashable, Callable[[], Any]] | None = None


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., Any]:
    """Return the function that launches a kernel, ``launch(kernel, grid)(*arguments)``."""
    return kernel[grid] if _needed is None else _Recorder(kernel, _needed)


def compile_together(function: Callable[[], object]) -> None:
    """Call a function without launching its kernels, so that its results are undefined, and compile those kernels."""
    global _needed
    needed: dict[Hashable, Callable[[], Any]] = {}
    _needed = needed
    try:
        function()
    finally:
        _needed = None
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda compile: compile(), needed.values()))


class _Recorder:
    def __init__(self, kernel: Any, needed: dict[Hashable, Callable[[], Any]]) -> None:
        self._kernel, self._needed = kernel, needed

    def __call__(self, *arguments: Any, **options: Any) -> None:
        kernel = self._kernel
        if not isinstance(kernel, triton.JITFunction):
            return  # the interpreter's, which compiles nothing
        kinds = (_kind(value, parameter) for value, parameter in zip(arguments, kernel.params, strict=False))

        def compile() -> None:
            _ = kernel.warmup(*arguments, grid=(1,), **options).run  # which loads it onto the device

        self._needed.setdefault((id(kernel), *kinds, *options.items()), compile)


def _kind(value: Any, parameter: Any) -> Hashable:
    """What Triton compiles different kernels for, as far as our kernels have it."""
    if hasattr(value, "data_ptr"):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int) and not parameter.do_not_specialize:
        return value == 1, value % 16 == 0
    return ()
