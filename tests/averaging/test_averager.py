"""Averages that follow an optimizer: gradient accumulation, skipped steps, handles."""

from __future__ import annotations

import copy
import gc
import math
import pickle

import pytest
import torch
from torch import nn

from helpers.averages import Counting, Net, OneHot, drive, segment_log, weights_of
from swad import EMA, SMA, SWA, SWAD, AverageGroup

pytestmark = pytest.mark.filterwarnings("ignore::swad.averaging.swad.NeverConvergedWarning")


def test_attached_under_gradient_accumulation():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    average = SMA(model, start=0)
    handle = average.attach(optimizer)
    for batch in range(1, 13):
        model(torch.randn(4, 3)).square().mean().backward()
        if batch % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert average.step == 3
    with pytest.raises(RuntimeError, match="remove the call to update_parameters"):
        average.update_parameters(model)
    with pytest.raises(RuntimeError, match="already attached to an optimizer"):
        average.attach(optimizer)
    handle.remove()
    optimizer.step()
    assert average.step == 3
    average.update_parameters(model)
    assert average.step == 4


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda m: SMA(m, start=0),
        lambda m: SWA(m, start=3, end=17, interval=2),
        lambda m: SWA(m, start=3, end=17),
        lambda m: SWAD(m),
        lambda m: SWAD(m, interval=2),
        lambda m: EMA(m, 0.9),
        lambda m: EMA(m, 0.9, warmup=True),
    ],
)
def test_steps_that_a_scaler_skips_do_not_count(make, fused):
    """A fused optimizer runs its step, and the hook, also when the scaler found an infinity."""
    torch.manual_seed(0)
    model = Counting()
    optimizer = torch.optim.Adam(model.parameters(), 0.05, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    average = make(model)
    average.attach(optimizer)
    kept: list[torch.Tensor] = []
    twin_model = Counting()
    twin = make(twin_model)
    for step in range(1, 31):
        before = model.weight.detach().clone()
        model.count.fill_(step)
        loss = model(torch.randn(4, 3)).square().mean()
        if step in (1, 6, 7, 18, 29):
            loss = loss * math.inf
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if not torch.equal(before, model.weight):
            kept.append(model.weight.detach().clone())
            twin_model.load_state_dict(model.state_dict())
            twin.update_parameters(twin_model)
        if step % 5 == 0:
            average.observe(1.0)
            twin.observe(1.0)
    assert len(kept) == 25
    assert average.step == 25
    assert average.status.spans == twin.status.spans
    for name, value in twin.averaged_state().items():
        torch.testing.assert_close(average.averaged_state()[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("in_group", [False, True])
def test_skipped_steps_leave_no_gap_in_the_count(in_group):
    """An update after them is the newest one, so its buffers are those of the average."""
    model = OneHot()
    average = SWAD(model, n_converge=1)
    averager = AverageGroup(model, {"swad": average}) if in_group else average
    for step, skips in ((1, 0), (2, 3), (3, 0)):
        model.go_to(step)
        for skipped in (0.0, *[1.0] * skips):
            averager.trajectory.take_update(model, torch.tensor([skipped]))
        averager.observe(1.0)
        assert average.averaged_state()["count"].item() == average.status.end_step == step


def test_an_old_handle_and_a_foreign_optimizer_have_no_effect():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    average = SMA(model, start=0)
    first = average.attach(optimizer)
    first.remove()
    average.attach(optimizer)
    first.remove()  # an old handle must not end the new attachment
    with pytest.raises(RuntimeError, match="remove the call to update_parameters"):
        average.update_parameters(model)
    with pytest.raises(ValueError, match="steps none of the averaged parameters"):
        SMA(copy.deepcopy(model), start=0).attach(optimizer)


def test_only_an_optimizer_can_be_attached():
    model = Net()
    with pytest.raises(TypeError, match="attach needs a torch optimizer, got a Net: pass the optimizer that trains"):
        SMA(model, start=0).attach(model)


def test_a_wrapper_need_not_be_an_optimizer():
    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    model = Net()
    wrapper = Wrapper(torch.optim.SGD(model.parameters(), 0.1))
    average = SMA(model, start=0)
    average.attach(wrapper)
    wrapper.optimizer.step()
    assert average.step == 1


def test_a_copy_of_an_attached_average_is_not_attached():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    average = SMA(model, start=0)
    average.attach(optimizer)
    twin = copy.deepcopy(average)
    optimizer.step()
    assert (average.step, twin.step) == (1, 0)
    twin.update_parameters()
    assert twin.step == 1


def test_an_average_outlives_its_optimizer():
    model = Net()
    average = SMA(model, start=0)
    average.attach(torch.optim.SGD(model.parameters(), 0.1))
    gc.collect()
    average.attach(torch.optim.SGD(model.parameters(), 0.1))


def test_attaching_after_the_parameters_were_replaced():
    model = Net()
    average = SMA(model, start=0)
    model.load_state_dict({name: tensor + 1 for name, tensor in model.state_dict().items()}, assign=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    average.attach(optimizer)
    optimizer.step()
    assert average.step == 1
    assert torch.equal(average.averaged_state()["head.weight"], model.head.weight)


@pytest.mark.parametrize("in_group", [False, True])
def test_a_reset_average_is_as_new(in_group):
    def make(model):
        averages = {
            "swad": SWAD(model, n_converge=2),
            "reference": SWAD(model, 2, 3, semantics="reference"),
            "interval": SWAD(model, 2, interval=3),
            "late": SMA(model, start=7),
            "swa": SWA(model, start=5, end=25, interval=5),
            "ema": EMA(model, 0.9, warmup=True),
        }
        return [AverageGroup(model, averages)] if in_group else list(averages.values())

    model = OneHot()
    for used, new in zip(make(model), make(model), strict=True):
        drive(used, [3.0, 1.0, 2.0, 2.0])
        used.reset()
        assert used.step == 0
        drive(used, [2.0, 1.0, 1.5])
        drive(new, [2.0, 1.0, 1.5])
        pairs = zip(used.values(), new.values(), strict=True) if in_group else [(used, new)]
        for one, other in pairs:
            assert one.status == other.status
            assert weights_of(one) == weights_of(other)


def test_a_reset_average_stays_attached_and_a_member_or_a_log_is_not_reset():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    average = SWAD(model)
    average.attach(optimizer)
    optimizer.step()
    average.reset()
    optimizer.step()
    assert average.step == 1
    group = AverageGroup(model, {"ema": EMA(model)}, {"log": segment_log(model)})
    with pytest.raises(RuntimeError, match="call reset of the group instead"):
        group["ema"].reset()
    with pytest.raises(RuntimeError, match="a group with listeners cannot be reset"):
        group.reset()


def test_an_attached_average_and_its_model_can_be_pickled():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    average = SWAD(model)
    average.attach(optimizer)
    optimizer.step()
    for copied in (pickle.loads(pickle.dumps(average)), copy.deepcopy(average)):
        assert torch.equal(copied.averaged_state()["weight"], average.averaged_state()["weight"])
        copied.update_parameters()
        assert (copied.step, average.step) == (2, 1)
    copy.deepcopy(model), pickle.dumps(model), pickle.dumps(optimizer)
    copy.deepcopy(optimizer).step()
    assert average.step == 1
