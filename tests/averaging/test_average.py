"""What a user calls of every average: observing, swapping, copying, offloading, several processes."""

from __future__ import annotations

import gc
import math
import sys
import warnings

import pytest
import torch
from torch import nn

from helpers.averages import (
    Net,
    OneHot,
    reload,
    run_scenario,
    scaled_steps,
    segment_log,
    small_conv,
    train,
    uniform,
    weights_of,
)
from helpers.states import assert_equal
from helpers.torch_versions import NEEDS_FSDP2_ON_CPUS
from swad import EMA, LAWA, SMA, SWA, SWAD, AverageGroup

pytestmark = pytest.mark.filterwarnings("ignore::swad.averaging.swad.NeverConvergedWarning")


@pytest.mark.parametrize("buffers", ["copy", "average"])
def test_buffers(buffers):
    model = Net()
    average = SMA(model, start=0, buffers=buffers)
    seen = []

    def after(step):
        average.update_parameters(model)
        seen.append(model.body[1].running_mean.clone())

    train(model, torch.optim.SGD(model.parameters(), 0.1), 20, after=after)
    state = average.averaged_state()
    want = seen[-1] if buffers == "copy" else torch.stack(seen).mean(0)
    torch.testing.assert_close(state["body.1.running_mean"], want)
    assert state["body.1.num_batches_tracked"].item() == 20  # integers are copied, never averaged
    model.load_state_dict(state, strict=True)


def test_copy_to_changes_no_state():
    model, other = Net(), Net()
    averager = SWAD(model)
    train(model, torch.optim.SGD(model.parameters(), 0.1), 9, after=lambda step: averager.update_parameters(model))
    averager.observe(1.0)
    header = averager.state_dict()["header"]
    sums = [s.clone() for s in averager.trajectory.segment.values]
    averager.copy_to(other)
    averager.copy_to(other)
    assert averager.state_dict()["header"] == header
    assert all(torch.equal(a, b) for a, b in zip(sums, averager.trajectory.segment.values, strict=True))


def test_observe_needs_a_new_update():
    model = Net()
    for average in (SWAD(model), SMA(model), EMA(model)):
        with pytest.raises(RuntimeError, match="needs an update since its last call, which was at update 0"):
            average.observe(1.0)
        average.update_parameters(model)
        average.observe(1.0)
        with pytest.raises(RuntimeError, match="at update 1"):
            average.observe(1.0)


@pytest.mark.parametrize(
    "make",
    [
        SWAD,
        lambda m: SWAD(m, semantics="text"),
        lambda m: SWAD(m, semantics="reference"),
        lambda m: SWAD(m, semantics="reference", n_converge=6, n_tolerance=3),
        lambda m: SWAD(m, interval=3),
        lambda m: SWA(m, start=2, interval=3),
        lambda m: SMA(m, start=2),
        EMA,
        lambda m: AverageGroup(m, {}, {"log": segment_log(m)}),
        lambda m: AverageGroup(m, {"swad": SWAD(m), "swa": SWA(m, start=2, interval=3)}, {"log": segment_log(m)}),
    ],
    ids=["paper", "text", "reference", "short queue", "interval", "swa", "sma", "ema", "log", "group"],
)
def test_the_cost_of_an_evaluation_does_not_grow_with_their_number(make):
    model = nn.Linear(2, 1)
    average = make(model)
    costs = []
    for k in range(400):
        average.update_parameters(model)
        lines = 0

        def count(frame, event, arg):
            nonlocal lines
            lines += 1
            return count

        # A garbage collection runs the callbacks and finalizers of other libraries, which would be counted too.
        gc.disable()
        sys.settrace(count)
        try:
            average.observe(1.0 + 0.1 * (k % 4))
        finally:
            sys.settrace(None)
            gc.enable()
        costs.append(lines)
    assert max(costs[300:]) <= max(costs[20:100])


def test_a_repr_says_where_the_average_stands():
    model = OneHot()
    group = AverageGroup(model, {"swad": SWAD(model), "sma": SMA(model, start=3), "sparse": SWAD(model, interval=4)})
    assert repr(group["swad"]) == "SWAD(phase=searching, step=0, start_step=None, end_step=None, n_averaged=0)"
    for step in range(1, 9):
        model.go_to(step)
        group.update_parameters(model)
        if step % 2 == 0:
            group.observe(1.0)
    assert repr(group).splitlines() == [
        "AverageGroup(",
        "  (swad): SWAD(phase=averaging, step=8, start_step=2, end_step=8, n_averaged=7, threshold=1.3)",
        "  (sma): SMA(phase=averaging, step=8, start_step=4, end_step=8, n_averaged=5)",
        "  (sparse): SWAD(phase=averaging, step=8, start_step=2, end_step=6, n_averaged=2, threshold=1.3)",
        ")",
    ]
    assert repr(EMA(model)).startswith("EMA(phase=averaging, step=0")


