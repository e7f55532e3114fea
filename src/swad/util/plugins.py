"""Files of users' own that are found by name: list them, and import one with an error that names file and line."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import traceback
from collections import Counter
from collections.abc import Iterable
from types import ModuleType


class PluginError(Exception):
    """A file cannot be imported; the message is one line with the file, the line and the reason."""


def count_modules(folders: Iterable[str]) -> Counter[str]:
    """Count the files of every module name in some folders; names with a leading underscore are left out."""
    # Folder by folder: over several folders at once, pkgutil would hide the second of two files with the same name.
    modules = (module for folder in folders for module in pkgutil.iter_modules([folder]))
    return Counter(module.name for module in modules if not module.name.startswith("_"))


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
