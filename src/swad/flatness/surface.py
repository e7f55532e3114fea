"""Loss surfaces: the losses at the points of a plane or line, as rows for a file and as a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from swad.flatness.rows import JsonRow, Row

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


def head_row(grid: Grid, n_parameters: int) -> Row:
    """Return the row that identifies a surface."""
    return {"kind": HEAD, "xs": list(grid[0]), "ys": list(grid[1]), "parameters": n_parameters}


def resumed_rows(done_rows: Iterable[Row], head: Row, on_row: OnRow | None) -> tuple[list[Row], dict[Key, Row]]:
    """Return the rows to append to, which begin with the head, and those of the points that are measured.

    Rows of another grid or other weights are refused.
    """
    rows = [row for row in done_rows if row.get("kind") in (HEAD, POINT)]
    if not rows:
        if on_row is not None:
            on_row(head)
        return [head], {}
    old = next((row for row in rows if row["kind"] == HEAD), None)
    if old is None or any(old[key] != head[key] for key in head):
        raise ValueError("done_rows are of another grid or other weights: start a new file")
    return rows, _points_of(rows)


def require_same_losses(known: Row, now: SurfaceRow) -> None:
    """Refuse rows of other weights or other images; the first corner must have the same losses."""
    for domain in {**known["losses"], **now.losses}:
        old, new = float(known["losses"].get(domain, math.nan)), now.losses.get(domain, math.nan)
        if not math.isclose(old, new, rel_tol=1e-3, abs_tol=1e-6):  # other kernels round at other places
            raise ValueError(
                f"done_rows have loss {old:.6g} at the first corner on {domain}, not {new:.6g}, so they "
                "are of other images or weights: start a new file"
            )
