"""The averages against a slow twin that keeps every weight and averages by the definition."""

from __future__ import annotations

import copy
import io
import math
import random
import warnings
import weakref

import pytest
import torch
from torch import nn

import swad
import swad.averaging.sums
from helpers.averages import Net, OneHot, train
from helpers.valleys import expected, losses_of, settings_of
from swad import EMA, SMA, SWA, SWAD, NeverConvergedWarning

pytestmark = pytest.mark.filterwarnings("ignore::swad.averaging.swad.NeverConvergedWarning")


def weights_of(average, size: int = 100) -> dict[int, float]:
    values = average.averaged_state()["weight"]
    return {i: v for i, v in enumerate(values.tolist()) if v}


def reload(average, fresh):
    """Through a file and `weights_only=True`, as a checkpoint would go."""
    file = io.BytesIO()
    torch.save(average.state_dict(), file)
    file.seek(0)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return fresh


def test_swad_follows_the_definition_on_thousands_of_sequences():
    """All semantics, all settings, at every evaluation and between two, resumed at a random point."""
    for seed in range(1500):
        rng = random.Random(seed)
        losses, options = losses_of(rng), settings_of(rng)
        model = OneHot()
        averager = SWAD(model, **options)
        step, steps = 0, []
        resume_at = rng.randrange(60)
        for k, loss in enumerate(losses):
            for _ in range(rng.randint(1, 3)):
                step += 1
                model.go_to(step)
                averager.update_parameters(model)
                if step == resume_at:
                    averager = reload(averager, SWAD(model, **options))
                    model.go_to(step)
            steps.append(step)
            averager.observe(loss)
            want = {i: float(w) for i, w in expected(losses[: k + 1], steps, step, options).items()}
            assert weights_of(averager) == pytest.approx(want, rel=1e-5), (seed, options)
            assert averager.n_buffers <= averager.max_buffers + (options["semantics"] == "paper")  # ties to the digit
            # Buffers are those of the last averaged update.
            assert averager.averaged_state()["count"].item() == max(want), (seed, options)
        model.go_to(step + 1)  # a tail without an evaluation
        averager.update_parameters(model)
        want = {i: float(w) for i, w in expected(losses, steps, step + 1, options).items()}
        assert weights_of(averager) == pytest.approx(want, rel=1e-5), (seed, options)


@pytest.mark.parametrize("semantics", ["paper", "text"])
def test_two_buffers_in_steady_state(semantics):
    model = OneHot(600)
    averager = SWAD(model, semantics=semantics)
    for step in range(1, 501):
        model.go_to(step)
        averager.update_parameters(model)
        if step % 10 == 0:
            averager.observe(1.0 if step < 250 else 1.2 + (step % 20) / 20)
            assert averager.n_buffers == 2


@pytest.mark.parametrize("semantics", ["paper", "text", "reference"])
def test_the_peak_is_what_it_says_also_while_pieces_change_hands(semantics, monkeypatch):
    """Counts the weight-sized buffers alive at any moment, inside an evaluation too."""
    alive: set[int] = set()
    peak = 0
    zeros = swad.averaging.sums._zeros

    def counted(tensor, offload=False):
        nonlocal peak
        made = zeros(tensor, offload)
        alive.add(key := id(made))
        weakref.finalize(made, alive.discard, key)
        peak = max(peak, len(alive))
        return made

    monkeypatch.setattr(swad.averaging.sums, "_zeros", counted)
    model = nn.Linear(3, 1, bias=False)
    averager = SWAD(model, semantics=semantics)
    losses = [5, 4, 3, 2, 1, 5, 0.9, 4, 0.8, 0.85, 0.9, 0.8, 0.9, 2, 2, 0.8, 3, 3, 3, 3, 3, 3, 3]
    for loss in losses:
        averager.update_parameters(model)
        averager.observe(loss)
    assert averager.status.should_stop
    assert peak <= averager.max_buffers
    if semantics != "reference":
        assert peak == 2 + (semantics == "paper")  # the third: losses of 5 and 4 after floors of 1 and 0.9


def test_reference_settles_to_two_buffers():
    model = OneHot(600)
    averager = SWAD(model, semantics="reference")
    counts = []
    for step in range(1, 301):
        model.go_to(step)
        averager.update_parameters(model)
        if step % 10 == 0:
            averager.observe(3 - step / 100 if step < 100 else 2.0)
            counts.append(averager.n_buffers)
    assert max(counts) == averager.max_buffers == 8
    assert counts[-1] == 2


