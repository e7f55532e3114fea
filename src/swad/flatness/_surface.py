"""Loss surfaces: the plane through three weights, and the line between two.

The axes of the plane through theta_1, theta_2, theta_3 are u = theta_2 - theta_1 and v = (theta_3 - theta_1) less its
part along u, both of length 1 (the paper's printed v subtracts a number from a vector and divides by a vector: a
misprint for this Gram-Schmidt step). A point (x, y) stands for theta_1 + x u + y v, and distances on the plane are
those in weight space. The three corners, and the two ends of a line, are measured with their own weights, to the last
bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from swad.averaging.tensors import Patterns, as_patterns, matches, named_tensors, unwrap
from swad.flatness._losses import LossFn, first_measured
from swad.flatness._perturb import STATISTICS, State, Weights, by_name, chosen_parameters, parameters_by_name
from swad.flatness._rows import Progress, Row, Sink, plain

HEAD, POINT = "surface", "surface-point"
COLLINEAR = 1e-6
"""Below this share of its length off the line through the other two, a third point spans no plane with them."""
STEPS = 21
MARGIN = 0.25

Source = State | nn.Module
_Named = Mapping[str, tuple[float, float, float, Source]]
"""Points with weights of their own: x, y, distance, weights."""


@dataclass(frozen=True, slots=True)
class SurfaceRow:
    """One measured point."""

    x: float
    y: float
    name: str | None
    """Of a corner, an end or a further point, measured with its own weights; None for a point of the grid."""
    distance: float
    """How far the weights are from the plane or line: 0 but for further points."""
    losses: dict[str, float]
    """By domain."""
    errors: dict[str, float]
    """Shares of images classified wrongly by domain, where the loss function gave them."""

    @property
    def loss(self) -> float:
        """The mean over domains."""
        return sum(self.losses.values()) / len(self.losses)

    @property
    def accuracies(self) -> dict[str, float]:
        """Shares of images classified rightly by domain, where the loss function gave them."""
        return {domain: 1 - error for domain, error in self.errors.items()}

    def as_dict(self) -> Row:
        """JSON-able."""
        row = asdict(self)
        for key in ("losses", "errors"):
            row[key] = {domain: plain(value) for domain, value in row[key].items()}
        return row

    @classmethod
    def from_dict(cls, row: Row) -> SurfaceRow:
        """What `as_dict` gave."""
        numbers = [{domain: float(value) for domain, value in row[key].items()} for key in ("losses", "errors")]
        return cls(row["x"], row["y"], row["name"], row["distance"], *numbers)


@dataclass(frozen=True)
class Surface:
    """What `evaluate` found: a regular grid of points, and points with names."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    """Of a line: only 0."""
    grid: list[SurfaceRow]
    """Row after row from the lowest y, each from the lowest x."""
    points: dict[str, SurfaceRow]
    """Corners or ends, then further points, by name."""

    @property
    def rows(self) -> list[SurfaceRow]:
        """All points."""
        return [*self.grid, *self.points.values()]

    @property
    def domains(self) -> list[str]:
        """The domains, in the loss function's order."""
        return list(self.grid[0].losses)

    def losses(self, domains: str | Sequence[str] | None = None, *, errors: bool = False) -> list[list[float]]:
        """The grid as a matrix (ys by xs) of a domain's losses or errors, or of the mean over some or all domains."""
        wanted = self.domains if domains is None else [domains] if isinstance(domains, str) else list(domains)
        values = [
            sum((row.errors if errors else row.losses)[domain] for domain in wanted) / len(wanted) for row in self.grid
        ]
        n = len(self.xs)
        return [values[start : start + n] for start in range(0, len(values), n)]

    @classmethod
    def from_rows(cls, rows: Iterable[Row]) -> Surface:
        """From rows that a sink took, once all points are there."""
        kept = list(rows)
        heads = [row for row in kept if row.get("kind") == HEAD]
        if not heads:
            raise ValueError("the rows hold no surface: run evaluate again with this sink")
        xs, ys = tuple(heads[0]["xs"]), tuple(heads[0]["ys"])
        found = {_key(row): row for row in kept if row.get("kind") == POINT}
        wanted = [(None, x, y) for y in ys for x in xs]
        missing = [key for key in wanted if key not in found]
        if missing:
            raise ValueError(
                f"{len(missing)} of {len(wanted)} points are not measured yet: run evaluate again, with done="
            )
        named = {row["name"]: SurfaceRow.from_dict(row) for row in found.values() if row["name"] is not None}
        return cls(xs, ys, [SurfaceRow.from_dict(found[key]) for key in wanted], named)


