"""Gradients of the weights, as tensors that are always there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def gradients(weights: Sequence[nn.Parameter]) -> list[Tensor]:
    """The gradients that lie with the weights; zeros where a loss does not reach one."""
    return [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights]
