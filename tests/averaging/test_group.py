"""The members of a group against the same averages updated one by one."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import nn

from helpers import HELPERS
from helpers.averages import (
    Net,
    OneHot,
    n_buffers,
    reload,
    run_scenario,
    scaled_steps,
    segment_log,
    small_conv,
    train,
    train_captured,
)
from helpers.forked import run
from helpers.valleys import losses_of, settings_of
from swad import EMA, SMA, SWA, SWAD, AverageGroup

pytestmark = pytest.mark.filterwarnings("ignore::swad.averaging.swad.NeverConvergedWarning")


def members_of(model, options):
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
        "warm": EMA(model, 0.9, warmup=True),
    }


def compare(group, alone, where):
    for name, average in alone.items():
        if not average.status.spans:
            continue
        want, got = average.averaged_state(), group[name].averaged_state()
        torch.testing.assert_close(got["weight"], want["weight"], rtol=1e-5, atol=1e-7, msg=f"{where} {name}")
        assert torch.equal(got["count"], want["count"]), (where, name)


@pytest.mark.slow
def test_a_group_equals_its_averages_one_by_one():
    for seed in range(40):
        rng = random.Random(seed)
        losses, options = losses_of(rng), settings_of(rng)
        model = OneHot()
        group = AverageGroup(model, members_of(model, options))
        alone = members_of(model, options)
        resume_at, step = rng.randrange(40), 0
        for loss in losses:
            for _ in range(rng.randint(1, 4)):
                step += 1
                model.go_to(step)
                group.update_parameters(model)
                for average in alone.values():
                    average.update_parameters(model)
                if step == resume_at:
                    group = reload(group, AverageGroup(model, members_of(model, options)))
                    model.go_to(step)
                if rng.random() < 0.3:
                    compare(group, alone, (seed, step))
            statuses = group.observe(loss)
            for name, average in alone.items():
                assert average.observe(loss) == statuses[name], (seed, step, name)
            compare(group, alone, (seed, step))


def test_dense_averages_share_one_addition(monkeypatch):
    model = OneHot()
    group = AverageGroup(model, {str(k): SWAD(model, n_converge=k) for k in range(1, 8)})
    calls = []
    add = torch._foreach_add_
    monkeypatch.setattr(torch, "_foreach_add_", lambda *a, **k: (calls.append(1), add(*a, **k)))
    for step in range(1, 21):
        model.go_to(step)
        group.update_parameters(model)
    assert len(calls) == 20


def test_memory_of_a_group_in_steady_state():
    model = OneHot()
    group = AverageGroup(
        model, {"paper": SWAD(model), "text": SWAD(model, semantics="text"), "other": SWAD(model, tolerance_ratio=0.2)}
    )
    for step in range(1, 61):
        model.go_to(step)
        group.update_parameters(model)
        if step % 5 == 0:
            group.observe(1.0)
    assert n_buffers(group) == 4  # one each, and the segment they share


def test_a_group_attaches_and_skips_what_a_scaler_skips():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    group = AverageGroup(model, {"swad": SWAD(model), "sma": SMA(model, start=6), "ema": EMA(model, 0.9)})
    twin_model = nn.Linear(3, 2)
    twins = {"swad": SWAD(twin_model), "sma": SMA(twin_model, start=6), "ema": EMA(twin_model, 0.9)}
    overflows = (2, 5, 6, 7, 20)
    for step in scaled_steps(model, group, 40, overflows):
        if step not in overflows:
            twin_model.load_state_dict(model.state_dict())
            for twin in twins.values():
                twin.update_parameters(twin_model)
        if step % 10 == 0:
            group.observe(1.0)
            for twin in twins.values():
                twin.observe(1.0)
    assert group.step == 35
    for name, twin in twins.items():
        assert group[name].status.spans == twin.status.spans
        for key, value in twin.averaged_state().items():
            torch.testing.assert_close(group[name].averaged_state()[key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [SWAD, EMA])  # one shares the segment of the group, the other has its own
def test_only_the_group_updates_its_members(make):
    model = Net()
    average = make(model)
    AverageGroup(model, {"member": average})
    for call in (average.update_parameters, lambda m: average.observe(1.0), lambda m: average.count_replays()):
        with pytest.raises(RuntimeError, match="member of an AverageGroup"):
            call(model)
    with pytest.raises(ValueError, match="member was used before"):
        AverageGroup(model, {"member": average})


def test_a_member_is_counted_once():
    model = Net()
    average = EMA(model)
    with pytest.raises(ValueError, match="got one under several names"):
        AverageGroup(model, {"one": average, "two": average})
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    average.attach(optimizer)  # its steps would be counted beside the group's
    with pytest.raises(ValueError, match="attached to an optimizer; ema was used before"):
        AverageGroup(model, {"ema": average})


def test_only_the_group_saves_and_loads_its_members():
    model = Net()
    group = AverageGroup(model, {"swad": SWAD(model), "ema": EMA(model)})
    for average in group.values():
        with pytest.raises(RuntimeError, match="call state_dict of the group instead"):
            average.state_dict()
        with pytest.raises(RuntimeError, match="call load_state_dict of the group instead"):
            average.load_state_dict({})


def test_an_average_continues_alone_from_the_state_of_its_group():
    def run(model, averager, steps):
        for step in steps:
            model.go_to(step)
            averager.update_parameters(model)
            if step % 10 == 0:
                averager.observe(1.0 + (step // 10) % 3)

    def make(model):
        return {
            "swad": SWAD(model, n_converge=2),
            "reference": SWAD(model, n_converge=2, n_tolerance=3, semantics="reference"),
            "late": SMA(model, start=13),  # ends the shared segment between two evaluations
            "sparse": SWAD(model, interval=3),
            "ema": EMA(model),
        }

    model = OneHot()
    group = AverageGroup(model, make(model))
    run(model, group, range(1, 18))
    state = group.state_dict()
    alone = make(model)
    for name, average in alone.items():
        average.load_state_dict(AverageGroup.member_state(state, name))
        assert average.status == group[name].status
        run(model, average, range(18, 47))
    run(model, group, range(18, 47))
    compare(group, alone, "alone")
    assert not AverageGroup.member_state(state, "ema")["trajectory"], "the segment is that of others"
    with pytest.raises(ValueError, match=r"has no average 'swa', only swad, .*: name one of these"):
        AverageGroup.member_state(state, "swa")


def test_bad_settings_say_the_rule():
    model = Net()
    with pytest.raises(TypeError, match=r"have names, got a list: pass {name: average}"):
        AverageGroup(model, [SWAD(model)])
    with pytest.raises(ValueError, match="at least one average"):
        AverageGroup(model, {})
    with pytest.raises(ValueError, match="head has others"):
        AverageGroup(model, {"all": SWAD(model), "head": SWAD(model, include="head.*")})


def test_replays_across_the_edges_of_windows():
    """A replay adds before it is counted, here by hand: the update after an edge must not enter the segment before."""
    model = OneHot()

    def make():
        return {"swad": SWAD(model), "sma": SMA(model, start=7), "window": SWA(model, start=4, end=12)}

    group, alone = AverageGroup(model, make()), make()
    for step in range(1, 31):
        model.go_to(step)
        if step <= 4:  # the eager steps before a capture, up to an edge
            group.update_parameters(model)
        else:
            with torch.no_grad():
                group.trajectory.segment.add_live(group["swad"].tracked.live())
            group.count_replays()
        for average in alone.values():
            average.update_parameters(model)
        if step % 10 == 0:
            group.observe(1.0)
            for average in alone.values():
                average.observe(1.0)
        compare(group, alone, step)
    with pytest.raises(ValueError, match="got 0"):
        group.count_replays(0)


def test_a_group_of_one_ema_counts_no_skipped_steps():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    group = AverageGroup(model, {"ema": EMA(model)})
    for _ in scaled_steps(model, group, 6, overflows=(3,)):
        pass
    assert group.step == 5
    group.observe(1.0)


def test_a_group_follows_its_own_model():
    model = Net()
    group = AverageGroup(model, {"sma": SMA(copy.deepcopy(model), start=0), "ema": EMA(copy.deepcopy(model))})
    with torch.no_grad():
        model.head.weight.fill_(5.0)
    group.update_parameters()
    for name in group:
        assert group[name].averaged_state()["head.weight"][0, 0].item() == 5.0


def test_a_replaced_module_is_refused():
    model = Net()
    group = AverageGroup(model, {"swad": SWAD(model), "ema": EMA(model)})
    group.update_parameters(model)
    model.head = nn.Linear(4, 2)
    for call in (
        lambda: group.observe(1.0),
        lambda: group.attach(torch.optim.SGD(model.parameters(), 0.1)),
        lambda: group["ema"].averaged_state(),
    ):
        with pytest.raises(ValueError, match=r"replaced head\.weight, head\.bias: build the average after"):
            call()


def test_a_log_that_cannot_write_changes_no_average(tmp_path, monkeypatch):
    model = OneHot()
    log = segment_log(model, tmp_path)
    group = AverageGroup(model, {"sma": SMA(model, start=0)}, {"log": log})
    for step in (1, 2):
        model.go_to(step)
        group.update_parameters(model)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(OSError, match="No space"):
            group.observe(1.0)
    group.observe(1.0)
    assert len(log) == 1
    assert group["sma"].status.n_averaged == 2


@pytest.mark.parametrize("other", [{"tolerance_ratio": 0.5}, {"interval": 2}, {"semantics": "reference"}])
def test_a_group_loads_all_of_a_state_or_nothing(other):
    def updated(steps, **options):
        model = OneHot()
        members = {"ema": EMA(model), "sma": SMA(model, 0), "swad": SWAD(model, **options)}
        group = AverageGroup(model, members)
        for step in range(1, steps + 1):
            model.go_to(step)
            group.update_parameters(model)
            if step % 2 == 0:
                group.observe(1.0)
        return group

    group, state = updated(3), updated(7).state_dict()
    damaged = copy.deepcopy(state)
    damaged["trajectory"]["segment"]["sums"]["weight"] = torch.zeros(3)
    before = {name: average.averaged_state() for name, average in group.items()}
    for refused in (updated(7, **other).state_dict(), damaged):
        with pytest.raises(ValueError, match=r"must resume with|another shape"):
            group.load_state_dict(refused)
        assert [average.step for average in group.values()] == [3, 3, 3]
        for name, average in group.items():
            assert torch.equal(average.averaged_state()["weight"], before[name]["weight"]), name
    group.load_state_dict(state)
    assert [average.step for average in group.values()] == [7, 7, 7]


def test_a_group_that_failed_halfway_refuses_to_continue(monkeypatch):
    model = OneHot()
    group = AverageGroup(model, {"sma": SMA(model, start=0), "swad": SWAD(model)})
    model.go_to(1)
    group.update_parameters(model)
    good = group.state_dict()

    def broken(*_):
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(group["swad"].sums, "close", broken)
        with pytest.raises(torch.OutOfMemoryError):
            group.observe(1.0)
    with pytest.raises(RuntimeError, match="load the last state_dict"):
        group.update_parameters(model)
    group.load_state_dict(good)
    group.observe(1.0)
    assert group["sma"].status.n_averaged == 1


def test_a_bad_loss_changes_no_average():
    model = Net()
    group = AverageGroup(model, {"ema": EMA(model), "swad": SWAD(model)})
    group.update_parameters(model)
    with pytest.raises(ValueError, match="must be finite"):
        group.observe(float("nan"))
    group.observe(1.0)
    with pytest.raises(RuntimeError, match="needs an update"):
        group.observe(1.0)


def test_should_stop_only_when_every_average_is_complete():
    model = OneHot()
    group = AverageGroup(model, {"swad": SWAD(model, n_converge=1, n_tolerance=1), "swa": SWA(model, start=0, end=4)})
    stops = []
    for step, loss in enumerate([1, 9, 9, 9, 9], 1):
        model.go_to(step)
        group.update_parameters(model)
        group.observe(loss)
        stops.append(group.should_stop)
    assert stops == [False, False, False, True, True]


def test_segment_log_keeps_sums_that_add_up(tmp_path):
    model = Net()

    def build():
        log = segment_log(model, tmp_path)
        return log, AverageGroup(model, {"sma": SMA(model, start=0), "late": SMA(model, 13)}, {"log": log})

    log, group = build()

    def after(step):
        group.update_parameters(model)
        if step % 10 == 0:
            group.observe(1.0)

    train(model, torch.optim.SGD(model.parameters(), 0.1), 40, after=after)
    assert [(s.first, s.last) for s in log] == [(1, 10), (11, 20), (21, 30), (31, 40)]
    mean = sum(s.sum["head.weight"] for s in log) / 40
    torch.testing.assert_close(mean, group["sma"].averaged_state()["head.weight"])
    again, fresh = build()
    reload(group, fresh)
    assert len(again) == 4


@pytest.mark.slow
@pytest.mark.distributed
def test_ranks_that_disagree_about_the_loss_raise(tmp_path):
    run_scenario("group_disagrees", tmp_path)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("kill_after", [7, 23])
def test_a_killed_training_resumes_bit_equal(tmp_path, kill_after):
    """kill -9 in the middle of a segment, resume from the last checkpoint: same weights, same average."""
    script = HELPERS / "killed_training.py"
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"

    def train(folder, *extra):
        return run([script, folder, *extra])

    result = train(unbroken)
    assert result.returncode == 0, result.stderr
    assert train(broken, str(kill_after)).returncode == -9
    result = train(broken)
    assert result.returncode == 0, result.stderr
    assert "resumed" in result.stdout
    expected, resumed = (torch.load(folder / "final.pt", weights_only=True) for folder in (unbroken, broken))
    for part in ("model", "average"):
        for name in expected[part]:
            assert torch.equal(expected[part][name], resumed[part][name]), (part, name)
    assert expected["spans"] == resumed["spans"]


def build_group(model):
    return AverageGroup(model, {"swad": SWAD(model), "sma": SMA(model, start=5), "ema": EMA(model)})


@pytest.mark.gpu
def test_an_update_never_waits_for_the_device():
    model = small_conv().cuda()
    group = build_group(model)
    group.update_parameters(model)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            group.update_parameters(model)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_captured_in_a_graph_with_the_training_step():
    eager, captured = (train_captured(build_group, use_graph) for use_graph in (False, True))
    for name, average in eager.items():
        assert average.status == captured[name].status
        for key, value in average.averaged_state().items():
            torch.testing.assert_close(value, captured[name].averaged_state()[key], rtol=1e-4, atol=1e-5)


def test_a_branch_continues_the_trajectory_of_another_group():
    def updates(model, group, steps):
        for step in steps:
            model.go_to(step)
            group.update_parameters(model)

    def members(model):
        return {
            "ema": EMA(model),
            "swa": SWA(model, 6, 12, interval=3),
            "late": SWA(model, 8),
            "sma": SWA(model, 6, 11),
        }

    alone, trunk = OneHot(), OneHot()
    whole, first = AverageGroup(alone, members(alone)), AverageGroup(trunk, {"ema": EMA(trunk), "x": SWA(trunk, 6)})
    updates(alone, whole, range(1, 13))
    updates(trunk, first, range(1, 6))
    first.observe(1.0)
    updates(trunk, first, (6,))  # the edge of a window closes the segment
    branch = AverageGroup(trunk, members(trunk))
    branch.load_branch(first.state_dict())
    updates(trunk, branch, range(7, 13))
    assert branch.step == 12
    compare(branch, whole, "branch")
    assert {name: branch[name].status for name in branch} == {name: whole[name].status for name in whole}
    updates(trunk, first, (7,))
    first.observe(1.0)
    with pytest.raises(ValueError, match="swa averages updates before 7, where this trajectory branches off"):
        AverageGroup(trunk, members(trunk)).load_branch(first.state_dict())