def test_a_stopped_average_gives_its_segment_back():
    model = OneHot()
    averager = SWAD(model, n_converge=1, n_tolerance=1)
    for step, loss in enumerate([1.0, 9.0], 1):
        model.go_to(step)
        averager.update_parameters(model)
        status = averager.observe(loss)
    assert status.should_stop
    assert averager.n_buffers == 1
    model.go_to(3)
    averager.update_parameters(model)
    assert weights_of(averager) == {1: 1.0}


# -- relatives and ablations -----------------------------------------------------------------------------------


def drive(average, losses, per_segment=10, size=100):
    model = average.tracked.model
    for step in range(1, per_segment * len(losses) + 1):
        model.go_to(step)
        average.update_parameters(model)
        if step % per_segment == 0:
            average.observe(losses[step // per_segment - 1])


def uniform(steps) -> dict[int, float]:
    steps = list(steps)
    return dict.fromkeys(steps, pytest.approx(1 / len(steps), rel=1e-5))


def test_swa_takes_the_papers_ten_weights():
    model = OneHot(5100)
    average = SWA(model, start=4000, end=5000, interval=100)
    for step in range(1, 5051):
        model.go_to(step)
        average.update_parameters(model)
    assert weights_of(average) == uniform(range(4100, 5001, 100))
    assert average.averaged_state()["count"].item() == 5000
    assert average.n_buffers == 1
    assert average.status.n_averaged == 10
    assert average.status.should_stop


def test_a_dense_window_longer_than_its_flushes():
    model = OneHot(1000)
    average = SWA(model, start=100, end=900)
    for step in range(1, 951):
        model.go_to(step)
        average.update_parameters(model)
    assert weights_of(average) == uniform(range(101, 901))


def test_sma_averages_everything_after_its_start():
    model = OneHot()
    average = SMA(model, start=7)
    drive(average, [1.0] * 5)
    assert weights_of(average) == uniform(range(8, 51))


def test_ema_against_the_recursion():
    model = nn.Linear(3, 2)
    average, twin = EMA(model, decay=0.9), None
    for _ in range(50):
        with torch.no_grad():
            model.weight.normal_()
        average.update_parameters(model)
        live = model.weight.detach().double().clone()
        twin = live if twin is None else 0.9 * twin + 0.1 * live
    torch.testing.assert_close(average.averaged_state()["weight"].double(), twin, rtol=1e-5, atol=1e-6)


def test_without_dense_counts_its_interval_from_the_start_of_the_valley():
    model = OneHot()
    average = SWAD(model, interval=4, n_converge=2, n_tolerance=2)
    drive(average, [3, 1, 1.1, 1.2, 1.1, 9, 9, 9])
    assert average.status.should_stop
    assert weights_of(average) == uniform(range(20, 51, 4))
    assert average.status.n_averaged == 8
    assert average.averaged_state()["count"].item() == 48


def test_without_overfit_goes_on_to_the_end():
    average = SWAD(OneHot(), n_tolerance=math.inf)
    drive(average, [3, 1, 1.1, 1.2, 9, 9, 9, 9, 9])
    assert weights_of(average) == uniform(range(20, 91))


def test_without_opt_overfit_is_a_dense_fixed_window():
    average = SWA(OneHot(), start=40, end=60)
    drive(average, [1.0] * 9)
    assert weights_of(average) == uniform(range(41, 61))


@pytest.mark.parametrize(
    "make",
    [
        lambda m: SWA(m, start=13, end=57, interval=4),
        lambda m: SWA(m, start=13),
        lambda m: EMA(m, 0.9),
        lambda m: SWAD(m, interval=3),
    ],
)
def test_relatives_resume_exactly(make):
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


# -- numerics --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drift", [0.0, 1e-7, 1e-5])
@pytest.mark.parametrize("every", [100, 500])
def test_error_against_a_float64_mean_after_15000_updates(drift, every):
    generator = torch.Generator().manual_seed(0)
    model = nn.Module()
    model.weight = nn.Parameter(torch.randn(4000, generator=generator))
    start = model.weight.detach().double().clone()
    averager = SWAD(model)
    twin, count = torch.zeros(4000, dtype=torch.float64), 0
    for step in range(1, 15_001):
        with torch.no_grad():
            if drift:
                model.weight.copy_(start * (1 + drift * step))
            else:
                model.weight.copy_(start + 0.01 * torch.randn(4000, generator=generator))
        averager.update_parameters(model)
        if step >= every:
            twin += model.weight.detach().double()
            count += 1
        if step % every == 0:
            averager.observe(1.0)
    assert averager.status.n_averaged == count
    got = averager.averaged_state()["weight"].double()
    error = (got - twin / count).norm() / (twin / count).norm()
    assert error < (1e-5 if drift else 1e-6)


@pytest.mark.parametrize("make", [SWAD, lambda m: SMA(m, start=0)])
def test_a_bfloat16_model_is_averaged_in_float32(make):
    model = nn.Linear(64, 64, bias=False).to(torch.bfloat16)
    averager, twin = make(model), torch.zeros(64, 64, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 2001):
        with torch.no_grad():
            model.weight.copy_(1 + 0.01 * torch.randn(64, 64, generator=generator))
        averager.update_parameters(model)
        twin += model.weight.detach().double()
        if step % 100 == 0:
            if step == 100 and isinstance(averager, SWAD):
                twin = model.weight.detach().double().clone()
            averager.observe(1.0)
    mean = twin / averager.status.n_averaged
    sums, _ = averager._result_sums()
    assert all(s.values[0].dtype == torch.float32 for s in sums)
    got = sum(s.values[0] for s in sums).double() / sum(s.weight for s in sums)
    assert (got - mean).abs().max() < 1e-6  # a bfloat16 mean would be off by 4e-3
    assert averager.averaged_state()["weight"].dtype == torch.bfloat16


def test_a_float64_model_keeps_its_precision():
    model = nn.Linear(1, 1, bias=False).double()
    average = SMA(model, start=0)
    for value in (1.0, 1.0 + 1e-12):
        model.weight.data.fill_(value)
        average.update_parameters(model)
    assert average.averaged_state()["weight"].item() == 1.0 + 5e-13


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


def test_a_mismatch_names_the_tensors():
    averager = SWAD(Net(4))
    with pytest.raises(ValueError, match=r"body\.0\.weight \(5, 3\) instead of \(4, 3\)"):
        averager.update_parameters(Net(5))
    with pytest.raises(ValueError, match=r"missing body\.0\.weight.*unknown weight, bias"):
        averager.update_parameters(nn.Linear(3, 2))
    with pytest.raises(ValueError, match="missing"):
        averager.copy_to(nn.Linear(3, 2))


def test_frozen_parameters_are_left_alone_and_cost_nothing():
    model = Net()
    model.body.requires_grad_(False)
    average = SMA(model, start=0)
    optimizer = torch.optim.SGD(model.head.parameters(), 0.1)
    train(model, optimizer, 3, after=lambda step: average.update_parameters(model))
    assert [tuple(s.shape) for s in average._segment.values] == [(2, 4), (2,)]
    fresh = Net()
    average.copy_to(fresh)  # complete all the same
    assert torch.equal(fresh.body[0].weight, model.body[0].weight)
    model.body[0].weight.requires_grad_(True)
    with pytest.raises(ValueError, match=r"body\.0\.weight is trainable now"):
        average.observe(1.0)


def test_tied_parameters_count_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.out = nn.Linear(3, 5, bias=False)
            self.out.weight = self.embed.weight

    model = Tied()
    average = SMA(model, start=0)
    for value in (1.0, 3.0):
        model.embed.weight.data.fill_(value)
        average.update_parameters(model)
    assert len(average._segment.values) == 1
    average.copy_to(model)
    assert model.out.weight is model.embed.weight
    assert model.out.weight[0, 0].item() == 2.0
    model.load_state_dict(average.averaged_state(), strict=True)


def test_patterns_choose_what_is_averaged():
    model = Net()
    average = SMA(model, start=0, include=["head.*", "body.0.*"], exclude="*.bias")
    assert list(average.tracked.averaged) == ["body.0.weight", "head.weight"]
    train(model, torch.optim.SGD(model.parameters(), 0.1), 5, after=lambda step: average.update_parameters(model))
    bias = model.head.bias.detach().clone()
    average.copy_to(model)
    assert torch.equal(model.head.bias, bias)
    with pytest.raises(ValueError, match=r"'tail\.\*' matches no tensor; names look like body\.0\.weight"):
        SMA(model, start=0, include="tail.*")
    with pytest.raises(ValueError, match="nothing to average"):
        SMA(model, start=0, exclude="*")


def test_names_are_canonical_under_compile_and_data_parallel():
    model = Net()
    compiled = torch.compile(model, backend="eager")
    average = SMA(compiled, start=0)
    average.update_parameters(model)  # the plain one, the compiled one: the same tensors
    average.update_parameters(compiled)
    average.update_parameters(nn.DataParallel(model))
    assert not any("_orig_mod" in name or "module" in name for name in average.averaged_state())
    plain = SMA(Net(), start=0)
    plain.load_state_dict(average.state_dict())


def test_a_compiled_model_trains_and_swaps():
    torch.manual_seed(0)
    model = Net()
    compiled = torch.compile(model, backend="aot_eager")
    average = SMA(compiled, start=0)
    train(compiled, torch.optim.SGD(model.parameters(), 0.1), 5, after=lambda step: average.update_parameters(compiled))
    x = torch.randn(4, 3)
    twin = Net()
    twin.load_state_dict(average.averaged_state())
    with torch.no_grad(), average.average_parameters(compiled):
        compiled.eval()
        torch.testing.assert_close(compiled(x), twin.eval()(x))


def test_a_replaced_parameter_is_noticed():
    model = Net()
    average = SMA(model, start=0)
    average.update_parameters(model)
    model.head.weight = nn.Parameter(torch.full((2, 4), 7.0))
    average.update_parameters(model)
    first = average._segment.values[list(average.tracked.averaged).index("head.weight")]
    assert (first > 6).all()


def test_a_replaced_buffer_is_noticed():
    model = Net()
    average = SMA(model, start=0)
    average.update_parameters(model)
    model.body[1].running_mean = torch.full((4,), 7.0)
    average.update_parameters(model)
    assert average.averaged_state()["body.1.running_mean"].tolist() == [7.0] * 4


def test_another_order_of_modules_is_matched_by_name():
    class Swapped(Net):
        def __init__(self):
            super().__init__()
            body = self.body
            del self.body
            self.body = body  # declared last now

    model, other = Net(), Swapped()
    average = SMA(model, start=0)
    average.update_parameters(model)
    assert next(iter(dict(other.named_parameters()))) == "head.weight"
    average.copy_to(other)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])