class _Slice:
    """Weights to begin with, and those that span the slice with them, by name."""

    def __init__(self, corners: Mapping[str, Source], include: Patterns, exclude: Patterns) -> None:
        self.names = _names(corners, include, exclude)
        self.corners: dict[str, State] = {corner: _kept(source) for corner, source in corners.items()}
        self.origin = self._chosen(self.corners["1"], "weights 1")

    def _chosen(self, weights: Source, what: str) -> list[Tensor]:
        found, like = by_name(weights), self.corners["1"]
        for name in self.names:
            if name not in found or found[name].shape != like[name].shape:
                raise ValueError(
                    f"{what} lack {name} of shape {tuple(like[name].shape)}: give weights of the same network"
                )
        return [found[name].detach() for name in self.names]

    def _offset(self, weights: Source, what: str = "the weights") -> Tensor:
        start = _flat(self.origin)
        return _flat(self._chosen(weights, what)).to(start.device) - start

    def split(self, vector: Tensor) -> list[Tensor]:
        """A vector in weight space as tensors of the parameters' shapes."""
        pieces = torch.split(vector, [tensor.numel() for tensor in self.origin])
        return [piece.view(tensor.shape) for piece, tensor in zip(pieces, self.origin, strict=True)]


class Plane(_Slice):
    """The plane through three weights, w1 at (0, 0), w2 at (`x2`, 0), w3 at (`x3`, `y3`); see `plane`."""

    def __init__(self, w1: Source, w2: Source, w3: Source, include: Patterns, exclude: Patterns) -> None:
        super().__init__({"1": w1, "2": w2, "3": w3}, include, exclude)
        self.u = self._offset(self.corners["2"], "weights 2")
        self.x2 = _length(self.u)
        if not self.x2:
            raise ValueError("a plane needs three different weights: the first two are the same; choose others")
        self.u /= self.x2
        self.v = self._offset(self.corners["3"], "weights 3")
        far = _length(self.v)
        self.x3 = _dot(self.v, self.u)
        self.v -= self.x3 * self.u
        # Twice is enough: the first pass leaves rounding of the size of what it took away.
        rest = _dot(self.v, self.u)
        self.v -= rest * self.u
        self.x3 += rest
        self.y3 = _length(self.v)
        if self.y3 <= COLLINEAR * max(far, self.x2):
            raise ValueError(
                f"a plane needs three weights that are not on one line: the third is {self.y3:.3g} off the line "
                f"through the first two, which are {self.x2:.3g} apart; choose another, or use line(w1, w2)"
            )
        self.v /= self.y3

    @property
    def corner_coordinates(self) -> dict[str, tuple[float, float]]:
        """Where the three weights are."""
        return {"1": (0.0, 0.0), "2": (self.x2, 0.0), "3": (self.x3, self.y3)}

    @property
    def mean_coordinates(self) -> tuple[float, float]:
        """Where the mean of the three weights is."""
        return (self.x2 + self.x3) / 3, self.y3 / 3

    def coordinates(self, weights: Source) -> tuple[float, float, float]:
        """Where any weights are when projected onto the plane, and how far off it they are: x, y, distance."""
        offset = self._offset(weights)
        x, y = _dot(offset, self.u), _dot(offset, self.v)
        return x, y, _length(offset - x * self.u - y * self.v)

    def weights(self, x: float, y: float) -> dict[str, Tensor]:
        """The weights at a point, parameters only, in the corners' own precision."""
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
        """Values of x and y of a regular grid: the box around the corners (and further places), widened on every side.

        `margin` is a share of the longer side of the box; `steps` is the number of points along each side.
        """
        where = [*self.corner_coordinates.values(), *around]
        sides = [(min(values), max(values)) for values in zip(*where, strict=True)]
        room = margin * max(high - low for low, high in sides)
        counts = (steps, steps) if isinstance(steps, int) else steps
        if min(counts) < 2 or margin < 0:
            raise ValueError(f"a grid needs 2 steps or more and a margin of 0 or more, got {steps} and {margin}")
        xs, ys = (_spread(low - room, high + room, n) for (low, high), n in zip(sides, counts, strict=True))
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
        sink: Sink | None = None,
        done: Iterable[Row] = (),
        progress: Progress | None = None,
    ) -> Surface:
        """Measure a grid on the plane, the three corners ("1", "2", "3"), and further `points` by name.

        `model` is an instance of the network to put the weights into; it is left exactly as it was. Further points
        (averages) are measured with their own weights; their row says where they are on the plane and how far off.
        Buffers are the first corner's. Where batch-norm statistics were not frozen, `update_bn(model)` is called at
        every point, e.g. `lambda model: swad.update_bn(loader, model)`.

        Rows go to `sink` as they are computed; given back as `done` they are not computed again.
        """
        further = {name: _kept(one) for name, one in (points or {}).items()}
        _require_free_names(further, self.corners)
        named: _Named = {name: (*where, 0.0, self.corners[name]) for name, where in self.corner_coordinates.items()}
        named = {**named, **{name: (*self.coordinates(one), one) for name, one in further.items()}}
        xs, ys = self.grid(steps, margin, around=(named[name][:2] for name in further))
        with torch.no_grad(), _Walk(self, model, loss_fn, [self.u, self.v], update_bn) as walk:
            return walk.measure(xs, ys, named, sink, done, progress)


