"""Find algorithms by name. The folder is the registry: there is no list to edit.

An algorithm is a file of `swad.testbed.algorithms`, or of a folder named in SWAD_ALGORITHMS, that says
``ALGORITHM = <class>``. Only the requested file is imported. ``NAME+sam`` and ``NAME+sagm`` combine an algorithm with
SAM or SAGM. ``FILE:CLASS`` is a class of DomainBed's form (`swad.testbed.algorithms.domainbed`).

>>> from swad.testbed.algorithms.registry import canonical_name, get_algorithm, list_algorithms
>>> "erm" in list_algorithms()
True
>>> get_algorithm("ERM").Hyperparameters().lr
5e-05
>>> canonical_name("SAM + CORAL"), canonical_name("erm+sam")
('coral+sam', 'sam')
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from swad.util.names import did_you_mean
from swad.util.plugins import Registry

if TYPE_CHECKING:
    from swad.testbed.algorithms.base import Algorithm

__all__ = ["AlgorithmError", "canonical_name", "get_algorithm", "list_algorithms"]


class AlgorithmError(ValueError):
    """There is no such algorithm, or the requested combination is not possible; the message says what to do."""


SHARPNESS_AWARE = ("sam", "sagm")
"""The algorithms that can be combined with another."""
OWN_ALGORITHM = "if it is your own, name its folder in SWAD_ALGORITHMS"
"""What to do if an algorithm is not found."""
_OVERRIDABLE = (
    *("__init__", "loss", "draw_randomness", "make_optimizers", "update", "phase", "on_phase_start"),
    *("preparation_steps", "wrap_predictor", "eval_group_size", "estimate_statistics"),
)


def list_algorithms() -> tuple[str, ...]:
    """Return the names of all algorithms, sorted."""
    return FILES.names()


def get_algorithm(name: str) -> type[Algorithm]:
    """Return the class of an algorithm; case, ``-`` and ``_`` in `name` do not matter."""
    return _load(canonical_name(name))


@cache
def _load(name: str) -> type[Algorithm]:
    module, plus, step = name.partition("+")
    cls = _load_domainbed(module) if ":" in module else FILES.get(module)
    if not plus:
        return cls
    # Imported here because it needs torch, which looking up names does not.
    from swad.testbed.algorithms.sam import combine

    return combine(cls, _load(step))


def _load_domainbed(name: str) -> type[Algorithm]:
    # Imported here because it needs torch, which looking up names does not.
    from swad.testbed.algorithms.domainbed.adapter import adapt

    return adapt(name)


def _checked(algorithm: object, module: str) -> type[Algorithm]:
    """Check what the author of an algorithm declared: a mistake is one line here, and would be a traceback later."""
    # Imported here because they need torch, which looking up names does not.
    from swad.testbed.algorithms.base import Algorithm, Recipe

    if not (isinstance(algorithm, type) and issubclass(algorithm, Algorithm)):
        raise AlgorithmError(f"ALGORITHM must be a subclass of Algorithm, got {algorithm!r} in {module}.py")
    for name, expected, description in (
        ("paper", str, "a string"),
        ("needs", tuple, 'a tuple, such as ("two passes",)'),
        ("own_recipe", Recipe | None, "a Recipe"),
    ):
        if not isinstance(value := getattr(algorithm, name), expected):
            raise AlgorithmError(f"{algorithm.__name__}.{name} in {module}.py must be {description}, got {value!r}")
    for name in _OVERRIDABLE:
        required, own = (inspect.signature(getattr(cls, name)) for cls in (Algorithm, algorithm))
        try:
            own.bind(*required.parameters)
        except TypeError:
            decorator = "@classmethod and " * inspect.ismethod(getattr(Algorithm, name))
            raise AlgorithmError(
                f"{algorithm.__name__}.{name} in {module}.py must have {decorator}the parameters "
                f"{', '.join(required.parameters)}, got {', '.join(own.parameters)}"
            ) from None
    _check_hyperparameters(algorithm, module)
    return algorithm


def _check_hyperparameters(algorithm: type[Algorithm], module: str) -> None:
    from swad.testbed.algorithms.hyperparameters import Hyperparameters, fill

    declared = algorithm.Hyperparameters
    if not (isinstance(declared, type) and issubclass(declared, Hyperparameters)):
        raise AlgorithmError(
            f"the Hyperparameters of {algorithm.__name__} must be a subclass of Hyperparameters, got {declared!r} "
            f"in {module}.py"
        )
    for cls in declared.__mro__:
        if inspect.get_annotations(cls) and "__dataclass_params__" not in vars(cls):
            raise AlgorithmError(
                f"{cls.__name__} in {module}.py must be a dataclass: put @dataclass(frozen=True) before the class"
            )
    for field in dataclasses.fields(declared):
        name, default = field.name, repr(field.default)
        if "range" not in field.metadata:
            raise AlgorithmError(
                f"{declared.__name__}.{name} in {module}.py must be declared with hyper(), got {default}: write "
                f'{name}: float = hyper({default}, Constant({default}), "its meaning"); instead of Constant, a search '
                "may draw from Power, Uniform or Choice"
            )
        if field.type in (float, "float") and isinstance(field.default, int):
            raise AlgorithmError(
                f"{declared.__name__}.{name} in {module}.py is a float, but its default makes it an integer: write "
                f"{default}.0"
            )
    if problems := declared().problems():
        raise AlgorithmError(f"the defaults of {declared.__name__} in {module}.py must be valid, but {problems[0]}")
    recipe = algorithm.own_recipe
    for values in () if recipe is None else (recipe, *recipe.by_dataset.values()):
        try:
            fill(declared, values.stated.get("hyperparameters", {}))
        except ValueError as error:
            raise AlgorithmError(f"own_recipe in {module}.py: {error}") from None


def _domainbed_files() -> list[str]:
    """Return the modules of folders with an `algorithms.py`, which is of DomainBed's form, that are not of ours."""
    folders = map(Path, filter(None, os.environ.get("SWAD_ALGORITHMS", "").split(os.pathsep)))
    paths = [path for folder in folders if (folder / "algorithms.py").is_file() for path in folder.iterdir()]
    return [path.stem for path in paths if path.is_dir() or "\nALGORITHM = " not in path.read_text(errors="replace")]


