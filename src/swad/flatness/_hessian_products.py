"""The Hessian as a linear operator of curvlinops, its spectral density, and its top eigenvalues from scipy.

This module imports both optional packages; `hessian` imports it where it needs them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence

import torch
from curvlinops._torch_base import PyTorchLinearOperator  # the base class that curvlinops documents for extension
from curvlinops.papyan2020traces.spectrum import fast_lanczos, lanczos_approximate_spectrum_from_iter
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from swad.flatness.losses import LossFunction, selected_loss
from swad.flatness.weights import Weights

KAPPA = 3.0
"""Width of the density's peaks, as Papyan (2020) chose it: neighboring Lanczos nodes meet at 1 / KAPPA of a peak."""
AREA_TOLERANCE = 0.05
"""Warn if the area below a density differs from 1 by more than this."""


class HessianOperator(PyTorchLinearOperator):  # type: ignore[misc]
    """The Hessian of a domain's mean loss, or of the mean over domains (None), as products with vectors."""

    SELF_ADJOINT = True

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        weights: Weights,
        domain: str | None,
        n_domains: int,
        report: Callable[[int], None],
    ) -> None:
        shapes = [tuple(tensor.shape) for tensor in weights.live]
        super().__init__(shapes, shapes)
        self._model, self._loss_fn, self._weights = model, loss_fn, weights
        self._domain, self._n_domains = domain, n_domains
        self._report = report
        self.products = 0

    def _matmat(self, X: list[Tensor]) -> list[Tensor]:
        n = X[0].shape[-1]
        dtypes = [tensor.dtype for tensor in self._weights.live]
        columns = [[tensor[..., k].to(dtype) for tensor, dtype in zip(X, dtypes, strict=True)] for k in range(n)]
        products = self._products(columns)
        # Lanczos may pass vectors that are not finite, and handles the result; see `_lanczos`.
        if not _is_finite(tensor for product in products for tensor in product) and _is_finite(X):
            raise ValueError("the Hessian is not finite at these weights: check that the loss and its gradient are")
        self.products += n
        self._report(self.products)
        return [torch.stack(by_column, -1).to(X[0].dtype) for by_column in zip(*products, strict=True)]

    def _products(self, columns: Sequence[list[Tensor]]) -> list[list[Tensor]]:
        """Multiply the Hessian with every column."""
        products = [[torch.zeros_like(tensor) for tensor in column] for column in columns]
        # Fused attention has no second derivative.
        with self._weights.differentiable() as parameters, sdpa_kernel(SDPBackend.MATH):
            for part in self._loss_fn.parts(self._model):
                loss = selected_loss(part, self._domain)
                if loss is None:
                    continue
                if self._domain is None:
                    loss = loss / self._n_domains
                gradient = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
                # Parameters that enter linearly have a constant gradient, without a graph to differentiate.
                curved = [grad is not None and grad.requires_grad for grad in gradient]
                if not any(curved):
                    continue
                outputs = [grad for grad, keep in zip(gradient, curved, strict=True) if keep]
                for product, column in zip(products, columns, strict=True):
                    vectors = [tensor for tensor, keep in zip(column, curved, strict=True) if keep]
                    terms = torch.autograd.grad(outputs, parameters, vectors, retain_graph=True, allow_unused=True)
                    with torch.no_grad():
                        for total, term in zip(product, terms, strict=True):
                            if term is not None:
                                total += term
        return products

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._weights.device

    @property
    def dtype(self) -> torch.dtype:
        """The widest precision of the weights."""
        widest = self._weights.dtypes[0]
        for dtype in self._weights.dtypes[1:]:
            widest = torch.promote_types(widest, dtype)
        return widest


def top_eigenvalues(operator: HessianOperator, n: int, tolerance: float, seed: int) -> tuple[float, ...]:
    """Return the `n` largest eigenvalues in descending order, by implicitly restarted Lanczos."""
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(operator.shape[1], generator=generator, dtype=torch.float64).numpy()
    matrix = operator.to_scipy()
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
    operator: HessianOperator, n_steps: int, n_repeats: int, n_points: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return points and the smoothed density of eigenvalues there, by Lanczos quadrature (Papyan, 2020).

    The random starts come from torch's generator. The grid spans all Lanczos nodes, and its margins hold the peaks at
    both ends. An estimate of the ends that misses the zeros of a Hessian of low rank would lose most of the area.
    """
    quadratures = [_lanczos(operator, n_steps) for _ in range(n_repeats)]
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


def _lanczos(operator: HessianOperator, n_steps: int) -> tuple[Tensor, Tensor]:
    """Return nodes and eigenvectors of the Lanczos matrix; their first components squared are the nodes' weights.

    A start within few eigenspaces ends the iteration early, with a division by zero: then fewer steps say it all.
    """
    while n_steps > 1:
        try:
            nodes, vectors = fast_lanczos(operator, n_steps)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined] # numbers that are not finite
            n_steps //= 2
            continue
        if bool(torch.isfinite(nodes).all()):
            return nodes, vectors
        n_steps //= 2
    node, _ = fast_lanczos(operator, 1)
    # The number of nodes decides the width of a peak, so add some without weight.
    return node.repeat(16), torch.eye(16, dtype=node.dtype, device=node.device)


def _is_finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)
