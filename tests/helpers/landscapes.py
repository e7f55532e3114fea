"""Losses whose landscapes are known, and small networks to measure by brute force."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional

from swad.flatness.directions import Directions
from swad.flatness.weights import Weights


class Point(nn.Module):
    """Weights alone: two tensors of 3 x 2 and 4 numbers, in double."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.a = nn.Parameter(torch.randn(3, 2, generator=generator, dtype=torch.float64))
        self.b = nn.Parameter(torch.randn(4, generator=generator, dtype=torch.float64))

    def vector(self) -> torch.Tensor:
        return torch.cat([self.a.flatten(), self.b])


def symmetric(seed: int = 0, n: int = 10) -> torch.Tensor:
    """A Hessian with eigenvalues of both signs."""
    root = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root + root.T + 2 * torch.eye(n, dtype=torch.float64)


class Quadratic:
    """0.5 (w - c)' H (w - c) + g' (w - c)."""

    def __init__(self, hessian: torch.Tensor, slope: torch.Tensor | None = None, center: torch.Tensor | None = None):
        n = len(hessian)
        self.hessian = hessian
        self.slope = torch.zeros(n, dtype=torch.float64) if slope is None else slope
        self.center = torch.zeros(n, dtype=torch.float64) if center is None else center

    def at(self, vector: torch.Tensor) -> torch.Tensor:
        away = vector - self.center
        return 0.5 * away @ self.hessian @ away + self.slope @ away

    def __call__(self, model: Point) -> torch.Tensor:
        return self.at(model.vector())


def network(seed: int = 0, batch_norm: bool = True) -> nn.Module:
    torch.manual_seed(seed)
    norm = nn.BatchNorm2d(4) if batch_norm else nn.Identity()
    model = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(4 * 16, 3))
    if batch_norm:
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    return model


def images(n: dict[str, int] | None = None, seed: int = 0) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return {
        domain: (torch.randn(size, 1, 6, 6, generator=generator), torch.randint(3, (size,), generator=generator))
        for domain, size in (n or {"photo": 7, "sketch": 5}).items()
    }


def trained(seed: int = 0, steps: int = 40) -> tuple[nn.Module, dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    """A network that has learnt something, and images it learnt from."""
    data = images({"photo": 40, "sketch": 30})
    model = network(seed, batch_norm=False).eval()
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        sum(functional.cross_entropy(model(x), y) for x, y in data.values()).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model, data


def brute_force(model, loss_of, radius, n_directions, seed, **options):
    """Loss at every direction by the obvious way: copy the model, add the direction, evaluate."""
    losses = []
    with Weights(model) as weights:
        directions = Directions(weights, seed, options.get("antithetic", True), options.get("normalize", "sphere"))
        drawn = [[tensor.clone() for tensor in directions[k]] for k in range(n_directions)]
        names = weights.names
    for direction in drawn:
        twin = copy.deepcopy(model).eval()
        with torch.no_grad():
            for name, tensor in zip(names, direction, strict=True):
                twin.get_parameter(name).add_(tensor, alpha=radius)
            losses.append(loss_of(twin))
    return losses


def fingerprint(model: nn.Module) -> dict[str, object]:
    """Everything about a model that a measurement might change, as bits."""
    found: dict[str, object] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found[name] = (tensor.detach().cpu().numpy().tobytes(), tensor.requires_grad, id(tensor), tensor.data_ptr())
        found[f"{name}.grad"] = None if tensor.grad is None else (id(tensor.grad), tensor.grad.cpu().numpy().tobytes())
    for name, module in model.named_modules():
        found[f"{name}.training"] = module.training
    return found