FILES = Registry(
    "algorithm",
    "swad.testbed.algorithms",
    "SWAD_ALGORITHMS",
    "ALGORITHM",
    _checked,
    AlgorithmError,
    helpers=("base", "domainbed", "hyperparameters", "recipe", "registry", *_domainbed_files()),
)


def canonical_name(name: str) -> str:
    """Return an algorithm's name as its file spells it, with ``+sam`` or ``+sagm`` at the end."""
    path, colon, rest = name.rpartition(":")
    first, *others = rest.split("+")
    parts = [_match(path + colon + first, name), *(_match(part, name) for part in others)]
    if len(parts) == 1:
        return parts[0]
    others = [part for part in parts if part not in SHARPNESS_AWARE]
    if len(parts) != 2 or len(others) != 1:
        raise AlgorithmError(f"only SAM or SAGM can be combined with another algorithm, as in coral+sam; got {name!r}")
    [step] = [part for part in parts if part in SHARPNESS_AWARE]
    return step if others == ["erm"] else f"{others[0]}+{step}"


def _match(part: str, name: str) -> str:
    if ":" in part:
        from swad.testbed.algorithms.domainbed import files

        return files.canonical_name(part)
    if algorithm := FILES.match(part):
        return algorithm
    known = FILES.names()
    if hint := did_you_mean(part, known):
        raise AlgorithmError(f"there is no algorithm {name!r}: {hint}")
    raise AlgorithmError(
        f"there is no algorithm {name!r}; choose one of {', '.join(known)}, NAME+sam or NAME+sagm; {OWN_ALGORITHM}"
    )
