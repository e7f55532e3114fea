"""The tensors of a model that an average follows, by canonical name, and swapping them in and out.

Canonical names lack the parts that `torch.compile`, DDP and activation checkpointing add, so an average built on a
plain model follows the compiled one and the other way round. Under FSDP2 each rank touches only its own shard.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from swad.util.names import listed, require_choice

Buffers = Literal["copy", "average"]
Patterns = str | Sequence[str] | None

_Slot = tuple[dict[str, Any], str]
"""Where a module holds a tensor: its dict of parameters or buffers, and the key."""

EXTRA = "_extra_state"
"""The key under which a state dict has what a module's `get_extra_state` returns."""

_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside DDP, DataParallel, `torch.compile` and Lightning Fabric."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"a model must be an nn.Module, got a {type(model).__name__}: pass the model itself")
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif (inner := model._modules.get("_orig_mod", model._modules.get("_original_module"))) is not None:
            model = inner
        else:
            return model


def canonical(name: str) -> str:
    """Return a tensor's name without the parts that wrappers add.

    >>> canonical("_orig_mod.layer1._checkpoint_wrapped_module.weight")
    'layer1.weight'
    """
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


class TrackedTensors:
    """A model's tensors in three groups, each by canonical name.

    Attributes:
        averaged: Trainable floating-point parameters; with `buffer_mode="average"` also floating-point buffers.
        buffers: All other buffers. An average has those of its last averaged update.
        excluded: Frozen or excluded parameters, which an average does not own.

    Tied parameters count once. Non-persistent buffers are in no group.
    """

    def __init__(self, model: nn.Module, buffer_mode: Buffers, include: Patterns, exclude: Patterns) -> None:
        require_choice("buffers", buffer_mode, get_args(Buffers))
        self.buffer_mode = buffer_mode
        self.include, self.exclude = as_patterns(include), as_patterns(exclude)
        self.model = unwrap(model)
        self.averaged: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        self.excluded: dict[str, Tensor] = {}
        self._slots: dict[str, _Slot] = {}  # of all of them
        self.follow(model)
        if not self.averaged:
            raise ValueError(
                f"there is nothing to average: no trainable floating-point parameter of {type(unwrap(model)).__name__} "
                f"matches include={include!r}, exclude={exclude!r}"
            )

    def follow(self, model: nn.Module) -> None:
        """Follow `model` from now on; its tensors must have the names of those before, and parameters the shapes."""
        reshard(unwrap(model))  # a forward may have left gathered parameters in place of the shards
        averaged, buffers, excluded, slots = self._sort(model)
        if self.averaged:
            rule = "must match those of the model the average was built on"
            require_match(f"the parameters {rule}", self.averaged, averaged)
            others = {name: buffers.get(name, tensor) for name, tensor in self.buffers.items()}  # of any shape
            require_match(f"the buffers and frozen parameters {rule}", others | self.excluded, buffers | excluded)
            # Sums keep the order of the first model, whatever the order in which another declares its modules.
            averaged = {name: averaged[name] for name in self.averaged}
            buffers = {name: buffers[name] for name in self.buffers}
            changed = [name for name, t in averaged.items() if is_sharded(t) != is_sharded(self.averaged[name])]
            if changed:
                raise ValueError(
                    f"the model was sharded after the average was built ({changed[0]}): build the average last"
                )
        self.averaged, self.buffers, self.excluded = averaged, buffers, excluded
        self._slots = slots
        self._sharded = any(is_sharded(tensor) for tensor in averaged.values())
        self._averaged = list(averaged.values())
        self._averaged_slots = [slots[name] for name in averaged]
        self.model, self._wrapped = unwrap(model), model

    def follow_copy(self, model: nn.Module) -> TrackedTensors:
        """Return the same selection of tensors, but of another model."""
        copy = TrackedTensors.__new__(TrackedTensors)
        copy.__dict__.update(self.__dict__)
        copy.follow(model)
        return copy

    def live(self, model: nn.Module | None = None) -> list[Tensor]:
        """Return the averaged tensors with their current values (this rank's shards)."""
        self._refresh(model)
        return [_shard(tensor) for tensor in self._averaged] if self._sharded else self._averaged

    def live_buffers(self) -> list[Tensor]:
        """Return the buffers with the values of the live weights, also while the model holds an average."""
        live = _swapped.get(self.model, {})
        return [live.get(name, held) for name, held in zip(self.buffers, self.held_buffers(), strict=True)]

    def held_buffers(self) -> list[Tensor]:
        """Return the buffers that the model holds."""
        # Read from the modules: unlike parameters, buffers are often replaced rather than written to.
        return [_shard(self._current(name)) for name in self.buffers]

    def live_excluded(self) -> dict[str, Tensor]:
        """Return the parameters that are not averaged with their current values."""
        excluded = self.excluded.items()
        return {name: tensor if is_sharded(tensor) else self._current(name) for name, tensor in excluded}

    def written(self, excluded: bool) -> dict[str, Tensor]:
        """Return this rank's tensors that writing an average changes, by name; `excluded` parameters too on request."""
        # Looked up each time: moving the model replaces its buffers, and a forward may gather shards.
        reshard(self.model)
        others = self.live_excluded() if excluded else {}
        return {
            **dict(zip(self.averaged, self.live(), strict=True)),
            **dict(zip(self.buffers, self.held_buffers(), strict=True)),
            **{name: local(tensor) for name, tensor in others.items()},
        }

    def whole_state(self, averaged: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return a state dict that loads strictly: these tensors, and all others of the model."""
        state: dict[str, Any] = dict(averaged)
        for name, tensor in self.buffers.items():
            state[name] = like(tensor, buffers[name].detach().to(tensor.device, copy=True))
        state |= {name: tensor.detach().clone() for name, tensor in self.live_excluded().items()}
        for prefix, module in self.model.named_modules(remove_duplicate=False):
            if type(module).get_extra_state is not nn.Module.get_extra_state:
                state[canonical(f"{prefix}.{EXTRA}" if prefix else EXTRA)] = module.get_extra_state()
        return state | {other: state[name] for other, name in tied_names(self.model).items()}

    def _current(self, name: str) -> Tensor:
        holder, key = self._slots[name]
        return cast(Tensor, holder[key])

    def _refresh(self, model: nn.Module | None) -> None:
        # Walking over the modules costs more than averaging a small model, so it is done only after a tensor was
        # replaced. FSDP2 puts gathered parameters into the slots for a while: the optimizer updates the shards.
        if model is not None and model is not self._wrapped:
            self.follow(model)
            return
        for (holder, key), tensor in zip(self._averaged_slots, self._averaged, strict=True):
            if holder.get(key) is not tensor and not is_sharded(tensor):
                self.follow(model if model is not None else self.model)
                return

    def require_frozen(self) -> None:
        """Raise if a parameter that was frozen when the average was built is trainable now."""
        for name, tensor in self.live_excluded().items():
            if tensor.requires_grad and name not in self._may_train:
                raise ValueError(
                    f"parameters frozen when the average was built must stay frozen, but {name} is trainable now: "
                    f"build the average after unfreezing, or name it in include"
                )

    def require_same_modules(self) -> None:
        """Raise if a submodule was replaced, added or removed since the model was followed.

        Updates do not notice it, since they look only at the modules of then. The walk over the whole model is too slow
        for every update, so evaluations and readers of the average do it. Wrapping a module (compilation, activation
        checkpointing) and replacing it by one with the same tensors (`SyncBatchNorm`) are allowed.
        """
        before, now = self._slots, {name: slot for name, _, slot, _ in named_tensors(self.model)}
        moved = [name for name, slot in now.items() if name in before and slot[0] is not before[name][0]]
        problems = _problems(
            replaced=[name for name in moved if _tensor_at(now[name]) is not _tensor_at(before[name])],
            removed=[name for name in before if name not in now],
            added=[name for name in now if name not in before],
        )
        if problems:
            raise ValueError(
                f"the modules of a model must not change after its average is built; {problems}: "
                f"build the average after changing the model"
            )
        if moved:
            self.follow(self._wrapped)

    def _sort(
        self, model: nn.Module
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], dict[str, _Slot]]:
        averaged: dict[str, Tensor] = {}
        buffers: dict[str, Tensor] = {}
        excluded: dict[str, Tensor] = {}
        slots: dict[str, _Slot] = {}
        may_train: set[str] = set()
        # A parameter never changes its group, also when it is frozen later.
        known = {**dict.fromkeys(self.averaged, True), **dict.fromkeys(self.excluded, False)}
        model = unwrap(model)
        named = list(named_tensors(model))
        matching = set(chosen_names([name for name, *_ in named], tied_names(model), self.include, self.exclude))
        for name, tensor, slot, is_buffer in named:
            if is_lazy(tensor) or tensor.is_meta:
                raise ValueError(f"{name} holds no values yet (lazy or on the meta device): initialize the model first")
            chosen = name in matching
            floating = tensor.is_floating_point() or tensor.is_complex()
            if is_buffer:
                wanted = floating and chosen and self.buffer_mode == "average"
                (averaged if wanted else buffers)[name] = tensor
            elif known.get(name, floating and chosen and (tensor.requires_grad or bool(self.include))):
                averaged[name] = tensor
            else:
                excluded[name] = tensor
                if not chosen or not floating:
                    may_train.add(name)
            slots[name] = slot
        self._may_train = may_train
        return averaged, buffers, excluded, slots


def is_sharded(tensor: Tensor) -> bool:
    """Whether the tensor is a DTensor, so that this rank has only a shard."""
    return hasattr(tensor, "_local_tensor")


def _shard(tensor: Tensor) -> Tensor:
    return cast(Tensor, getattr(tensor, "_local_tensor", tensor))


def local(tensor: Tensor) -> Tensor:
    """Return this rank's values, detached, in the same memory."""
    return _shard(tensor).detach()


def like(tensor: Tensor, values: Tensor) -> Tensor:
    """Return this rank's `values` as the shard of a tensor that is distributed like `tensor`."""
    if not is_sharded(tensor):
        return values
    from torch.distributed.tensor import DTensor

    whole = cast(DTensor, tensor)
    return DTensor.from_local(
        values, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def localized(target: Tensor, source: Tensor) -> Tensor:
    """Return this rank's shard of `source`, which is a whole tensor or distributed like `target`."""
    if is_sharded(source) or not is_sharded(target):
        return local(source)
    from torch.distributed.tensor import DTensor, distribute_tensor

    whole = cast(DTensor, target)
    return local(distribute_tensor(source.to(target.device), whole.device_mesh, whole.placements))


def reshard(model: nn.Module) -> None:
    """Make FSDP2 gather the parameters again at the next forward, since their shards change."""
    for module in model.modules():
        if callable(reshard_module := getattr(module, "reshard", None)) and hasattr(module, "unshard"):
            reshard_module()


_swapped: weakref.WeakKeyDictionary[nn.Module, Mapping[str, Tensor]] = weakref.WeakKeyDictionary()
"""Models that hold an average right now, each with the live tensors that it replaces, by name."""


@contextmanager
def restored(tensors: Sequence[Tensor] | Callable[[], Sequence[Tensor]]) -> Iterator[list[Tensor]]:
    """Save the tensors, and copy them back after the block, whatever happened in it. Yield the saved ones.

    The values are copied rather than recomputed: adding a perturbation and subtracting it again rounds twice.

    >>> weight = torch.tensor([0.1])
    >>> with restored([weight]):
    ...     _ = weight.add_(1e8)
    >>> weight
    tensor([0.1000])

    Args:
        tensors: The tensors to restore. A function that returns them is called again at the end, for a model whose
            tensors may be replaced in the block.
    """

    def current() -> list[Tensor]:
        return list(tensors() if callable(tensors) else tensors)

    saved = [tensor.detach().clone() for tensor in current()]
    try:
        yield saved
    finally:
        with torch.no_grad():
            torch._foreach_copy_(current(), saved)


@contextmanager
def swapped(model: nn.Module, tensors: Callable[[], Mapping[str, Tensor]]) -> Iterator[None]:
    """Mark `model` as holding an average for the block, and restore its tensors afterwards."""
    if model in _swapped:
        raise RuntimeError("this model holds an average already: leave that block before entering another")
    with restored(lambda: list(tensors().values())) as saved:
        _swapped[model] = dict(zip(tensors(), saved, strict=True))
        try:
            yield
        finally:
            del _swapped[model]


def is_swapped(model: nn.Module) -> bool:
    """Whether `model` holds an average instead of its live weights."""
    return model in _swapped


def accumulator(tensor: Tensor) -> torch.dtype:
    """Return the dtype to sum in: float32, or the tensor's own where that is wider."""
    return torch.promote_types(tensor.dtype, torch.float32)


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor, _Slot, bool]]:
    """Yield each tensor once: its first name, the tensor, the dict and key that hold it, and whether it is a buffer."""
    seen: set[int] = set()
    for found in _stored_tensors(model.named_modules()):
        if id(found[1]) not in seen:
            seen.add(id(found[1]))
            yield found


