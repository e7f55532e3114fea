"""Loss surfaces: the losses at the points of a plane or line, as rows for a file and as a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from swad.flatness.losses import LossFn, as_loss_function
from swad.flatness.points import Point, walk
from swad.flatness.rows import JsonRow, Row
from swad.flatness.weights import State, Weights, chosen_parameters, is_bn_statistic
from swad.tensors.names import named_tensors, unwrap
from swad.util.progress import Progress

HEAD, POINT = "surface", "surface-point"

Grid = tuple[tuple[float, ...], tuple[float, ...]]
"""The x and the y values of a regular grid."""
Key = tuple[str | None, float, float]
"""What identifies a point of a surface: name, x and y."""
OnRow = Callable[[Row], None]
"""Receives one JSON row at a time, as soon as it is computed."""


@dataclass(frozen=True, slots=True)
class SurfaceRow(JsonRow):
    """One measured point."""

    x: float
    y: float
    name: str | None
    """The name of a corner, an end or an extra point, which has its own weights; None for a point of the grid."""
    distance: float
    """Distance of the weights from the plane or line; above 0 for extra points only."""
    losses: dict[str, float]
    """The mean loss by domain."""
    errors: dict[str, float]
    """The error rate by domain, if the loss function gives errors."""

    @property
    def loss(self) -> float:
        """The mean over domains."""
        return sum(self.losses.values()) / len(self.losses)

    @classmethod
    def from_dict(cls, row: Row) -> SurfaceRow:
        """Read a row that `as_dict` wrote."""
        numbers = [{domain: float(value) for domain, value in row[key].items()} for key in ("losses", "errors")]
        return cls(row["x"], row["y"], row["name"], row["distance"], *numbers)


@dataclass(frozen=True)
class Surface:
    """The result of `evaluate`: a regular grid of points, and named points."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    """Only 0 for a line."""
    grid: list[SurfaceRow]
    """The grid in row-major order, x running fastest."""
    points: dict[str, SurfaceRow]
    """Corners or ends, then extra points, by name."""

    @property
    def rows(self) -> list[SurfaceRow]:
        """All points."""
        return [*self.grid, *self.points.values()]

    @property
    def domains(self) -> list[str]:
        """The domains, in the loss function's order."""
        return list(self.grid[0].losses)

    def losses(self, domains: str | Sequence[str] | None = None, *, errors: bool = False) -> list[list[float]]:
        """Return a matrix (ys x xs) of the losses or errors of a domain, or of the mean over several or all domains."""
        wanted = self.domains if domains is None else [domains] if isinstance(domains, str) else list(domains)
        values = [
            sum((row.errors if errors else row.losses)[domain] for domain in wanted) / len(wanted) for row in self.grid
        ]
        n = len(self.xs)
        return [values[start : start + n] for start in range(0, len(values), n)]

    @classmethod
    def from_rows(cls, rows: Iterable[Row]) -> Surface:
        """Build the surface from the rows that `on_row` received; all points must be there."""
        rows = list(rows)
        heads = [row for row in rows if row.get("kind") == HEAD]
        if not heads:
            raise ValueError("the rows hold no surface: run evaluate again and save the rows of on_row")
        xs, ys = tuple(heads[0]["xs"]), tuple(heads[0]["ys"])
        measured = _points_of(rows)
        keys = [(None, x, y) for y in ys for x in xs]
        missing = [key for key in keys if key not in measured]
        if missing:
            raise ValueError(
                f"{len(missing)} of {len(keys)} points are not measured yet: run evaluate again with done_rows="
            )
        named = {row["name"]: SurfaceRow.from_dict(row) for row in measured.values() if row["name"] is not None}
        return cls(xs, ys, [SurfaceRow.from_dict(measured[key]) for key in keys], named)


def _points_of(rows: Iterable[Row]) -> dict[Key, Row]:
    return {(row["name"], row["x"], row["y"]): row for row in rows if row.get("kind") == POINT}


@dataclass(frozen=True)
class NamedPoint:
    """A corner of a plane, an end of a line, or an extra point, with its own weights."""

    x: float
    y: float
    distance: float
    weights: State


