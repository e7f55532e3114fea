"""The hyperparameters of a class in DomainBed's form, declared from the `hparams_registry.py` beside its file."""

from __future__ import annotations

import dataclasses
import keyword
import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar, cast

from swad.testbed.algorithms import hyperparameters as hp
from swad.testbed.data.benchmark import Benchmark

N_DRAWS = 8  # that show whether a hyperparameter takes fractions


@dataclasses.dataclass(frozen=True)
class OwnRange(hp.Choice):
    """A range that only `hparams_registry.py` knows."""

    def __str__(self) -> str:
        return "as hparams_registry.py draws"


@dataclasses.dataclass(frozen=True)
class DomainBedHyperparameters(hp.Hyperparameters):
    """Hyperparameters whose defaults and draws are those of a file."""

    registry: ClassVar[ModuleType | None] = None
    class_name: ClassVar[str] = ""

    @classmethod
    def defaults_on(cls, benchmark: Benchmark) -> dict[str, Any]:
        """Return the defaults on a dataset of what only this class has."""
        if cls.registry is None:
            return {}
        values = cls._fields(cls.registry.default_hparams(cls.class_name, _dataset(benchmark)))
        shared = {field.name for field in dataclasses.fields(hp.Hyperparameters)}
        return {name: value for name, value in values.items() if name not in shared}

    @classmethod
    def draw_on(cls, benchmark: Benchmark, seed: int) -> dict[str, Any] | None:
        """Return the file's own random draw."""
        if cls.registry is None:
            return None
        values = cls._fields(cls.registry.random_hparams(cls.class_name, _dataset(benchmark), seed))
        return {name: value for name, value in values.items() if name != "dropout" or not benchmark.image_spec.low_res}

    @classmethod
    def _fields(cls, hparams: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of fields from hyperparameters by their names in DomainBed, without those of no field."""
        named = _by_domainbed_name(cls)
        pairs = ((named[name], _plain(value)) for name, value in hparams.items() if name in named)
        return {field.name: cast(Any, type(field.default))(value) for field, value in pairs}

    def to_hparams(self) -> dict[str, Any]:
        """Return them as the class gets them: with what no run sets, at the file's defaults."""
        defaults = {} if self.registry is None else self.registry.default_hparams(self.class_name, "PACS")
        own = {name: getattr(self, field.name) for name, field in _by_domainbed_name(type(self)).items()}
        own |= {name: bool(own[name]) for name in own if isinstance(defaults.get(name), bool)}
        return {"nonlinear_classifier": False, **defaults, **own}


def declare(class_name: str, registry: ModuleType | None) -> type[DomainBedHyperparameters]:
    """Declare the hyperparameters of a class: those that the file has for it and not for ERM, if they are numbers."""
    own: dict[str, Any] = {}
    common: dict[str, Any] = {}
    draws: list[dict[str, Any]] = []
    if registry is not None:
        own = registry.default_hparams(class_name, "PACS")
        common = registry.default_hparams("ERM", "PACS")
        draws = [registry.random_hparams(class_name, "PACS", seed) for seed in range(1, N_DRAWS + 1)]
    shared = _by_domainbed_name(hp.Hyperparameters)
    taken = {field.name for field in shared.values()}
    fields = []
    for name, value in own.items():
        default = _plain(value)
        if (of_all := shared.get(name)) is not None:
            default = cast(Any, type(of_all.default))(default)
            own_range = OwnRange((default,))
            metadata = {**of_all.metadata, "range": own_range, "low_res": own_range, "by_dataset": {}}
            fields.append((of_all.name, of_all.type, dataclasses.field(default=default, metadata=metadata)))
        elif name not in common and isinstance(default, bool | int | float):
            fractions = any(isinstance(_plain(draw.get(name)), float) for draw in draws)
            default = float(default) if fractions else default + 0
            field = name + "_" * (keyword.iskeyword(name) or name in taken)
            help = "a switch: 0 or 1" if isinstance(value, bool) else "see the file"
            declared = hp.hyper(default, OwnRange((default,)), help, low=-math.inf, domainbed=name)
            fields.append((field, type(default), declared))
    namespace = {"registry": registry, "class_name": class_name}
    return dataclasses.make_dataclass(
        f"{class_name}Hyperparameters", fields, bases=(DomainBedHyperparameters,), frozen=True, namespace=namespace
    )


def _by_domainbed_name(cls: type[hp.Hyperparameters]) -> dict[str, dataclasses.Field[Any]]:
    return {field.metadata["domainbed"] or field.name: field for field in dataclasses.fields(cls)}


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _dataset(benchmark: Benchmark) -> str:
    """Return the dataset as the file knows it: for images of low resolution, DomainBed's own."""
    return "RotatedMNIST" if benchmark.image_spec.low_res else benchmark.name
