"""Files of users' own that are found by name: list them, and import one with an error that names file and line."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import traceback
from collections import Counter
from collections.abc import Iterable
from types import ModuleType


class PluginError(Exception):
    """A file cannot be imported; the message is one line with the file, the line and the reason."""


def find_plugins(folders: Iterable[str], variable: str, kind: str) -> tuple[str, ...]:
    """Return the names of the modules in some folders, sorted; names with a leading underscore are left out.

    Args:
        folders: The folders, some of which may come from an environment variable.
        variable: That variable, for the error if a folder is missing.
        kind: What a file contains, for the error if two files have one name.
    """
    counts: Counter[str] = Counter()
    for folder in folders:
        if not os.path.isdir(folder):
            raise PluginError(f"{variable} must name existing folders, got {folder}: correct the variable or unset it")
        # Folder by folder: over several at once, pkgutil would hide the second of two files with the same name.
        counts.update(module.name for module in pkgutil.iter_modules([folder]) if not module.name.startswith("_"))
    for name, count in counts.items():
        if count > 1:
            raise PluginError(f"{kind} names must be unique, but there are {count} files {name}.py: rename yours")
    return tuple(sorted(counts))


def import_plugin(name: str) -> ModuleType:
    """Import a module by its full name."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # the file may contain anything
        spec = importlib.util.find_spec(name)
        file = spec.origin if spec and spec.origin else name
        raise PluginError(f"cannot import {_where(error, file)}: {_reason(error)}") from error


def _where(error: Exception, file: str) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{file}, line {lines[-1]}" if lines else file


def _reason(error: Exception) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(text.split())}" if text else type(error).__name__
