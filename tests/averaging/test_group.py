"""A feed's averages against the same averages updated one by one."""

from __future__ import annotations

import copy
import io
import random

import pytest
import torch
from torch import nn

from helpers.averages import Net, OneHot, train
from helpers.valleys import losses_of, settings_of
from swad import EMA, SMA, SWA, SWAD, AverageGroup, SegmentLog

pytestmark = pytest.mark.filterwarnings("ignore::swad.averaging.swad.NeverConvergedWarning")


def everyone(model, options):
    return {
        "paper": SWAD(model),
        "text": SWAD(model, semantics="text"),
        "reference": SWAD(model, semantics="reference"),
        "random": SWAD(model, **options),
        "sparse": SWAD(model, interval=2),
        "sma": SMA(model, start=7),
        "window": SWA(model, start=4, end=21),
        "swa": SWA(model, start=4, end=21, interval=3),
        "ema": EMA(model, 0.9),
    }


def reload(feed, fresh):
    file = io.BytesIO()
    torch.save(feed.state_dict(), file)
    file.seek(0)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return fresh


def test_a_feed_equals_its_averages_one_by_one():
    for seed in range(150):
        rng = random.Random(seed)
        losses, options = losses_of(rng), settings_of(rng)
        model = OneHot()
        feed = AverageGroup(model, everyone(model, options))
        alone = everyone(model, options)
        resume_at, step = rng.randrange(40), 0
        for loss in losses:
            for _ in range(rng.randint(1, 4)):
                step += 1
                model.go_to(step)
                feed.update_parameters(model)
                for average in alone.values():
                    average.update_parameters(model)
                if step == resume_at:
                    feed = reload(feed, AverageGroup(model, everyone(model, options)))
                    model.go_to(step)
                if rng.random() < 0.3:
                    compare(feed, alone, (seed, step))
            statuses = feed.observe(loss)
            for name, average in alone.items():
                assert average.observe(loss) == statuses[name], (seed, step, name)
            compare(feed, alone, (seed, step))


def compare(feed, alone, where):
    for name, average in alone.items():
        if not average.status.spans:
            continue
        want, got = average.averaged_state(), feed[name].averaged_state()
        torch.testing.assert_close(got["weight"], want["weight"], rtol=1e-5, atol=1e-7, msg=f"{where} {name}")
        assert torch.equal(got["count"], want["count"]), (where, name)


def test_dense_averages_share_one_addition(monkeypatch):
    model = OneHot()
    feed = AverageGroup(model, {str(k): SWAD(model, n_converge=k) for k in range(1, 8)})
    calls = []
    add = torch._foreach_add_
    monkeypatch.setattr(torch, "_foreach_add_", lambda *a, **k: (calls.append(1), add(*a, **k)))
    for step in range(1, 21):
        model.go_to(step)
        feed.update_parameters(model)
    assert len(calls) == 20


def test_memory_of_a_feed_in_steady_state():
    model = OneHot()
    feed = AverageGroup(
        model, {"paper": SWAD(model), "text": SWAD(model, semantics="text"), "other": SWAD(model, tolerance_ratio=0.2)}
    )
    for step in range(1, 61):
        model.go_to(step)
        feed.update_parameters(model)
        if step % 5 == 0:
            feed.observe(1.0)
    assert feed.n_buffers == 4  # one each, and the segment they share


def test_the_feed_attaches_and_skips_what_a_scaler_skips():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), 0.05, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    feed = AverageGroup(model, {"swad": SWAD(model), "sma": SMA(model, start=6), "ema": EMA(model, 0.9)})
    feed.attach(optimizer)
    twin_model = nn.Linear(3, 2)
    twins = {"swad": SWAD(twin_model), "sma": SMA(twin_model, start=6), "ema": EMA(twin_model, 0.9)}
    for step in range(1, 41):
        before = model.weight.detach().clone()
        loss = model(torch.randn(4, 3)).square().mean() * (float("inf") if step in (2, 5, 6, 7, 20) else 1)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if not torch.equal(before, model.weight):
            twin_model.load_state_dict(model.state_dict())
            for twin in twins.values():
                twin.update_parameters(twin_model)
        if step % 10 == 0:
            feed.observe(1.0)
            for twin in twins.values():
                twin.observe(1.0)
    assert feed.step == 35
    for name, twin in twins.items():
        assert feed[name].status.spans == twin.status.spans
        for key, value in twin.averaged_state().items():
            torch.testing.assert_close(feed[name].averaged_state()[key], value, rtol=1e-5, atol=1e-6)


def test_members_are_driven_by_the_feed_alone():
    model = Net()
    average = SWAD(model)
    AverageGroup(model, {"swad": average})
    for call in (average.update_parameters, lambda m: average.observe(1.0), lambda m: average.count_replays()):
        with pytest.raises(RuntimeError, match="member of an AverageGroup"):
            call(model)
    with pytest.raises(ValueError, match="swad has started already"):
        AverageGroup(model, {"swad": average})
    with pytest.raises(ValueError, match="at least one average"):
        AverageGroup(model, {})
    with pytest.raises(ValueError, match="head has others"):
        AverageGroup(model, {"all": SWAD(model), "head": SWAD(model, include="head.*")})


