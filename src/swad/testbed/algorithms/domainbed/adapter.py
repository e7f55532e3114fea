"""Make a class of DomainBed's form an `Algorithm`: its own update, its own optimizers, its own state."""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Mapping
from contextlib import nullcontext
from types import ModuleType
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from swad.testbed.algorithms import AlgorithmError
from swad.testbed.algorithms.base import Algorithm, Batch, Noise, RunInfo, StepContext
from swad.testbed.algorithms.domainbed import files
from swad.testbed.algorithms.domainbed.hparams import DomainBedHyperparameters, declare
from swad.testbed.algorithms.domainbed.stand_ins import RunNetworks, using
from swad.testbed.algorithms.domainbed.state import capture, holds_modules, restore
from swad.util.names import listed, one_line


class Predictor(nn.Module):
    """What `predict` of a method uses, and nothing else: its modules, parameters and buffers by their own names."""

    def __init__(self, method: nn.Module) -> None:
        super().__init__()
        self._names = _names_in(type(method), "predict")
        for kind in ("_modules", "_parameters", "_buffers"):
            vars(self)[kind].update({name: each for name, each in vars(method)[kind].items() if name in self._names})
        if next(self.parameters(), None) is None:
            raise AlgorithmError(
                f"predict of {type(method).__name__} must use modules that are its attributes, which are averaged and "
                "saved by name: modules in a list belong into an nn.ModuleList"
            )
        # The method without everything else. It shares the dicts of this module, so that both always have the same.
        self._method: Any = [object.__new__(type(method))]  # in a list, because it is no submodule
        vars(self._method[0]).update({name: vars(self)[name] for name in vars(nn.Module())})
        self.follow(method)

    def follow(self, method: nn.Module) -> None:
        """Take what the method replaced instead of changing it in place."""
        for name, module in self._modules.items():
            if vars(method)["_modules"][name] is not module:
                raise AlgorithmError(
                    f"{type(method).__name__} replaces {name}, which predict uses, but an average follows one module: "
                    "load new weights into it"
                )
        for name, buffer in self._buffers.items():
            if buffer is not None and (own := vars(method)["_buffers"][name]) is not buffer:
                buffer.copy_(own.detach())
        plain = {name: each for name, each in vars(method).items() if name in self._names and name not in vars(self)}
        vars(self._method[0]).update(plain)

    def forward(self, images: Tensor) -> Tensor:
        """Return what the method predicts."""
        (method,) = self._method
        method.training = self.training
        return cast(Tensor, method.predict(images))


def _names_in(cls: type, function: str) -> set[str]:
    """Return the attributes that a method of a class names, itself or in methods that it calls."""
    names: set[str] = set()
    found = [function]
    while found:
        name = found.pop()
        sources = [
            inspect.getsource(vars(base)[name]) for base in cls.__mro__ if inspect.isfunction(vars(base).get(name))
        ]
        n_read = next((i for i, source in enumerate(sources, 1) if "super(" not in source), len(sources))
        new = set(re.findall(r"\bself\.(\w+)", "".join(sources[:n_read]))) - names
        names |= new
        found += new
    return names


