"""Curvature at the weights: top eigenvalues, trace and spectral density of the loss's Hessian, per domain.

The Hessian is never formed. It is a linear operator whose products with vectors come from differentiating the
gradient once more, batch by batch. From these products curvlinops estimates trace and density, and scipy's Lanczos
method the top eigenvalues. A stable top eigenvalue needs thousands of images.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from swad.flatness.losses import Losses, LossFn, as_loss_function
from swad.flatness.rows import JsonRow
from swad.flatness.weights import Weights
from swad.tensors.names import Patterns
from swad.util.progress import Progress


@dataclass(frozen=True, slots=True)
class CurvatureRow(JsonRow):
    """The Hessian of one domain's mean loss, or of the mean over domains (None)."""

    domain: str | None
    eigenvalues: tuple[float, ...]
    """The largest eigenvalues, in descending order."""
    trace: float
    """Hutchinson's estimate; NaN if it was not requested."""
    trace_error: float
    """The standard error of the trace."""
    density: tuple[tuple[float, ...], tuple[float, ...]] | None
    """Values of lambda and the smoothed density of eigenvalues there, whose area is 1; None if not requested."""
    parameters: int
    products: int
    """Number of Hessian-vector products computed."""


@dataclass(frozen=True)
class Curvature:
    """The result of `curvature`: a row for each named domain, and one for the mean over domains (None)."""

    rows: list[CurvatureRow]

    def row(self, domain: str | None = None) -> CurvatureRow:
        """Return the row of a domain, or of the mean over domains (None)."""
        for row in self.rows:
            if row.domain == domain:
                return row
        raise KeyError(f"no row for {domain!r}: the rows are for {[row.domain for row in self.rows]}")


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
    """Compute top eigenvalues, trace and, on request, spectral density of the Hessian at a model's weights.

    The model is evaluated in evaluation mode and restored exactly, and so is torch's random state. Needs curvlinops:
    pip install "swad[flatness]".

    Args:
        model: The model at the weights to measure.
        loss_fn: A loss function that is differentiable twice; `image_losses` is differentiated batch by batch.
        n_eigenvalues: Number of top eigenvalues; 0 skips them.
        trace_vectors: Number of random vectors for the trace, at least 2; 0 skips it.
        density: Whether to estimate the spectral density too.
        density_steps: Lanczos steps of the density.
        density_repeats: Random starts that the density is averaged over.
        density_points: Number of points of the density. A warning says if they are too few for its peaks.
        tolerance: Relative accuracy of the eigenvalues.
        seed: Seed of the random vectors.
        domains: Domains to compute rows for; None among them stands for the mean over domains. By default all.
        include: Name patterns of the parameters to differentiate by; by default all floating-point parameters.
        exclude: Name patterns of parameters to leave out.
        progress: Called after every product of the Hessian with a vector.
    """
    curvlinops = require_curvlinops()
    from swad.flatness._hessian_products import HessianOperator, spectral_density, top_eigenvalues

    if n_eigenvalues < 0 or trace_vectors < 0 or trace_vectors == 1:
        counts = f"{n_eigenvalues} and {trace_vectors}"
        raise ValueError(f"n_eigenvalues must be 0 or more and trace_vectors 0, or 2 or more; got {counts}")
    if density and (density_steps < 2 or density_repeats < 1 or density_points < 2):
        raise ValueError(
            "a density needs 2 or more density_steps and density_points, and 1 or more density_repeats; got "
            f"{density_steps}, {density_points} and {density_repeats}"
        )
    function = as_loss_function(loss_fn)
    with Weights(model, include, exclude) as weights:
        if weights.dim <= max(n_eigenvalues, 2):
            raise ValueError(
                f"Lanczos needs more parameters than eigenvalues, and more than 2; got {weights.dim} parameters for "
                f"{n_eigenvalues}: choose more parameters or fewer eigenvalues"
            )
        with torch.no_grad():
            function.fit(model)
            losses = function.losses(model).checked()
        wanted = _wanted_domains(losses, domains)
        # Of one domain, if the eigenvalues need no restart: one to look for zeros, then ARPACK's basis and its start.
        n_products = max(1, trace_vectors)
        n_products += max(2 * n_eigenvalues + 1, 20) + 2 if n_eigenvalues else 0
        n_products += density_steps * density_repeats if density else 0
        rows: list[CurvatureRow] = []

        def report(products: int) -> None:
            if progress is not None:
                # A domain with restarts stays at its last product but one.
                done = len(rows) * n_products + min(products, n_products - 1)
                progress("curvature", done, len(wanted) * n_products)

        for domain in wanted:
            if rows and len(losses.losses) == 1:  # the mean over one domain is that domain
                rows.append(replace(rows[0], domain=domain))
                report(0)
                continue
            operator = HessianOperator(model, function, weights, domain, len(losses.losses), report)
            with torch.random.fork_rng(devices=[weights.device] if weights.device.type == "cuda" else []):
                torch.manual_seed(seed)
                # One vector per call: only one is in memory, and the spread of the traces gives the standard error.
                traces = [float(curvlinops.hutchinson_trace(operator, 1)) for _ in range(trace_vectors)]
                eigenvalues = top_eigenvalues(operator, n_eigenvalues, tolerance, seed) if n_eigenvalues else ()
                spectrum = None
                if density:
                    torch.manual_seed(seed)
                    n_steps = min(density_steps, weights.dim)
                    spectrum = spectral_density(operator, n_steps, density_repeats, density_points)
            trace = statistics.fmean(traces) if traces else math.nan
            error = statistics.stdev(traces) / math.sqrt(len(traces)) if traces else math.nan
            rows.append(CurvatureRow(domain, eigenvalues, trace, error, spectrum, weights.dim, operator.products))
            report(0)
    return Curvature(rows)


def _wanted_domains(losses: Losses, domains: Sequence[str | None] | None) -> list[str | None]:
    if domains is None:
        return [*(losses.losses if losses.named else ()), None]
    wanted = list(domains)
    unknown = [domain for domain in wanted if domain is not None and domain not in losses.losses]
    if unknown:
        raise ValueError(f"there is no domain {unknown[0]!r}: loss_fn gives {', '.join(map(repr, losses.losses))}")
    return wanted


def require_curvlinops() -> Any:
    """Return the package curvlinops, or raise an error that says how to install it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a package that it imports uses a deprecated part of torch
            import curvlinops
    except ImportError:
        raise ValueError('curvature needs curvlinops and scipy: pip install "swad[flatness]"') from None
    return curvlinops
