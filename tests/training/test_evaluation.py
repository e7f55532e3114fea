from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from swad.training.distributed import Dist
from swad.training.evaluation import Score, eval_mode, evaluate

ALONE = Dist(torch.device("cpu"))


def data(n: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 4, generator=generator), torch.randint(0, 3, (n,), generator=generator)


@pytest.mark.parametrize("size", [1, 7, 50])
def test_means_over_images_whatever_the_batches(size):
    x, y = data()
    model = nn.Linear(4, 3)
    score = evaluate(model, zip(x.split(size), y.split(size), strict=True), ALONE)
    with torch.no_grad():
        assert score.loss == pytest.approx(functional.cross_entropy(model(x), y).item(), abs=1e-6)
        assert score.accuracy == (model(x).argmax(1) == y).double().mean().item()
    assert score.n == 50


def test_scores_add_up():
    x, y = data()
    model = nn.Linear(4, 3)
    parts = [evaluate(model, [(x[part], y[part])], ALONE) for part in (slice(0, 20), slice(20, 50))]
    whole = evaluate(model, [(x, y)], ALONE)
    both = parts[0] + parts[1]
    assert (both.correct, both.n) == (whole.correct, whole.n)
    assert both.loss == pytest.approx(whole.loss)


def test_every_module_keeps_its_own_mode():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9), nn.BatchNorm1d(4), nn.Linear(4, 3)).train()
    model[2].eval()  # frozen statistics
    x, y = data()
    first = evaluate(model, [(x, y)], ALONE)
    assert first == evaluate(model, [(x, y)], ALONE)
    assert [module.training for module in model] == [True, True, False, True]

    def fails() -> None:
        with eval_mode(model):
            assert not model[1].training
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert model[1].training


def test_scores_are_summed_in_full_precision():
    x, y = data()
    model = nn.Linear(4, 3)
    exact = evaluate(model, [(x, y)], ALONE)
    rough = evaluate(model, [(x, y)], ALONE, lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    assert rough.loss != exact.loss
    assert rough.loss == pytest.approx(exact.loss, rel=0.02)


def test_no_images():
    with pytest.raises(ValueError, match="at least 1 image"):
        evaluate(nn.Linear(4, 3), [], ALONE)


def test_a_score_is_made_of_sums():
    assert Score(3.0, 2, 4).loss == 0.75
    assert Score(3.0, 2, 4).accuracy == 0.5
