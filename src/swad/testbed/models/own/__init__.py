"""Networks of your own, one file each, in the folders that the environment variable SWAD_NETWORKS names.

The folders are separated like PATH. The network's name is the file's name, and the file says ``NETWORK = <class or
function>``: ``NETWORK(num_classes=..., in_chans=...)`` returns a module from images to class scores.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from torch import nn

from swad.util.plugins import PluginError, find_plugins, import_plugin

# Processes started from here inherit the variable, and so find the same networks.
__path__ = [*filter(None, os.environ.get("SWAD_NETWORKS", "").split(os.pathsep))]


def names() -> tuple[str, ...]:
    """Return the names of your networks, sorted."""
    return find_plugins(__path__, "SWAD_NETWORKS", "network")


def get(name: str) -> Callable[..., nn.Module]:
    """Return what builds the network of a file."""
    network = getattr(import_plugin(f"{__name__}.{name}"), "NETWORK", None)
    if not callable(network):
        raise PluginError(f"a file of a network must define NETWORK, a class or a function, but {name}.py does not")
    return network  # type: ignore[no-any-return]