@pytest.mark.parametrize("make", [SWAD, EMA, lambda m: SWA(m, start=1, end=9), lambda m: SWAD(m, interval=2)])
@pytest.mark.parametrize("grouped", [False, True])
def test_a_repr_never_waits_for_the_device(make, grouped, monkeypatch):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    average = make(model)
    if grouped:
        average = AverageGroup(model, {"average": average})
    for step in scaled_steps(model, average, 6):
        if step == 4:
            average.observe(1.0)

    def wait(self, *_):
        raise AssertionError("a tensor was read on the host")

    with monkeypatch.context() as patch:
        for method in ("item", "__int__", "__float__", "__bool__", "__index__", "tolist"):
            patch.setattr(torch.Tensor, method, wait)
        text = repr(average)
    assert "step=4, " in text  # the last evaluation: how many steps were skipped since is still on the device
    assert average.step == 6
    assert "step=6, " in repr(average)


def test_nothing_to_average_yet():
    model = Net()
    for average in (SWAD(model), SMA(model, start=5), EMA(model)):
        with warnings.catch_warnings(), pytest.raises(RuntimeError, match="nothing to average yet"):
            warnings.simplefilter("error")  # an error needs no warning before it
            average.copy_to(model)


def test_evaluations_in_inference_mode():
    model = OneHot()
    averager, average = SWAD(model), SMA(model, start=0)
    for step in range(1, 41):
        model.go_to(step)
        averager.update_parameters(model)
        average.update_parameters(model)
        if step % 5 == 0:
            with torch.inference_mode(step % 10 == 0):
                averager.observe(1.0 + step / 100)
                average.observe(1.0)
    with torch.inference_mode():
        again = reload(average, SMA(model, start=0))
    again.update_parameters(model)
    assert weights_of(averager) == uniform(range(5, 41))


def test_offloaded_sums_give_the_same_average():
    results = []
    for offload in (False, True):
        torch.manual_seed(0)
        model = Net()
        averager = SWAD(model, offload=offload)

        def after(step, model=model, averager=averager):
            averager.update_parameters(model)
            if step % 5 == 0:
                averager.observe(1.0 + step / 100)

        train(model, torch.optim.SGD(model.parameters(), 0.1), 60, after=after)
        results.append(averager.averaged_state())
    for name, value in results[0].items():
        assert torch.equal(value, results[1][name])


def test_swapping_restores_everything_even_when_the_block_raises():
    model = Net()
    average = SMA(model, start=0)
    train(model, torch.optim.SGD(model.parameters(), 0.1), 9, after=lambda step: average.update_parameters(model))
    live = {name: value.clone() for name, value in model.state_dict().items()}
    state = average.averaged_state()
    with pytest.raises(ZeroDivisionError), average.average_parameters(model) as swapped:
        assert swapped is model
        for name, value in model.state_dict().items():
            assert torch.equal(value, state[name])
        for call in (average.update_parameters, lambda m: average.observe(1.0)):
            with pytest.raises(RuntimeError, match="needs the live weights"):
                call(model)
        with pytest.raises(RuntimeError, match="holds an average already"), average.average_parameters(model):
            pass
        raise ZeroDivisionError
    for name, value in model.state_dict().items():
        assert torch.equal(value, live[name])
    average.update_parameters(model)


def sums_of(state):
    return [*state["trajectory"].values(), *state["average"].values()]


@pytest.mark.parametrize("semantics", ["paper", "reference"])
def test_a_state_taken_in_a_swap_has_the_live_buffers(semantics):
    model = OneHot()
    average, ema = SWAD(model, semantics=semantics), EMA(model)
    for step in range(1, 6):
        model.go_to(step)
        average.update_parameters(model)
        ema.update_parameters(model)
        if step in (2, 4):
            average.observe(1.0)
    states, average_seen = [average.state_dict(), ema.state_dict()], average.averaged_state()["seen"]
    with average.average_parameters(model):
        model.seen += 100  # as update_bn does
        states += [average.state_dict(), ema.state_dict()]
        assert torch.equal(average.averaged_state()["seen"], average_seen)
    for outside, inside in zip(states[:2], states[2:], strict=True):
        for before, now in zip(sums_of(outside), sums_of(inside), strict=True):
            assert torch.equal(before["buffers"]["seen"], now["buffers"]["seen"])


def test_swapping_restores_a_model_that_was_moved_in_the_block():
    model = Net()
    average = SMA(model, start=0)
    train(model, torch.optim.SGD(model.parameters(), 0.1), 9, after=lambda step: average.update_parameters(model))
    live = {name: value.clone() for name, value in model.state_dict().items()}
    with average.average_parameters(model):
        model.double()  # replaces the buffers, as a trainer's move to a GPU does
        model.float()
    for name, value in model.state_dict().items():
        assert torch.equal(value, live[name]), name


