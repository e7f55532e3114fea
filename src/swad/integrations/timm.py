"""SWAD in the shape of timm's `ModelEmaV3`, for training scripts written around it. Needs no timm.

model_swad = ModelSwad(model)
...
optimizer.step()
model_swad.update(model, step=num_updates)
...
model_swad.observe(validate(model, loader_eval, ...)["loss"])
validate(model_swad, loader_eval, ...)           # the averaged weights
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from swad.averaging.base import Average
from swad.averaging.swad import SWAD
from swad.averaging.tensors import unwrap
from swad.averaging.valley import Status


class ModelSwad(nn.Module):
    """A second model that always holds the average as if training ended now.

    Where a timm script has `model_ema`, this fits: `update(model, step)` after every optimizer step, call or
    validate it like a model, hand it to a `CheckpointSaver`, which files the averaged weights under
    `state_dict_ema`. One line is new: `observe(loss)` after every evaluation of the *live* model, whose answer
    says when to stop.

    `module` is an ordinary model in eval mode; it is brought up to date when it is read, and only if the average
    has changed, so it costs nothing until then. Before the first update it holds the initial weights; before the
    valley is confirmed, reading it warns (`swad.NeverConvergedWarning`). Build it before DDP and compilation, as
    `ModelEmaV3`. `device` puts the second model elsewhere, `offload=True` the average.

    `state_dict` is what a resumed training needs, not the averaged weights: save it beside the checkpoint.
    `average` takes another class (`average=swad.SMA, start=100`); further options are that class's, by default
    those of `swad.SWAD`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        device: torch.device | str | None = None,
        average: Callable[..., Average] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.averager = (SWAD if average is None else average)(model, **options)
        second = copy.deepcopy(unwrap(model)).eval().requires_grad_(False)
        self._second = (second.to(device),)  # in a tuple: no submodule, or its weights would enter the state dict
        self._held: Status | None = None  # what the second model holds

    def update(self, model: nn.Module, step: int | None = None) -> None:
        """Take the weights after an optimizer step; `step` is accepted for `ModelEmaV3`'s sake, steps are counted."""
        self.averager.update_parameters(model)

    def observe(self, loss: float | Tensor) -> Status:
        """Take the live model's validation loss after an evaluation and say where the trajectory is."""
        return self.averager.observe(loss)

    @property
    def status(self) -> Status:
        """Where the trajectory is, and what would be averaged if training ended now."""
        return self.averager.status

    @property
    def module(self) -> nn.Module:
        """The averaged model, up to date."""
        (second,) = self._second
        status = self.status
        if self.averager.step and (self._held is None or self._held.spans != status.spans):
            self.averager.copy_to(second)
            self._held = status
        return second

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the averaged model answers."""
        return self.module(*args, **kwargs)

    def get_extra_state(self) -> dict[str, Any]:
        """The state of the average, all there is in `state_dict`."""
        return self.averager.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Go on exactly where the state was taken."""
        self.averager.load_state_dict(state)
        self._held = None
