"""Loss surfaces: the plane through three weights, and the line between two.

The axes of the plane through theta_1, theta_2, theta_3 are u = theta_2 - theta_1 and v = (theta_3 - theta_1) minus
its projection on u, both scaled to length 1. (The paper's printed v subtracts a number from a vector and divides by a
vector, a misprint for this Gram-Schmidt step.) A point (x, y) stands for theta_1 + x u + y v, so distances on the
plane are distances in weight space. The three corners, and the two ends of a line, are evaluated with their own
weights, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from swad.averaging.tensors import Patterns, as_patterns, matches, named_tensors, unwrap
from swad.flatness._json import Row, json_number
from swad.flatness._losses import LossFn, check_losses
from swad.flatness._perturb import BN_STATISTICS, State, Weights, by_name, chosen_parameters, parameters_by_name
from swad.util.progress import Progress

HEAD, POINT = "surface", "surface-point"
COLLINEAR = 1e-6
"""Weights are collinear if the third is closer to the line through the others than this share of their distance."""
STEPS = 21
MARGIN = 0.25

Source = State | nn.Module
OnRow = Callable[[Row], None]
"""Receives one JSON row at a time, as soon as it is computed."""
_NamedPoints = Mapping[str, tuple[float, float, float, Source]]
"""Points with weights of their own: x, y, distance from the slice, weights."""


@dataclass(frozen=True, slots=True)
class SurfaceRow:
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

    @property
    def accuracies(self) -> dict[str, float]:
        """The accuracy by domain, if the loss function gives errors."""
        return {domain: 1 - error for domain, error in self.errors.items()}

    def as_dict(self) -> Row:
        """Return the row as JSON values."""
        row = asdict(self)
        for key in ("losses", "errors"):
            row[key] = {domain: json_number(value) for domain, value in row[key].items()}
        return row

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
        by_key = {_key(row): row for row in rows if row.get("kind") == POINT}
        keys = [(None, x, y) for y in ys for x in xs]
        missing = [key for key in keys if key not in by_key]
        if missing:
            raise ValueError(
                f"{len(missing)} of {len(keys)} points are not measured yet: run evaluate again with done_rows="
            )
        named = {row["name"]: SurfaceRow.from_dict(row) for row in by_key.values() if row["name"] is not None}
        return cls(xs, ys, [SurfaceRow.from_dict(by_key[key]) for key in keys], named)


class _Slice:
    """A plane or line in weight space: its corners by name, the first of which is the origin."""

    def __init__(self, corners: Mapping[str, Source], include: Patterns, exclude: Patterns) -> None:
        self.names = _spanning_parameters(corners, include, exclude)
        self.corners: dict[str, State] = {corner: _copy_state(source) for corner, source in corners.items()}
        self.origin = self._tensors(self.corners["1"], "weights 1")

    def _tensors(self, weights: Source, label: str) -> list[Tensor]:
        tensors, reference = by_name(weights), self.corners["1"]
        for name in self.names:
            if name not in tensors or tensors[name].shape != reference[name].shape:
                raise ValueError(
                    f"{label} lack {name} of shape {tuple(reference[name].shape)}: give weights of the same network"
                )
        return [tensors[name].detach() for name in self.names]

    def _offset(self, weights: Source, label: str = "the weights") -> Tensor:
        origin = _flat(self.origin)
        return _flat(self._tensors(weights, label)).to(origin.device) - origin

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return a vector of weight space as tensors in the parameters' shapes."""
        pieces = torch.split(vector, [tensor.numel() for tensor in self.origin])
        return [piece.view(tensor.shape) for piece, tensor in zip(pieces, self.origin, strict=True)]


