"""The common part of one average and of a group of averages: following an optimizer, and counting its updates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from swad.averaging.sums import Segment
from swad.averaging.tensors import TrackedTensors

STATE_VERSION = 1


class Averager:
    """Takes the weights after every update, and knows how many updates there were."""

    tracked: TrackedTensors

    def __init__(self) -> None:
        self._segment = Segment()
        self._updates = 0  # calls so far; `step` subtracts those that a GradScaler skipped
        self._skips: Tensor | None = None  # how many it skipped, still on the device
        self._observed = 0  # the update of the last evaluation
        self._hook: RemovableHandle | None = None  # at the optimizer whose steps are the updates
        self._in_group = False

    def update_parameters(self, model: nn.Module | None = None) -> None:
        """Take the weights after an optimizer step, for the cost of one foreach addition.

        In a CUDA graph capture only the addition is recorded; call `count_replays` once per replay.

        Args:
            model: The model, which may also be wrapped (DDP, `torch.compile`) or another one with the same tensors. By
                default the one followed so far.
        """
        if self._attached:
            raise RuntimeError(
                "this average is attached to an optimizer, whose steps it counts: remove the call to update_parameters"
            )
        self._require_no_group("update_parameters")
        self.take_update(model, skipped=None)

    def attach(self, optimizer: torch.optim.Optimizer) -> RemovableHandle:
        """Update after every step `optimizer` really makes, until `.remove()` is called on the returned handle.

        Gradient accumulation needs no setting: only steps count. A step that a `GradScaler` skips does not count,
        also with fused optimizers, whose step runs but leaves the weights unchanged.

        Args:
            optimizer: The optimizer that trains the averaged parameters; of several, the one that steps last.
        """
        self._require_no_group("attach")
        if self._attached:
            raise RuntimeError(
                "this average is already attached to an optimizer: call .remove() on that handle before attaching again"
            )
        self._require_same_modules()
        while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
            optimizer = inner  # accelerate and others wrap optimizers, and only the hooks of the inner one fire
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                f"attach needs a torch optimizer, got a {type(optimizer).__name__}: "
                f"pass the optimizer that trains the model"
            )
        self.tracked.live()  # looks tensors up again that were replaced, e.g. by load_state_dict(assign=True)
        stepped = {id(param) for group in optimizer.param_groups for param in group["params"]}
        if not any(id(tensor) in stepped for tensor in self.tracked.averaged.values()):
            raise ValueError(
                "the optimizer steps none of the averaged parameters: attach the one that trains the model"
            )

        def hook(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            # `found_inf` exists only while a GradScaler steps an optimizer that unscales by itself (a fused one).
            self.take_update(None, getattr(optimizer, "found_inf", None))

        self._hook = optimizer.register_step_post_hook(hook)
        return self._hook

    @property
    def step(self) -> int:
        """Updates so far."""
        self._resolve_skips()
        return self._updates

    def take_update(self, model: nn.Module | None, skipped: Tensor | None) -> None:
        """Take the weights after a step; `skipped`, on the device, is positive where a GradScaler skipped it."""
        raise NotImplementedError

    @property
    def _attached(self) -> bool:
        return self._hook is not None and self._hook.id in (self._hook.hooks_dict_ref() or ())

    def _require_no_group(self, method: str) -> None:
        if self._in_group:
            raise RuntimeError(f"this average is a member of an AverageGroup: call {method} of the group instead")

    def _require_same_modules(self) -> None:
        self.tracked.require_same_modules()

    def _require_new_update(self) -> None:
        """Raise if no update was made since the last evaluation."""
        if self._updates <= self._observed:
            raise RuntimeError(
                f"observe needs an update since its last call, which was at update {self._observed}: "
                f"call update_parameters after every optimizer step, and observe once per evaluation"
            )

    def _count_skip(self, skipped: Tensor) -> Tensor:
        """Count a step that may have been skipped; return 1 if it was, else 0, both on the device."""
        skip = (skipped > 0).to(torch.float32).reshape(())
        if self._skips is None:
            self._skips = torch.zeros((), dtype=torch.int64, device=skip.device)
        self._skips += skip.to(torch.int64)
        return skip

    def _resolve_skips(self) -> None:
        """Read how many steps were skipped. Waits for the device, so only evaluations and checkpoints call it."""
        if self._skips is not None:
            self._updates -= int(self._skips)
            self._skips = None
            self._segment.last = min(self._segment.last, self._updates)
        self._segment.resolve_count()


def require_unskipped(skipped: Tensor | None) -> None:
    """Raise if a GradScaler may skip the update that is captured."""
    if skipped is not None:
        raise RuntimeError("a CUDA graph cannot count steps that a GradScaler may skip: update outside the graph")


def read_header(state: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return the header of a state that was written for an average or a group, or raise."""
    rule = f"{owner} loads what its state_dict() returned"
    if not isinstance(state, Mapping):
        raise TypeError(f"{rule}, got a {type(state).__name__}: load the file first, and pass its content")
    if not isinstance(state.get("header"), str):
        keys = ", ".join(map(str, list(state)[:3])) or "nothing"
        raise ValueError(f"{rule}, got a dict of {keys}: load weights with model.load_state_dict")
    header: dict[str, Any] = json.loads(state["header"])
    if header.get("version") != STATE_VERSION:
        raise ValueError(
            f"this state has version {header.get('version')!r}, expected {STATE_VERSION}: "
            f"load it with the version of swad that wrote it"
        )
    return header
