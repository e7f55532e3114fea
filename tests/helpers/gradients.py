"""Compare a loss and its gradients with those of a slow twin in double precision."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from swad.testbed.algorithms.base import Algorithm
from swad.testbed.data.loaders import Batch

Scores = Callable[..., Tensor]


def double_scores(network: nn.Module) -> Scores:
    """Return a function from one image, and the dropout mask of its features, to its scores."""

    def scores(image: Tensor, mask: Tensor | None = None) -> Tensor:
        maps: Any = network.forward_features(image.double()[None])
        features = network.forward_head(maps, pre_logits=True)
        head: Any = network.get_classifier()
        return head(features if mask is None else features * mask.double())[0]

    return scores


def entropy(scores: Tensor, label: int) -> Tensor:
    """Return the cross entropy of one image."""
    return scores.exp().sum().log() - scores[label]


def require_same_loss(
    algorithm: Algorithm,
    batch: Batch,
    noise: dict[str, Tensor],
    twin_loss: Callable[[Scores], Tensor],
    rtol: float = 1e-4,
) -> None:
    """Compare the loss with `twin_loss(scores)`, and the gradients in units of the largest entry of each parameter."""
    parameters = dict(algorithm.predictor.named_parameters())
    twin = copy.deepcopy(algorithm.predictor).double()
    loss, wanted = algorithm.loss(batch, noise), twin_loss(double_scores(twin))
    torch.testing.assert_close(loss.double(), wanted, rtol=rtol / 10, atol=0)
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    expected = torch.autograd.grad(wanted, list(twin.parameters()))
    for name, gradient, twin_gradient in zip(parameters, gradients, expected, strict=True):
        scale = twin_gradient.abs().max().item()
        assert scale > 0, name
        torch.testing.assert_close(
            gradient.double(), twin_gradient, rtol=0, atol=rtol * scale, msg=lambda text, name=name: f"{name}: {text}"
        )
