"""Networks of your own, one file each, in the folders that the environment variable SWAD_NETWORKS names.

The folders are separated like PATH. The network's name is the file's name, and the file says ``NETWORK = <class or
function>``: ``NETWORK(num_classes=..., in_chans=...)`` returns a module from images to class scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swad.testbed.models.weight_files import NetworkError
from swad.util.plugins import Registry


def _check(network: object, name: str) -> Callable[..., Any]:
    if callable(network):
        return network
    raise NetworkError(f"NETWORK must be a class or a function, got {network!r} in {name}.py")


FILES = Registry("network", __name__, "SWAD_NETWORKS", "NETWORK", _check, NetworkError)
