"""WSM against a training whose updates are really scaled by the decay."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.averages import OneHot, drive, n_buffers, reload, weights_of
from swad import LAWA, WSM, AverageGroup
from swad.averaging.latest import wsm_coefficients

DECAYS = {
    "1-sqrt": lambda i, n: 1 - (i / n) ** 0.5,
    "linear": lambda i, n: (n - i) / n,
    "cosine": lambda i, n: math.cos(math.pi * i / n / 2) ** 2,
}


def decayed(updates, decay):
    """Slow twin: start at the first checkpoint and apply each later update, scaled by the decay of its time."""
    n = len(updates) + 1
    point = 0.0
    for i, update in enumerate(updates, start=1):
        point += DECAYS[decay](i, n) * update
    return point


@settings(max_examples=30)
@given(st.lists(st.floats(-1, 1), max_size=30), st.sampled_from(list(DECAYS)))
def test_the_mean_is_the_end_of_a_training_with_decayed_updates(updates, decay):
    checkpoints = [sum(updates[:j]) for j in range(len(updates) + 1)]
    shares = wsm_coefficients(len(checkpoints), decay)
    assert sum(shares) == pytest.approx(1)
    assert min(shares) > 0
    merged = sum(share * point for share, point in zip(shares, checkpoints, strict=True))
    assert merged == pytest.approx(decayed(updates, decay), abs=1e-9)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("k", [1, 3, 20])
def test_the_average_is_a_sgd_whose_learning_rate_decays_over_the_last_evaluations(decay, k):
    torch.manual_seed(0)
    model = nn.Linear(3, 2, bias=False)
    average, points = WSM(model, k, decay), []
    for _ in range(7):
        with torch.no_grad():
            model.weight += torch.randn(2, 3)
        average.update_parameters(model)
        average.observe(1.0)
        points.append(model.weight.detach().double().clone())
    points = points[-k:]
    updates = [after - before for before, after in pairwise(points)]
    twin = points[0] + decayed(updates, decay)
    torch.testing.assert_close(average.averaged_state()["weight"].double(), twin, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("k", [1, 3, 20])
def test_it_can_be_read_at_any_time_in_a_group_and_after_a_resume(k):
    alone = WSM(OneHot(101), k)
    drive(alone, [1.0] * 7)
    steps = range(10, 71, 10)[-k:]
    expected = dict(zip(steps, map(pytest.approx, wsm_coefficients(len(steps))), strict=True))
    assert weights_of(alone) == expected
    assert alone.status.n_averaged == len(steps)
    alone.update_parameters(alone.tracked.model)
    assert weights_of(alone) == expected, "readable between evaluations"
    assert n_buffers(alone) <= k + 1
    assert weights_of(reload(alone, WSM(OneHot(101), k))) == weights_of(alone)
    model = OneHot(101)
    group = AverageGroup(model, {"wsm": WSM(model, k), "lawa": LAWA(model, k), "linear": WSM(model, k, "linear")})
    drive(group, [1.0] * 7)
    assert weights_of(group["wsm"]) == expected
    assert weights_of(group["linear"]) == pytest.approx(weights_of(group["lawa"]))


def test_mistakes_say_what_to_do():
    with pytest.raises(ValueError, match="n counts checkpoints and must be a whole number of at least 1, got 0"):
        wsm_coefficients(0)
    with pytest.raises(ValueError, match=r"decay must be one of 1-sqrt, linear, cosine, got 'cosin': did you mean 'co"):
        WSM(OneHot(), decay="cosin")
    with pytest.raises(ValueError, match="k counts evaluations and must be a whole number of at least 1, got 0"):
        WSM(OneHot(), 0)
    average = WSM(OneHot(), 3)
    with pytest.raises(RuntimeError, match="nothing to average yet: call observe after an evaluation"):
        average.averaged_state()
    with pytest.raises(ValueError, match=r"decay '1-sqrt' in the state, 'linear' here"):
        WSM(OneHot(), 3, "linear").load_state_dict(average.state_dict())
