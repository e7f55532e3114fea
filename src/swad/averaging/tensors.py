"""The tensors of a model that an average follows: found by name, held without wrappers.

Names are canonical: what `torch.compile`, DDP and activation checkpointing put in front or in between is
dropped, so an average built on a plain model follows the compiled one and the other way round. Under FSDP2
only the rank's own shard is touched.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

Buffers = Literal["copy", "average"]
Patterns = str | Sequence[str] | None

_Slots = dict[str, tuple[dict[str, Any], str]]
"""Where each tensor is held: the module's dict and the key in it."""

_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside DDP, DataParallel and `torch.compile`."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif isinstance(inner := model._modules.get("_orig_mod"), nn.Module):
            model = inner
        else:
            return model


def canonical(name: str) -> str:
    """A tensor's name without the parts that wrappers add.

    >>> canonical("_orig_mod.layer1._checkpoint_wrapped_module.weight")
    'layer1.weight'
    """
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


class TrackedTensors:
    """A model's tensors, sorted into those averaged and those carried along.

    Averaged: trainable floating-point parameters (with `buffers="average"`, floating-point buffers too).
    Carried: buffers; an average takes those of its last averaged update. Left: frozen or excluded
    parameters, which an average does not own. Tied parameters count once; non-persistent buffers not at all.
    """

    def __init__(self, model: nn.Module, buffers: Buffers, include: Patterns, exclude: Patterns) -> None:
        if buffers not in ("copy", "average"):
            raise ValueError(f"buffers must be 'copy' or 'average'; got {buffers!r}")
        self.buffers = buffers
        self.include, self.exclude = as_patterns(include), as_patterns(exclude)
        self.model = unwrap(model)
        self._slots: list[tuple[dict[str, Any], str]] = []
        self.averaged: dict[str, Tensor] = {}
        self.carried: dict[str, Tensor] = {}
        self.left: dict[str, Tensor] = {}
        self.follow(model)
        if not self.averaged:
            raise ValueError(
                f"there is nothing to average: no trainable floating-point parameter of {type(unwrap(model)).__name__} "
                f"matches include={include!r}, exclude={exclude!r}"
            )

    def follow(self, model: nn.Module) -> None:
        """Follow `model` from now on; its tensors must be those followed before, by name and shape."""
        reshard(unwrap(model))  # a forward may have left whole parameters where the shards should be
        averaged, carried, left, slots = self._sort(model)
        if self.averaged:
            _compare("parameters", self.averaged, averaged)
            _compare("buffers and frozen parameters", self.carried | self.left, carried | left)
            # Sums are kept in the order seen first, whatever the order in which another model declares its modules.
            averaged = {name: averaged[name] for name in self.averaged}
            carried = {name: carried[name] for name in self.carried}
            changed = [n for n, t in averaged.items() if is_sharded(t) != is_sharded(self.averaged[n])]
            if changed:
                raise ValueError(
                    f"the model was sharded after the average was built ({changed[0]}): build the average last"
                )
        self.averaged, self.carried, self.left = averaged, carried, left
        self._slots = [slots[name] for name in averaged]
        self._carried_slots = [slots[name] for name in carried]
        self._left_slots = [slots[name] for name in left]
        self._sharded = any(is_sharded(tensor) for tensor in averaged.values())
        self._averaged = list(averaged.values())
        self.model, self._given = unwrap(model), model

    def live(self, model: nn.Module | None = None) -> list[Tensor]:
        """The averaged tensors as they are now (this rank's shards)."""
        self._refresh(model)
        return [_shard(t) for t in self._averaged] if self._sharded else self._averaged

    def live_carried(self) -> list[Tensor]:
        """The carried buffers as they are now."""
        # Read where they are held: unlike parameters, buffers are often replaced rather than written to.
        return [_shard(holder[key]) for holder, key in self._carried_slots]

    def _refresh(self, model: nn.Module | None) -> None:
        # A walk over the modules costs more than the averaging of a small model, so it is done only when some
        # tensor is no longer the one seen. FSDP2 puts gathered parameters in the slots for a while: the shards
        # seen first stay the ones the optimizer updates.
        if model is not None and model is not self._given:
            self.follow(model)
            return
        for (holder, key), tensor in zip(self._slots, self._averaged, strict=True):
            if holder.get(key) is not tensor and not is_sharded(tensor):
                self.follow(model if model is not None else self.model)
                return

    def live_left(self) -> dict[str, Tensor]:
        """The parameters that are not averaged, as they are now."""
        now = zip(self.left, self._left_slots, self.left.values(), strict=True)
        return {name: tensor if is_sharded(tensor) else holder[key] for name, (holder, key), tensor in now}

    def aliases(self) -> Iterator[tuple[str, str]]:
        """Further names of tied parameters and shared buffers, each with the name its tensor is kept under."""
        first: dict[int, str] = {}
        known = self.averaged.keys() | self.carried.keys() | self.left.keys()
        both = (self.model.named_parameters(remove_duplicate=False), self.model.named_buffers(remove_duplicate=False))
        for name, tensor in chain(*both):
            if id(tensor) not in first and canonical(name) not in known:
                continue
            kept = first.setdefault(id(tensor), canonical(name))
            if kept != canonical(name):
                yield canonical(name), kept

    def require_frozen(self) -> None:
        """Raise if a parameter that was frozen when the average was built trains by now."""
        for name, tensor in self.live_left().items():
            if tensor.requires_grad and name not in self._excluded:
                raise ValueError(
                    f"parameters frozen when the average was built must stay frozen; {name} trains now: "
                    f"build the average after unfreezing, or name it in include"
                )

    def _sort(self, model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], _Slots]:
        averaged: dict[str, Tensor] = {}
        carried: dict[str, Tensor] = {}
        left: dict[str, Tensor] = {}
        slots: _Slots = {}
        excluded: set[str] = set()
        known = {**dict.fromkeys(self.averaged, True), **dict.fromkeys(self.left, False)}  # roles never change
        for name, tensor, slot, is_buffer in named_tensors(unwrap(model)):
            if is_lazy(tensor) or tensor.is_meta:
                raise ValueError(f"{name} holds no values yet (lazy or on the meta device): initialize the model first")
            chosen = (not self.include or matches(name, self.include)) and not matches(name, self.exclude)
            floating = tensor.is_floating_point() or tensor.is_complex()
            if is_buffer:
                wanted = floating and chosen and self.buffers == "average"
                (averaged if wanted else carried)[name] = tensor
            elif known.get(name, floating and chosen and (tensor.requires_grad or bool(self.include))):
                averaged[name] = tensor
            else:
                left[name] = tensor
                if not chosen or not floating:
                    excluded.add(name)
            slots[name] = slot
        self._excluded = excluded
        names = list(slots)
        for pattern in (*self.include, *self.exclude):
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(f"the pattern {pattern!r} matches no tensor; names look like {', '.join(names[:3])}")
        return averaged, carried, left, slots


