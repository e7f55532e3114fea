"""The Hessian as a linear operator of curvlinops, and its top eigenvalues from scipy.

This module imports both optional packages; `_hessian` imports it where it needs them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from curvlinops._torch_base import PyTorchLinearOperator  # the base class that curvlinops documents for extension
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from swad.flatness._losses import LossFn, loss_parts, selected_loss
from swad.flatness._perturb import Weights


class HessianOperator(PyTorchLinearOperator):  # type: ignore[misc]
    """The Hessian of a domain's mean loss, or of the mean over domains (None), as products with vectors."""

    SELF_ADJOINT = True

    def __init__(self, model: nn.Module, loss_fn: LossFn, weights: Weights, domain: str | None, n_domains: int) -> None:
        shapes = [tuple(tensor.shape) for tensor in weights.live]
        super().__init__(shapes, shapes)
        self._model, self._loss_fn, self._weights = model, loss_fn, weights
        self._domain, self._n_domains = domain, n_domains
        self.products = 0

    def _matmat(self, X: list[Tensor]) -> list[Tensor]:
        n = X[0].shape[-1]
        dtypes = [tensor.dtype for tensor in self._weights.live]
        columns = [[tensor[..., k].to(dtype) for tensor, dtype in zip(X, dtypes, strict=True)] for k in range(n)]
        products = hessian_product(self._loss_fn, self._model, self._weights, self._domain, self._n_domains, columns)
        self.products += n
        return [torch.stack(by_column, -1).to(X[0].dtype) for by_column in zip(*products, strict=True)]

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
    return tuple(sorted((float(value) for value in eigenvalues), reverse=True))


def hessian_product(
    loss_fn: LossFn,
    model: nn.Module,
    weights: Weights,
    domain: str | None,
    n_domains: int,
    columns: Sequence[list[Tensor]],
) -> list[list[Tensor]]:
    """Multiply the Hessian of a domain's mean loss (None: of the mean over domains) with every column."""
    products = [[torch.zeros_like(tensor) for tensor in column] for column in columns]
    # Fused attention has no second derivative.
    with weights.differentiable() as parameters, sdpa_kernel(SDPBackend.MATH):
        for part in loss_parts(loss_fn, model):
            loss = selected_loss(part, domain)
            if loss is None:
                continue
            if domain is None:
                loss = loss / n_domains
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