class Line(_Slice):
    """The line through two weights, w1 at 0 and w2 at 1; see `line`."""

    def __init__(self, w1: Source, w2: Source, include: Patterns, exclude: Patterns) -> None:
        super().__init__({"1": w1, "2": w2}, include, exclude)
        self.step = self._offset(self.corners["2"], "weights 2")
        self.length = _length(self.step)
        """The distance between the two weights."""
        if not self.length:
            raise ValueError("a line needs two different weights, got the same twice: choose others")

    def coordinates(self, weights: Source) -> tuple[float, float]:
        """Where any weights are when projected onto the line (0: w1, 1: w2), and how far off it they are."""
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
        sink: Sink | None = None,
        done: Iterable[Row] = (),
        progress: Progress | None = None,
    ) -> Surface:
        """Measure points from w1 (x = 0) to w2 (x = 1), and `margin` beyond both; the rest is as for a plane."""
        if steps < 2 or margin < 0:
            raise ValueError(f"a line needs 2 steps or more and a margin of 0 or more, got {steps} and {margin}")
        further = {name: _kept(one) for name, one in (points or {}).items()}
        _require_free_names(further, self.corners)
        named: _Named = {"1": (0.0, 0.0, 0.0, self.corners["1"]), "2": (1.0, 0.0, 0.0, self.corners["2"])}
        for name, one in further.items():
            x, distance = self.coordinates(one)
            named = {**named, name: (x, 0.0, distance, one)}
        with torch.no_grad(), _Walk(self, model, loss_fn, [self.step], update_bn) as walk:
            return walk.measure(_spread(-margin, 1 + margin, steps), (0.0,), named, sink, done, progress)


def plane(w1: Source, w2: Source, w3: Source, *, include: Patterns = None, exclude: Patterns = None) -> Plane:
    """The plane through three weights, each a module or a state dict.

    Floating-point parameters span it, or those that `include` and `exclude` choose by name patterns. A state dict does
    not say what is a parameter: batch-norm statistics are known by name, other floating-point buffers must be
    excluded.

    >>> one, two, three = ({"w": torch.tensor(w)} for w in ([0.0, 0.0], [2.0, 0.0], [1.0, 3.0]))
    >>> surface = plane(one, two, three)
    >>> surface.corner_coordinates["3"], surface.coordinates({"w": torch.tensor([1.0, 1.0])})
    ((1.0, 3.0), (1.0, 1.0, 0.0))
    """
    return Plane(w1, w2, w3, include, exclude)


def line(w1: Source, w2: Source, *, include: Patterns = None, exclude: Patterns = None) -> Line:
    """The line through two weights, each a module or a state dict; chosen as for `plane`."""
    return Line(w1, w2, include, exclude)