def test_observing_or_updating_inside_a_swap_of_another_average_raises():
    model = Net()
    sma, other = SMA(model, start=0), SWAD(model)
    sma.update_parameters(model)
    other.update_parameters(model)
    with sma.average_parameters(model):
        with pytest.raises(RuntimeError, match="observe needs the live weights"):
            other.observe(1.0)
        with pytest.raises(RuntimeError, match="update_parameters needs the live weights"):
            other.update_parameters(model)


def test_swapping_restores_another_model_whole():
    model = Net()
    model.body.requires_grad_(False)
    average = SMA(model, start=0)
    average.update_parameters(model)
    other = Net()
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with average.average_parameters(other):
        assert torch.equal(other.body[0].weight, model.body[0].weight)
    for name, value in other.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.slow
@pytest.mark.distributed
def test_ddp_ranks_have_the_average_of_one_process(tmp_path):
    run_scenario("ddp", tmp_path)
    first, second = (torch.load(tmp_path / f"ddp{rank}.pt", weights_only=True) for rank in (0, 1))
    for name in first:
        assert torch.equal(first[name], second[name])


@pytest.mark.slow
@pytest.mark.distributed
@NEEDS_FSDP2_ON_CPUS
def test_fsdp2_averages_each_shard_on_its_rank(tmp_path):
    run_scenario("fsdp", tmp_path)


@pytest.mark.gpu
def test_offloaded_sums_are_pinned_and_equal():
    states = []
    for offload in (False, True):
        model = small_conv().cuda()
        averager = SWAD(model, offload=offload)
        for step in range(1, 41):
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(0.01 * torch.randn(p.shape, generator=torch.Generator().manual_seed(step)).cuda())
            averager.update_parameters(model)
            if step % 5 == 0:
                averager.observe(1.0)
        states.append(averager.averaged_state())
        if offload:
            assert all(s.is_pinned() for s in averager.sums.closed[0].values)
            assert averager.trajectory.segment.values[0].is_cuda
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=1e-6, atol=1e-7)


def test_an_averaged_model_is_a_new_one_in_eval_mode():
    model = Net()
    average = SWAD(model)
    train(model, torch.optim.SGD(model.parameters(), 0.1), 9, after=lambda step: average.update_parameters(model))
    live = {name: value.clone() for name, value in model.state_dict().items()}
    averaged = average.averaged_model()
    assert not averaged.training
    assert model.training
    assert_equal(averaged.state_dict(), average.averaged_state())
    assert_equal(model.state_dict(), live)
    torch.nn.init.zeros_(averaged.head.weight)
    assert_equal(model.state_dict(), live)
    with average.average_parameters(model):
        assert_equal(average.averaged_model().state_dict(), average.averaged_state())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("buffers", ["copy", "average"])
@pytest.mark.parametrize("changed_after", [5, 7])
def test_a_model_that_changes_its_dtype_is_copied_to_as_it_is_read(dtype, buffers, changed_after):
    model = OneHot()
    average = SWAD(model, buffers=buffers)
    for step in range(1, 8):
        model.go_to(step)
        average.update_parameters(model)
        if step % 2 == 0:
            average.observe(1.0)
        if step == changed_after:  # 7: no update looks at the new tensors before they are read
            model.to(dtype)
    state = average.averaged_state()
    average.copy_to(model)
    for name, value in model.state_dict().items():
        assert value.dtype == state[name].dtype
        assert torch.equal(value, state[name]), name


def test_a_scripted_model_is_refused():
    model = torch.jit.trace(torch.nn.Linear(2, 1), torch.zeros(1, 2))
    with pytest.raises(TypeError, match="must be in Python, got a TopLevelTracedModule: average it before"):
        SWAD(model)


@pytest.mark.parametrize(
    "build",
    [
        SWAD,
        lambda model: SWAD(model, semantics="reference"),
        lambda model: SMA(model, start=0),
        EMA,
        LAWA,
    ],
)
def test_a_constant_near_the_largest_float32_is_its_own_mean(build):
    """Masks of attentions hold such constants; their sum is infinite."""
    model = nn.Linear(3, 2)
    constants = torch.tensor([torch.finfo(torch.float32).min, -math.inf, 3e38])
    average = build(model)
    for step in range(1, 31):
        with torch.no_grad():
            model.weight.copy_(constants.expand(2, 3))
            model.bias.fill_(step)
        average.update_parameters(model)
        if step % 10 == 0:
            average.observe(1.0)
    copied = average.averaged_model()
    for state in (average.averaged_state(), copied.state_dict()):
        torch.testing.assert_close(state["weight"], constants.expand(2, 3), rtol=1e-6, atol=0)
        assert 1 <= state["bias"][0] <= 30
