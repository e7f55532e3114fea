"""Networks of your own, one file each, in the folders that the environment variable SWAD_NETWORKS names.

The folders are separated like PATH. The network's name is the file's name, and the file says ``NETWORK = <class or
function>``: ``NETWORK(num_classes=..., in_chans=...)`` returns a module from images to class scores.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from torch import nn

from swad.util.plugins import PluginError, count_modules, import_plugin

# Processes started from here inherit the variable, and so find the same networks.
__path__ = [*filter(None, os.environ.get("SWAD_NETWORKS", "").split(os.pathsep))]


def names() -> tuple[str, ...]:
    """Return the names of your networks, sorted."""
    for folder in __path__:
        if not os.path.isdir(folder):
            raise PluginError(
                f"SWAD_NETWORKS must name existing folders, got {folder}: correct the variable or unset it"
            )
    counts = count_modules(__path__)
    for name, count in counts.items():
        if count > 1:
            raise PluginError(f"network names must be unique, but there are {count} files {name}.py: rename one")
    return tuple(sorted(counts))


def get(name: str) -> Callable[..., nn.Module]:
    """Return what builds the network of a file."""
    network = getattr(import_plugin(f"{__name__}.{name}"), "NETWORK", None)
    if not callable(network):
        raise PluginError(f"a file of a network must define NETWORK, a class or a function, but {name}.py does not")
    return network  # type: ignore[no-any-return]