def test_replays_across_the_edges_of_windows():
    """A replay adds before it is counted, here by hand: the update after an edge must not enter the segment before."""
    model = OneHot()

    def make():
        return {"swad": SWAD(model), "sma": SMA(model, start=7), "window": SWA(model, start=4, end=12)}

    feed, alone = AverageGroup(model, make()), make()
    for step in range(1, 31):
        model.go_to(step)
        if step <= 4:  # the eager steps before a capture, up to an edge
            feed.update_parameters(model)
        else:
            with torch.no_grad():
                feed._segment.add_live(feed["swad"].tracked.live(), counted=False)
            feed.count_replays()
        for average in alone.values():
            average.update_parameters(model)
        if step % 10 == 0:
            feed.observe(1.0)
            for average in alone.values():
                average.observe(1.0)
        compare(feed, alone, step)
    with pytest.raises(ValueError, match="got 0"):
        feed.count_replays(0)


def test_a_feed_of_one_ema_counts_no_skipped_steps():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), 0.05, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    feed = AverageGroup(model, {"ema": EMA(model)})
    feed.attach(optimizer)
    for step in range(1, 7):
        loss = model(torch.randn(4, 3)).square().mean() * (float("inf") if step == 3 else 1)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert feed.step == 5
    feed.observe(1.0)


def test_members_that_share_nothing_are_driven_by_the_feed_too():
    model = Net()
    ema = EMA(model)
    AverageGroup(model, {"ema": ema})
    with pytest.raises(RuntimeError, match="member of an AverageGroup"):
        ema.update_parameters(model)
    with pytest.raises(ValueError, match="ema has started already"):
        AverageGroup(model, {"ema": ema})


def test_a_feed_follows_its_own_model():
    model = Net()
    feed = AverageGroup(model, {"sma": SMA(copy.deepcopy(model), start=0), "ema": EMA(copy.deepcopy(model))})
    with torch.no_grad():
        model.head.weight.fill_(5.0)
    feed.update_parameters()
    for name in feed:
        assert feed[name].averaged_state()["head.weight"][0, 0].item() == 5.0


def test_a_log_that_cannot_write_moves_no_average(tmp_path, monkeypatch):
    model = OneHot()
    feed = AverageGroup(model, {"sma": SMA(model, start=0), "log": SegmentLog(model, tmp_path)})
    for step in (1, 2):
        model.go_to(step)
        feed.update_parameters(model)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(OSError, match="No space"):
            feed.observe(1.0)
    feed.observe(1.0)
    assert len(feed["log"]) == 1
    assert feed["sma"].status.n_averaged == 2


def test_a_feed_that_failed_half_way_says_so(monkeypatch):
    model = OneHot()
    feed = AverageGroup(model, {"sma": SMA(model, start=0), "swad": SWAD(model)})
    model.go_to(1)
    feed.update_parameters(model)
    good = feed.state_dict()

    def broken(*_):
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(feed["swad"], "_evaluated", broken)
        with pytest.raises(torch.OutOfMemoryError):
            feed.observe(1.0)
    with pytest.raises(RuntimeError, match="load the last state_dict"):
        feed.update_parameters(model)
    feed.load_state_dict(good)
    feed.observe(1.0)
    assert feed["sma"].status.n_averaged == 1


def test_a_bad_loss_moves_no_average():
    model = Net()
    feed = AverageGroup(model, {"ema": EMA(model), "swad": SWAD(model)})
    feed.update_parameters(model)
    with pytest.raises(ValueError, match="must be finite"):
        feed.observe(float("nan"))
    feed.observe(1.0)
    with pytest.raises(RuntimeError, match="needs an update"):
        feed.observe(1.0)


def test_should_stop_only_when_nothing_needs_the_rest():
    model = OneHot()
    feed = AverageGroup(model, {"swad": SWAD(model, n_converge=1, n_tolerance=1), "swa": SWA(model, start=0, end=4)})
    stops = []
    for step, loss in enumerate([1, 9, 9, 9, 9], 1):
        model.go_to(step)
        feed.update_parameters(model)
        feed.observe(loss)
        stops.append(feed.should_stop)
    assert stops == [False, False, False, True, True]


def test_segment_log_keeps_means_that_add_up(tmp_path):
    model = Net()
    feed = AverageGroup(model, {"log": SegmentLog(model, tmp_path), "sma": SMA(model, start=0), "late": SMA(model, 13)})

    def after(step):
        feed.update_parameters(model)
        if step % 10 == 0:
            feed.observe(1.0)

    train(model, torch.optim.SGD(model.parameters(), 0.1), 40, after=after)
    log = feed["log"]
    assert [(s.first, s.last) for s in log] == [(1, 10), (11, 20), (21, 30), (31, 40)]
    mean = sum(s.mean["head.weight"] * len(s) for s in log) / 40
    torch.testing.assert_close(mean, feed["sma"].averaged_state()["head.weight"])
    again = reload(
        feed, AverageGroup(model, {"log": SegmentLog(model, tmp_path), "sma": SMA(model, 0), "late": SMA(model, 13)})
    )
    assert len(again["log"]) == 4
