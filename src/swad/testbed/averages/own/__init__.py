"""Averages of your own, one file each, in the folders that the environment variable SWAD_AVERAGES names.

The folders are separated like PATH. The average's name is the file's name, and the file says ``AVERAGE = <class>``, a
subclass of `swad.Average`. ``AVERAGE(model, **options)`` builds it; a parameter `plan` gets the length of the training
(`swad.testbed.averages.registry.Plan`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from swad.util.plugins import PluginError, find_plugins, import_plugin

if TYPE_CHECKING:
    from swad.averaging.base import Average

# Processes started from here inherit the variable, and so find the same averages.
__path__ = [*filter(None, os.environ.get("SWAD_AVERAGES", "").split(os.pathsep))]


def names() -> tuple[str, ...]:
    """Return the names of your averages, sorted."""
    return find_plugins(__path__, "SWAD_AVERAGES", "average")


def get(name: str) -> type[Average]:
    """Return the class of a file."""
    # Imported here because it needs torch, which looking up names does not.
    from swad.averaging.base import Average

    average = getattr(import_plugin(f"{__name__}.{name}"), "AVERAGE", None)
    if not (isinstance(average, type) and issubclass(average, Average)):
        raise PluginError(
            f"a file of an average must define AVERAGE, a subclass of swad.Average, but {name}.py does not"
        )
    return average
