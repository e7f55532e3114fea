from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from swad.algorithms.erm import ERM
from swad.data.cache import open_cache
from swad.data.domains import ArrayDomain, Dataset, ImageSpec
from swad.data.loaders import EvalLoader
from swad.data.splits import hold_out
from swad.training import evaluator
from swad.training.config import RunConfig
from swad.training.distributed import Dist
from swad.training.evaluation import evaluate_splits
from swad.training.resident_evaluation import ResidentEvaluation
from swad.training.step import EAGER


@pytest.mark.parametrize(
    ("room", "keeps"), [(0, [False, False]), (10, [True, False]), (80, [True, False]), (90, [True, True])]
)
def test_images_are_kept_for_later_passes_only_where_they_fit_together(room, keeps, monkeypatch):
    """10 validation images fit into the second room; the target's 80 do so only beside them."""
    monkeypatch.setattr(evaluator, "MAX_KEPT_BYTES", room * 3 * 8 * 8)
    images = np.zeros((50, 8, 8, 3), np.uint8)
    domains = (ArrayDomain("a", np.arange(50) % 2, images), ArrayDomain("far", np.arange(100) % 2, images.repeat(2, 0)))
    dataset = Dataset("blank", domains, ("x", "y"), ImageSpec(size=8))
    sources, target = hold_out(dataset, "far")
    predictor = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
    algorithm = ERM(predictor, ERM.Hyperparameters(), 1)
    training = SimpleNamespace(
        predictor=predictor, algorithm=algorithm, autocast=torch.no_grad, engine=SimpleNamespace(kind=EAGER)
    )
    config = RunConfig.from_options(dataset="digits", target="paper", output="nowhere", seed=0, workers=0)
    runner = evaluator.Evaluator(config, sources, Dist(torch.device("cpu")), training, open_cache(dataset))
    scores = [runner.final_scores(predictor, target) for _ in range(2)]
    assert scores[0] == scores[1]
    assert scores[0]["far"]["in"].n == 80
    loaders = [runner.full_validation["a"], runner._target["far"]["in"]]
    assert [loader._kept is not None for loader in loaders] == keeps


def test_resident_images_give_the_scores_of_batches_domain_by_domain():
    """Batches straddle domains and the last one has rows to spare: none may be counted for another, or twice."""
    draw = np.random.default_rng(0)
    domains = tuple(
        ArrayDomain(name, draw.integers(0, 3, n), draw.integers(0, 256, (n, 8, 8, 3), np.uint8))
        for name, n in (("a", 170), ("b", 95), ("c", 260), ("far", 40))
    )
    sources = hold_out(Dataset("noise", domains, ("x", "y", "z"), ImageSpec(size=8)), "far").sources
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3), torch.nn.Dropout(0.5))
    dist = Dist(torch.device("cpu"))
    parts = {part.name: EvalLoader(part, sources.image_spec, 16, seed=0, keep=True, workers=0) for part in sources.val}
    resident = ResidentEvaluation(model, parts, dist, torch.no_grad)
    resident._warm = False
    found, wanted = resident(), evaluate_splits(model, parts, dist)
    assert found.keys() == wanted.keys() == {"a", "b", "c"}
    for name, score in wanted.items():
        assert (found[name].correct, found[name].n) == (score.correct, score.n)
        assert found[name].loss == pytest.approx(score.loss, rel=1e-6)
    assert len({score.loss for score in wanted.values()}) == 3
    assert model.training


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_an_evaluation_that_cannot_be_captured_is_eager_and_says_why():
    domains = tuple(ArrayDomain(name, np.arange(40) % 2, np.zeros((40, 8, 8, 3), np.uint8)) for name in ("a", "far"))
    sources = hold_out(Dataset("blank", domains, ("x", "y"), ImageSpec(size=8)), "far").sources
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
    loaders = {
        part.name: EvalLoader(part, sources.image_spec, 16, seed=0, keep=True, workers=0) for part in sources.val
    }
    notes: list[str] = []
    resident = ResidentEvaluation(model, loaders, Dist(torch.device("cpu")), torch.no_grad, notes.append)
    scores = [resident() for _ in range(3)]
    assert scores[0] == scores[1] == scores[2]
    assert notes == ["evaluating eagerly: the evaluation cannot be captured (CUDA graphs need a GPU)"]
