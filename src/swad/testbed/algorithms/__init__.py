"""Training algorithms, one file per paper.

Every file of this folder that defines ``ALGORITHM`` is an algorithm, and its name is the file's name. Authors of an
algorithm import `swad.testbed.algorithms.base` and `swad.testbed.algorithms.hyperparameters`;
`swad.testbed.algorithms.registry` finds algorithms by name. The environment variable SWAD_ALGORITHMS adds folders
(separated like PATH): their files become modules of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swad.util.plugins import Registry

if TYPE_CHECKING:
    from swad.testbed.algorithms.base import Algorithm


class AlgorithmError(ValueError):
    """There is no such algorithm, or the requested combination is not possible; the message says what to do."""


def _check(algorithm: object, module: str) -> type[Algorithm]:
    # Imported here because it needs torch, which looking up names does not.
    from swad.testbed.algorithms.registry import checked

    return checked(algorithm, module)


FILES = Registry(
    "algorithm",
    __name__,
    "SWAD_ALGORITHMS",
    "ALGORITHM",
    _check,
    AlgorithmError,
    helpers=("base", "hyperparameters", "recipe", "registry"),
)
