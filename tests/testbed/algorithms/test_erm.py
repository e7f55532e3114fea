from __future__ import annotations

import torch
from torch.nn import functional

from swad.testbed.algorithms.base import Algorithm, RunInfo, StepContext
from swad.testbed.algorithms.hyperparameters import fill
from swad.testbed.algorithms.registry import get_algorithm
from swad.testbed.data.loaders import Batch
from swad.testbed.models import networks


def batch(step: int = 1, domains: int = 3, per_domain: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(step)
    n = domains * per_domain
    return Batch(step, torch.randn(n, 3, 28, 28, generator=generator), torch.randint(0, 5, (n,), generator=generator))


def make(name: str = "erm", **changes: float) -> Algorithm:
    torch.manual_seed(0)
    kind = get_algorithm(name)
    hyperparameters = fill(kind.Hyperparameters, {"batch_size": 4, **changes})
    return kind(networks.build(networks.SMALL, 5), hyperparameters, RunInfo((1,) * 3)).train()


def test_erm_is_the_mean_cross_entropy_and_adam():
    algorithm, twin = make(lr=1e-2), make(lr=1e-2)
    optimizer = torch.optim.Adam(twin.predictor.parameters(), lr=1e-2)
    for step in (1, 2, 3):
        here = batch(step)
        loss = algorithm.update(here, {}, StepContext())
        optimizer.zero_grad()
        want = functional.cross_entropy(twin.predictor(here.images), here.labels)
        want.backward()
        optimizer.step()
        torch.testing.assert_close(loss, want.detach())
    for mine, theirs in zip(algorithm.predictor.parameters(), twin.predictor.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
