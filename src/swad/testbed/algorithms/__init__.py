"""Training algorithms, one file per paper.

Every file of this folder that defines ``ALGORITHM`` is an algorithm, and its name is the file's name. Authors of an
algorithm import `swad.testbed.algorithms.base` and `swad.testbed.algorithms.hyperparameters`;
`swad.testbed.algorithms.registry` finds algorithms by name. The environment variable SWAD_ALGORITHMS adds folders
(separated like PATH): their files become modules of this package.
"""

# Imported here because it adds these folders to the package.
from swad.testbed.algorithms.registry import AlgorithmError as AlgorithmError