class Plane(_Slice):
    """The plane through three weights, w1 at (0, 0), w2 at (`x2`, 0), w3 at (`x3`, `y3`); see `plane`."""

    def __init__(self, w1: Source, w2: Source, w3: Source, include: Patterns, exclude: Patterns) -> None:
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

    @property
    def corner_coordinates(self) -> dict[str, tuple[float, float]]:
        """The coordinates of the three weights."""
        return {"1": (0.0, 0.0), "2": (self.x2, 0.0), "3": (self.x3, self.y3)}

    @property
    def mean_coordinates(self) -> tuple[float, float]:
        """The coordinates of the mean of the three weights."""
        return (self.x2 + self.x3) / 3, self.y3 / 3

    def coordinates(self, weights: Source) -> tuple[float, float, float]:
        """Project weights onto the plane and return x, y and their distance from the plane."""
        offset = self._offset(weights)
        x, y = _dot(offset, self.u), _dot(offset, self.v)
        return x, y, _length(offset - x * self.u - y * self.v)

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

    def evaluate(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        steps: int | tuple[int, int] = STEPS,
        margin: float = MARGIN,
        *,
        points: Mapping[str, Source] | None = None,
        update_bn: Callable[[nn.Module], object] | None = None,
        on_row: OnRow | None = None,
        done_rows: Iterable[Row] = (),
        progress: Progress | None = None,
    ) -> Surface:
        """Evaluate a grid on the plane, the three corners (named "1", "2", "3"), and extra points.

        Args:
            model: A module of the network that the weights are loaded into; it is restored exactly. Buffers are those
                of the first corner.
            loss_fn: `loss_fn(model)` returns a scalar, per-image losses, or {domain: per-image losses}.
            steps: Number of grid points along each side.
            margin: How far the grid extends beyond the corners, as a share of the longer side.
            points: Extra weights by name, e.g. averages. They are evaluated with their own weights; their rows give
                the projection onto the plane and the distance from it.
            update_bn: Called at every point to re-estimate batch-norm statistics, which is needed unless they were
                frozen in training, e.g. `lambda model: swad.update_bn(loader, model)`.
            on_row: Called with every JSON row as soon as it is computed, e.g. to append it to a file.
            done_rows: Rows of an interrupted evaluation; their points are not evaluated again.
            progress: Called after every point.
        """
        extra = {name: _copy_state(weights) for name, weights in (points or {}).items()}
        _require_free_names(extra, self.corners)
        coordinates = self.corner_coordinates
        named: _NamedPoints = {name: (*coordinates[name], 0.0, self.corners[name]) for name in coordinates}
        named = {**named, **{name: (*self.coordinates(weights), weights) for name, weights in extra.items()}}
        xs, ys = self.grid(steps, margin, around=(named[name][:2] for name in extra))
        with torch.no_grad(), _Walk(self, model, loss_fn, [self.u, self.v], update_bn) as walk:
            return walk.evaluate(xs, ys, named, on_row, done_rows, progress)


class Line(_Slice):
    """The line through two weights, w1 at 0 and w2 at 1; see `line`."""

    def __init__(self, w1: Source, w2: Source, include: Patterns, exclude: Patterns) -> None:
        super().__init__({"1": w1, "2": w2}, include, exclude)
        self.step = self._offset(self.corners["2"], "weights 2")
        self.length = _length(self.step)
        """Distance between the two weights."""
        if not self.length:
            raise ValueError("a line needs two different weights, but both are the same: choose others")

    def coordinates(self, weights: Source) -> tuple[float, float]:
        """Project weights onto the line and return x (0: w1, 1: w2) and their distance from the line."""
        offset = self._offset(weights)
        x = _dot(offset, self.step) / self.length**2
        return x, _length(offset - x * self.step)

    def evaluate(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        steps: int = STEPS,
        margin: float = 0.0,
        *,
        points: Mapping[str, Source] | None = None,
        update_bn: Callable[[nn.Module], object] | None = None,
        on_row: OnRow | None = None,
        done_rows: Iterable[Row] = (),
        progress: Progress | None = None,
    ) -> Surface:
        """Evaluate points from w1 (x = 0) to w2 (x = 1), and `margin` beyond both ends; otherwise as for a plane."""
        if steps < 2 or margin < 0:
            raise ValueError(f"a line needs 2 steps or more and a margin of 0 or more, got {steps} and {margin}")
        extra = {name: _copy_state(weights) for name, weights in (points or {}).items()}
        _require_free_names(extra, self.corners)
        named: _NamedPoints = {"1": (0.0, 0.0, 0.0, self.corners["1"]), "2": (1.0, 0.0, 0.0, self.corners["2"])}
        for name, weights in extra.items():
            x, distance = self.coordinates(weights)
            named = {**named, name: (x, 0.0, distance, weights)}
        with torch.no_grad(), _Walk(self, model, loss_fn, [self.step], update_bn) as walk:
            return walk.evaluate(_linspace(-margin, 1 + margin, steps), (0.0,), named, on_row, done_rows, progress)


def plane(w1: Source, w2: Source, w3: Source, *, include: Patterns = None, exclude: Patterns = None) -> Plane:
    """Return the plane through three weights, each a module or a state dict.

    Args:
        w1: The weights at (0, 0).
        w2: The weights at (x2, 0).
        w3: The weights at (x3, y3).
        include: Name patterns of the parameters that span the plane; by default all floating-point parameters. A
            state dict does not tell parameters from buffers: batch-norm statistics are recognized by name, other
            floating-point buffers must be excluded.
        exclude: Name patterns of parameters that do not.

    >>> w1, w2, w3 = ({"w": torch.tensor(w)} for w in ([0.0, 0.0], [2.0, 0.0], [1.0, 3.0]))
    >>> surface = plane(w1, w2, w3)
    >>> surface.corner_coordinates["3"], surface.coordinates({"w": torch.tensor([1.0, 1.0])})
    ((1.0, 3.0), (1.0, 1.0, 0.0))
    """
    return Plane(w1, w2, w3, include, exclude)