@torch.no_grad()
def evaluate_surface(
    model: nn.Module,
    loss_fn: LossFn,
    axes: Sequence[State],
    grid: Grid,
    corners: Mapping[str, NamedPoint],
    extra: Mapping[str, NamedPoint],
    *,
    update_bn: Callable[[nn.Module], object] | None,
    on_row: OnRow | None,
    done_rows: Iterable[Row],
    progress: Progress | None,
) -> Surface:
    """Evaluate a model at named points and at those of a grid, as `Slice.evaluate` describes it."""
    function = as_loss_function(loss_fn)
    named, origin = {**corners, **extra}, next(iter(corners.values())).weights
    _require_parameters_of(model, list(axes[0]))
    _require_usable_buffers(model, [corner.weights for corner in corners.values()], update_bn is not None)
    with Weights(model, names=axes[0].keys()) as weights:
        # Statistics that are re-estimated may be missing.
        statistics = {name: tensor.clone() for name, tensor in weights.buffers().items() if is_bn_statistic(name)}
        defaults = statistics if update_bn is not None else {}
        directions = [
            [tensor.to(dtype) for tensor, dtype in zip(weights.of(axis), weights.dtypes, strict=True)] for axis in axes
        ]
        # Named points come first, so that a wrong model or wrong images show at once. A point of the grid that is a
        # corner gets the corner's own weights, without rounding.
        at_corner = {(corner.x, corner.y): corner.weights for corner in corners.values()}
        points: list[Point[Key]] = [
            Point((name, at.x, at.y), weights=at.weights, label=f"the weights {name!r}") for name, at in named.items()
        ]
        for y in grid[1]:
            for x in grid[0]:
                own = at_corner.get((x, y))
                moves = list(zip(directions, (x, y), strict=False)) if own is None else ()
                points.append(Point((None, x, y), moves, own))

        rows = [row for row in done_rows if row.get("kind") in (HEAD, POINT)]
        head = {"kind": HEAD, "xs": list(grid[0]), "ys": list(grid[1]), "parameters": weights.dim}
        done = _points_of(rows)
        # The first corner is always evaluated: it shows whether the rows are of these weights and images, and all
        # points have the scale of its logits.
        known_first = done.pop(points[0].key, None)
        if rows:
            _require_same_head(rows, head)
        else:
            rows.append(head)
            if on_row is not None:
                on_row(head)

        def arrive(point: Point[Key]) -> None:
            own = origin if point.weights is None else point.weights
            weights.put_buffers({**defaults, **own}, point.label)
            if update_bn is not None:
                update_bn(model)
            if point is points[0]:
                function.fit(model)

        visits = walk(
            weights,
            function,
            points,
            center=weights.of(origin),
            arrive=arrive,
            done=done,
            description="loss surface",
            total=len(points),
            progress=progress,
        )
        for point, measured in visits:
            name, x, y = point.key
            losses, *errors = (measure.means for measure in measured.checked().measures)
            distance = 0.0 if name is None else named[name].distance
            row = SurfaceRow(x, y, name, distance, losses, errors[0] if errors else {})
            if point is points[0] and known_first is not None:
                _require_same_losses(known_first, row)
                continue
            rows.append({"kind": POINT, **row.as_dict()})
            if on_row is not None:
                on_row(rows[-1])
    return Surface.from_rows(rows)


def _require_same_head(rows: Sequence[Row], head: Row) -> None:
    """Refuse rows of another grid or other weights."""
    old = next((row for row in rows if row["kind"] == HEAD), None)
    if old is None or any(old[key] != head[key] for key in head):
        raise ValueError("done_rows are of another grid or other weights: start a new file")


def _require_same_losses(known: Row, now: SurfaceRow) -> None:
    """Refuse rows of other weights or other images; the first corner must have the same losses."""
    for domain in {**known["losses"], **now.losses}:
        old, new = float(known["losses"].get(domain, math.nan)), now.losses.get(domain, math.nan)
        if not math.isclose(old, new, rel_tol=1e-3, abs_tol=1e-6):  # other kernels round at other places
            raise ValueError(
                f"done_rows have loss {old:.6g} at the first corner on {domain}, not {new:.6g}, so they "
                "are of other images or weights: start a new file"
            )


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