class _Walk:
    """A model that is put at point after point of a slice."""

    def __init__(
        self,
        where: _Slice,
        model: nn.Module,
        loss_fn: LossFn,
        axes: Sequence[Tensor],
        update_bn: Callable[[nn.Module], object] | None,
    ) -> None:
        known = chosen_parameters(model)
        foreign = [name for name in where.names if name not in known]
        if foreign:
            tied = foreign[0] in dict(unwrap(model).named_parameters(remove_duplicate=False))
            what = "is tied to another parameter" if tied else "is no floating-point parameter"
            raise ValueError(
                f"{foreign[0]} {what} of {type(unwrap(model)).__name__}: exclude it by name, or build the plane or "
                "line from modules"
            )
        buffers = [name for name, _, _, is_buffer in named_tensors(unwrap(model)) if is_buffer]
        unlike = [name for name in buffers if not _same(name, list(where.corners.values()))]
        statistics = [name for name in unlike if name.rpartition(".")[2] in STATISTICS]
        if update_bn is None and statistics:
            raise ValueError(
                "the weights carry different batch-norm statistics, and a point between them has none: give update_bn, "
                "e.g. update_bn=lambda model: swad.update_bn(loader, model)"
            )
        if others := [name for name in unlike if name not in statistics]:
            raise ValueError(
                f"the weights carry different buffers {others[0]}, and a point between them has none: give weights "
                "whose buffers are the same"
            )
        self._where, self._model, self._loss_fn, self._update_bn = where, model, loss_fn, update_bn
        self._weights = Weights(model, names=set(where.names))
        self._vectors = axes

    def __enter__(self) -> _Walk:
        self._weights.__enter__()
        try:
            weights, where = self._weights, self._where
            weights.put_buffers(where.corners["1"])
            order = {name: i for i, name in enumerate(where.names)}
            self._origin = weights.of(where.corners["1"])
            self._axes = [
                [
                    torch.empty_like(live, dtype=dtype).copy_(axis[order[name]])
                    for name, live, dtype in zip(weights.names, weights.live, weights.dtypes, strict=True)
                ]
                for axis in map(where.split, self._vectors)
            ]
        except BaseException:
            self._weights.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._weights.__exit__(None, None, None)

    def measure(
        self,
        xs: tuple[float, ...],
        ys: tuple[float, ...],
        named: _Named,
        sink: Sink | None,
        done: Iterable[Row],
        progress: Progress | None,
    ) -> Surface:
        """Measure the points that `done` lacks."""
        kept = [row for row in done if row.get("kind") in (HEAD, POINT)]
        head = {"kind": HEAD, "xs": list(xs), "ys": list(ys), "parameters": self._weights.dim}
        if kept:
            self._require_same(kept, head)
        else:
            kept = [head]
            if sink is not None:
                sink(head)
        known = {_key(row) for row in kept if row["kind"] == POINT}
        total = len(xs) * len(ys) + len(named)
        for i, (row, source) in enumerate(self._wanted(xs, ys, named), 1):
            if _key(row) not in known:
                kept.append({"kind": POINT, **self._at(row, source)})
                if sink is not None:
                    sink(kept[-1])
            if progress is not None:
                progress(i, total)
        return Surface.from_rows(kept)

    def _wanted(self, xs: Sequence[float], ys: Sequence[float], named: _Named) -> Iterator[tuple[Row, Source | None]]:
        # The corners first: a wrong model or wrong images show at once.
        for name, (x, y, distance, source) in named.items():
            yield {"x": x, "y": y, "name": name, "distance": distance}, source
        corners = {named[name][:2]: source for name, source in self._where.corners.items()}
        for y in ys:
            for x in xs:  # a point of the grid that is a corner gets the corner's own weights, without rounding
                yield {"x": x, "y": y, "name": None, "distance": 0.0}, corners.get((x, y))

    def _at(self, row: Row, source: Source | None) -> Row:
        if source is None:
            lengths = (row["x"], row["y"])
            self._weights.put(self._origin, list(zip(self._axes, lengths, strict=False)))
        else:
            self._weights.put(self._weights.of(source, f"the weights {row['name']!r}"))
        if self._update_bn is not None:
            self._update_bn(self._model)
        found = first_measured(self._loss_fn(self._model))  # waits for its numbers anyway
        losses = {domain: one.double().mean().item() for domain, one in found.losses.items()}
        errors = {domain: one.double().mean().item() for domain, one in found.errors.items()}
        return SurfaceRow(row["x"], row["y"], row["name"], row["distance"], losses, errors).as_dict()

    def _require_same(self, kept: Sequence[Row], head: Row) -> None:
        """Refuse rows of another grid, other weights or other images: the first corner must have its loss again."""
        old = next((row for row in kept if row["kind"] == HEAD), None)
        if old is None or any(old[key] != head[key] for key in head):
            raise ValueError("the rows to go on with are of another grid or other weights: start a new file")
        first = next((row for row in kept if row["kind"] == POINT and row["name"] == "1"), None)
        if first is None:
            return
        again = self._at(first, self._where.corners["1"])
        for domain in {**first["losses"], **again["losses"]}:
            was, now = (float(row["losses"].get(domain, math.nan)) for row in (first, again))
            if not math.isclose(was, now, rel_tol=1e-3, abs_tol=1e-6) and not (math.isinf(was) and was == now):
                raise ValueError(
                    f"the rows to go on with have loss {was:.6g} at the first corner on {domain}, not {now:.6g}, so "
                    "they are of other images or weights: start a new file"
                )


