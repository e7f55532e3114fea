"""The public modules of swad with their public names, read from the code."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType

from docstrings import rest

ALSO = (
    "swad.averaging.distributed_checkpoint",
    # for authors of methods, datasets and averages
    "swad.testbed.algorithms.base",
    "swad.testbed.algorithms.hyperparameters",
    "swad.testbed.data.benchmark",
    "swad.testbed.data.domains",
)
"""Public modules that no package lists."""


def public_modules() -> dict[str, list[str]]:
    """Return the names of every public module, in the reader's order. Packages of modules have none.

    >>> modules = public_modules()
    >>> "SWAD" in modules["swad"], "mce" in modules["swad.robustness.imagenet_c"]
    (True, True)
    """
    found = {}
    for module in (*_walk("swad"), *map(importlib.import_module, ALSO)):
        found[module.__name__] = [name for name in _names(module) if not isinstance(getattr(module, name), ModuleType)]
    return found


def members(cls: type, public: set[type]) -> list[str]:
    """Return the members of a class to document: its own and those of private bases, not those of public bases."""
    names: dict[str, None] = {}
    for base in cls.__mro__:
        if (base is not cls and base in public) or not base.__module__.startswith("swad."):
            break
        fields = inspect.get_annotations(base) if dataclasses.is_dataclass(base) or issubclass(base, tuple) else ()
        names |= dict.fromkeys(name for name in (*vars(base), *fields) if name[0] != "_")
    return list(names)


def api_pages() -> dict[str, str]:
    """Return the page of each public module by file name, as reStructuredText for autodoc."""
    modules = public_modules()
    public = {
        value
        for module, names in modules.items()
        for name in names
        if inspect.isclass(value := getattr(importlib.import_module(module), name))
    }
    return {f"{module}.rst": _page(module, names, public) for module, names in modules.items()}


def _page(module: str, names: list[str], public: set[type]) -> str:
    lines = [module, "=" * len(module), "", f".. automodule:: {module}", "   :no-members:", ""]
    if names:
        lines += [f".. currentmodule:: {module}", "", ".. list-table::", "   :widths: auto", ""]
    for name in names:
        value = getattr(importlib.import_module(module), name)
        lines += [f"   * - :py:obj:`{name}`", f"     - {rest(_summary(value))}"]
    lines += [""]
    for name in names:
        value = getattr(importlib.import_module(module), name)
        kind = "class" if inspect.isclass(value) else "function" if inspect.isroutine(value) else "data"
        lines += [f".. auto{kind}:: {module}.{name}"]
        if kind == "class" and (listed := members(value, public)):
            lines += [f"   :members: {', '.join(listed)}"]
        if kind == "class" and not public.isdisjoint(value.__mro__[1:]):  # the other members are there
            lines += ["   :show-inheritance:"]
        lines += [""]
    return "\n".join(lines)


def _summary(value: object) -> str:
    """Return the first paragraph of a docstring as one line; "" for values, whose docstring is that of their type."""
    documented = inspect.isclass(value) or inspect.isroutine(value)
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split()) if documented else ""


def _walk(name: str) -> Iterator[ModuleType]:
    module = importlib.import_module(name)
    yield module
    children = [child for child in _names(module) if isinstance(getattr(module, child), ModuleType)]
    for child in children:
        yield from _walk(f"{name}.{child}")


def _names(module: ModuleType) -> list[str]:
    """Return what a module offers: `__all__` and `__dir__`, else its own functions and classes, else its submodules."""
    declared = [name for name in getattr(module, "__all__", ()) if not name.startswith("__")]
    if declared:
        lazy = vars(module).get("__dir__")
        return [*declared, *(name for name in (lazy() if lazy else ()) if name not in declared and name[0] != "_")]
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__ and callable(value)
    ]
    if own or not hasattr(module, "__path__"):
        return own
    children = [child.name for child in pkgutil.iter_modules(module.__path__) if not child.name.startswith("_")]
    for child in children:
        importlib.import_module(f"{module.__name__}.{child}")
    return children
