"""The mean of the weights at the last evaluations, against all weights kept."""

from __future__ import annotations

import pytest

from helpers.averages import OneHot, drive, n_buffers, reload, uniform, weights_of
from swad import LAWA, SWAD, AverageGroup


@pytest.mark.parametrize("k", [1, 3, 20])
def test_it_averages_the_last_evaluations_alone_in_a_group_and_after_a_resume(k):
    alone = LAWA(OneHot(101), k)
    drive(alone, [1.0] * 7)
    assert weights_of(alone) == uniform(range(10, 71, 10)[-k:])
    alone.update_parameters(alone.tracked.model)
    assert weights_of(alone) == uniform(range(10, 71, 10)[-k:]), "readable between evaluations"
    assert n_buffers(alone) <= k + 1
    assert weights_of(reload(alone, LAWA(OneHot(101), k))) == weights_of(alone)
    model = OneHot(101)
    group = AverageGroup(model, {"lawa": LAWA(model, k), "swad": SWAD(model)})
    drive(group, [1.0] * 7)
    assert weights_of(group["lawa"]) == uniform(range(10, 71, 10)[-k:])


def test_mistakes_say_what_to_do():
    with pytest.raises(ValueError, match="k counts evaluations and must be a whole number of at least 1, got 0"):
        LAWA(OneHot(), 0)
    average = LAWA(OneHot())
    average.update_parameters()
    with pytest.raises(RuntimeError, match="nothing to average yet: call observe after an evaluation"):
        average.averaged_state()
