"""Evaluate a model at the points of a plane or line, and continue an evaluation that was interrupted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn

from swad.flatness.losses import LossFn, as_loss_function
from swad.flatness.rows import Row
from swad.flatness.surface import HEAD, POINT, Surface, SurfaceRow, point_key
from swad.flatness.weights import Source, State, Weights, by_name, chosen_parameters, is_bn_statistic
from swad.tensors.names import named_tensors, unwrap
from swad.util.progress import Progress

OnRow = Callable[[Row], None]
"""Receives one JSON row at a time, as soon as it is computed."""
NamedPoints = Mapping[str, tuple[float, float, float, Source]]
"""Points with weights of their own: x, y, distance from the slice, weights."""


@torch.no_grad()
def evaluate_points(
    corners: Mapping[str, State],
    axes: Sequence[State],
    model: nn.Module,
    loss_fn: LossFn,
    grid: tuple[tuple[float, ...], tuple[float, ...]],
    named: NamedPoints,
    update_bn: Callable[[nn.Module], object] | None,
    on_row: OnRow | None,
    done_rows: Iterable[Row],
    progress: Progress | None,
) -> Surface:
    """Evaluate a model at named points and at those of a grid, as `Slice.evaluate` describes it."""
    function = as_loss_function(loss_fn)
    _require_parameters_of(model, list(axes[0]))
    _require_usable_buffers(model, corners, update_bn is not None)
    with Weights(model, names=set(axes[0])) as weights:
        # Statistics that are re-estimated may be missing.
        statistics = {name: tensor.clone() for name, tensor in weights.buffers().items() if is_bn_statistic(name)}
        defaults = statistics if update_bn is not None else {}
        origin = weights.of(corners["1"])
        directions = [
            [tensor.to(dtype) for tensor, dtype in zip(weights.of(axis), weights.dtypes, strict=True)] for axis in axes
        ]

        def evaluate(point: Row, source: Source | None) -> Row:
            what = f"the weights {point['name']!r}"
            if source is None:
                weights.put(origin, list(zip(directions, (point["x"], point["y"]), strict=False)))
            else:
                weights.put(weights.of(source, what))
            weights.put_buffers({**defaults, **by_name(corners["1"] if source is None else source)}, what)
            if update_bn is not None:
                update_bn(model)
            if point is points[0][0]:  # evaluated before all others; they have the scale of its logits
                function.fit(model)
            measured = function.losses(model).checked()  # its values are read here anyway
            losses, *errors = (measure.means for measure in measured.measures)
            row = SurfaceRow(**point, losses=losses, errors=errors[0] if errors else {})
            return {"kind": POINT, **row.as_dict()}

        rows = [row for row in done_rows if row.get("kind") in (HEAD, POINT)]
        head = {"kind": HEAD, "xs": list(grid[0]), "ys": list(grid[1]), "parameters": weights.dim}
        done = {point_key(row): row for row in rows if row["kind"] == POINT}
        points = list(_points(corners, *grid, named))
        if rows:
            _require_same(rows, head, done.get(point_key(points[0][0])), lambda: evaluate(*points[0]))
        else:
            rows = [head]
            if on_row is not None:
                on_row(head)
        for i, (point, source) in enumerate(points, 1):
            if point_key(point) not in done:
                rows.append(evaluate(point, source))
                if on_row is not None:
                    on_row(rows[-1])
            if progress is not None:
                progress("loss surface", i, len(points))
    return Surface.from_rows(rows)


def _points(
    corners: Mapping[str, State], xs: Sequence[float], ys: Sequence[float], named: NamedPoints
) -> Iterator[tuple[Row, Source | None]]:
    """Yield every point, and its weights if it has its own; the first corner comes first."""
    for name, (x, y, distance, source) in named.items():  # first, so that a wrong model or wrong images show at once
        yield {"x": x, "y": y, "name": name, "distance": distance}, source
    by_coordinates = {named[name][:2]: source for name, source in corners.items()}
    for y in ys:
        for x in xs:  # a grid point that is a corner gets the corner's own weights, without rounding
            yield {"x": x, "y": y, "name": None, "distance": 0.0}, by_coordinates.get((x, y))


def _require_same(rows: Sequence[Row], head: Row, first: Row | None, evaluate_first: Callable[[], Row]) -> None:
    """Refuse rows of another grid, other weights or other images; the first corner must have the same loss."""
    old = next((row for row in rows if row["kind"] == HEAD), None)
    if old is None or any(old[key] != head[key] for key in head):
        raise ValueError("done_rows are of another grid or other weights: start a new file")
    if first is None:
        return
    again = evaluate_first()
    for domain in {**first["losses"], **again["losses"]}:
        old_loss, new_loss = (float(row["losses"].get(domain, math.nan)) for row in (first, again))
        if not math.isclose(old_loss, new_loss, rel_tol=1e-3, abs_tol=1e-6):
            raise ValueError(
                f"done_rows have loss {old_loss:.6g} at the first corner on {domain}, not {new_loss:.6g}, so they "
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


def _require_usable_buffers(model: nn.Module, corners: Mapping[str, State], has_update_bn: bool) -> None:
    """Refuse corners whose buffers differ: a point between them has no buffers, unless statistics are re-estimated."""
    buffers = [name for name, _, _, is_buffer in named_tensors(unwrap(model)) if is_buffer]
    different = [name for name in buffers if not _same_buffer(name, list(corners.values()))]
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
