"""SWAD against a slow twin that keeps every weight and averages by the definition."""

from __future__ import annotations

import math
import random
import warnings
import weakref

import pytest
import torch
from torch import nn

import swad
import swad.averaging.sums
from helpers.averages import Net, OneHot, drive, n_buffers, reload, train, uniform, weights_of
from helpers.valleys import expected, losses_of, settings_of
from swad import SWAD, NeverConvergedWarning

pytestmark = [
    pytest.mark.filterwarnings("ignore::swad.averaging.swad.NeverConvergedWarning"),
    pytest.mark.filterwarnings("ignore:tolerance_ratio is r - 1"),
]


def evaluations(rng, losses, options):
    """Yield the average and the steps of all evaluations so far after each one; resumed at a random update."""
    model = OneHot()
    averager = SWAD(model, **options)
    step, steps = 0, []
    resume_at = rng.randrange(60)
    for loss in losses:
        for _ in range(rng.randint(1, 3)):
            step += 1
            model.go_to(step)
            averager.update_parameters(model)
            if step == resume_at:
                averager = reload(averager, SWAD(model, **options))
                model.go_to(step)
        averager.observe(loss)
        steps.append(step)
        yield averager, steps


def most_buffers(n_converge, n_tolerance, tolerance_ratio, semantics):
    import math

    if semantics == "paper":
        return int(max(2, 1 + min(n_converge - 1, n_tolerance - 1, math.ceil(n_converge / (1 + tolerance_ratio)) - 1)))
    return 2 if semantics == "text" else max(n_converge, n_tolerance) + 2


@pytest.mark.slow
def test_swad_follows_the_definition_on_hundreds_of_sequences():
    """All semantics, all settings, at every evaluation and between two, resumed at a random point."""
    for seed in range(400):
        rng = random.Random(seed)
        losses, options = losses_of(rng), settings_of(rng)
        for averager, steps in evaluations(rng, losses, options):
            step = steps[-1]
            want = {i: float(w) for i, w in expected(losses[: len(steps)], steps, step, options).items()}
            assert weights_of(averager) == pytest.approx(want, rel=1e-5), (seed, options)
            assert n_buffers(averager) <= most_buffers(**options) + (
                options["semantics"] == "paper"
            )  # ties to the digit
            # Buffers are those of the last averaged update.
            assert averager.averaged_state()["count"].item() == max(want), (seed, options)
        model = averager.tracked.model
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
            assert n_buffers(averager) == 2


@pytest.mark.parametrize("semantics", ["paper", "text", "reference"])
def test_peak_memory_stays_within_max_buffers(semantics, monkeypatch):
    """Counts the weight-sized buffers alive at any moment, inside an evaluation too."""
    alive: set[int] = set()
    peak = 0
    zeros = swad.averaging.sums._zeros

    def counted(live, offload=False):
        nonlocal peak
        made = zeros(live, offload)
        alive.add(key := id(made[0]))  # the model has one tensor
        weakref.finalize(made[0], alive.discard, key)
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
    assert peak <= most_buffers(3, 6, 0.3, semantics)
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
            counts.append(n_buffers(averager))
    assert max(counts) == 8, counts
    assert counts[-1] <= 5, counts


def test_a_stopped_average_frees_its_segment():
    model = OneHot()
    averager = SWAD(model, n_converge=1, n_tolerance=1)
    for step, loss in enumerate([1.0, 9.0], 1):
        model.go_to(step)
        averager.update_parameters(model)
        status = averager.observe(loss)
    assert status.should_stop
    assert n_buffers(averager) == 1
    model.go_to(3)
    averager.update_parameters(model)
    assert n_buffers(averager) == 1
    assert weights_of(averager) == {1: 1.0}


def test_without_dense_counts_its_interval_from_the_start_of_the_valley():
    model = OneHot()
    average = SWAD(model, interval=4, n_converge=2, n_tolerance=2)
    drive(average, [3, 1, 1.1, 1.2, 1.1, 9, 9, 9])
    assert average.status.should_stop
    assert weights_of(average) == uniform(range(20, 51, 4))
    assert average.status.n_averaged == 8
    assert average.averaged_state()["count"].item() == 48


def test_an_interval_longer_than_the_segments_of_the_window():
    model = OneHot()
    averager = SWAD(model, interval=3)
    for step, loss in enumerate([0.3, 2.0, 2.0, 0.3, 0.3, 0.3], 1):
        model.go_to(step)
        averager.update_parameters(model)
        averager.observe(loss)
    assert weights_of(averager) == uniform([1, 4])


