"""Curvature at the weights: top eigenvalues, trace and spectral density of the loss's Hessian, per domain.

The Hessian is never formed. It is a linear operator whose products with vectors come from differentiating the
gradient once more, batch by batch. From these products curvlinops estimates trace and density, and scipy's Lanczos
method the top eigenvalues. A stable top eigenvalue needs thousands of images.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from swad.flatness.losses import Losses, LossFn, LossFunction, as_loss_function, selected_loss
from swad.flatness.rows import JsonRow
from swad.flatness.weights import Weights, add_terms, split_like
from swad.tensors.names import Patterns
from swad.util.progress import Progress, count_progress

KAPPA = 3.0
"""Width of the density's peaks, as Papyan (2020) chose it: neighboring Lanczos nodes meet at 1 / KAPPA of a peak."""
AREA_TOLERANCE = 0.05
"""Warn if the area below a density differs from 1 by more than this."""


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

        count = count_progress(progress, "curvature", len(wanted) * n_products)

        def report(products: int) -> None:
            # A domain with restarts stays at its last product but one.
            count(len(rows) * n_products + min(products, n_products - 1))

        for domain in wanted:
            if rows and len(losses.losses) == 1:  # the mean over one domain is that domain
                rows.append(replace(rows[0], domain=domain))
                report(0)
                continue
            hessian = Hessian(weights, function, domain, len(losses.losses), report)
            with torch.random.fork_rng(devices=[weights.device] if weights.device.type == "cuda" else []):
                torch.manual_seed(seed)
                # One vector per call: only one is in memory, and the spread of the traces gives the standard error.
                traces = [float(curvlinops.hutchinson_trace(hessian, 1)) for _ in range(trace_vectors)]
                eigenvalues = top_eigenvalues(hessian, n_eigenvalues, tolerance, seed) if n_eigenvalues else ()
                spectrum = None
                if density:
                    torch.manual_seed(seed)
                    n_steps = min(density_steps, weights.dim)
                    spectrum = spectral_density(hessian, n_steps, density_repeats, density_points)
            trace = statistics.fmean(traces) if traces else math.nan
            error = statistics.stdev(traces) / math.sqrt(len(traces)) if traces else math.nan
            rows.append(CurvatureRow(domain, eigenvalues, trace, error, spectrum, weights.dim, hessian.products))
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


class Hessian:
    """The Hessian of a domain's mean loss, or of the mean over domains (None): a linear operator for curvlinops.

    `hessian @ vector` is the product with a vector of all chosen parameters, or with every column of a matrix.
    """

    def __init__(
        self,
        weights: Weights,
        loss_fn: LossFunction,
        domain: str | None,
        n_domains: int,
        report: Callable[[int], None],
    ) -> None:
        self._weights, self._loss_fn, self._domain, self._n_domains = weights, loss_fn, domain, n_domains
        self._report, self.products = report, 0
        self.shape = (weights.dim, weights.dim)
        self.device = weights.device
        self.dtype = reduce(torch.promote_types, weights.dtypes)

    def __matmul__(self, vectors: Tensor) -> Tensor:
        if vectors.ndim > 1:
            return torch.stack([self @ vector for vector in vectors.unbind(1)], 1)
        product = self._product(vectors)
        # Lanczos may pass vectors that are not finite, and handles the result; see `_lanczos`.
        if not bool(torch.isfinite(product).all()) and bool(torch.isfinite(vectors).all()):
            raise ValueError("the Hessian is not finite at these weights: check that the loss and its gradient are")
        self.products += 1
        self._report(self.products)
        return product

    def _product(self, vector: Tensor) -> Tensor:
        live = self._weights.live
        directions = [piece.to(tensor.dtype) for piece, tensor in zip(split_like(live, vector), live, strict=True)]
        product = [torch.zeros_like(direction) for direction in directions]
        # Fused attention has no second derivative.
        with self._weights.differentiable() as parameters, sdpa_kernel(SDPBackend.MATH):
            for part in self._loss_fn.parts(self._weights.given):
                loss = selected_loss(part, self._domain)
                if loss is None:
                    continue
                if self._domain is None:
                    loss = loss / self._n_domains
                gradient = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
                # Parameters that enter linearly have a constant gradient, without a graph to differentiate.
                curved = [k for k, grad in enumerate(gradient) if grad is not None and grad.requires_grad]
                if not curved:
                    continue
                outputs, along = [gradient[k] for k in curved], [directions[k] for k in curved]
                add_terms(product, torch.autograd.grad(outputs, parameters, along, allow_unused=True))
        return torch.cat([tensor.reshape(-1).to(vector.dtype) for tensor in product])

    def to_scipy(self) -> Any:
        """Return the operator for scipy, on the host in double precision."""
        from scipy.sparse.linalg import LinearOperator

        def product(vector: Any) -> Any:
            on_device = torch.as_tensor(vector, dtype=self.dtype, device=self.device).reshape(-1)
            return (self @ on_device).cpu().numpy().astype(vector.dtype)

        return LinearOperator(self.shape, matvec=product, dtype=float)


