"""Names of a package that are imported on first use, so that importing the package costs nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_exports(
    package: str, homes: Mapping[str, Sequence[str]], modules: Sequence[str] = (), extra: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package (PEP 562).

    The package also imports its names under `if TYPE_CHECKING`, for type checkers and editors, and lists them in
    `__all__`, which `dir` shows together with `modules`.

    Args:
        package: The package's `__name__`.
        homes: The names that each module defines, by the module's name inside the package.
        modules: Modules of the package that are names themselves.
        extra: The extra of swad that installs what the modules need; an error names it if a package is missing.

    >>> getattr_, dir_ = lazy_exports("swad.util", {"names": ("counted",)}, ["names"])
    >>> getattr_("counted")(2, "name"), getattr_("names").__name__
    ('2 names', 'swad.util.names')
    """
    module_of = {name: module for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name in module_of:
            return getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)
        return importlib.import_module(f"{package}.{name}")

    def module_getattr(name: str) -> Any:
        if name not in module_of and name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if extra is None:
            return load(name)
        from swad.util.packages import require_extra

        with require_extra(f"{package}.{name}", extra):
            return load(name)

    def module_dir() -> list[str]:
        return sorted({*sys.modules[package].__all__, *modules})

    return module_getattr, module_dir