class DomainBedAlgorithm(Algorithm):
    """A class of DomainBed's form, unchanged."""

    groups_by_domain = True
    eager_only = True
    needs = ("own optimizers",)
    method_class: ClassVar[Any]
    module: ClassVar[ModuleType]
    """The file of the class."""
    predictor: Predictor
    method: Any

    def __init__(self, predictor: nn.Module, hyperparameters: DomainBedHyperparameters, run_info: RunInfo) -> None:
        n_domains, image_shape = len(run_info.domain_sizes), run_info.image_shape
        method, run_networks = self._build(predictor, hyperparameters, n_domains, image_shape)
        super().__init__(Predictor(method), hyperparameters, run_info)
        vars(self)["method"], self._run_networks = method, run_networks  # not a submodule: its `train` may be its own
        self._initial = {*vars(method), *vars(method)["_modules"]}
        self._late: dict[str, Any] = {}

    @classmethod
    def wrap_predictor(cls, network: nn.Module, hyperparameters: Any, n_domains: int) -> nn.Module:
        """Return the part of the method that predicts."""
        if isinstance(network, Predictor):  # made by __init__
            return network
        convolution = next((each for each in network.parameters() if each.ndim == 4), None)
        image_shape = (3 if convolution is None else convolution.shape[1], 224, 224)
        return Predictor(cls._build(network, hyperparameters, n_domains, image_shape)[0])

    @classmethod
    def _build(
        cls, network: nn.Module, hyperparameters: Any, n_domains: int, image_shape: tuple[int, int, int]
    ) -> tuple[nn.Module, RunNetworks]:
        run_networks = RunNetworks(network, image_shape[0], hyperparameters.dropout)
        with using(run_networks, nullcontext):
            hparams = hyperparameters.to_hparams()
            method = cls._run(cls.method_class, image_shape, run_networks.n_classes, n_domains, hparams)
        if not run_networks.n_featurizers:
            raise AlgorithmError(
                f"{cls.__name__} must make its network by networks.Featurizer, but has one of its own: the network and "
                "the weights of the run would not be what it trains"
            )
        return method, run_networks

    @classmethod
    def _run(cls, function: Any, *args: Any) -> Any:
        """Call the method; what it needs and does not get becomes an error that says what to do."""
        try:
            return function(*args)
        except Exception as error:  # it may raise anything
            name, text = cls.__name__, one_line(error, 200)
            if isinstance(error, KeyError) and function is cls.method_class:
                advice = f"the hparams_registry.py of its repository, beside {cls.module.__file__}, must have it"
                message = f"{name} needs the hyperparameter {text}: {advice}"
            elif "'NoneType' object is not callable" in text and (packages := files.missing_packages(cls.module)):
                message = f"{name} needs further packages: install them with pip install {' '.join(packages)}"
            elif "NoneType" in text:
                message = f"{name} failed with {text}; if it needs unlabeled images of the target, it cannot run here"
            elif not torch.cuda.is_available() and re.search("cuda|nvidia", text, re.IGNORECASE):
                message = f"{name} asks for a GPU in its own code, and there is none: train it on a machine with one"
            else:
                raise
            raise AlgorithmError(message) from error

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """None: those of the method are its own, and its state has theirs."""
        return {}

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Seed NumPy and Python for the step, as the trainer seeds torch."""
        seed = generator.initial_seed() % 2**32
        np.random.seed(seed)
        random.seed(seed)
        return {}

    def update(self, batch: Batch, noise: Noise, ctx: StepContext) -> Tensor:
        """Make one step of the method, and return the first value that it reports, or the one named loss."""
        images, labels = list(self.by_domain(batch.images)), list(self.by_domain(batch.labels))
        parameters = inspect.signature(self.method.update).parameters.values()
        names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        # The published SWAD code and its forks have x and y; DomainBed of 2020 has no unlabeled minibatches.
        args = (images, labels) if "y" in names else (list(zip(images, labels, strict=True)), None)[: len(names)]
        with using(self._run_networks, ctx.autocast):
            values = self._run(self.method.update, *args)
        if not isinstance(values, dict) or not values:
            raise AlgorithmError(f"update of {type(self).__name__} must return a dict of numbers, got {values!r}")
        self.predictor.follow(self.method)
        self._require_no_late_modules()
        return torch.tensor(float(values.get("loss", next(iter(values.values())))), device=batch.images.device)

    def _require_no_late_modules(self) -> None:
        """Refuse modules that a step made and the next step uses: a resumed run could not make them."""
        new = {
            name: each
            for name, each in {**vars(self.method), **self.method._modules}.items()
            if name not in self._initial
        }
        kept = [name for name, each in new.items() if each is self._late.get(name) and holds_modules(capture(each))]
        if kept:
            raise AlgorithmError(
                f"{type(self).__name__} makes {listed(kept)} in a step and uses it in the next: a run can only resume "
                "modules and optimizers that __init__ makes; make them there"
            )
        self._late = new

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return the state of everything that the method holds, but for modules that every step makes."""
        state, made = capture(self.method), {name for name, each in self._late.items() if holds_modules(capture(each))}
        for part in (state["content"]["tensors"], state["content"]["attributes"], state["content"]["attributes"][""]):
            for name in [name for name in part if name.partition(".")[0] in made]:
                del part[name]
        return cast(dict[str, Any], state)

    def load_state_dict(self, state_dict: Mapping[str, Any], *_: Any, **__: Any) -> Any:
        """Restore what `state_dict` returned."""
        restore(self.method, state_dict, next(self.parameters()).device)
        self.predictor.follow(self.method)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move the method, too."""
        self.method._apply(fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.predictor._buffers.update({name: self.method._buffers[name] for name in self.predictor._buffers})
        return self

    def train(self, mode: bool = True) -> Any:
        """Set the mode of the method, too."""
        (self.method.train if mode else self.method.eval)()
        return super().train(mode)


def adapt(name: str) -> type[Algorithm]:
    """Return the algorithm of a canonical name. Its file is executed."""
    path, class_name = files.find(name), name.partition(":")[2]
    module, registry = files.load(path)
    method_class = getattr(module, class_name)
    if not issubclass(method_class, nn.Module) or not all(
        hasattr(method_class, each) for each in ("update", "predict")
    ):
        raise AlgorithmError(f"{class_name} of {path} must be a torch.nn.Module with update and predict, and is not")
    try:
        hyperparameters = declare(class_name, registry)
    except Exception as error:  # the registry may contain anything
        message = f"{type(error).__name__}: {one_line(error, 200)}"
        raise AlgorithmError(
            f"the hparams_registry.py of {path} has no hyperparameters of {class_name} ({message})"
        ) from error
    members = {"method_class": method_class, "module": module, "Hyperparameters": hyperparameters}
    members["own_files"] = (str(path),)
    credit = (method_class.__doc__ or "").strip().partition("\n")[0]
    return type(class_name, (DomainBedAlgorithm,), {**members, "__doc__": method_class.__doc__, "paper": credit})
