from __future__ import annotations

import pytest
from torch import nn

from swad.training.batch_norms import frozen_random_norms
from swad.training.config_sections import ModelConfig

NORMS = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))


@pytest.mark.parametrize(
    ("weights", "freeze_bn", "model", "logged"),
    [
        ("random", True, NORMS, True),
        ("random", False, NORMS, False),
        ("pretrained", True, NORMS, False),
        ("random", True, nn.Conv2d(3, 2, 1), False),
    ],
)
def test_frozen_statistics_of_random_weights_are_logged(weights, freeze_bn, model, logged):
    texts = frozen_random_norms(ModelConfig(weights=weights, freeze_bn=freeze_bn), model)
    assert [("--no-freeze-bn" in text) for text in texts] == [True] * logged
