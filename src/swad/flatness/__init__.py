"""The flatness lab: how the loss rises around given weights, on `(model, loss_fn)` alone.

    flat = swad.flatness.local(model, loss_fn, radii=[10, 20, 40])          # F_gamma, per domain, with intervals
    both = swad.flatness.compare({"ERM": erm, "SWAD": swad_weights}, loss_fn, radii, model=model)   # paired
    worst = swad.flatness.worst_case(model, loss_fn, radius=0.05)           # a lower bound of the maximum
    plane = swad.flatness.plane(w1, w2, w3); plane.evaluate(model, loss_fn) # the surface of Figure 4
    swad.flatness.line(w1, w2).evaluate(model, loss_fn)
    swad.flatness.curvature(model, loss_fn)                                 # eigenvalues, trace, spectral density

`loss_fn(model)` returns a scalar, per-image losses (1-D), or {domain: per-image losses}; with two columns the second
is the 0-1 error of each image. `image_losses` makes one from images, and `captured` replays one as a CUDA graph.
A model is left exactly as it was, also after an error or Ctrl-C. Names are loaded when they are touched.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swad.flatness.ascent import WorstCase, WorstCaseRow, worst_case
    from swad.flatness.domain_distance import Divergence, divergence
    from swad.flatness.graphs import Captured, captured
    from swad.flatness.hessian import Curvature, CurvatureRow, curvature
    from swad.flatness.losses import ImageLosses, LossFn, image_losses
    from swad.flatness.neighbourhood import FlatnessRow, LocalFlatness, local
    from swad.flatness.overhead import Cost, MeasuredCost, cost, measured_cost
    from swad.flatness.pairing import Comparison, DifferenceRow, compare
    from swad.flatness.rank_order import Ranking, ranking
    from swad.flatness.slices import Line, Plane, Surface, SurfaceRow, line, plane
    from swad.flatness.theorems import Bound, bound

_HOMES = {
    "Bound": "theorems",
    "Captured": "graphs",
    "Comparison": "pairing",
    "Cost": "overhead",
    "Curvature": "hessian",
    "CurvatureRow": "hessian",
    "DifferenceRow": "pairing",
    "Divergence": "domain_distance",
    "FlatnessRow": "neighbourhood",
    "ImageLosses": "losses",
    "Line": "slices",
    "LocalFlatness": "neighbourhood",
    "LossFn": "losses",
    "MeasuredCost": "overhead",
    "Plane": "slices",
    "Ranking": "rank_order",
    "Surface": "slices",
    "SurfaceRow": "slices",
    "WorstCase": "ascent",
    "WorstCaseRow": "ascent",
    "bound": "theorems",
    "captured": "graphs",
    "compare": "pairing",
    "cost": "overhead",
    "curvature": "hessian",
    "divergence": "domain_distance",
    "image_losses": "losses",
    "line": "slices",
    "local": "neighbourhood",
    "measured_cost": "overhead",
    "plane": "slices",
    "ranking": "rank_order",
    "worst_case": "ascent",
}

__all__ = [  # noqa: RUF022 - the reader's order
    "local",
    "compare",
    "worst_case",
    "plane",
    "line",
    "curvature",
    "cost",
    "measured_cost",
    "ranking",
    "bound",
    "divergence",
    "image_losses",
    "captured",
    "LossFn",
    "ImageLosses",
    "Captured",
    "LocalFlatness",
    "FlatnessRow",
    "Comparison",
    "DifferenceRow",
    "WorstCase",
    "WorstCaseRow",
    "Plane",
    "Line",
    "Surface",
    "SurfaceRow",
    "Curvature",
    "CurvatureRow",
    "Cost",
    "MeasuredCost",
    "Ranking",
    "Bound",
    "Divergence",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        # The files have other names than the functions: a submodule of a function's name would hide the function.
        return getattr(importlib.import_module(f"swad.flatness.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'swad.flatness' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