def _key(row: Row) -> tuple[str | None, float, float]:
    return row["name"], row["x"], row["y"]


def _require_free_names(further: Mapping[str, Source], corners: Mapping[str, Source]) -> None:
    taken = [name for name in further if name in corners]
    if taken:
        raise ValueError(
            f"the names {', '.join(corners)} are those of the corners; call the point {taken[0]!r} otherwise"
        )


def _names(corners: Mapping[str, Source], include: Patterns, exclude: Patterns) -> list[str]:
    """The parameters that span a slice; a module among the corners knows best what is one."""
    modules = [source for source in corners.values() if isinstance(source, nn.Module)]
    names = list(parameters_by_name(modules[0] if modules else corners["1"]))
    wanted, unwanted = as_patterns(include), as_patterns(exclude)
    for pattern in (*wanted, *unwanted):
        if not any(matches(name, [pattern]) for name in names):
            raise ValueError(f"the pattern {pattern!r} matches no parameter; names look like {', '.join(names[:3])}")
    names = [name for name in names if (not wanted or matches(name, wanted)) and not matches(name, unwanted)]
    if not names:
        raise ValueError(f"there is nothing to move: no parameter matches include={include!r}, exclude={exclude!r}")
    held = {corner: [n for n in by_name(w) if n.rpartition(".")[2] not in STATISTICS] for corner, w in corners.items()}
    for corner, found in held.items():
        for one, other, having, lacking in ((found, held["1"], corner, "1"), (held["1"], found, "1", corner)):
            alone = [name for name in one if name not in other]
            if alone:
                raise ValueError(
                    f"weights {having} have {alone[0]}, which weights {lacking} lack: give weights of one network"
                )
    return names


def _kept(source: Source) -> State:
    """A copy: a module may be trained on, and a state dict's tensors may be those of the model that is moved about."""
    return {name: tensor.detach().clone() for name, tensor in by_name(source).items()}


def _same(name: str, corners: Sequence[State]) -> bool:
    """Whether a buffer is the same in all corners that have it; how many batches were seen does not count."""
    if name.rpartition(".")[2] == "num_batches_tracked":
        return True
    held = [corner[name].cpu() for corner in corners if name in corner]
    return all(torch.equal(held[0], other) for other in held)


def _spread(low: float, high: float, n: int) -> tuple[float, ...]:
    """`n` numbers from `low` to `high`, the ends themselves among them."""
    return tuple(low + (high - low) * i / (n - 1) if i < n - 1 else high for i in range(n))


# --- vectors in weight space: one tensor each, in double, as millions of numbers are added --------------------------


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1).to(tensors[0].device) for tensor in tensors]).double()


def _dot(one: Tensor, other: Tensor) -> float:
    return float(torch.dot(one, other))


def _length(one: Tensor) -> float:
    return float(torch.linalg.vector_norm(one))
