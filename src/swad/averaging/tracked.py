"""The tensors of a model that an average follows.

An average built on a plain model follows the compiled one and the other way round, since names are canonical
(`swad.tensors.names`). Under FSDP2 each rank touches only its own shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from swad.tensors import swapping
from swad.tensors.names import (
    Patterns,
    Slot,
    as_patterns,
    canonical,
    chosen_names,
    listed_problems,
    named_tensors,
    require_match,
    tensor_at,
    tied_names,
    unwrap,
)
from swad.tensors.shards import is_sharded, like, local, localized, reshard, shard
from swad.util.names import require_choice

Buffers = Literal["copy", "average"]


EXTRA = "_extra_state"
"""The key under which a state dict has what a module's `get_extra_state` returns."""


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
        self._slots: dict[str, Slot] = {}  # of all of them
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
        return [shard(tensor) for tensor in self._averaged] if self._sharded else self._averaged

    def live_buffers(self) -> list[Tensor]:
        """Return the buffers with the values of the live weights, also while the model holds an average."""
        live = swapping.replaced.get(self.model, {})
        return [live.get(name, held) for name, held in zip(self.buffers, self.held_buffers(), strict=True)]

    def held_buffers(self) -> list[Tensor]:
        """Return the buffers that the model holds."""
        # Read from the modules: unlike parameters, buffers are often replaced rather than written to.
        return [shard(self._current(name)) for name in self.buffers]

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

    @torch.no_grad()
    def live_state(self) -> dict[str, Tensor]:
        """Return what writing an average changes, with the live values also while the model holds an average."""
        live = swapping.replaced.get(self.model, {})
        targets = self.averaged | {name: self._current(name) for name in self.buffers}
        return {name: like(targets[name], live.get(name, held).detach()) for name, held in self.written(False).items()}

    @torch.no_grad()
    def load_live_state(self, saved: Mapping[str, Tensor]) -> None:
        """Write what `live_state` returned, gathered or not, into the model."""
        targets = self.averaged | {name: self._current(name) for name in self.buffers}
        require_match("live weights must be loaded into the model they were saved of", targets, saved)
        for name, held in self.written(False).items():
            held.copy_(localized(targets[name], saved[name]))

    def whole_state(self, averaged: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return a state dict that loads strictly: these tensors, and all others of the model."""
        state: dict[str, Any] = dict(averaged)
        for name in self.buffers:
            held = self._current(name)  # now, since the model may have changed its dtype or device
            state[name] = like(held, buffers[name].detach().to(held.device, held.dtype, copy=True))
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
                    f"pass include='*', which averages frozen parameters too, or build the average after unfreezing"
                )

    def require_same_modules(self) -> None:
        """Raise if a submodule was replaced, added or removed since the model was followed.

        Updates do not notice it, since they look only at the modules of then. The walk over the whole model is too slow
        for every update, so evaluations and readers of the average do it. Wrapping a module (compilation, activation
        checkpointing) and replacing it by one with the same tensors (`SyncBatchNorm`) are allowed.
        """
        before, now = self._slots, {name: slot for name, _, slot, _ in named_tensors(self.model)}
        moved = [name for name, slot in now.items() if name in before and slot[0] is not before[name][0]]
        problems = listed_problems(
            replaced=[name for name in moved if tensor_at(now[name]) is not tensor_at(before[name])],
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
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], dict[str, Slot]]:
        averaged: dict[str, Tensor] = {}
        buffers: dict[str, Tensor] = {}
        excluded: dict[str, Tensor] = {}
        slots: dict[str, Slot] = {}
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
