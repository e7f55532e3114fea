"""EMA against its definition."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from swad import EMA


def test_ema_equals_its_recursion():
    model = nn.Linear(3, 2)
    average, twin = EMA(model, decay=0.9), None
    for _ in range(50):
        with torch.no_grad():
            model.weight.normal_()
        average.update_parameters(model)
        live = model.weight.detach().double().clone()
        twin = live if twin is None else 0.9 * twin + 0.1 * live
    torch.testing.assert_close(average.averaged_state()["weight"].double(), twin, rtol=1e-5, atol=1e-6)


def test_decay_must_be_below_one():
    with pytest.raises(ValueError, match=r"below 1, got 1\.0"):
        EMA(nn.Linear(1, 1), decay=1.0)
