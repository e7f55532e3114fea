"""EMA against its definition."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from swad import EMA


@pytest.mark.parametrize(("decay", "warmup"), [(0.9, False), (0.9, True), (0.9999, True), (0.0, True)])
def test_ema_equals_its_recursion(decay, warmup):
    model = nn.Linear(3, 2)
    average, twin = EMA(model, decay=decay, warmup=warmup), None
    for t in range(100):
        with torch.no_grad():
            model.weight.normal_()
        average.update_parameters(model)
        live = model.weight.detach().double().clone()
        now = min(decay, (1 + t) / (10 + t)) if warmup else decay
        twin = live if twin is None else now * twin + (1 - now) * live
    torch.testing.assert_close(average.averaged_state()["weight"].double(), twin, rtol=1e-5, atol=1e-6)


def test_the_warm_up_forgets_the_first_weights():
    """The share of the first of 100 weights is the product of the decays: .9999^99 without warm-up, tiny with it."""
    shares = {}
    for warmup in (False, True):
        model = nn.Linear(1, 1)
        average = EMA(model, decay=0.9999, warmup=warmup)
        for t in range(100):
            nn.init.constant_(model.weight, float(t == 0))
            average.update_parameters(model)
        shares[warmup] = average.averaged_state()["weight"].item()
    assert shares[False] == pytest.approx(0.9999**99, rel=1e-4)
    assert shares[True] == pytest.approx(math.prod((1 + t) / (10 + t) for t in range(1, 100)), rel=1e-3)
    assert shares[True] < 1e-9


def test_a_state_keeps_the_warm_up():
    model = nn.Linear(1, 1)
    warm, plain = EMA(model, warmup=True), EMA(model)
    with pytest.raises(ValueError, match=r"EMA must resume .*: warmup True in the state, False here"):
        plain.load_state_dict(warm.state_dict())
    assert "with warm-up" in warm.status.reason
    assert "with warm-up" not in plain.status.reason


def test_loading_an_earlier_state_sets_the_warm_up_back():
    model = nn.Linear(1, 1)
    average, other = EMA(model, 0.999, warmup=True), EMA(model, 0.999, warmup=True)

    def go(one, steps):
        for t in steps:
            nn.init.constant_(model.weight, float(t % 7))
            one.update_parameters(model)

    go(average, range(5))
    state = average.state_dict()
    go(average, range(5, 40))
    average.load_state_dict(state)
    for one in (average, other):
        go(one, range(5, 40) if one is average else range(40))
    torch.testing.assert_close(average.averaged_state()["weight"], other.averaged_state()["weight"])


def test_decay_must_be_below_one():
    with pytest.raises(ValueError, match=r"below 1, got 1\.0"):
        EMA(nn.Linear(1, 1), decay=1.0)


@pytest.mark.parametrize("power", [2 / 3, 1, 0.3])
def test_another_curve_of_the_warm_up(power):
    model = nn.Linear(1, 1, bias=False)
    average, mean = EMA(model, 0.95, warmup=power), None
    for step in range(1, 200):
        model.weight.data.fill_(math.sin(step))
        average.update_parameters(model)
        decay = min(0.95, 1 - step**-power)  # after step - 1 others
        mean = math.sin(step) if mean is None else decay * mean + (1 - decay) * math.sin(step)
    assert average.averaged_state()["weight"].item() == pytest.approx(mean, rel=1e-5)
    assert f"with warm-up of power {power:.3g}" in average.status.reason
    for bad in (-1, math.inf, math.nan):
        with pytest.raises(ValueError, match="warmup must be true, false or a power above 0"):
            EMA(model, warmup=bad)
