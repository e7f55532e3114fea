"""Slices of weight space: the plane through three weights, and the line between two.

The axes of the plane through theta_1, theta_2, theta_3 are u = theta_2 - theta_1 and v = (theta_3 - theta_1) minus
its projection on u, both scaled to length 1. (The paper's printed v subtracts a number from a vector and divides by a
vector, a misprint for this Gram-Schmidt step.) A point (x, y) stands for theta_1 + x u + y v, so distances on the
plane are distances in weight space. The three corners, and the two ends of a line, are evaluated with their own
weights, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from swad.flatness.losses import LossFn, as_loss_function
from swad.flatness.points import Point, walk
from swad.flatness.rows import Row
from swad.flatness.surface import (
    POINT,
    Grid,
    Key,
    OnRow,
    Surface,
    SurfaceRow,
    head_row,
    require_same_losses,
    resumed_rows,
)
from swad.flatness.weights import (
    Source,
    State,
    Weights,
    by_name,
    chosen_parameters,
    is_bn_statistic,
    parameters_by_name,
    same_shapes,
    split_like,
)
from swad.tensors.names import Patterns, chosen_names, named_tensors, tied_names, unwrap
from swad.util.progress import Progress, count_progress

STEPS = 21
MARGIN = 0.25
COLLINEAR = 1e-6
"""Weights are collinear if the third is closer to the line through the others than this share of their distance."""


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
        function = as_loss_function(loss_fn)
        _require_parameters_of(model, self.names)
        _require_usable_buffers(model, list(self.corners.values()), update_bn is not None)
        own = {**self.corners, **{name: copy_state(weights) for name, weights in (points or {}).items()}}
        places = {name: (*self.corner_coordinates[name], 0.0) for name in self.corners}
        places |= {name: self.locate(own[name]) for name in points or ()}
        margins = {} if margin is None else {"margin": margin}
        grid = self.grid(steps, around=[places[name][:2] for name in points or ()], **margins)
        with torch.no_grad(), Weights(model, names=self.names) as weights:
            # Statistics that are re-estimated may be missing.
            statistics = {name: tensor.clone() for name, tensor in weights.buffers().items() if is_bn_statistic(name)}
            defaults = statistics if update_bn is not None else {}
            walked = self._points(weights, grid, own, places)
            first = walked[0]
            rows, done = resumed_rows(done_rows, head_row(grid, weights.dim), on_row)
            # The first corner is always evaluated: it shows whether the rows are of these weights and images, and all
            # points have the scale of its logits.
            known_first = done.pop(first.key, None)

            def arrive(point: Point[Key]) -> None:
                buffers = self.corners["1"] if point.weights is None else point.weights
                weights.put_buffers({**defaults, **buffers}, point.label)
                if update_bn is not None:
                    update_bn(model)
                if point is first:
                    function.fit(model)

            report = count_progress(progress, "loss surface", len(walked))
            center = weights.of(self.corners["1"])
            visits = walk(weights, function, walked, center=center, arrive=arrive, done=done, progress=report)
            for point, measured in visits:
                name, x, y = point.key
                losses, *errors = (measure.means for measure in measured.checked().measures)
                distance = 0.0 if name is None else places[name][2]
                row = SurfaceRow(x, y, name, distance, losses, errors[0] if errors else {})
                if point is first and known_first is not None:
                    require_same_losses(known_first, row)
                    continue
                rows.append({"kind": POINT, **row.as_dict()})
                if on_row is not None:
                    on_row(rows[-1])
        return Surface.from_rows(rows)

    def _points(
        self, weights: Weights, grid: Grid, own: Mapping[str, State], places: Mapping[str, tuple[float, float, float]]
    ) -> list[Point[Key]]:
        """Return the points to walk to: those with weights of their own, so that wrong ones show at once; the grid."""
        axes = [
            [tensor.to(dtype) for tensor, dtype in zip(weights.of(self._named(axis)), weights.dtypes, strict=True)]
            for axis in self.axes
        ]
        points: list[Point[Key]] = [
            Point((name, x, y), weights=own[name], label=f"the weights {name!r}") for name, (x, y, _) in places.items()
        ]
        # A point of the grid that is a corner gets the corner's own weights, without rounding.
        at_corner = {place: self.corners[name] for name, place in self.corner_coordinates.items()}
        for y in grid[1]:
            for x in grid[0]:
                corner = at_corner.get((x, y))
                moves = list(zip(axes, (x, y), strict=False)) if corner is None else ()
                points.append(Point((None, x, y), moves, corner))
        return points

    def _named(self, vector: Tensor) -> State:
        return dict(zip(self.names, self.split(vector), strict=True))

    def _tensors(self, weights: Source, label: str) -> list[Tensor]:
        return same_shapes(weights, {name: self.corners["1"][name] for name in self.names}, label)

    def _offset(self, weights: Source, label: str = "the weights") -> Tensor:
        origin = _flat(self.origin)
        return _flat(self._tensors(weights, label)).to(origin.device) - origin

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return a vector of weight space as tensors in the parameters' shapes."""
        return split_like(self.origin, vector)


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


