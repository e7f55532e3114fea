"""Flatness of the loss around given weights, for any `(model, loss_fn)`.

    flat = swad.flatness.local(model, loss_fn, radii=[10, 20, 40])           # F_gamma per domain, with intervals
    both = swad.flatness.compare({"ERM": erm, "SWAD": swad_weights}, loss_fn, radii, model=model)   # paired
    worst = swad.flatness.worst_case(model, loss_fn, radius=0.05)            # a lower bound of the maximum
    plane = swad.flatness.plane(w1, w2, w3); plane.evaluate(model, loss_fn)  # the loss surface of Figure 4
    swad.flatness.line(w1, w2).evaluate(model, loss_fn)
    swad.flatness.curvature(model, loss_fn)                                  # eigenvalues, trace, spectral density

`loss_fn(model)` returns a scalar, per-image losses (1-D), or {domain: per-image losses}. If the losses have two
columns, the second one holds the 0-1 error of each image. `image_losses` builds a loss function from images,
`captured` replays a loss function as a CUDA graph, and a subclass of `LossFunction` says more about itself.

Every function restores the model exactly, also after an error or Ctrl-C. Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swad.util.lazy import lazy_exports

if TYPE_CHECKING:
    from swad.flatness.ascent import WorstCase, WorstCaseRow, worst_case
    from swad.flatness.comparison import Comparison, DifferenceRow, compare
    from swad.flatness.directions import Normalize
    from swad.flatness.hessian import Curvature, CurvatureRow, curvature, require_curvlinops
    from swad.flatness.local_flatness import FlatnessRow, LocalFlatness, average_flatness, check_radii, local
    from swad.flatness.losses import ImageLosses, Logits, LossFn, LossFunction, Precision, image_losses
    from swad.flatness.replay import Captured, captured
    from swad.flatness.slices import Line, Plane, line, plane
    from swad.flatness.surface import Surface, SurfaceRow
    from swad.flatness.theorems import Bound, Divergence, bound

# No module is named like a public function: importing `swad.flatness.local` would hide the function.
__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "theorems": ("Bound", "Divergence", "bound"),
        "replay": ("Captured", "captured"),
        "comparison": ("Comparison", "DifferenceRow", "compare"),
        "directions": ("Normalize",),
        "hessian": ("Curvature", "CurvatureRow", "curvature", "require_curvlinops"),
        "local_flatness": ("FlatnessRow", "LocalFlatness", "average_flatness", "check_radii", "local"),
        "losses": ("ImageLosses", "Logits", "LossFn", "LossFunction", "Precision", "image_losses"),
        "slices": ("Line", "Plane", "line", "plane"),
        "surface": ("Surface", "SurfaceRow"),
        "ascent": ("WorstCase", "WorstCaseRow", "worst_case"),
    },
)

__all__ = [  # noqa: RUF022 - the order a reader wants
    "local",
    "compare",
    "worst_case",
    "plane",
    "line",
    "curvature",
    "bound",
    "image_losses",
    "captured",
    "average_flatness",
    "check_radii",
    "require_curvlinops",
    "LossFn",
    "LossFunction",
    "Normalize",
    "Logits",
    "Precision",
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
    "Bound",
    "Divergence",
]
