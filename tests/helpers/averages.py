"""A small network and a training loop for tests of averages."""

from __future__ import annotations

import torch
from torch import nn


class OneHot(nn.Module):
    """After update i its weights are the unit vector e_i, so an average of them *is* the updates' weights."""

    def __init__(self, size: int = 100) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.go_to(0)

    @torch.no_grad()
    def go_to(self, step: int) -> None:
        self.weight.zero_()
        self.weight[step] = 1
        self.seen.fill_(step)
        self.count.fill_(step)


# -- tensors: names, buffers, frozen, tied, patterns, wrappers -----------------------------------------------


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.ReLU())
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.body(x))


def train(model, optimizer, steps, seed=0, after=lambda step: None):
    generator = torch.Generator().manual_seed(seed)
    for step in range(1, steps + 1):
        x = torch.randn(8, 3, generator=generator)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        after(step)