class Plane(Slice):
    """The plane through three weights, each a module or a state dict.

    Args:
        w1: The weights at (0, 0).
        w2: The weights at (x2, 0).
        w3: The weights at (x3, y3).
        include: Name patterns of the parameters that span the plane; by default all floating-point parameters. A
            state dict does not tell parameters from buffers: batch-norm statistics are recognized by name, other
            floating-point buffers must be excluded.
        exclude: Name patterns of parameters that do not.

    >>> import torch
    >>> w1, w2, w3 = ({"w": torch.tensor(w)} for w in ([0.0, 0.0], [2.0, 0.0], [1.0, 3.0]))
    >>> surface = plane(w1, w2, w3)
    >>> surface.corner_coordinates["3"], surface.coordinates({"w": torch.tensor([1.0, 1.0])})
    ((1.0, 3.0), (1.0, 1.0, 0.0))
    """

    def __init__(
        self, w1: Source, w2: Source, w3: Source, *, include: Patterns = None, exclude: Patterns = None
    ) -> None:
        super().__init__({"1": w1, "2": w2, "3": w3}, include, exclude)
        self.u = self._offset(self.corners["2"], "weights 2")
        self.x2 = _length(self.u)
        if not self.x2:
            raise ValueError("a plane needs three different weights, but the first two are the same: choose others")
        self.u /= self.x2
        self.v = self._offset(self.corners["3"], "weights 3")
        distance = _length(self.v)
        self.x3 = _dot(self.v, self.u)
        self.v -= self.x3 * self.u
        # Orthogonalize a second time: the first pass leaves a rounding error in proportion to what it removed.
        correction = _dot(self.v, self.u)
        self.v -= correction * self.u
        self.x3 += correction
        self.y3 = _length(self.v)
        if self.y3 <= COLLINEAR * max(distance, self.x2):
            raise ValueError(
                f"a plane needs three weights that are not on one line: the third is {self.y3:.3g} from the line "
                f"through the first two, which are {self.x2:.3g} apart; choose another, or use line(w1, w2)"
            )
        self.v /= self.y3
        self.axes = [self.u, self.v]
        self.corner_coordinates = {"1": (0.0, 0.0), "2": (self.x2, 0.0), "3": (self.x3, self.y3)}

    def coordinates(self, weights: Source) -> tuple[float, float, float]:
        """Project weights onto the plane and return x, y and their distance from the plane."""
        offset = self._offset(weights)
        x, y = _dot(offset, self.u), _dot(offset, self.v)
        return x, y, _length(offset - x * self.u - y * self.v)

    locate = coordinates

    def weights(self, x: float, y: float) -> dict[str, Tensor]:
        """Return the parameters at a point, in the precision of the corners."""
        moved = self.split(_flat(self.origin) + x * self.u + y * self.v)
        return {
            name: tensor.to(start.device, start.dtype)
            for name, start, tensor in zip(self.names, self.origin, moved, strict=True)
        }

    def grid(
        self,
        steps: int | tuple[int, int] = STEPS,
        margin: float = MARGIN,
        *,
        around: Iterable[tuple[float, float]] = (),
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the x and y values of a regular grid over the bounding box of the corners, widened on every side.

        Args:
            steps: Number of points along each side.
            margin: How far the grid extends beyond the box, as a share of the box's longer side.
            around: Further points that the box must contain.
        """
        points = [*self.corner_coordinates.values(), *around]
        sides = [(min(values), max(values)) for values in zip(*points, strict=True)]
        extra = margin * max(high - low for low, high in sides)
        counts = (steps, steps) if isinstance(steps, int) else steps
        if min(counts) < 2 or margin < 0:
            raise ValueError(f"a grid needs 2 steps or more and a margin of 0 or more, got {steps} and {margin}")
        xs, ys = (_linspace(low - extra, high + extra, n) for (low, high), n in zip(sides, counts, strict=True))
        return xs, ys


class Line(Slice):
    """The line through two weights, w1 at 0 and w2 at 1; arguments are as for `plane`."""

    def __init__(self, w1: Source, w2: Source, *, include: Patterns = None, exclude: Patterns = None) -> None:
        super().__init__({"1": w1, "2": w2}, include, exclude)
        self.step = self._offset(self.corners["2"], "weights 2")
        self.length = _length(self.step)
        """Distance between the two weights."""
        if not self.length:
            raise ValueError("a line needs two different weights, but both are the same: choose others")
        self.axes = [self.step]
        self.corner_coordinates = {"1": (0.0, 0.0), "2": (1.0, 0.0)}

    def coordinates(self, weights: Source) -> tuple[float, float]:
        """Project weights onto the line and return x (0: w1, 1: w2) and their distance from the line."""
        offset = self._offset(weights)
        x = _dot(offset, self.step) / self.length**2
        return x, _length(offset - x * self.step)

    def locate(self, weights: Source) -> tuple[float, float, float]:
        """Project weights onto the line and return x, 0 and their distance from it."""
        x, distance = self.coordinates(weights)
        return x, 0.0, distance

    def grid(
        self, steps: int | tuple[int, int] = STEPS, margin: float = 0.0, *, around: Iterable[tuple[float, float]] = ()
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return points from w1 (x = 0) to w2 (x = 1), and `margin` beyond both ends, whatever points are around."""
        if not isinstance(steps, int) or steps < 2 or margin < 0:
            raise ValueError(f"a line needs 2 steps or more and a margin of 0 or more, got {steps} and {margin}")
        return _linspace(-margin, 1 + margin, steps), (0.0,)


plane, line = Plane, Line


def _linspace(low: float, high: float, n: int) -> tuple[float, ...]:
    """Return `n` numbers from `low` to `high`, with both ends exact."""
    return tuple(low + (high - low) * i / (n - 1) if i < n - 1 else high for i in range(n))


def _require_parameters_of(model: nn.Module, names: Sequence[str]) -> None:
    parameters = chosen_parameters(model)
    unknown = [name for name in names if name not in parameters]
    if unknown:
        tied = unknown[0] in dict(unwrap(model).named_parameters(remove_duplicate=False))
        reason = "is tied to another parameter" if tied else "is not a floating-point parameter"
        raise ValueError(
            f"{unknown[0]} {reason} of {type(unwrap(model)).__name__}: exclude it by name, or build the plane or "
            "line from modules"
        )


def _require_usable_buffers(model: nn.Module, corners: Sequence[State], has_update_bn: bool) -> None:
    """Refuse corners whose buffers differ: a point between them has no buffers, unless statistics are re-estimated."""
    buffers = [name for name, _, _, is_buffer in named_tensors(unwrap(model)) if is_buffer]
    different = [name for name in buffers if not _same_buffer(name, corners)]
    statistics = [name for name in different if is_bn_statistic(name)]
    if statistics and not has_update_bn:
        raise ValueError(
            "the weights have different batch-norm statistics, so a point between them has none: give update_bn, "
            "e.g. update_bn=lambda model: swad.update_bn(loader, model)"
        )
    if others := [name for name in different if name not in statistics]:
        raise ValueError(
            f"the weights have different buffers {others[0]}, so a point between them has none: give weights "
            "whose buffers are the same"
        )


def _same_buffer(name: str, corners: Sequence[State]) -> bool:
    """Return whether a buffer is the same in all corners that have it; the number of batches seen does not matter."""
    if name.rpartition(".")[2] == "num_batches_tracked":
        return True
    values = [corner[name].cpu() for corner in corners if name in corner]
    return all(torch.equal(values[0], other) for other in values)


# --- vectors in weight space: one tensor each, in double precision, since their norms sum millions of squares -------


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors as one vector."""
    return torch.cat([tensor.reshape(-1).to(tensors[0].device) for tensor in tensors]).double()


def _dot(a: Tensor, b: Tensor) -> float:
    """Return the inner product of two vectors."""
    return float(torch.dot(a, b))


def _length(vector: Tensor) -> float:
    """Return the Euclidean length of a vector."""
    return float(torch.linalg.vector_norm(vector))
