"""The measured points of a plane or line, as rows for a file and as a grid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from swad.flatness.rows import JsonRow, Row

HEAD, POINT = "surface", "surface-point"


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
        by_key = {point_key(row): row for row in rows if row.get("kind") == POINT}
        keys = [(None, x, y) for y in ys for x in xs]
        missing = [key for key in keys if key not in by_key]
        if missing:
            raise ValueError(
                f"{len(missing)} of {len(keys)} points are not measured yet: run evaluate again with done_rows="
            )
        named = {row["name"]: SurfaceRow.from_dict(row) for row in by_key.values() if row["name"] is not None}
        return cls(xs, ys, [SurfaceRow.from_dict(by_key[key]) for key in keys], named)


def point_key(row: Row) -> tuple[str | None, float, float]:
    """Return what identifies a point of a surface."""
    return row["name"], row["x"], row["y"]
