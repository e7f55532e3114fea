"""Weights that are moved for a moment and put back, and gradients that all processes agree on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def restored(weights: Sequence[nn.Parameter]) -> Iterator[None]:
    """Whatever the block does to the weights, after it they are what they were, to the last bit.

    They are copied back: adding a move and taking it off again rounds twice and ends beside where it began.
    """
    kept = [weight.detach().clone() for weight in weights]
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(list(weights), kept)


def gradients(weights: Sequence[nn.Parameter]) -> list[Tensor]:
    """The gradients that lie with the weights; zeros where a loss does not reach one."""
    return [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights]