def test_offloaded_pieces_give_the_same_average():
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


# -- hooks, AMP, swaps ---------------------------------------------------------------------------------------------


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
    with pytest.raises(RuntimeError, match="drop the extra call"):
        average.update_parameters(model)
    with pytest.raises(RuntimeError, match="attached already"):
        average.attach(optimizer)
    handle.remove()
    optimizer.step()
    assert average.step == 3
    average.update_parameters(model)
    assert average.step == 4


class Counting(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 2)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


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
    ],
)
def test_steps_a_scaler_skips_do_not_count(make, fused):
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
    one, other = SMA(model, start=0), SWAD(model)
    one.update_parameters(model)
    other.update_parameters(model)
    with one.average_parameters(model):
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


def test_an_interval_keeps_the_buffers_of_its_last_update():
    model = OneHot()
    averager = SWAD(model, interval=5)
    for step in range(1, 12):
        model.go_to(step)
        averager.update_parameters(model)
        if step in (2, 8, 10):
            averager.observe({2: 1.0, 8: 4.0, 10: 4.0}[step])
    assert [str(s) for s in averager.status.spans] == ["2-2", "7-7"]
    assert averager.averaged_state()["count"].item() == 7


def test_a_state_stays_what_it_was_and_stands_by_itself():
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


def test_no_room_for_a_piece_changes_nothing(monkeypatch):
    model = OneHot()
    averager = SWAD(model)
    for step in (1, 2):
        model.go_to(step)
        averager.update_parameters(model)
    header = averager.state_dict()["header"]

    def none_left(*_):
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(swad.averaging.sums, "_zeros", none_left)
        with pytest.raises(torch.OutOfMemoryError):
            averager.observe(1.0)
    assert averager.state_dict()["header"] == header
    averager.observe(1.0)
    assert averager.status.start_step == 2