def is_sharded(tensor: Tensor) -> bool:
    """Whether the tensor is a DTensor, of which this rank holds a part."""
    return hasattr(tensor, "_local_tensor")


def _shard(tensor: Tensor) -> Tensor:
    return cast(Tensor, getattr(tensor, "_local_tensor", tensor))


def local(tensor: Tensor) -> Tensor:
    """This rank's values, detached, sharing memory."""
    return _shard(tensor).detach()


def like(tensor: Tensor, values: Tensor) -> Tensor:
    """`values` of this rank as part of a tensor distributed as `tensor` is."""
    if not is_sharded(tensor):
        return values
    from torch.distributed.tensor import DTensor

    whole = cast(DTensor, tensor)
    return DTensor.from_local(
        values, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def localized(target: Tensor, source: Tensor) -> Tensor:
    """This rank's part of `source`, which is distributed as `target` is, or whole."""
    if is_sharded(source) or not is_sharded(target):
        return local(source)
    from torch.distributed.tensor import DTensor, distribute_tensor

    whole = cast(DTensor, target)
    return local(distribute_tensor(source.to(target.device), whole.device_mesh, whole.placements))


def reshard(model: nn.Module) -> None:
    """Have FSDP2 gather the parameters anew at the next forward, after their shards were changed."""
    for module in model.modules():
        if callable(again := getattr(module, "reshard", None)) and hasattr(module, "unshard"):
            again()


_swapped: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Models that hold an average right now instead of their live weights."""


@contextmanager
def restored(tensors: Sequence[Tensor] | Callable[[], Sequence[Tensor]]) -> Iterator[None]:
    """Save the tensors, and copy them back after the block, whatever happened in it.

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
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(current(), saved)


@contextmanager
def swapped(model: nn.Module, tensors: Callable[[], Sequence[Tensor]]) -> Iterator[None]:
    """Mark `model` as holding an average for the block, and restore its tensors afterwards."""
    if model in _swapped:
        raise RuntimeError("this model holds an average already: leave that block before entering another")
    _swapped.add(model)
    try:
        with restored(tensors):
            yield
    finally:
        _swapped.discard(model)


def is_swapped(model: nn.Module) -> bool:
    """Whether `model` holds an average instead of its live weights."""
    return model in _swapped


def accumulator(tensor: Tensor) -> torch.dtype:
    """The dtype to sum in: float32, or the tensor's own where that is wider."""
    return torch.promote_types(tensor.dtype, torch.float32)


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor, tuple[dict[str, Any], str], bool]]:
    """Yield each tensor once: its first name, the tensor, the dict and key that hold it, and whether it is a buffer."""
    seen: set[int] = set()
    modules = list(model.named_modules())
    for is_buffer in (False, True):
        for prefix, module in modules:
            holder = cast(dict[str, Any], module._buffers if is_buffer else module._parameters)
            for key, tensor in holder.items():
                if tensor is None or id(tensor) in seen:
                    continue
                if is_buffer and key in module._non_persistent_buffers_set:
                    continue
                seen.add(id(tensor))
                yield canonical(f"{prefix}.{key}" if prefix else key), tensor, (holder, key), is_buffer


def _compare(what: str, ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    missing = [name for name in ours if name not in theirs]
    unknown = [name for name in theirs if name not in ours]
    reshaped = [
        f"{name} {tuple(theirs[name].shape)} instead of {tuple(ours[name].shape)}"
        for name in ours
        if name in theirs and ours[name].shape != theirs[name].shape
    ]
    faults = [
        f"{label} {', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
        for label, names in (("missing", missing), ("unknown", unknown), ("of another shape", reshaped))
        if names
    ]
    if faults:
        raise ValueError(f"the {what} must be those of the model the average was built on; {'; '.join(faults)}")


def as_patterns(patterns: Patterns) -> tuple[str, ...]:
    """Return name patterns as a tuple, whether one, several or none were given."""
    if patterns is None:
        return ()
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether `name` matches one of the shell-style patterns (case matters)."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
