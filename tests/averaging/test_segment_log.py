"""Choices among stored segments against brute force over stored weights."""

from __future__ import annotations

import itertools

import pytest
import torch

from helpers.averages import Net, train
from swad import SegmentLog, fit_on_val
from swad.averaging.segment_log import load_segments


@pytest.fixture
def trajectory(tmp_path):
    """A short training with every weight kept, and its segment log on disk: uneven segments on purpose."""
    torch.manual_seed(0)
    model = Net()
    log, weights = SegmentLog(model, tmp_path), []

    def after(step):
        log.update_parameters(model)
        weights.append({name: value.double().clone() for name, value in model.state_dict().items()})
        if step in (4, 10, 13, 20, 26):
            log.observe(1.0)

    train(model, torch.optim.SGD(model.parameters(), 0.5), 26, after=after)
    return model, log, weights, [(1, 4), (5, 10), (11, 13), (14, 20), (21, 26)]


def score_of(model):
    """A made-up accuracy with a best window inside the trajectory."""
    return -abs(float(model.head.weight.detach().double().sum()) - 0.3)


def loaded(weights, model_factory=Net):
    model = model_factory()
    model.load_state_dict({name: value.to(model.state_dict()[name].dtype) for name, value in weights.items()})
    return model


def mean_of(weights):
    return {name: torch.stack([w[name] for w in weights]).mean(0) for name in weights[0]}


def test_fit_on_val_finds_the_best_window(trajectory, tmp_path):
    model, log, weights, spans = trajectory
    live = {name: value.clone() for name, value in model.state_dict().items()}
    windows = {
        (spans[a][0], spans[b][1]): score_of(loaded(mean_of(weights[spans[a][0] - 1 : spans[b][1]])))
        for a, b in itertools.combinations_with_replacement(range(5), 2)
    }
    best = max(windows, key=windows.get)
    seen = []
    choice = fit_on_val(log, model, score_of, progress=lambda what, done, total: seen.append((done, total)))
    assert (choice.first, choice.last) == best
    assert choice.score == pytest.approx(windows[best], abs=1e-5)
    assert seen == [(k, 15) for k in range(1, 16)]
    want = mean_of(weights[best[0] - 1 : best[1]])
    torch.testing.assert_close(model.head.weight.double(), want["head.weight"], rtol=1e-5, atol=1e-6)
    last = weights[best[1] - 1]
    torch.testing.assert_close(model.body[1].running_mean.double(), last["body.1.running_mean"])
    assert not torch.equal(model.head.weight, live["head.weight"])
    offline = fit_on_val(load_segments(tmp_path), Net(), score_of)
    assert offline == choice


def test_equal_scores_prefer_the_longest_window(trajectory):
    model, log, _, _ = trajectory
    assert fit_on_val(log, model, lambda m: 1.0) == type(fit_on_val(log, model, lambda m: 1.0))(1, 26, 1.0)


def test_a_failing_score_leaves_the_model_as_it_was(trajectory):
    model, log, _, _ = trajectory
    live = {name: value.clone() for name, value in model.state_dict().items()}

    def fail(model):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit_on_val(log, model, fail)
    assert all(torch.equal(value, live[name]) for name, value in model.state_dict().items())


def test_errors_say_what_to_do(trajectory):
    model, log, _, _ = trajectory
    with pytest.raises(ValueError, match="keep them with a SegmentLog"):
        fit_on_val([], model, score_of)
    with pytest.raises(ValueError, match=r"it has no body\.0\.weight"):
        fit_on_val(log, torch.nn.Linear(3, 2), score_of)
    in_memory = SegmentLog(model)
    in_memory.update_parameters(model)
    in_memory.observe(1.0)
    with pytest.raises(RuntimeError, match="give the log a folder"):
        in_memory.state_dict()


def test_a_folder_holds_one_log(trajectory, tmp_path):
    model, log, _, _ = trajectory
    other = SegmentLog(model, tmp_path)
    other.update_parameters(model)
    with pytest.raises(FileExistsError, match="begins in an empty folder"):
        other.observe(1.0)
    state = log.state_dict()
    log.update_parameters(model)
    log.observe(1.0)  # after the checkpoint, lost with the process
    resumed = SegmentLog(model, tmp_path)
    resumed.load_state_dict(state)
    assert len(resumed) == len(load_segments(tmp_path)) == 5
