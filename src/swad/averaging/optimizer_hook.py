"""Updating an average after every step that an optimizer really makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from swad.averaging.tensors import TrackedTensors

Update = Callable[[nn.Module | None, Tensor | None], None]
"""Takes the model (None: the one followed so far) and, on the device, whether a GradScaler skipped the step."""


class OptimizerHook(RemovableHandle):
    """Calls `update` after each step of `optimizer` until it is removed."""

    def __init__(self, optimizer: torch.optim.Optimizer, tracked: TrackedTensors, update: Update) -> None:
        stepped = {id(param) for group in optimizer.param_groups for param in group["params"]}
        if not any(id(tensor) in stepped for tensor in tracked.averaged.values()):
            raise ValueError(
                "the optimizer steps none of the averaged parameters: attach the one that trains the model"
            )
        inner = optimizer
        while isinstance(wrapped := getattr(inner, "optimizer", None), torch.optim.Optimizer):
            inner = wrapped  # accelerate wraps optimizers, and only the hooks of the inner one fire

        def hook(stepped: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            # `found_inf` exists only while a GradScaler steps an optimizer that unscales by itself (a fused one).
            update(None, getattr(stepped, "found_inf", None))

        self._hook = inner.register_step_post_hook(hook)
        self.active = True

    def remove(self) -> None:
        """End the updates."""
        self._hook.remove()
        self.active = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()