def line(w1: Source, w2: Source, *, include: Patterns = None, exclude: Patterns = None) -> Line:
    """Return the line through two weights, each a module or a state dict; arguments are as for `plane`."""
    return Line(w1, w2, include, exclude)


class _Walk:
    """A model that visits the points of a plane or line, one after the other."""

    def __init__(
        self,
        slice_: _Slice,
        model: nn.Module,
        loss_fn: LossFn,
        axes: Sequence[Tensor],
        update_bn: Callable[[nn.Module], object] | None,
    ) -> None:
        _require_parameters_of(model, slice_)
        _require_usable_buffers(model, slice_, update_bn is not None)
        self._slice, self._model, self._loss_fn, self._update_bn = slice_, model, loss_fn, update_bn
        self._weights = Weights(model, names=set(slice_.names))
        self._vectors = axes

    def __enter__(self) -> _Walk:
        self._weights.__enter__()
        try:
            weights, slice_ = self._weights, self._slice
            weights.put_buffers(slice_.corners["1"])
            order = {name: i for i, name in enumerate(slice_.names)}
            self._origin = weights.of(slice_.corners["1"])
            self._axes = [
                [
                    torch.empty_like(live, dtype=dtype).copy_(axis[order[name]])
                    for name, live, dtype in zip(weights.names, weights.live, weights.dtypes, strict=True)
                ]
                for axis in map(slice_.split, self._vectors)
            ]
        except BaseException:
            self._weights.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._weights.__exit__(None, None, None)

    def evaluate(
        self,
        xs: tuple[float, ...],
        ys: tuple[float, ...],
        named: _NamedPoints,
        on_row: OnRow | None,
        done_rows: Iterable[Row],
        progress: Progress | None,
    ) -> Surface:
        """Evaluate the points that `done_rows` lacks."""
        rows = [row for row in done_rows if row.get("kind") in (HEAD, POINT)]
        head = {"kind": HEAD, "xs": list(xs), "ys": list(ys), "parameters": self._weights.dim}
        if rows:
            self._require_same(rows, head)
        else:
            rows = [head]
            if on_row is not None:
                on_row(head)
        done = {_key(row) for row in rows if row["kind"] == POINT}
        total = len(xs) * len(ys) + len(named)
        for i, (point, source) in enumerate(self._points(xs, ys, named), 1):
            if _key(point) not in done:
                rows.append({"kind": POINT, **self._evaluate_point(point, source)})
                if on_row is not None:
                    on_row(rows[-1])
            if progress is not None:
                progress("loss surface", i, total)
        return Surface.from_rows(rows)

    def _points(
        self, xs: Sequence[float], ys: Sequence[float], named: _NamedPoints
    ) -> Iterator[tuple[Row, Source | None]]:
        # Corners come first, so that a wrong model or wrong images show at once.
        for name, (x, y, distance, source) in named.items():
            yield {"x": x, "y": y, "name": name, "distance": distance}, source
        corners = {named[name][:2]: source for name, source in self._slice.corners.items()}
        for y in ys:
            for x in xs:  # a grid point that is a corner gets the corner's own weights, without rounding
                yield {"x": x, "y": y, "name": None, "distance": 0.0}, corners.get((x, y))

    def _evaluate_point(self, point: Row, source: Source | None) -> Row:
        if source is None:
            lengths = (point["x"], point["y"])
            self._weights.put(self._origin, list(zip(self._axes, lengths, strict=False)))
        else:
            self._weights.put(self._weights.of(source, f"the weights {point['name']!r}"))
        if self._update_bn is not None:
            self._update_bn(self._model)
        measured = check_losses(self._loss_fn(self._model))  # its values are read here anyway
        losses = {domain: values.double().mean().item() for domain, values in measured.losses.items()}
        errors = {domain: values.double().mean().item() for domain, values in measured.errors.items()}
        return SurfaceRow(point["x"], point["y"], point["name"], point["distance"], losses, errors).as_dict()

    def _require_same(self, rows: Sequence[Row], head: Row) -> None:
        """Refuse rows of another grid, other weights or other images; the first corner must have the same loss."""
        old = next((row for row in rows if row["kind"] == HEAD), None)
        if old is None or any(old[key] != head[key] for key in head):
            raise ValueError("done_rows are of another grid or other weights: start a new file")
        first = next((row for row in rows if row["kind"] == POINT and row["name"] == "1"), None)
        if first is None:
            return
        again = self._evaluate_point(first, self._slice.corners["1"])
        for domain in {**first["losses"], **again["losses"]}:
            old_loss, new_loss = (float(row["losses"].get(domain, math.nan)) for row in (first, again))
            same = math.isclose(old_loss, new_loss, rel_tol=1e-3, abs_tol=1e-6)
            if not same and not (math.isinf(old_loss) and old_loss == new_loss):
                raise ValueError(
                    f"done_rows have loss {old_loss:.6g} at the first corner on {domain}, not {new_loss:.6g}, so they "
                    "are of other images or weights: start a new file"
                )


