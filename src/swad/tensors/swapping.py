"""Other values in the tensors of a model for a while, and the exact values back afterwards."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

replaced: weakref.WeakKeyDictionary[nn.Module, Mapping[str, Tensor]] = weakref.WeakKeyDictionary()
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
    if model in replaced:
        raise RuntimeError("this model holds an average already: leave that block before entering another")
    with restored(lambda: list(tensors().values())) as saved:
        replaced[model] = dict(zip(tensors(), saved, strict=True))
        try:
            yield
        finally:
            del replaced[model]


def is_swapped(model: nn.Module) -> bool:
    """Whether `model` holds an average instead of its live weights."""
    return model in replaced
