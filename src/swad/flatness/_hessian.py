"""Curvature at the weights: top eigenvalues, trace and spectral density of the loss's Hessian, per domain.

The Hessian is never formed: it is a linear operator of Hessian-vector products, by differentiating the gradient once
more, batch by batch. curvlinops estimates trace and density from it, scipy's Lanczos the top eigenvalues.
A stable top eigenvalue needs thousands of images.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from swad.averaging.tensors import Patterns
from swad.flatness._losses import LossFn, first_measured
from swad.flatness._perturb import Weights
from swad.flatness._rows import Progress, Row


@dataclass(frozen=True, slots=True)
class CurvatureRow:
    """The Hessian of one domain's mean loss, or of the mean over domains (None)."""

    domain: str | None
    eigenvalues: tuple[float, ...]
    """The largest ones, from the top."""
    trace: float
    """Hutchinson's estimate; NaN where none was asked for."""
    trace_error: float
    """Its standard error."""
    density: tuple[tuple[float, ...], tuple[float, ...]] | None
    """Values of lambda and the share of eigenvalues per unit there, smoothed; None where none was asked for."""
    parameters: int
    products: int
    """Hessian-vector products taken."""

    @property
    def mean_eigenvalue(self) -> float:
        """trace / dim: for small gamma, F_gamma is half of it times gamma squared."""
        return self.trace / self.parameters

    def as_dict(self) -> Row:
        """JSON-able."""
        return asdict(self)


@dataclass(frozen=True)
class Curvature:
    """What `curvature` found: a row for each domain that has a name, and one for their mean (None)."""

    rows: list[CurvatureRow]

    def row(self, domain: str | None = None) -> CurvatureRow:
        """The row of a domain, or of the mean over domains."""
        for row in self.rows:
            if row.domain == domain:
                return row
        raise KeyError(f"no row for {domain!r}: there are {[row.domain for row in self.rows]}")


def curvature(
    model: nn.Module,
    loss_fn: LossFn,
    n_eigenvalues: int = 5,
    *,
    trace_vectors: int = 32,
    density: bool = False,
    density_steps: int = 64,
    density_repeats: int = 1,
    density_points: int = 512,
    tolerance: float = 1e-3,
    seed: int = 0,
    domains: Sequence[str | None] | None = None,
    include: Patterns = None,
    exclude: Patterns = None,
    progress: Progress | None = None,
) -> Curvature:
    """Top eigenvalues, trace and, with `density`, the spectral density of the Hessian at a model's weights.

    `loss_fn` must be differentiable twice; one from `image_losses` is taken batch by batch. The model is in evaluation
    mode and is left exactly as it was, and so are torch's random numbers. `trace_vectors=0` or `n_eigenvalues=0` leave
    that part out. `domains` asks for some rows only (None stands for the mean over domains). `tolerance` is the
    eigenvalues' relative accuracy. Needs curvlinops: pip install "swad[flatness]".
    """
    curvlinops = require_curvlinops()
    from swad.flatness._hessian_products import HessianProducts, top_eigenvalues

    if n_eigenvalues < 0 or trace_vectors < 0 or trace_vectors == 1:
        counts = f"{n_eigenvalues} and {trace_vectors}"
        raise ValueError(f"n_eigenvalues must be 0 or more and trace_vectors 0, or 2 or more; got {counts}")
    with Weights(model, include, exclude) as weights:
        if weights.dim <= max(n_eigenvalues, 2):
            raise ValueError(
                f"Lanczos needs more parameters than eigenvalues, and more than 2; got {weights.dim} parameters for "
                f"{n_eigenvalues}: choose more parameters or fewer eigenvalues"
            )
        with torch.no_grad():
            found = first_measured(loss_fn(model))
        wanted: list[str | None] = [*(found.losses if found.named else ()), None] if domains is None else list(domains)
        unknown = [domain for domain in wanted if domain is not None and domain not in found.losses]
        if unknown:
            raise ValueError(f"there is no domain {unknown[0]!r}: loss_fn gives {', '.join(found.losses)}")
        rows = []
        for i, domain in enumerate(wanted):
            operator = HessianProducts(model, loss_fn, weights, domain, len(found.losses))
            with torch.random.fork_rng(devices=[weights.device] if weights.device.type == "cuda" else []):
                # One vector a call, so that only one is held, and their spread tells the error.
                torch.manual_seed(seed)
                traces = [float(curvlinops.hutchinson_trace(operator, 1)) for _ in range(trace_vectors)]
                top = top_eigenvalues(operator, n_eigenvalues, tolerance, seed) if n_eigenvalues else ()
                spectrum = None
                if density:
                    torch.manual_seed(seed)
                    steps = min(density_steps, weights.dim)
                    grid, values = curvlinops.lanczos_approximate_spectrum(
                        operator, steps, num_points=density_points, num_repeats=density_repeats
                    )
                    spectrum = (tuple(grid.tolist()), tuple(values.tolist()))
            trace = statistics.fmean(traces) if traces else math.nan
            error = statistics.stdev(traces) / math.sqrt(len(traces)) if traces else math.nan
            rows.append(CurvatureRow(domain, top, trace, error, spectrum, weights.dim, operator.products))
            if progress is not None:
                progress(i + 1, len(wanted))
    return Curvature(rows)


def require_curvlinops() -> Any:
    """The package, or a line that says how to get it."""
    try:
        import curvlinops
    except ImportError:
        raise ValueError('curvature needs curvlinops and scipy: pip install "swad[flatness]"') from None
    return curvlinops