@pytest.mark.slow
def test_an_interval_takes_every_so_many_updates_of_the_definition():
    """Every evaluation of random curves, resumed at a random update, against the dense twin's updates."""
    for seed in range(400):
        rng = random.Random(seed)
        losses, options = losses_of(rng), settings_of(rng)
        if options["semantics"] == "reference":
            options["semantics"] = "paper"
        options["interval"] = interval = rng.randint(2, 7)
        for averager, steps in evaluations(rng, losses, options):
            status = averager.status
            dense = expected(losses[: len(steps)], steps, steps[-1], options)
            want = [i for i in dense if (i - min(dense)) % interval == 0]
            assert weights_of(averager) == uniform(want), (seed, options)
            assert (status.n_averaged, status.start_step, status.end_step) == (len(want), want[0], want[-1])
            assert averager.averaged_state()["count"].item() == want[-1], (seed, options)


def test_without_overfit_averages_to_the_end():
    average = SWAD(OneHot(), n_tolerance=math.inf)
    drive(average, [3, 1, 1.1, 1.2, 9, 9, 9, 9, 9])
    assert weights_of(average) == uniform(range(20, 91))


def test_an_interval_keeps_the_buffers_of_its_last_update():
    model = OneHot()
    averager = SWAD(model, interval=5)
    for step in range(1, 12):
        model.go_to(step)
        averager.update_parameters(model)
        if step in (2, 8, 10):
            averager.observe({2: 1.0, 8: 4.0, 10: 4.0}[step])
    assert [str(s) for s in averager.status.spans] == ["2-7 every 5"]
    assert averager.averaged_state()["count"].item() == 7


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


def test_an_evaluation_that_fails_halfway_needs_the_last_state(monkeypatch):
    model = OneHot()
    averager = SWAD(model)
    for step in (1, 2):
        model.go_to(step)
        averager.update_parameters(model)
    state = averager.state_dict()

    def none_left(*_):
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(swad.averaging.sums, "_zeros", none_left)
        with pytest.raises(torch.OutOfMemoryError):
            averager.observe(1.0)
    with pytest.raises(RuntimeError, match="load the last state_dict"):
        averager.observe(1.0)
    averager.load_state_dict(state)
    averager.observe(1.0)
    assert averager.status.start_step == 2


def test_a_bad_loss_changes_nothing():
    model = Net()
    averager = SWAD(model)
    averager.update_parameters(model)
    header = averager.state_dict()["header"]
    with pytest.raises(ValueError, match="must be finite"):
        averager.observe(math.nan)
    assert averager.state_dict()["header"] == header
    averager.observe(1.0)  # the same evaluation, measured again


def test_the_warning_names_what_was_averaged_instead():
    model = OneHot()
    averager = SWAD(model)
    for step in (1, 2, 3):
        model.go_to(step)
        averager.update_parameters(model)
    with pytest.warns(NeverConvergedWarning, match=r"no validation loss was observed, .* all updates, 1-3: evaluate"):
        averager.copy_to(OneHot())
    averager.observe(1.0)
    with pytest.warns(NeverConvergedWarning, match=r"updates 3-3, everything since the best evaluation. Train longer"):
        averager.copy_to(OneHot())
    for _ in range(2):
        averager.update_parameters(model)
        averager.observe(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        averager.copy_to(OneHot())


def test_the_warning_shows_the_line_that_reads_the_average():
    model = OneHot()
    averager = SWAD(model)
    averager.update_parameters(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        averager.copy_to()
        averager.averaged_state()
        with averager.average_parameters():
            pass
    assert len(caught) == 3
    assert {warning.filename for warning in caught} == {__file__}
    with pytest.raises(ValueError, match="must match"), warnings.catch_warnings():
        warnings.simplefilter("error")  # an error comes alone
        averager.copy_to(nn.Linear(1, 1))


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
        (lambda m: SWAD(m, interval=0), "at least 1, got 0"),
        (lambda m: SWAD(m, interval=1.5), "counts updates .* whole number .* got 1.5"),
        (lambda m: SWAD(m, n_converge="3"), "whole number of at least 1, got '3'"),
        (lambda m: SWAD(m, interval=2, semantics="reference"), "dense by definition"),
        (lambda m: SWAD(m, n_converge=math.inf), "whole number"),
    ],
)
def test_bad_settings_say_the_rule(make, message):
    with pytest.raises(ValueError, match=message):
        make(nn.Linear(1, 1))
