"""Choices among stored segments against brute force over stored weights."""

from __future__ import annotations

import itertools
import os
import random
import re
import warnings
import zipfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.averages import Net, OneHot, train, weights_of
from helpers.valleys import expected, losses_of, settings_of
from swad import SWA, SWAD, AverageGroup, NeverConvergedWarning
from swad.averaging.spans import Span
from swad.testbed import SegmentLog
from swad.testbed.averages.segment_log import load_segments, read_segment, replay
from swad.testbed.averages.segment_windows import SegmentWindows


def logged(model, folder=None):
    log = SegmentLog(model, folder)
    return log, AverageGroup(model, {}, {"log": log})


@pytest.fixture
def trajectory(tmp_path):
    """A short training with every weight kept, and its segment log on disk: uneven segments on purpose."""
    torch.manual_seed(0)
    model = Net()
    (log, group), weights = logged(model, tmp_path), []

    def after(step):
        group.update_parameters(model)
        weights.append({name: value.double().clone() for name, value in model.state_dict().items()})
        if step in (4, 10, 13, 20, 26):
            group.observe(1.0)

    train(model, torch.optim.SGD(model.parameters(), 0.5), 26, after=after)
    return model, log, group, weights, [(1, 4), (5, 10), (11, 13), (14, 20), (21, 26)]


def mean_of(weights):
    return {name: torch.stack([w[name] for w in weights]).mean(0) for name in weights[0]}


def test_averages_of_windows_are_those_of_their_weights(trajectory, tmp_path):
    model, log, _, weights, spans = trajectory
    for segments in (log, load_segments(tmp_path)):
        windows = SegmentWindows(segments, model)
        expected = [(spans[a][0], spans[b][1]) for a, b in itertools.combinations_with_replacement(range(5), 2)]
        assert [(window.first, window.last) for window in windows.all()] == expected
        seen = []
        for window in windows.averages():
            seen.append((window.first, window.last))
            want = mean_of(weights[window.first - 1 : window.last])
            torch.testing.assert_close(model.head.weight.double(), want["head.weight"], rtol=1e-5, atol=1e-6)
            last = weights[window.last - 1]
            torch.testing.assert_close(model.body[1].running_mean.double(), last["body.1.running_mean"])
        assert seen == expected


def test_windows_of_complex_weights_keep_their_imaginary_part():
    model = torch.nn.ParameterList([torch.zeros(2, dtype=torch.complex64)])
    log, group = logged(model)
    for step in (1, 2, 3):
        model[0].data.fill_(step + 2j * step)
        group.update_parameters(model)
        group.observe(1.0)
    SegmentWindows(log, model).copy_average(Span(1, 3))
    assert model[0].tolist() == [2 + 4j, 2 + 4j]


def test_a_repr_says_how_many_segments_there_are(trajectory):
    _, log, *_ = trajectory
    assert repr(SegmentLog(Net())) == "SegmentLog(0 segments)"
    assert repr(log) == "SegmentLog(5 segments)"


def test_errors_say_what_to_do(trajectory):
    model, log, _, _, _ = trajectory
    with pytest.raises(ValueError, match="keep them with a SegmentLog"):
        SegmentWindows([], model)
    with pytest.raises(ValueError, match=r"which has no body\.0\.weight"):
        SegmentWindows(log, torch.nn.Linear(3, 2))
    _, in_memory = logged(model)
    in_memory.update_parameters(model)
    in_memory.observe(1.0)
    with pytest.raises(RuntimeError, match="give the log a folder"):
        in_memory.state_dict()


def test_a_folder_holds_one_log(trajectory, tmp_path):
    model, _, group, _, _ = trajectory
    _, other = logged(model, tmp_path)
    other.update_parameters(model)
    with pytest.raises(FileExistsError, match="must start in an empty folder"):
        other.observe(1.0)
    state = group.state_dict()
    group.update_parameters(model)
    group.observe(1.0)  # after the checkpoint, lost with the process
    resumed, fresh = logged(model, tmp_path)
    fresh.load_state_dict(state)
    assert len(resumed) == len(load_segments(tmp_path)) == 5


def test_a_log_resumes_with_all_its_files_or_not_at_all(trajectory, tmp_path):
    model, _, group, _, _ = trajectory
    state = group.state_dict()
    group.update_parameters(model)
    group.observe(1.0)
    lost = load_segments(tmp_path)[1]
    lost.unlink()
    resumed, fresh = logged(model, tmp_path)
    with pytest.raises(FileNotFoundError, match=f"1 of 5 are missing, such as {lost}: restore them"):
        fresh.load_state_dict(state)
    assert fresh.step == len(resumed) == 0
    assert len(load_segments(tmp_path)) == 5, "no file is removed"


