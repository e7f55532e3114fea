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
    from swad.experiments.cost import Cost, MeasuredCost, cost, measured_cost
    from swad.flatness._bound import Bound, bound
    from swad.flatness._captured import Captured, captured
    from swad.flatness._compare import Comparison, DifferenceRow, compare
    from swad.flatness._divergence import Divergence, divergence
    from swad.flatness._hessian import Curvature, CurvatureRow, curvature
    from swad.flatness._local import FlatnessRow, LocalFlatness, local
    from swad.flatness._losses import ImageLosses, LossFn, image_losses
    from swad.flatness._surface import Line, Plane, Surface, SurfaceRow, line, plane
    from swad.flatness._worst_case import WorstCase, WorstCaseRow, worst_case
    from swad.results.rank_correlation import Ranking, ranking

_HOMES = {
    "Bound": "swad.flatness._bound",
    "Captured": "swad.flatness._captured",
    "Comparison": "swad.flatness._compare",
    "Cost": "swad.experiments.cost",
    "Curvature": "swad.flatness._hessian",
    "CurvatureRow": "swad.flatness._hessian",
    "DifferenceRow": "swad.flatness._compare",
    "Divergence": "swad.flatness._divergence",
    "FlatnessRow": "swad.flatness._local",
    "ImageLosses": "swad.flatness._losses",
    "Line": "swad.flatness._surface",
    "LocalFlatness": "swad.flatness._local",
    "LossFn": "swad.flatness._losses",
    "MeasuredCost": "swad.experiments.cost",
    "Plane": "swad.flatness._surface",
    "Ranking": "swad.results.rank_correlation",
    "Surface": "swad.flatness._surface",
    "SurfaceRow": "swad.flatness._surface",
    "WorstCase": "swad.flatness._worst_case",
    "WorstCaseRow": "swad.flatness._worst_case",
    "bound": "swad.flatness._bound",
    "captured": "swad.flatness._captured",
    "compare": "swad.flatness._compare",
    "cost": "swad.experiments.cost",
    "curvature": "swad.flatness._hessian",
    "divergence": "swad.flatness._divergence",
    "image_losses": "swad.flatness._losses",
    "line": "swad.flatness._surface",
    "local": "swad.flatness._local",
    "measured_cost": "swad.experiments.cost",
    "plane": "swad.flatness._surface",
    "ranking": "swad.results.rank_correlation",
    "worst_case": "swad.flatness._worst_case",
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
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'swad.flatness' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
