"""What every average does with updates, losses and states: exact resume, several processes, CUDA graphs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers.averages import Net, OneHot, reload, run_scenario, small_conv, train, train_captured
from swad import EMA, SMA, SWA, SWAD

pytestmark = pytest.mark.filterwarnings("ignore::swad.averaging.swad.NeverConvergedWarning")


@pytest.mark.parametrize(
    "make",
    [
        lambda m: SWA(m, start=13, end=57, interval=4),
        lambda m: SWA(m, start=13),
        lambda m: EMA(m, 0.9),
        lambda m: EMA(m, 0.9, warmup=True),
        lambda m: SWAD(m, interval=3),
    ],
)
def test_every_average_resumes_exactly(make):
    def walk(average, steps):
        model = average.tracked.model
        for step in steps:
            model.go_to(step)
            average.update_parameters(model)
            if step % 10 == 0:
                average.observe(1.0)

    unbroken = make(OneHot())
    walk(unbroken, range(1, 91))
    for cut in (1, 10, 15, 37, 60, 75):
        first = make(OneHot())
        walk(first, range(1, cut + 1))
        second = reload(first, make(OneHot()))
        walk(second, range(cut + 1, 91))
        for name, value in unbroken.averaged_state().items():
            assert torch.equal(value, second.averaged_state()[name])


def test_a_state_is_complete_and_does_not_change_later():
    torch.manual_seed(0)
    model = Net()
    averages = {"swad": SWAD(model), "sma": SMA(model, start=0), "ema": EMA(model)}

    def after(step):
        for average in averages.values():
            average.update_parameters(model)
        if step == 4:
            averages["swad"].observe(1.0)

    train(model, torch.optim.SGD(model.parameters(), 0.1), 7, after=after)
    states = {name: average.state_dict() for name, average in averages.items()}
    want = {name: average.averaged_state() for name, average in averages.items()}
    train(model, torch.optim.SGD(model.parameters(), 0.1), 3, after=lambda step: after(0))
    fresh = Net()  # its buffers are not those of the training
    for name, average in {"swad": SWAD(fresh), "sma": SMA(fresh, start=0), "ema": EMA(fresh)}.items():
        average.load_state_dict(states[name])
        for key, value in want[name].items():
            assert torch.equal(value, average.averaged_state()[key]), (name, key)


def test_a_state_of_another_rule_or_model_is_refused():
    model = Net()
    average = SMA(model, start=0)
    average.update_parameters(model)
    with pytest.raises(ValueError, match="rule it was saved with: Window in the state, LossValley in SWAD"):
        SWAD(model).load_state_dict(average.state_dict())
    with pytest.raises(ValueError, match=r"in the state, .* here"):
        SMA(model, start=3).load_state_dict(average.state_dict())
    wide = SMA(nn.Linear(4, 2), start=0)
    wide.update_parameters()
    for state, problem in (
        (average.state_dict(), "missing weight, bias; unknown body.0.weight, .* and 1 more"),
        (wide.state_dict(), r"of another shape weight \(2, 4\) instead of \(2, 3\)"),
    ):
        with pytest.raises(ValueError, match=f"with the model, include and exclude .*; {problem}"):
            SMA(nn.Linear(3, 2), start=0).load_state_dict(state)


@pytest.mark.slow
@pytest.mark.distributed
def test_ranks_that_disagree_about_the_loss_raise(tmp_path):
    run_scenario("disagree", tmp_path)


BUILD = {
    "swad": SWAD,
    "sparse": lambda m: SWAD(m, interval=2),
    "window": lambda m: SWA(m, start=3, end=50),
    "swa": lambda m: SWA(m, start=3, end=50, interval=2),
    "ema": EMA,
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", BUILD)
def test_an_update_never_waits_for_the_device(name):
    model = small_conv().cuda()
    average = BUILD[name](model)
    average.update_parameters(model)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            average.update_parameters(model)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("name", BUILD)
def test_a_step_that_a_scaler_may_skip_never_waits_for_the_device(name):
    model = small_conv().cuda()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    average = BUILD[name](model)
    average.attach(optimizer)
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    x = torch.randn(4, 3, 8, 8, device="cuda")
    real = 0
    for step in range(1, 31):
        before = model[0].weight.detach().clone()
        factor = torch.tensor(float("inf") if step in (4, 9, 21) else 1.0, device="cuda")
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = model(x).float().square().mean() * factor
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        real += not torch.equal(before, model[0].weight)
    assert real == 27
    assert average.step == 27


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["swad", "ema"])
def test_captured_in_a_graph_with_the_training_step(name):
    """One graph for forward, backward, step and average; evaluations and the stop need no new capture."""
    eager, captured = (train_captured(BUILD[name], use_graph) for use_graph in (False, True))
    assert eager.status == captured.status
    for key, value in eager.averaged_state().items():
        torch.testing.assert_close(value, captured.averaged_state()[key], rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_a_capture_without_buffers_is_refused():
    model = small_conv().cuda()
    with (
        pytest.raises(RuntimeError, match="make one update before capturing"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        SWAD(model).update_parameters(model)
