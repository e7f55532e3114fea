"""Files of users' own that are found by name: list them, and import one with an error that names file and line."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Generic, TypeVar

from swad.util.names import plain

T = TypeVar("T")


class Registry(Generic[T]):
    """The files of one kind, by name: those of a package, and those in the folders that a variable names.

    A file defines one attribute, such as ``NETWORK = <class>``. Nothing lists the files, and only a requested one is
    imported. A file whose name begins with an underscore has helpers of the others.

    Args:
        kind: What a file contains, in messages.
        package: Name of the package, which the files of the folders join as modules.
        variable: Environment variable that names folders, separated like PATH. Processes that this one starts inherit
            it, and so find the same files.
        attribute: What every file defines.
        check: Takes that value and the name of its file, and returns the value, or raises an error that says the rule.
        error: Class of the errors, whose messages are one line.
        helpers: Modules of the package that are no such files.
    """

    def __init__(
        self,
        kind: str,
        package: str,
        variable: str,
        attribute: str,
        check: Callable[[object, str], T],
        error: type[Exception],
        helpers: Collection[str] = (),
    ) -> None:
        self.kind, self.variable, self.attribute = kind, variable, attribute
        self._package, self._check, self._error, self._helpers = sys.modules[package], check, error, helpers
        entries = os.environ.get(variable, "").split(os.pathsep)
        folders = [entry for entry in entries if entry and not entry.endswith(".py")]  # files are of another form
        self._package.__path__ = [*self._package.__path__, *folders]

    def names(self) -> tuple[str, ...]:
        """Return the names of the files, sorted."""
        counts: Counter[str] = Counter()
        for folder in self._package.__path__:
            if not os.path.isdir(folder):
                raise self._error(
                    f"{self.variable} must name existing folders, got {folder}: correct the variable or unset it"
                )
            # Folder by folder: over several at once, pkgutil would hide the second of two files with the same name.
            counts.update(module.name for module in pkgutil.iter_modules([folder]) if not module.name.startswith("_"))
        for name, count in counts.items():
            if count > 1:
                raise self._error(
                    f"{self.kind} names must be unique, but there are {count} files {name}.py: rename yours"
                )
        return tuple(sorted(set(counts) - set(self._helpers)))

    def match(self, name: str) -> str | None:
        """Return the name as its file spells it: case, ``-`` and ``_`` do not matter. None if there is no such file."""
        return next((known for known in self.names() if plain(known) == plain(name)), None)

    def get(self, name: str) -> T:
        """Return what a file defines."""
        value = getattr(self._import(name), self.attribute, None)
        if value is None:
            article = "an" if self.kind[0] in "aeiou" else "a"
            raise self._error(
                f"a file of {article} {self.kind} must define {self.attribute}, but {name}.py does not: add the line, "
                f"or name a file of helpers _{name}.py"
            )
        return self._check(value, name)

    def _import(self, name: str) -> ModuleType:
        module = f"{self._package.__name__}.{name}"
        try:
            return importlib.import_module(module)
        except Exception as error:  # the file may contain anything
            spec = importlib.util.find_spec(module)
            file = spec.origin if spec and spec.origin else name
            raise self._error(f"{import_problem(error, file)}; correct the file") from error


def import_problem(error: Exception, file: str) -> str:
    """Say in which line of a file its import failed, and why."""
    return f"cannot import {_where(error, file)}: {_reason(error)}"


def _where(error: Exception, file: str) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{file}, line {lines[-1]}" if lines else file


def _reason(error: Exception) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(text.split())}" if text else type(error).__name__
