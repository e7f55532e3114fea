"""Wrong arguments are refused in one line that says the rule, the value and what to do."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from torch import nn

from helpers.averages import Net
from swad import EMA, SMA, SWA, SWAD, AverageGroup, LossValley

pytestmark = pytest.mark.filterwarnings("ignore::swad.averaging.swad.NeverConvergedWarning")


def refused(error, message, call):
    with pytest.raises(error, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("make", [SWAD, EMA, lambda m: SWA(m, 3), lambda m: AverageGroup(m, {"swad": SWAD(Net())})])
def test_only_a_module_can_be_averaged(make):
    refused(TypeError, "must be an nn.Module, got a generator: pass the model", lambda: make(Net().parameters()))
    refused(TypeError, "must be one nn.Module, got a list: pass nn.ModuleList", lambda: make(list(Net().parameters())))


@pytest.mark.parametrize(
    ("loss", "got"),
    [
        (torch.ones(3), r"a Tensor of shape \(3,\)"),
        (torch.ones(2, 1), r"a Tensor of shape \(2, 1\)"),
        ([0.3, 0.4], "a list"),
        (None, "a NoneType"),
        ({"loss": 0.3}, "a dict"),
    ],
)
def test_a_loss_is_one_number(loss, got):
    model = Net()
    averager, group = SWAD(model), AverageGroup(model, {"swad": SWAD(model)})
    averager.update_parameters(model)
    group.update_parameters(model)
    for observe in (averager.observe, group.observe, LossValley().observe):
        refused(TypeError, f"must be one number, got {got}: average it", lambda observe=observe: observe(loss))
    averager.observe(torch.tensor([0.3]))  # the evaluation was not taken


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"semantics": "papper"},
            "semantics must be one of paper, text, reference, got 'papper': did you mean 'paper'",
        ),
        ({"buffers": "avrage"}, "buffers must be one of copy, average, got 'avrage': did you mean 'average'"),
        ({"buffers": None}, "buffers must be one of copy, average, got None"),
        ({"nonfinite": "skipp"}, "nonfinite must be one of raise, skip, got 'skipp': did you mean 'skip'"),
        ({"tolerance_ratio": 30}, "is relative and must be below 10, got 30: 0.3 allows losses 30 % above"),
    ],
)
def test_misspelt_options_name_the_choices(options, message):
    refused(ValueError, message, lambda: SWAD(Net(), **options))


@pytest.mark.parametrize("make", [LossValley, lambda **options: SWAD(Net(), **options)])
def test_a_ratio_that_looks_like_r_is_warned_of_where_it_was_written(make):
    with pytest.warns(UserWarning, match="up to 2.3 times the lowest one: for the paper's r = 1.3 pass 0.3") as caught:
        make(tolerance_ratio=1.3)
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(tolerance_ratio=1.0)


def test_a_foreign_state_is_refused():
    model = Net()
    averager, group = SWAD(model), AverageGroup(model, {"swad": SWAD(model)})
    averager.update_parameters(model)
    averager.observe(1.0)
    of_one, of_group = averager.state_dict(), group.state_dict()
    for load, owner in ((averager.load_state_dict, "SWAD"), (group.load_state_dict, "AverageGroup")):
        for error, state, message in (
            (
                ValueError,
                model.state_dict(),
                f"{owner} loads .* got a dict of body.0.weight, .*model.load_state",
            ),
            (ValueError, {}, "got a dict of nothing"),
            (ValueError, {"header": "{}"}, "has version None, expected 2 to 3"),
            (ValueError, {"header": '{"version": 1}'}, "has version 1, expected 2 to 3: load it with the version"),
            (ValueError, {"header": '{"version": 99}'}, "has version 99, expected 2 to 3: load it with the version"),
            (TypeError, "swad.pt", "got a str: load the file first"),
        ):
            refused(error, message, lambda load=load, state=state: load(state))
    other_rule = "rule it was saved with: Decay in the state, LossValley in SWAD"
    refused(ValueError, other_rule, lambda: averager.load_state_dict(EMA(model).state_dict()))
    refused(ValueError, "belongs to a group: take one .* out", lambda: averager.load_state_dict(of_group))
    refused(ValueError, "belongs to one average: load it into that", lambda: group.load_state_dict(of_one))
    cut = {**averager.state_dict(), "average": {}}
    refused(ValueError, "'0' of 'average' is missing: load the whole", lambda: averager.load_state_dict(cut))
    for part, key in (("trajectory", "observed"), ("average", "state"), ("average", "sums")):
        header = json.loads(averager.state_dict()["header"])
        del header["parts"][part][key]
        cut = {**averager.state_dict(), "header": json.dumps(header)}
        refused(ValueError, f"'{key}' of '{part}' is missing: load", lambda cut=cut: averager.load_state_dict(cut))
    cut = {"header": '{"version": 2}'}
    refused(ValueError, "'trajectory' is missing: load the whole", lambda: averager.load_state_dict(cut))
    refused(ValueError, "this state lacks n_converge, .*, step", lambda: LossValley().load_state_dict({"losses": []}))


@pytest.mark.parametrize("member", [Net(), SWAD])
def test_only_averages_can_be_in_a_group(member):
    message = f"are averages, got a {type(member).__name__} as 'swad': pass e.g. swad.SWAD"
    refused(TypeError, message, lambda: AverageGroup(Net(), {"swad": member}))


def test_an_average_before_its_start_says_when_it_starts():
    model = Net()
    averages = [
        (
            SWA(model, start=100, interval=10),
            r"update is 110 \(start=100, interval=10\), but the last one was 1",
        ),
        (SMA(model), r"first averaged update is 101 \(start=100, interval=1\), but the last one was 1: train longer"),
        (SWAD(model, interval=5), "with interval=5 the first averaged update is 5, but this is 1"),
    ]
    for average, message in averages:
        average.update_parameters(model)
        refused(RuntimeError, f"nothing to average yet: .*{message}", average.averaged_state)


def test_sma_has_the_options_of_its_signature_only():
    with pytest.raises(TypeError, match="interval"):
        SMA(nn.Linear(1, 1), interval=3)
