"""The average in a saved state is the one that its owner reads, at any step and for every rule."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import swad
from helpers.states import assert_equal
from swad.averaging.mean_of_state import mean_of_state
from swad.averaging.state import member_state

AVERAGES = {
    "paper": lambda model: swad.SWAD(model, n_converge=2, n_tolerance=2),
    "text": lambda model: swad.SWAD(model, n_converge=2, n_tolerance=2, semantics="text"),
    "reference": lambda model: swad.SWAD(model, n_converge=2, n_tolerance=2, semantics="reference"),
    "every third": lambda model: swad.SWAD(model, n_converge=2, interval=3, buffers="average"),
    "restart": lambda model: swad.SWAD(model, valley=swad.LossValley(2, 2, tolerance=0.1, start=4, restart=True)),
    "sma": lambda model: swad.SMA(model, start=3),
    "swa": lambda model: swad.SWA(model, start=2, end=20, interval=4),
    "ema": lambda model: swad.EMA(model, decay=0.7, warmup=True),
    "lawa": lambda model: swad.LAWA(model, k=2),
}


def trained(average, model, losses, each):
    generator = torch.Generator().manual_seed(0)
    for loss in losses:
        for _ in range(each):
            with torch.no_grad():
                for tensor in (*model.parameters(), model.running_mean):
                    tensor.add_(torch.randn(tensor.shape, generator=generator))
            average.update_parameters(model)
        average.observe(loss)
    average.update_parameters(model)  # an open segment
    return average


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", AVERAGES)
@settings(deadline=None, max_examples=15)
@given(losses=st.lists(st.sampled_from([0.5, 1.0, 1.2, 3.0]), min_size=1, max_size=9), each=st.integers(1, 4))
def test_it_is_what_the_average_reads(name, losses, each):
    model = nn.BatchNorm1d(3)
    average = trained(AVERAGES[name](model), model, losses, each)
    state = average.state_dict()
    if not average.status.spans:
        with pytest.raises(ValueError, match="nothing to average yet"):
            mean_of_state(state)
        return
    assert_equal(mean_of_state(state), average.averaged_state())


def test_a_member_of_a_group_is_read_alone():
    model = nn.BatchNorm1d(3)
    group = swad.AverageGroup(model, {"sma": swad.SMA(model, start=0), "ema": swad.EMA(model)})
    trained(group, model, [1.0, 1.0], 3)
    for name in group:
        assert_equal(mean_of_state(member_state(group.state_dict(), name)), group[name].averaged_state())


def test_reading_warns_as_the_average_does_and_changes_nothing():
    model = nn.BatchNorm1d(3)
    state = trained(swad.SWAD(model), model, [1.0], 2).state_dict()
    with pytest.warns(swad.NeverConvergedWarning, match="has not converged"):
        mean_of_state(state)["weight"].fill_(7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = mean_of_state(state), mean_of_state(state)
        first["running_mean"].fill_(7)
    assert not torch.equal(first["running_mean"], second["running_mean"])


def test_a_rule_of_ones_own_is_found_when_it_is_imported():
    class Latest2(swad.Rule):
        dense, settings = False, ("k",)

        def __init__(self, k):
            self.k, self.steps = k, []

        def observe(self, loss, step):
            self.steps = [*self.steps, step][-self.k :]

        def spans(self, step):
            return tuple(swad.Span(each, each) for each in self.steps)

        def needed(self):
            return self.spans(0)

        def takes(self, step):
            return False

    model = nn.BatchNorm1d(3)
    average = trained(swad.Average(model, Latest2(2)), model, [1.0, 1.0, 1.0], 2)
    state = average.state_dict()
    assert_equal(mean_of_state(state), average.averaged_state())
    state["header"] = state["header"].replace("Latest2", "Unknown")
    with pytest.raises(ValueError, match="'Unknown' is not: import its module first"):
        mean_of_state(state)
