"""Lists the public interface: every name of the library, and those of the rest that others build on; one a line.

After a change that is meant, write the file again:

    PYTHONPATH=src:tests python -m helpers.public_api > tests/public_api.txt
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from enum import Enum
from typing import Any

import swad

OTHERS = (
    "integrations.lightning.AverageCallback",
    "integrations.lightning.SWADCallback",
    "integrations.transformers.AverageCallback",
    "integrations.transformers.SWADCallback",
    "integrations.timm.ModelSwad",
    "compat.LossValley",
    "compat.AveragedModel",
    "compat.update_bn",
    "averaging.distributed_checkpoint.save",
    "averaging.distributed_checkpoint.load",
    "flatness.local",
    "flatness.worst_case",
    "flatness.plane",
    "robustness.imagenet_c.mce",
    "testbed.load_predictor",
)


def public_api() -> str:
    return "".join(f"{line}\n" for name in (*swad.__all__, *OTHERS) for line in described(name))


def described(name: str) -> Iterator[str]:
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(f"swad.{module}" if module else "swad"), attribute)
    if not callable(found):
        yield f"swad.{name}: {type(found).__name__}"
    elif inspect.isclass(found) and issubclass(found, Warning):
        yield f"swad.{name}: {', '.join(base.__name__ for base in found.__bases__)}"
    elif not inspect.isclass(found):
        yield f"swad.{name}{signature(found)}"
    elif issubclass(found, Enum):
        yield f"swad.{name}: {', '.join(found)}"
    else:
        yield f"swad.{name}{signature(found)}"
        for member in dir(found):
            if not member.startswith("_") and is_new(found, member):
                yield f"swad.{name}.{member}{shown(inspect.getattr_static(found, member))}"


def is_new(cls: type, member: str) -> bool:
    """Whether a member is of this package and of this class, and not one of a public base or a trainer's hook."""
    others = [base for base in cls.__mro__ if hasattr(base, member) and base is not cls]
    public = [getattr(swad, name) for name in swad.__all__]
    inherited = any(base in public for base in others) and member not in vars(cls)
    return not inherited and all(base.__module__.startswith("swad.") for base in others)


def shown(member: Any) -> str:
    if isinstance(member, property):
        return f" -> {inspect.signature(member.fget).return_annotation}"
    function = inspect.unwrap(getattr(member, "__func__", member))
    return str(signature(function)) if inspect.isfunction(function) else f": {type(member).__name__}"


def signature(function: Any) -> str:
    return str(inspect.signature(function)).replace("'", "")


if __name__ == "__main__":
    print(public_api(), end="")
