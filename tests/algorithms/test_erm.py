from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from swad.algorithms.base import Algorithm, StepContext
from swad.algorithms.hyperparameters import draw, fill
from swad.algorithms.registry import AlgorithmError, canonical_name, get_algorithm, list_algorithms
from swad.data.loaders import Batch
from swad.models import networks


def batch(step: int = 1, domains: int = 3, per_domain: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(step)
    n = domains * per_domain
    return Batch(step, torch.randn(n, 3, 28, 28, generator=generator), torch.randint(0, 5, (n,), generator=generator))


def make(name: str = "erm", **changes: float) -> Algorithm:
    torch.manual_seed(0)
    kind = get_algorithm(name)
    return kind(networks.build(networks.SMALL, 5), fill(kind.Hyperparameters, {"batch_size": 4, **changes}), 3).train()


def test_the_folder_is_the_registry():
    assert "erm" in list_algorithms()
    assert get_algorithm("ERM") is get_algorithm("erm")
    assert canonical_name("E-R-M") == "erm"
    with pytest.raises(AlgorithmError, match=r"there is no algorithm 'ern'; choose one of .*erm"):
        get_algorithm("ern")


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


def test_dropout_keeps_the_mean():
    noise = make(dropout=0.1).draw_randomness(torch.Generator().manual_seed(0), 1)["dropout_mask"]
    assert noise.unique().tolist() == pytest.approx([0, 1 / 0.9])
    assert noise.mean().item() == pytest.approx(1, abs=0.02)
    assert make().draw_randomness(torch.Generator(), 1) == {}


def test_gradients_are_clipped_and_averaged():
    algorithm = make()
    seen: list[int] = []

    def average(parameters):
        seen.append(sum(p.grad is not None for p in parameters))

    algorithm.update(batch(), {}, StepContext(average_gradients=average, clip=1e-3))
    norm = torch.cat([p.grad.flatten() for p in algorithm.parameters()]).norm()
    assert norm <= 1.001e-3
    assert seen == [sum(1 for _ in algorithm.parameters())]


def test_hyperparameters_check_themselves():
    kind = get_algorithm("erm").Hyperparameters
    with pytest.raises(ValueError, match="no hyperparameter lrr; there are lr, batch_size, weight_decay, dropout"):
        fill(kind, {"lrr": 1})
    for bad in ({"lr": 0}, {"lr": -1}, {"batch_size": 0}, {"batch_size": 1.5}, {"dropout": 1}, {"lr": "x"}):
        assert len(kind(**bad).problems()) == 1, bad
    assert kind() == kind(lr=5e-5, batch_size=32, weight_decay=0.0, dropout=0.0)


def test_draws_lie_in_domainbeds_ranges():
    kind = get_algorithm("erm").Hyperparameters
    some = [draw(kind, seed, "PACS") for seed in range(200)]
    assert all(1e-5 <= one.lr <= 10**-3.5 for one in some)
    assert all(8 <= one.batch_size <= 45 and isinstance(one.batch_size, int) for one in some)
    assert {one.dropout for one in some} == {0, 0.1, 0.5}
    assert draw(kind, 3, "PACS") == draw(kind, 3, "PACS") != draw(kind, 4, "PACS")
    assert all(one.weight_decay == 0 for one in (draw(kind, seed, "RotatedMNIST") for seed in range(5)))
