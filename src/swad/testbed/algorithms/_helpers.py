"""Helpers that several algorithms share: random numbers, dropout, parameters, complete or scaled gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def host_stream(*numbers: int) -> np.random.RandomState:
    """Return the NumPy stream of some numbers, for what the host must know, or torch cannot draw from a generator.

    The numbers are those of a step and of its generator, `generator.initial_seed()`, or of the run. The seed of a
    generator is known on the host; a number drawn on a GPU would have to be read back.
    """
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(numbers)))


def draw_beta(stream: np.random.RandomState, alpha: float, size: int) -> list[float]:
    """Draw from Beta(alpha, alpha). For 0 return ones, its limit: one of the two images is taken whole."""
    return [1.0] * size if alpha == 0 else [float(value) for value in stream.beta(alpha, alpha, size)]


def as_tensor(values: list[float], device: torch.device) -> Tensor:
    """Copy numbers to a device without waiting for it."""
    return torch.tensor(values, dtype=torch.float32).to(device, non_blocking=True)


def random_order(generator: torch.Generator, *shape: int) -> Tensor:
    """Draw orders of the last dimension."""
    return torch.rand(shape, generator=generator, device=generator.device).argsort(-1)


def ring_partners(generator: torch.Generator, *shape: int) -> Tensor:
    """Put the numbers of the last dimension into a ring in random order, and return the next one of each."""
    ring = random_order(generator, *shape)
    return torch.empty_like(ring).scatter_(-1, ring, ring.roll(-1, -1))


def parameters_of(optimizers: Iterable[torch.optim.Optimizer]) -> list[nn.Parameter]:
    """Return the parameters of optimizers."""
    return [param for optimizer in optimizers for group in optimizer.param_groups for param in group["params"]]


def gradients(weights: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return the gradient of every weight, with zeros for weights that the loss does not reach."""
    return [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights]


def is_dense(tensor: Tensor) -> bool:
    """Return whether the entries fill a block of memory, in the order of any dimensions."""
    return torch.empty_like(tensor).stride() == tensor.stride()


@torch.no_grad()
def match_layouts(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Lay gradients and moments out as their parameters are: a hook to run before every step.

    torch's fused optimizers on the CPU (2.15) take all of them in the order of memory, whatever their strides: a
    transposed gradient moves half of the entries the wrong way. On a GPU they refuse it.
    """
    for group in optimizer.param_groups:
        for param in group["params"] if group.get("fused") else ():
            if not param.is_cpu:
                continue
            if param.grad is not None and param.grad.stride() != param.stride():
                param.grad = torch.empty_like(param).copy_(param.grad)
            state = optimizer.state.get(param, {})
            for key, value in state.items():
                if isinstance(value, Tensor) and value.shape == param.shape and value.stride() != param.stride():
                    state[key] = torch.empty_like(param, dtype=value.dtype).copy_(value)


def dropout_mask(generator: torch.Generator, dropout: float, *shape: int) -> Tensor:
    """Draw a mask that drops a fraction of the entries and enlarges the others, so that the mean stays."""
    kept = torch.rand(shape, generator=generator, device=generator.device) >= dropout
    return kept.float() / (1 - dropout)


def apply_mask(rows: Tensor, mask: Tensor | None) -> Tensor:
    """Multiply rows by a dropout mask, if there is one."""
    return rows if mask is None else rows * mask


def scale_gradient(rows: Tensor, factor: float) -> Tensor:
    """Return the same rows, with their gradient multiplied by a factor: a negative one reverses it."""
    if not rows.requires_grad:
        return rows
    same = rows.view_as(rows)
    same.register_hook(lambda gradient: factor * gradient)  # type: ignore[no-untyped-call]
    return same
