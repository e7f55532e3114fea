from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from swad import measuring
from swad.algorithms.erm import ERM
from swad.config import RunConfig
from swad.domains import ArrayDomain, Dataset, Pixels, hold_out
from swad.engine import EAGER
from swad.image_cache import open_cache
from swad.processes import Team


@pytest.mark.parametrize(
    ("room", "keeps"), [(0, [False, False]), (10 * 3 * 8 * 8, [True, False]), (80 * 3 * 8 * 8, [True, True])]
)
def test_images_are_kept_for_later_passes_only_where_they_fit(room, keeps, monkeypatch):
    """10 validation images fit into the second room; the target's 80 do not."""
    monkeypatch.setattr(measuring, "KEEP_AT_MOST", room)
    images = np.zeros((50, 8, 8, 3), np.uint8)
    domains = (ArrayDomain("a", np.arange(50) % 2, images), ArrayDomain("far", np.arange(100) % 2, images.repeat(2, 0)))
    dataset = Dataset("blank", domains, ("x", "y"), Pixels(size=8))
    sources, target = hold_out(dataset, "far")
    predictor = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
    algorithm = ERM(predictor, ERM.Hyperparameters(), 1)
    training = SimpleNamespace(
        predictor=predictor, algorithm=algorithm, autocast=torch.no_grad, engine=SimpleNamespace(kind=EAGER)
    )
    config = RunConfig("digits", "paper", "nowhere", seed=0, workers=0)
    measurer = measuring.Measurer(config, sources, Team(torch.device("cpu")), training, open_cache(dataset))
    scores = [measurer.everything(predictor, target) for _ in range(2)]
    assert scores[0] == scores[1]
    assert scores[0]["far"]["in"].n == 80
    kept = [measurer.full["a"], measurer._target["far"]["in"]]
    assert [one._kept is not None for one in kept] == keeps
