"""A slice of weight space, given by weights that span it, and its loss surface: the common part of planes and lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from swad.flatness._walk import NamedPoints, OnRow, evaluate_points
from swad.flatness.losses import LossFn
from swad.flatness.rows import Row
from swad.flatness.surface import Surface
from swad.flatness.weights import (
    Source,
    State,
    by_name,
    is_bn_statistic,
    parameters_by_name,
    same_shapes,
)
from swad.tensors.names import Patterns, chosen_names, tied_names, unwrap
from swad.util.progress import Progress

STEPS = 21


class Slice:
    """A plane or line in weight space: its corners by name, the first of which is the origin.

    A subclass sets `axes`, the vectors that x and y are multiples of, and `corner_coordinates`.
    """

    axes: Sequence[Tensor]
    corner_coordinates: Mapping[str, tuple[float, float]]
    """The coordinates of the weights that span it."""

    def __init__(self, corners: Mapping[str, Source], include: Patterns, exclude: Patterns) -> None:
        self.names = spanning_parameters(corners, include, exclude)
        self.corners: dict[str, State] = {corner: copy_state(source) for corner, source in corners.items()}
        self.origin = self._tensors(self.corners["1"], "weights 1")

    def grid(
        self, steps: int | tuple[int, int], margin: float = 0.0, *, around: Iterable[tuple[float, float]] = ()
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the x and y values of the points to evaluate."""
        raise NotImplementedError

    def locate(self, weights: Source) -> tuple[float, float, float]:
        """Project weights onto the slice and return x, y and their distance from it."""
        raise NotImplementedError

    def evaluate(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        steps: int | tuple[int, int] = STEPS,
        margin: float | None = None,
        *,
        points: Mapping[str, Source] | None = None,
        update_bn: Callable[[nn.Module], object] | None = None,
        on_row: OnRow | None = None,
        done_rows: Iterable[Row] = (),
        progress: Progress | None = None,
    ) -> Surface:
        """Evaluate a grid, the corners (named "1", "2" and in a plane "3"), and extra points.

        Args:
            model: A module of the network that the weights are loaded into; it is restored exactly. The grid has the
                buffers of the first corner, and parameters that `include` and `exclude` leave out stay the module's.
            loss_fn: `loss_fn(model)` returns a scalar, per-image losses, or {domain: per-image losses}.
            steps: Number of grid points along each side.
            margin: How far the grid extends beyond the corners, as a share of the longer side. By default 0.25 in a
                plane and 0 on a line.
            points: Extra weights by name, e.g. averages. They are evaluated with their own weights and buffers; their
                rows give the projection onto the plane or line and the distance from it.
            update_bn: Called at every point to re-estimate batch-norm statistics, which is needed unless they were
                frozen in training, e.g. `lambda model: swad.update_bn(loader, model)`.
            on_row: Called with every JSON row as soon as it is computed, e.g. to append it to a file.
            done_rows: Rows of an interrupted evaluation; their points are not evaluated again.
            progress: Called after every point.
        """
        taken = [name for name in points or () if name in self.corners]
        if taken:
            names = ", ".join(self.corners)
            raise ValueError(f"the names {names} belong to the corners: rename the point {taken[0]!r}")
        extra = {name: copy_state(weights) for name, weights in (points or {}).items()}
        corners = {name: (*at, 0.0, self.corners[name]) for name, at in self.corner_coordinates.items()}
        named: NamedPoints = {**corners, **{name: (*self.locate(weights), weights) for name, weights in extra.items()}}
        margins = {} if margin is None else {"margin": margin}
        grid = self.grid(steps, around=[named[name][:2] for name in extra], **margins)
        axes = [dict(zip(self.names, self.split(axis), strict=True)) for axis in self.axes]
        options = (update_bn, on_row, done_rows, progress)
        return evaluate_points(self.corners, axes, model, loss_fn, grid, named, *options)

    def _tensors(self, weights: Source, label: str) -> list[Tensor]:
        return same_shapes(weights, {name: self.corners["1"][name] for name in self.names}, label)

    def _offset(self, weights: Source, label: str = "the weights") -> Tensor:
        origin = flat(self.origin)
        return flat(self._tensors(weights, label)).to(origin.device) - origin

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return a vector of weight space as tensors in the parameters' shapes."""
        pieces = torch.split(vector, [tensor.numel() for tensor in self.origin])
        return [piece.view(tensor.shape) for piece, tensor in zip(pieces, self.origin, strict=True)]


def spanning_parameters(corners: Mapping[str, Source], include: Patterns, exclude: Patterns) -> list[str]:
    """Return the names of the parameters that span a slice; a module among the corners tells them from buffers."""
    modules = [source for source in corners.values() if isinstance(source, nn.Module)]
    source = modules[0] if modules else corners["1"]
    tied = tied_names(unwrap(source)) if isinstance(source, nn.Module) else {}
    names = chosen_names(parameters_by_name(source), tied, include, exclude, "parameter")
    if not names:
        raise ValueError(f"no parameter matches include={include!r}, exclude={exclude!r}: change the patterns")
    tensors = {
        corner: [name for name in by_name(weights) if not is_bn_statistic(name)] for corner, weights in corners.items()
    }
    for corner in corners:
        for one, other in ((corner, "1"), ("1", corner)):
            missing = [name for name in tensors[one] if name not in tensors[other]]
            if missing:
                raise ValueError(
                    f"weights {one} have {missing[0]}, which weights {other} lack: give weights of one network"
                )
    return names


def copy_state(source: Source) -> State:
    """Copy weights: a module may be trained on, and a state dict may share its tensors with the evaluated model."""
    return {name: tensor.detach().clone() for name, tensor in by_name(source).items()}


# --- vectors in weight space: one tensor each, in double precision, since their norms sum millions of squares -------


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors as one vector."""
    return torch.cat([tensor.reshape(-1).to(tensors[0].device) for tensor in tensors]).double()


def dot(a: Tensor, b: Tensor) -> float:
    """Return the inner product of two vectors."""
    return float(torch.dot(a, b))


def length(vector: Tensor) -> float:
    """Return the Euclidean length of a vector."""
    return float(torch.linalg.vector_norm(vector))