def _require_parameters_of(model: nn.Module, slice_: _Slice) -> None:
    parameters = chosen_parameters(model)
    unknown = [name for name in slice_.names if name not in parameters]
    if unknown:
        tied = unknown[0] in dict(unwrap(model).named_parameters(remove_duplicate=False))
        reason = "is tied to another parameter" if tied else "is no floating-point parameter"
        raise ValueError(
            f"{unknown[0]} {reason} of {type(unwrap(model)).__name__}: exclude it by name, or build the plane or "
            "line from modules"
        )


def _require_usable_buffers(model: nn.Module, slice_: _Slice, has_update_bn: bool) -> None:
    """Refuse corners whose buffers differ: a point between them has no buffers, unless statistics are re-estimated."""
    buffers = [name for name, _, _, is_buffer in named_tensors(unwrap(model)) if is_buffer]
    different = [name for name in buffers if not _same_buffer(name, list(slice_.corners.values()))]
    statistics = [name for name in different if name.rpartition(".")[2] in BN_STATISTICS]
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


def _key(row: Row) -> tuple[str | None, float, float]:
    return row["name"], row["x"], row["y"]


def _require_free_names(extra: Mapping[str, Source], corners: Mapping[str, Source]) -> None:
    taken = [name for name in extra if name in corners]
    if taken:
        raise ValueError(f"the names {', '.join(corners)} belong to the corners: rename the point {taken[0]!r}")


def _spanning_parameters(corners: Mapping[str, Source], include: Patterns, exclude: Patterns) -> list[str]:
    """Return the names of the parameters that span a slice; a module among the corners tells them from buffers."""
    modules = [source for source in corners.values() if isinstance(source, nn.Module)]
    names = list(parameters_by_name(modules[0] if modules else corners["1"]))
    wanted, unwanted = as_patterns(include), as_patterns(exclude)
    for pattern in (*wanted, *unwanted):
        if not any(matches(name, [pattern]) for name in names):
            raise ValueError(f"the pattern {pattern!r} matches no parameter; names look like {', '.join(names[:3])}")
    names = [name for name in names if (not wanted or matches(name, wanted)) and not matches(name, unwanted)]
    if not names:
        raise ValueError(f"no parameter matches include={include!r}, exclude={exclude!r}: change the patterns")
    tensors = {
        corner: [name for name in by_name(weights) if name.rpartition(".")[2] not in BN_STATISTICS]
        for corner, weights in corners.items()
    }
    for corner in corners:
        for one, other in ((corner, "1"), ("1", corner)):
            missing = [name for name in tensors[one] if name not in tensors[other]]
            if missing:
                raise ValueError(
                    f"weights {one} have {missing[0]}, which weights {other} lack: give weights of one network"
                )
    return names


def _copy_state(source: Source) -> State:
    """Copy weights: a module may be trained on, and a state dict may share its tensors with the evaluated model."""
    return {name: tensor.detach().clone() for name, tensor in by_name(source).items()}


def _same_buffer(name: str, corners: Sequence[State]) -> bool:
    """Return whether a buffer is the same in all corners that have it; the number of batches seen does not matter."""
    if name.rpartition(".")[2] == "num_batches_tracked":
        return True
    values = [corner[name].cpu() for corner in corners if name in corner]
    return all(torch.equal(values[0], other) for other in values)


def _linspace(low: float, high: float, n: int) -> tuple[float, ...]:
    """Return `n` numbers from `low` to `high`, with both ends exact."""
    return tuple(low + (high - low) * i / (n - 1) if i < n - 1 else high for i in range(n))


# --- vectors in weight space: one tensor each, in double precision, since their norms sum millions of squares -------


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1).to(tensors[0].device) for tensor in tensors]).double()


def _dot(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a, b))


def _length(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))