def test_a_window_stays_closed_whatever_comes_after():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), 0.05, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    average = SWA(model, start=1, end=4)
    average.attach(optimizer)
    for step in range(1, 11):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(4, 3)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        if step == 5:
            average.observe(1.0)
        if step > 5:
            with torch.no_grad():
                model.weight.fill_(math.nan)
    assert average.status.n_averaged == 3
    assert average.averaged_state()["weight"].isfinite().all()


def test_handles_and_optimizers_that_do_not_belong():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    average = SMA(model, start=0)
    first = average.attach(optimizer)
    first.remove()
    average.attach(optimizer)
    first.remove()  # an old handle must not end the new attachment
    with pytest.raises(RuntimeError, match="drop the extra call"):
        average.update_parameters(model)
    with pytest.raises(ValueError, match="steps none of the averaged parameters"):
        SMA(copy.deepcopy(model), start=0).attach(optimizer)


def test_shared_modules_load_strictly():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.BatchNorm1d(3)
            self.second = self.first

    model = Shared()
    average = SMA(model, start=0)
    average.update_parameters(model)
    Shared().load_state_dict(average.averaged_state(), strict=True)


def test_copy_to_changes_no_state():
    model, other = Net(), Net()
    averager = SWAD(model)
    train(model, torch.optim.SGD(model.parameters(), 0.1), 9, after=lambda step: averager.update_parameters(model))
    averager.observe(1.0)
    header = averager.state_dict()["header"]
    sums = [s.clone() for s in averager._segment.values]
    averager.copy_to(other)
    averager.copy_to(other)
    assert averager.state_dict()["header"] == header
    assert all(torch.equal(a, b) for a, b in zip(sums, averager._segment.values, strict=True))


