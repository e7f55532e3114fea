"""Flatness of the loss around given weights, for any `(model, loss_fn)`.

    flat = swad.flatness.local(model, loss_fn, radii=[10, 20, 40])           # F_gamma per domain, with intervals
    both = swad.flatness.compare({"ERM": erm, "SWAD": swad_weights}, loss_fn, radii, model=model)   # paired
    worst = swad.flatness.worst_case(model, loss_fn, radius=0.05)            # a lower bound of the maximum
    plane = swad.flatness.plane(w1, w2, w3); plane.evaluate(model, loss_fn)  # the loss surface of Figure 4
    swad.flatness.line(w1, w2).evaluate(model, loss_fn)
    swad.flatness.curvature(model, loss_fn)                                  # eigenvalues, trace, spectral density

`loss_fn(model)` returns a scalar, per-image losses (1-D), or {domain: per-image losses}. If the losses have two
columns, the second one holds the 0-1 error of each image. `image_losses` builds a loss function from images, and
`captured` replays a loss function as a CUDA graph.

Every function restores the model exactly, also after an error or Ctrl-C. Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swad.util.lazy import lazy_exports

if TYPE_CHECKING:
    from swad.flatness._bound import Bound, bound
    from swad.flatness._captured import Captured, captured
    from swad.flatness._compare import Comparison, DifferenceRow, compare
    from swad.flatness._directions import Normalize
    from swad.flatness._divergence import Divergence, divergence
    from swad.flatness._hessian import Curvature, CurvatureRow, curvature, require_curvlinops
    from swad.flatness._local import FlatnessRow, LocalFlatness, average_flatness, check_radii, local
    from swad.flatness._losses import ImageLosses, Logits, LossFn, Precision, image_losses
    from swad.flatness._surface import Line, Plane, line, plane
    from swad.flatness._surface_rows import Surface, SurfaceRow
    from swad.flatness._worst_case import WorstCase, WorstCaseRow, worst_case

# The modules are private because a submodule called `local` or `compare` would hide the function.
__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "_bound": ("Bound", "bound"),
        "_captured": ("Captured", "captured"),
        "_compare": ("Comparison", "DifferenceRow", "compare"),
        "_directions": ("Normalize",),
        "_divergence": ("Divergence", "divergence"),
        "_hessian": ("Curvature", "CurvatureRow", "curvature", "require_curvlinops"),
        "_local": ("FlatnessRow", "LocalFlatness", "average_flatness", "check_radii", "local"),
        "_losses": ("ImageLosses", "Logits", "LossFn", "Precision", "image_losses"),
        "_surface": ("Line", "Plane", "line", "plane"),
        "_surface_rows": ("Surface", "SurfaceRow"),
        "_worst_case": ("WorstCase", "WorstCaseRow", "worst_case"),
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
    "divergence",
    "image_losses",
    "captured",
    "average_flatness",
    "check_radii",
    "require_curvlinops",
    "LossFn",
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