@settings(max_examples=80)
@given(st.integers(0, 2**32))
def test_a_replay_follows_the_definition_and_equals_the_live_average(seed):
    """Any trajectory, any settings, segments of any length, with a log that followed other averages."""
    rng = random.Random(seed)
    losses, tried = losses_of(rng), {str(k): settings_of(rng) for k in range(4)}
    model = OneHot()
    log = SegmentLog(model)
    group = AverageGroup(model, {name: SWAD(model, **options) for name, options in tried.items()}, {"log": log})
    step, steps = 0, []
    for loss in losses:
        for _ in range(rng.randint(1, 3)):
            step += 1
            model.go_to(step)
            group.update_parameters(model)
        group.observe(loss)
        steps.append(step)
    fresh = OneHot()
    replayed = replay(log, fresh, {name: SWAD(fresh, **options) for name, options in tried.items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NeverConvergedWarning)
        for name, options in tried.items():
            want = {i: float(w) for i, w in expected(losses, steps, step, options).items()}
            assert weights_of(replayed[name]) == pytest.approx(want, rel=1e-5), options
            live, again = group[name].averaged_state(), replayed[name].averaged_state()
            assert all(torch.equal(live[key], again[key]) for key in live), options


def test_live_weights_are_kept_at_every_new_lowest_loss_and_nowhere_else(tmp_path):
    model = OneHot()
    log, group = logged(model, tmp_path)
    for step, loss in enumerate((3.0, float("nan"), 2.0, 2.0, 2.5, 1.0), start=1):
        model.go_to(step)
        group.update_parameters(model)
        if step == 4:  # the lowest loss survives a checkpoint
            state = group.state_dict()
            log, group = logged(model, tmp_path)
            group.load_state_dict(state)
        group.observe(loss)
    kept = {segment.last: segment.live["weight"].nonzero().item() for segment in log if segment.live}
    assert kept == {1: 1, 3: 3, 6: 6}
    sizes = {path.stem[-1]: path.stat().st_size for path in load_segments(tmp_path)}
    assert sizes["1"] - sizes["2"] > model.weight.numel() * 4


def test_a_replay_refuses_what_it_cannot_replay(trajectory, tmp_path):
    model, log, _, _, _ = trajectory
    with pytest.raises(ValueError, match=r"which has no body\.0\.weight"):
        other = torch.nn.Linear(3, 2)
        replay(log, other, {"swad": SWAD(other)})
    group = AverageGroup(model, {"swa": SWA(model, start=2, interval=2)})
    with pytest.raises(ValueError, match="averaged as a whole"):
        group.trajectory.take_segment(log[0].sum, 4)
    (tmp_path / "segment-00000004.pt").write_bytes(b"no zip")
    with pytest.raises(ValueError, match=r"segment-00000004.pt is damaged or not a segment .* train the run again"):
        replay(load_segments(tmp_path), model, {"swad": SWAD(model)})


def test_no_flipped_bit_of_a_stored_segment_is_read_as_other_weights(tmp_path):
    model = torch.nn.Linear(100, 100)
    log, group = logged(model, tmp_path)
    group.update_parameters(model)
    group.observe(1.0)
    (file,), rng = load_segments(tmp_path), random.Random(0)
    want = {name: value.clone() for name, value in log[0].sum.items()}  # the file is mapped
    content, refused = file.read_bytes(), 0
    for number in range(100):
        damaged = bytearray(content)
        damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(damaged)
        os.utime(file, ns=(0, number))  # two writes may fall into one tick of the clock
        try:
            got = read_segment(file)
        except ValueError as error:
            assert re.search("segment-00000001.pt is .* train the run again$", str(error))
            refused += 1
        else:  # padding and timestamps carry nothing
            assert (got.first, got.last, got.loss, list(got.sum)) == (1, 1, 1.0, list(want))
            assert all(torch.equal(got.sum[name], want[name]) for name in want)
    assert refused > 50


def test_segments_have_checksums_in_programs_that_save_without(tmp_path):
    model = Net()
    torch.serialization.set_crc32_options(False)
    try:
        log, group = logged(model, tmp_path)
        group.update_parameters(model)
        group.observe(1.0)
        assert not torch.serialization.get_crc32_options()
    finally:
        torch.serialization.set_crc32_options(True)
    assert log[0].last == 1


def test_a_segment_is_verified_once_until_its_file_changes(trajectory, monkeypatch):
    _, log, _, _, _ = trajectory
    verified, testzip = [], zipfile.ZipFile.testzip
    monkeypatch.setattr(zipfile.ZipFile, "testzip", lambda self: (verified.append(self.filename), testzip(self))[1])
    for _ in range(3):
        assert len(list(log)) == 5
    assert len(verified) == 5