def test_observe_needs_a_new_update():
    model = Net()
    for average in (SWAD(model), SMA(model), EMA(model)):
        with pytest.raises(RuntimeError, match="needs an update since the last one, at update 0"):
            average.observe(1.0)
        average.update_parameters(model)
        average.observe(1.0)
        with pytest.raises(RuntimeError, match="at update 1"):
            average.observe(1.0)


def test_nothing_to_average_yet():
    model = Net()
    for average in (SWAD(model), SMA(model, start=5), EMA(model)):
        with pytest.raises(RuntimeError, match="nothing to average yet"):
            average.copy_to(model)


def test_a_bad_loss_changes_nothing():
    model = Net()
    averager = SWAD(model)
    averager.update_parameters(model)
    header = averager.state_dict()["header"]
    with pytest.raises(ValueError, match="must be finite"):
        averager.observe(math.nan)
    assert averager.state_dict()["header"] == header
    averager.observe(1.0)  # the same evaluation, measured again


def test_the_warning_says_what_was_averaged_instead():
    model = OneHot()
    averager = SWAD(model)
    for step in (1, 2, 3):
        model.go_to(step)
        averager.update_parameters(model)
    averager.observe(1.0)
    with pytest.warns(NeverConvergedWarning, match="holds the updates 3-3, everything since the best evaluation"):
        averager.copy_to(OneHot())
    for _ in range(2):
        averager.update_parameters(model)
        averager.observe(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        averager.copy_to(OneHot())


def test_the_learning_rate_is_never_touched():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    averager = SWAD(model)
    averager.attach(optimizer)
    train(model, optimizer, 9)
    averager.observe(1.0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert "initial_lr" not in optimizer.param_groups[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: SWA(m, start=5, end=5), "0 <= start < end"),
        (lambda m: SWA(m, start=0, interval=0), "interval >= 1"),
        (lambda m: EMA(m, decay=1.0), "below 1, got 1.0"),
        (lambda m: SWAD(m, interval=0), "at least 1, got 0"),
        (lambda m: SWAD(m, interval=2, semantics="reference"), "dense by definition"),
        (lambda m: SWAD(m, n_converge=math.inf), "whole number"),
        (lambda m: SWAD(m, buffers="keep"), "'copy' or 'average'; got 'keep'"),
        (lambda m: SWAD(nn.LazyLinear(3)), "lazy or on the meta device"),
    ],
)
def test_bad_settings_say_the_rule(make, message):
    with pytest.raises(ValueError, match=message):
        make(nn.Linear(1, 1))


def test_a_state_of_another_kind_is_refused():
    model = Net()
    average = SMA(model, start=0)
    average.update_parameters(model)
    with pytest.raises(ValueError, match="state of a SMA, not of a SWAD"):
        SWAD(model).load_state_dict(average.state_dict())
    with pytest.raises(ValueError, match=r"there, .* here"):
        SMA(model, start=3).load_state_dict(average.state_dict())
    with pytest.raises(ValueError, match=r"missing \['weight', 'bias'\]"):
        SMA(nn.Linear(3, 2), start=0).load_state_dict(average.state_dict())
