"""The Hessian as a linear operator of curvlinops, and its top eigenvalues by scipy. Imports both packages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from curvlinops._torch_base import PyTorchLinearOperator  # the base that the package has its users extend
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from swad.flatness._losses import LossFn, climbing, parts_of
from swad.flatness._perturb import Weights


class HessianProducts(PyTorchLinearOperator):  # type: ignore[misc]
    """The Hessian of a domain's mean loss, or of the mean over domains (None), by products with vectors."""

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
        columns = [[one[..., k].to(dtype) for one, dtype in zip(X, dtypes, strict=True)] for k in range(n)]
        found = hessian_product(self._loss_fn, self._model, self._weights, self._domain, self._n_domains, columns)
        self.products += n
        return [torch.stack(of_one, -1).to(X[0].dtype) for of_one in zip(*found, strict=True)]

    @property
    def device(self) -> torch.device:
        """Where the products are taken."""
        return self._weights.device

    @property
    def dtype(self) -> torch.dtype:
        """The widest precision of the weights."""
        widest = self._weights.dtypes[0]
        for dtype in self._weights.dtypes[1:]:
            widest = torch.promote_types(widest, dtype)
        return widest


def top_eigenvalues(operator: HessianProducts, n: int, tolerance: float, seed: int) -> tuple[float, ...]:
    """The `n` largest eigenvalues from the top, by implicitly restarted Lanczos."""
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(operator.shape[1], generator=generator, dtype=torch.float64).numpy()
    products = operator.to_scipy()
    if not (products @ start).any():  # a linear loss, or one that is zero to the last digit: nothing for Lanczos
        return (0.0,) * n
    try:
        found = eigsh(products, k=n, which="LA", tol=tolerance, v0=start, return_eigenvectors=False)
    except ArpackNoConvergence as error:
        raise ValueError(
            f"{n} eigenvalues should be known to {tolerance:g}, and {len(error.eigenvalues)} were: ask for fewer, or "
            "give a larger tolerance"
        ) from None
    return tuple(sorted((float(value) for value in found), reverse=True))


def hessian_product(
    loss_fn: LossFn,
    model: nn.Module,
    weights: Weights,
    domain: str | None,
    n_domains: int,
    columns: Sequence[list[Tensor]],
) -> list[list[Tensor]]:
    """The Hessian of a domain's mean loss (None: of the mean over domains) times every column."""
    products = [[torch.zeros_like(one) for one in column] for column in columns]
    # Fused attention has no second derivative.
    with weights.differentiable() as parameters, sdpa_kernel(SDPBackend.MATH):
        for piece in parts_of(loss_fn, model):
            mean = climbing(piece, domain)
            if mean is None:
                continue
            if domain is None:
                mean = mean / n_domains
            gradient = torch.autograd.grad(mean, parameters, create_graph=True, allow_unused=True)
            curved = [one for one in gradient if one is not None and one.requires_grad]
            for product, column in zip(products, columns, strict=True):
                along = [c for c, g in zip(column, gradient, strict=True) if g is not None and g.requires_grad]
                if not curved:
                    continue
                found = torch.autograd.grad(curved, parameters, along, retain_graph=True, allow_unused=True)
                with torch.no_grad():
                    for total, one in zip(product, found, strict=True):
                        if one is not None:
                            total += one
    return products
