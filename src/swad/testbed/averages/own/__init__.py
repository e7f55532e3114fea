"""Averages of your own, one file each, in the folders that the environment variable SWAD_AVERAGES names.

The folders are separated like PATH. The average's name is the file's name, and the file says ``AVERAGE = <class>``, a
subclass of `swad.Rule`. Its parameters are the options of the average; a parameter `plan` gets the length of the
training (`swad.testbed.averages.registry.Plan`).
"""

from __future__ import annotations

import os

from swad.averaging.rule import Rule
from swad.util.plugins import PluginError, find_plugins, import_plugin

# Processes started from here inherit the variable, and so find the same averages.
__path__ = [*filter(None, os.environ.get("SWAD_AVERAGES", "").split(os.pathsep))]


def names() -> tuple[str, ...]:
    """Return the names of your averages, sorted."""
    return find_plugins(__path__, "SWAD_AVERAGES", "average")


def get(name: str) -> type[Rule]:
    """Return the class of a file."""
    rule = getattr(import_plugin(f"{__name__}.{name}"), "AVERAGE", None)
    if not (isinstance(rule, type) and issubclass(rule, Rule)):
        raise PluginError(f"a file of an average must define AVERAGE, a subclass of swad.Rule, but {name}.py does not")
    return rule
