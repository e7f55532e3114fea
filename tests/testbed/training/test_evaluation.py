from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from swad.testbed.algorithms.base import RunInfo
from swad.testbed.algorithms.erm import ERM
from swad.testbed.data.cache import open_cache
from swad.testbed.data.domains import ArrayDomain, Dataset, ImageSpec
from swad.testbed.data.loaders import EvalLoader
from swad.testbed.data.splits import hold_out
from swad.testbed.training import evaluation
from swad.testbed.training.config import RunConfig
from swad.testbed.training.distributed import Dist
from swad.testbed.training.evaluation import ResidentEvaluation, Score, eval_mode, evaluate_splits
from swad.testbed.training.step import EAGER

ALONE = Dist(torch.device("cpu"))


def evaluate(model: nn.Module, batches, *options) -> Score:
    return evaluate_splits(model, {"all": batches}, ALONE, *options)["all"]


def data(n: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 4, generator=generator), torch.randint(0, 3, (n,), generator=generator)


@pytest.mark.parametrize("size", [1, 7, 50])
def test_scores_do_not_depend_on_the_batch_size(size):
    x, y = data()
    model = nn.Linear(4, 3)
    score = evaluate(model, zip(x.split(size), y.split(size), strict=True))
    with torch.no_grad():
        assert score.loss == pytest.approx(functional.cross_entropy(model(x), y).item(), abs=1e-6)
        assert score.accuracy == (model(x).argmax(1) == y).double().mean().item()
    assert score.n == 50


def test_scores_add_up():
    x, y = data()
    model = nn.Linear(4, 3)
    parts = [evaluate(model, [(x[part], y[part])]) for part in (slice(0, 20), slice(20, 50))]
    whole = evaluate(model, [(x, y)])
    both = parts[0] + parts[1]
    assert (both.correct, both.n) == (whole.correct, whole.n)
    assert both.loss == pytest.approx(whole.loss)


def test_every_module_keeps_its_own_mode():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9), nn.BatchNorm1d(4), nn.Linear(4, 3)).train()
    model[2].eval()  # frozen statistics
    x, y = data()
    first = evaluate(model, [(x, y)])
    assert first == evaluate(model, [(x, y)])
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
    exact = evaluate(model, [(x, y)])
    rough = evaluate(model, [(x, y)], lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    assert rough.loss != exact.loss
    assert rough.loss == pytest.approx(exact.loss, rel=0.02)


def test_a_score_is_made_of_sums():
    assert Score(3.0, 2, 4).loss == 0.75
    assert Score(3.0, 2, 4).accuracy == 0.5


@pytest.mark.parametrize(
    ("capacity", "keeps"), [(0, [False, False]), (10, [True, False]), (80, [True, False]), (90, [True, True])]
)
def test_images_are_kept_for_later_passes_only_if_all_of_them_fit(capacity, keeps, monkeypatch):
    """There are 10 validation images and 80 of the target, and validation comes first."""
    monkeypatch.setattr(evaluation, "MAX_KEPT_BYTES", capacity * 3 * 8 * 8)
    images = np.zeros((50, 8, 8, 3), np.uint8)
    domains = (ArrayDomain("a", np.arange(50) % 2, images), ArrayDomain("far", np.arange(100) % 2, images.repeat(2, 0)))
    dataset = Dataset("blank", domains, ("x", "y"), ImageSpec(size=8))
    sources, target = hold_out(dataset, "far")
    predictor = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
    algorithm = ERM(predictor, ERM.Hyperparameters(), RunInfo((40,)))
    training = SimpleNamespace(
        config=RunConfig.from_options(dataset="digits", target="paper", output="nowhere", seed=0, workers=0),
        sources=sources,
        dist=ALONE,
        cache=open_cache(dataset),
        predictor=predictor,
        algorithm=algorithm,
        autocast=torch.no_grad,
        engine=SimpleNamespace(kind=EAGER),
    )
    evaluator = evaluation.Evaluator(training)
    scores = [evaluator.final_scores(predictor, target) for _ in range(2)]
    assert scores[0] == scores[1]
    assert scores[0]["far"]["in"].n == 80
    loaders = [evaluator.full_validation["a"], evaluator._target["far"]["in"]]
    assert [loader._kept is not None for loader in loaders] == keeps


def test_resident_evaluation_gives_the_scores_of_separate_batches():
    """Batches span two domains and the last one is padded: every image counts once, for its own domain."""
    draw = np.random.default_rng(0)
    domains = tuple(
        ArrayDomain(name, draw.integers(0, 3, n), draw.integers(0, 256, (n, 8, 8, 3), np.uint8))
        for name, n in (("a", 170), ("b", 95), ("c", 260), ("far", 40))
    )
    sources = hold_out(Dataset("noise", domains, ("x", "y", "z"), ImageSpec(size=8)), "far").sources
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3), torch.nn.Dropout(0.5))
    loaders = {
        part.name: EvalLoader(part, sources.image_spec, 16, seed=0, keep=True, workers=0) for part in sources.val
    }
    resident = ResidentEvaluation(model, loaders, ALONE, torch.no_grad)
    resident._warm = False
    scores, expected = resident(), evaluate_splits(model, loaders, ALONE)
    assert scores.keys() == expected.keys() == {"a", "b", "c"}
    for name, score in expected.items():
        assert (scores[name].correct, scores[name].n) == (score.correct, score.n)
        assert scores[name].loss == pytest.approx(score.loss, rel=1e-6)
    assert len({score.loss for score in expected.values()}) == 3
    assert model.training


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_an_evaluation_that_cannot_be_captured_is_eager_and_logs_why():
    domains = tuple(ArrayDomain(name, np.arange(40) % 2, np.zeros((40, 8, 8, 3), np.uint8)) for name in ("a", "far"))
    sources = hold_out(Dataset("blank", domains, ("x", "y"), ImageSpec(size=8)), "far").sources
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
    loaders = {
        part.name: EvalLoader(part, sources.image_spec, 16, seed=0, keep=True, workers=0) for part in sources.val
    }
    messages: list[str] = []
    resident = ResidentEvaluation(model, loaders, ALONE, torch.no_grad, messages.append)
    scores = [resident() for _ in range(3)]
    assert scores[0] == scores[1] == scores[2]
    assert messages == ["evaluating eagerly: the evaluation cannot be captured (CUDA graphs need a GPU)"]
