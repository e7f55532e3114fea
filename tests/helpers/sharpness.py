"""The gradients of sharpness-aware steps as one vector, and the weights at which an algorithm computes a loss."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.testbed.data.loaders import Batch


def gradients(network: nn.Module, loss_of: Callable[[nn.Module], Tensor], rho: float, alpha: float = 0.0) -> Any:
    """Return the gradient, the one at the perturbed weights, and those weights, each as one vector of doubles."""
    twin = copy.deepcopy(network).double()
    weights = list(twin.parameters())
    flat = nn.utils.parameters_to_vector(weights).detach()
    here = torch.cat([g.flatten() for g in torch.autograd.grad(loss_of(twin), weights)])
    point = flat + (rho / here.norm() - alpha) * here
    nn.utils.vector_to_parameters(point, weights)
    there = torch.cat([g.flatten() for g in torch.autograd.grad(loss_of(twin), weights)])
    return here, there, point


def entropy(batch: Batch) -> Callable[[nn.Module], Tensor]:
    """Return the mean cross entropy as a function of the network."""
    return lambda net: functional.cross_entropy(net(batch.images.double()), batch.labels)


def coral(batch: Batch, gamma: float) -> Callable[[nn.Module], Tensor]:
    """Return CORAL's loss over three domains of four images as a function of the network."""

    def loss_of(net: Any) -> Tensor:
        features = net.forward_head(net.forward_features(batch.images.double()), pre_logits=True)
        domains = features.reshape(3, 4, -1)
        distance = features.new_zeros(())
        for d, e in ((0, 1), (0, 2), (1, 2)):
            distance = distance + (domains[d].mean(0) - domains[e].mean(0)).square().mean()
            distance = distance + (domains[d].T.cov() - domains[e].T.cov()).square().mean()
        return functional.cross_entropy(net.head(features), batch.labels) + gamma * distance / 3

    return loss_of


def gradient_of(algorithm: Any) -> Tensor:
    """Return the gradient with which the last step was made, as one vector of doubles."""
    return torch.cat([param.grad.flatten() for param in algorithm.predictor.parameters()]).double()


class Spy:
    """Records the weights whenever a loss is computed."""

    def __init__(self, algorithm: Any) -> None:
        self.points: list[Tensor] = []
        inner = algorithm.loss

        def loss(batch: Batch, noise: Any) -> Any:
            self.points.append(nn.utils.parameters_to_vector(algorithm.predictor.parameters()).detach())
            return inner(batch, noise)

        algorithm.loss = loss
