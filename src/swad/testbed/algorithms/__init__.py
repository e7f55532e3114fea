"""Training algorithms, one file per paper.

Every file of this folder that defines ``ALGORITHM`` is an algorithm, and its name is the file's name. Authors of an
algorithm import `swad.testbed.algorithms.base` and `swad.testbed.algorithms.hyperparameters`;
`swad.testbed.algorithms.registry` finds algorithms by name. The environment variable SWAD_ALGORITHMS adds folders
(separated like PATH): their files become modules of this package.
"""

import os

# Processes started from here inherit the variable, and so find the same algorithms.
__path__ = [*__path__, *filter(None, os.environ.get("SWAD_ALGORITHMS", "").split(os.pathsep))]


class AlgorithmError(ValueError):
    """There is no such algorithm, or the requested combination is not possible; the message says what to do."""