def top_eigenvalues(hessian: Hessian, n: int, tolerance: float, seed: int) -> tuple[float, ...]:
    """Return the `n` largest eigenvalues in descending order, by implicitly restarted Lanczos."""
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(hessian.shape[1], generator=generator, dtype=torch.float64).numpy()
    matrix = hessian.to_scipy()
    if not (matrix @ start).any():  # a zero Hessian, e.g. of a linear loss: ARPACK would fail
        return (0.0,) * n
    try:
        eigenvalues = eigsh(matrix, k=n, which="LA", tol=tolerance, v0=start, return_eigenvectors=False)
    except ArpackNoConvergence as error:
        raise ValueError(
            f"only {len(error.eigenvalues)} of {n} eigenvalues converged to the tolerance {tolerance:g}: request "
            "fewer, or a larger tolerance"
        ) from None
    # Exact zeros come back as numbers like 1e-60 that depend on random vectors of ARPACK's own.
    rounding = torch.finfo(torch.float64).eps * abs(eigenvalues).max()
    return tuple(sorted((float(value) if abs(value) > rounding else 0.0 for value in eigenvalues), reverse=True))


def spectral_density(
    hessian: Hessian, n_steps: int, n_repeats: int, n_points: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return points and the smoothed density of eigenvalues there, by Lanczos quadrature (Papyan, 2020).

    The random starts come from torch's generator. The grid spans all Lanczos nodes, and its margins hold the peaks at
    both ends. An estimate of the ends that misses the zeros of a Hessian of low rank would lose most of the area.
    """
    from curvlinops.papyan2020traces.spectrum import lanczos_approximate_spectrum_from_iter

    quadratures = [_lanczos(hessian, n_steps) for _ in range(n_repeats)]
    low, high = (end.item() for end in torch.cat([nodes for nodes, _ in quadratures]).aminmax())
    smallest = 1e-3 * max(abs(low), abs(high)) or 1.0  # all eigenvalues equal, or zero: a peak needs some width
    if high - low < smallest:
        low, high = low - smallest / 2, high + smallest / 2
    # The margin holds four standard deviations of a peak, as a share of the distance of the ends.
    deviations = 4 * 2 / max(min(len(nodes) for nodes, _ in quadratures) - 1, 1) / math.sqrt(8 * math.log(KAPPA))
    margin = max(0.05, 0.5 * deviations / (1 - min(deviations, 0.8)))
    grid = total = torch.zeros(n_points)
    for nodes, vectors in quadratures:
        grid, density = lanczos_approximate_spectrum_from_iter((nodes, vectors), (low, high), n_points, KAPPA, margin)
        total = total.to(density) + density / n_repeats
    area = torch.trapezoid(total.double(), grid.double()).item()
    if not abs(area - 1) <= AREA_TOLERANCE:
        warnings.warn(
            f"the area below the spectral density is {area:.2g} instead of 1: its peaks are too narrow or too wide for "
            f"{n_points} points; use more density_points, or other density_steps than {n_steps}",
            stacklevel=3,
        )
    return tuple(grid.tolist()), tuple(total.tolist())


def _lanczos(hessian: Hessian, n_steps: int) -> tuple[Tensor, Tensor]:
    """Return nodes and eigenvectors of the Lanczos matrix; their first components squared are the nodes' weights.

    A start within few eigenspaces ends the iteration early, with a division by zero: then fewer steps say it all.
    """
    from curvlinops.papyan2020traces.spectrum import fast_lanczos

    while n_steps > 1:
        try:
            nodes, vectors = fast_lanczos(hessian, n_steps)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined] # numbers that are not finite
            n_steps //= 2
            continue
        if bool(torch.isfinite(nodes).all()):
            return nodes, vectors
        n_steps //= 2
    node, _ = fast_lanczos(hessian, 1)
    # The number of nodes decides the width of a peak, so add some without weight.
    return node.repeat(16), torch.eye(16, dtype=node.dtype, device=node.device)