def tied_names(model: nn.Module) -> dict[str, str]:
    """Return further names of tied parameters and shared buffers, each with the one that `named_tensors` yields."""
    first = {id(tensor): name for name, tensor, _, _ in named_tensors(model)}
    every = _stored_tensors(model.named_modules(remove_duplicate=False))
    return {name: kept for name, tensor, _, _ in every if (kept := first[id(tensor)]) != name}


def _stored_tensors(named_modules: Iterable[tuple[str, nn.Module]]) -> Iterator[tuple[str, Tensor, _Slot, bool]]:
    """Yield what a state dict contains, parameters first; tied tensors under each of their names."""
    modules = list(named_modules)
    for is_buffer in (False, True):
        for prefix, module in modules:
            holder = cast(dict[str, Any], module._buffers if is_buffer else module._parameters)
            for key, tensor in holder.items():
                if tensor is None or (is_buffer and key in module._non_persistent_buffers_set):
                    continue
                yield canonical(f"{prefix}.{key}" if prefix else key), tensor, (holder, key), is_buffer


def _tensor_at(slot: _Slot) -> Tensor | None:
    holder, key = slot
    return holder.get(key)


def require_match(rule: str, expected: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> None:
    """Raise `rule` with the names that differ, unless both have tensors of the same names and shapes."""
    reshaped = [
        f"{name} {tuple(actual[name].shape)} instead of {tuple(expected[name].shape)}"
        for name in expected
        if name in actual and expected[name].shape != actual[name].shape
    ]
    problems = _problems(
        missing=[name for name in expected if name not in actual],
        unknown=[name for name in actual if name not in expected],
        of_another_shape=reshaped,
    )
    if problems:
        raise ValueError(f"{rule}; {problems}")


def _problems(**names_by_problem: list[str]) -> str:
    """Return the problems that have names, each with the first five of them."""
    return "; ".join(
        f"{problem.replace('_', ' ')} {listed(names, 5)}" for problem, names in names_by_problem.items() if names
    )


def as_patterns(patterns: Patterns) -> tuple[str, ...]:
    """Return name patterns as a tuple, whether one, several or none were given."""
    if patterns is None:
        return ()
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def chosen_names(
    names: Iterable[str], tied: Mapping[str, str], include: Patterns, exclude: Patterns, kind: str = "tensor"
) -> list[str]:
    """Return the names that match shell-style patterns (case matters), each of which must match one.

    A tied tensor is included or excluded under any of its names.

    Args:
        names: The name of every tensor.
        tied: Further names of the tensors, each with the one in `names`.
        include: Patterns to match. By default everything matches.
        exclude: Patterns not to match.
        kind: What an error calls the tensors.
    """
    all_names = {name: [name] for name in names}
    for other, name in tied.items():
        if name in all_names:
            all_names[name].append(other)
    wanted, unwanted = as_patterns(include), as_patterns(exclude)

    def matches(name: str, patterns: Iterable[str]) -> bool:
        return any(fnmatchcase(either, pattern) for either in all_names[name] for pattern in patterns)

    for pattern in (*wanted, *unwanted):
        if not any(matches(name, [pattern]) for name in all_names):
            examples = ", ".join(list(all_names)[:3])
            raise ValueError(f"the pattern {pattern!r} matches no {kind}; names look like {examples}")
    return [name for name in all_names if (not wanted or matches(name, wanted)) and not matches(name, unwanted)]
