"""The walk that every measurement of perturbed weights makes: to points theta + sum of length x direction."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from swad.flatness.losses import Losses, LossFunction
from swad.flatness.weights import Moves, State, Weights

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Point(Generic[K]):
    """A point of weight space: the center plus some moves, or weights of its own."""

    key: K
    moves: Moves = ()
    weights: State | None = None
    label: str = "the weights"
    """Names its own weights in errors."""


def walk(
    weights: Weights,
    loss_fn: LossFunction,
    points: Iterable[Point[K]],
    *,
    center: Sequence[Tensor] | None = None,
    arrive: Callable[[Point[K]], None] | None = None,
    done: Container[K] = (),
    progress: Callable[[int], None],
) -> Iterator[tuple[Point[K], Losses]]:
    """Move a model to one point after the other and yield its losses there, without waiting for the device.

    The weights stay at the last point: the end of their `with` block restores them.

    Args:
        weights: The weights that are moved.
        loss_fn: Evaluates the model.
        points: The points, in the order of the walk.
        center: What the moves start from; by default the original weights.
        arrive: Called at every point before it is evaluated, e.g. to re-estimate batch-norm statistics.
        done: Keys of points that were measured before; they are not visited.
        progress: Called with the number of points so far, also those that were measured before.
    """
    for number, point in enumerate(points, 1):
        if point.key not in done:
            start = weights.base if center is None else center
            weights.put(start if point.weights is None else weights.of(point.weights, point.label), point.moves)
            if arrive is not None:
                arrive(point)
            yield point, loss_fn.losses(weights.given)
        progress(number)
