from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from helpers.runs import RecordingCallback, require_same, short, values
from helpers.tiny_algorithms import CLASSES, Points, batch_for, make, noise_for, tell, update
from swad.testbed.algorithms.base import StepContext
from swad.testbed.algorithms.metareg import MetaReg
from swad.testbed.data.loaders import Batch
from swad.testbed.models import networks
from swad.testbed.results.records import read_records
from swad.testbed.training import loop, output
from swad.testbed.training.loop import RunInterrupted, train
from swad.testbed.training.state import TrainingState


def softmax(scores):
    exponentials = np.exp(scores - scores.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)


def meta_gradient_by_hand(x, y, beta, phi, test_x, test_y, unroll, lr):
    """Follow the head, then the derivative by it backwards: λ ← λ - lr * H λ with the Hessian H of CE at every head."""
    one_hot = np.eye(len(beta))
    heads = [beta]
    for _ in range(unroll - 1):
        errors = softmax(x @ heads[-1].T) - one_hot[y]
        heads.append(heads[-1] - lr * (errors.T @ x / len(x) + phi * np.sign(heads[-1])))
    p = softmax(test_x @ heads[-1].T)
    value = -np.log(p[np.arange(len(test_y)), test_y]).mean()
    adjoint = (p - one_hot[test_y]).T @ test_x / len(test_x)
    by_phi = np.zeros_like(phi)
    for head in reversed(heads[:-1]):
        by_phi -= lr * adjoint * np.sign(head)
        p, moved = softmax(x @ head.T), x @ adjoint.T
        adjoint = adjoint - lr * (p * moved - p * (p * moved).sum(1, keepdims=True)).T @ x / len(x)
    return value, by_phi


@pytest.mark.parametrize(("unroll", "dropout"), [(2, 0.0), (6, 0.5)])
def test_the_gradients_of_a_preparation_are_those_of_the_formulas(unroll, dropout):
    algorithm = make("metareg", unroll=unroll, inner_lr=0.5, dropout=dropout)
    nn.init.normal_(algorithm.phi, std=0.1)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    a, b = noise["pair"].tolist()
    loss = algorithm.loss(batch, noise)
    loss.backward()

    twin = networks.build(networks.SMALL, CLASSES).double()
    twin.load_state_dict(algorithm.predictor.state_dict())
    features = twin.forward_head(twin.forward_features(batch.images.double()), pre_logits=True)
    features = features * noise.get("dropout_mask", 1)
    heads = [head.detach().double().requires_grad_() for head in algorithm.heads.weight.chunk(3)]
    biases = [bias.detach().double() for bias in algorithm.heads.bias.chunk(3)]
    parts = list(zip(features.chunk(3), batch.labels.chunk(3), heads, biases, strict=True))
    task = sum(functional.cross_entropy(x @ head.T + bias, y) for x, y, head, bias in parts) / 3
    task.backward()
    for mine, theirs in zip(algorithm.predictor.parameters(), twin.parameters(), strict=True):
        if theirs.grad is None:  # the predictor's own head
            assert mine.grad is None
        else:
            torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(
        algorithm.heads.weight.grad.double(), torch.cat([h.grad for h in heads]), rtol=1e-3, atol=1e-6
    )

    def rows(domain):
        x, y, _, _ = parts[domain]
        return np.hstack([x.detach().numpy(), np.ones((len(x), 1))]), y.numpy()

    head = np.hstack([heads[a].detach().numpy(), biases[a].numpy()[:, None]])
    phi = algorithm.phi.detach().double().numpy()
    value, by_phi = meta_gradient_by_hand(*rows(a), head, phi, *rows(b), unroll, 0.5)
    assert loss.item() == pytest.approx(task.item() + value, rel=1e-5)
    np.testing.assert_allclose(algorithm.phi.grad.numpy(), by_phi, rtol=1e-3, atol=1e-6)


def test_the_training_minimizes_the_regularized_loss():
    algorithm = make("metareg", Points(3), domains=2, shape=(1, 1, 3))
    tell(algorithm, n_preparation=0)
    nn.init.normal_(algorithm.phi)
    batch = batch_for(algorithm, shape=(1, 1, 3))
    batch = batch._replace(labels=batch.labels % 2)
    loss = algorithm.loss(batch, noise_for(algorithm))
    loss.backward()
    head, phi = algorithm.predictor.head, algorithm.phi.detach()
    plain = functional.cross_entropy(head(batch.images.flatten(1)), batch.labels)
    weights = [
        (phi[k, j].item(), (head.bias[k] if j == 3 else head.weight[k, j]).item()) for k in range(2) for j in range(4)
    ]
    assert loss.item() == pytest.approx(plain.item() + sum(f * abs(w) for f, w in weights), rel=1e-5)
    by_weight, by_bias = torch.autograd.grad(plain, list(head.parameters()))
    torch.testing.assert_close(head.weight.grad, by_weight + phi[:, :3] * head.weight.sign())
    torch.testing.assert_close(head.bias.grad, by_bias + phi[:, 3] * head.bias.sign())
    assert algorithm.phi.grad is None
    assert algorithm.heads.weight.grad is None


def test_the_regularizer_suppresses_what_does_not_carry_over():
    """The first number is the label's sign in all domains, the second one in half of them, else its opposite."""
    algorithm = make(
        "metareg", Points(2), domains=4, shape=(1, 1, 2), batch_size=16, lr=0.05, meta_lr=0.02, inner_lr=0.1
    )
    tell(algorithm, n_preparation=50)
    labels = torch.tensor([0, 1]).repeat(32)
    sign = 2.0 * labels - 1
    second = sign * torch.tensor([1.0, -1.0, 1.0, -1.0]).repeat_interleave(16)
    batch = Batch(1, torch.stack([sign, second], 1).view(-1, 1, 1, 2), labels)
    for step in range(1, 51):
        update(algorithm, batch._replace(step=step))
    first, second, _ = algorithm.phi.detach().mean(0).tolist()
    assert second > 0.1
    assert first < -0.1


def trained_norm() -> nn.Module:
    """A network with a batch norm whose statistics are not frozen."""
    network = Points(28 * 28 * 3, 6, CLASSES)
    network.body = nn.Sequential(network.body, nn.BatchNorm1d(6))
    return network


def test_the_training_starts_from_the_network_before_the_preparation():
    """With a regularizer of zero it is ERM's, to the last bit: weights, statistics and Adam start again."""
    algorithm, plain = make("metareg", trained_norm(), preparation=0.3), make("erm", trained_norm())
    before = {key: tensor.clone() for key, tensor in algorithm.predictor.state_dict().items()}
    for step in (1, 2, 3):
        update(algorithm, batch_for(algorithm, step))
    changed = {key for key, tensor in algorithm.predictor.state_dict().items() if not tensor.equal(before[key])}
    assert changed == set(before) - {"head.weight", "head.bias"}
    nn.init.zeros_(algorithm.phi)
    for step in (4, 5):
        update(algorithm, batch_for(algorithm, step))
        plain.update(batch_for(plain, step), {}, StepContext())
    state, want = algorithm.predictor.state_dict(), plain.predictor.state_dict()
    # Adam's count starts again, but torch's count of batches, which nothing reads, continues.
    assert [key for key in want if not state[key].equal(want[key])] == ["body.1.num_batches_tracked"]
    assert algorithm.phi.count_nonzero() == 0, "the regularizer is fixed"


def test_the_regularizer_has_a_learning_rate_of_its_own_and_no_decay():
    optimizers = make("metareg", lr=0.1, meta_lr=0.02, weight_decay=0.3).optimizers
    groups = {name: optimizer.param_groups[0] for name, optimizer in optimizers.items()}
    assert (groups["main"]["lr"], groups["main"]["weight_decay"]) == (0.1, 0.3)
    assert (groups["regularizer"]["lr"], groups["regularizer"]["weight_decay"]) == (0.02, 0)


def test_pairs_are_of_two_domains_and_all_occur():
    algorithm = make("metareg", domains=3)
    pairs = {tuple(noise_for(algorithm, step)["pair"].tolist()) for step in range(1, 80)}
    assert pairs == {(a, b) for a in range(3) for b in range(3) if a != b}


# --- a whole run -----------------------------------------------------------------------------------------------


class Preparation(RecordingCallback):
    """Records the updates of a preparation, and acts after one of them."""

    def __init__(self, number=0, action=lambda: None):
        super().__init__()
        self.number, self.action, self.prepared = number, action, []

    def on_progress(self, description, done, total):
        self.prepared.append((done, total))
        if done == self.number:
            self.action()


SETTINGS = {"algorithm": "metareg", "steps": 12, "hyperparameters": {"batch_size": 4, "lr": 0.01, "preparation": 0.5}}


def test_a_run_evaluates_averages_and_counts_the_training_only(tmp_path):
    callback = Preparation()
    averages = ("sma:start=1", "swad", "ema:decay=0")
    result = train(short(tmp_path / "run", **SETTINGS, averages=averages, snapshots=(2, 3, 12)), callback=callback)
    assert callback.prepared == [(n, 6) for n in range(1, 7)]
    assert callback.steps == list(range(1, 13))
    assert callback.events == ["start 0/12", "evaluation 4", "evaluation 8", "evaluation 12", "end"]
    assert result.steps == 12
    assert {step for _, step, _, _, _, _, _ in values(tmp_path / "run")} == {4, 8, 12}
    assert result.ranges["sma"]["start_step"] == 2
    assert result.ranges["sma"]["n_averaged"] == 11


def test_no_weights_of_the_preparation_enter_an_average(tmp_path, monkeypatch):
    """Weights of the preparation that are not finite would spoil every average and every selected weight."""
    loss, restart = MetaReg.loss, MetaReg.on_phase_start

    def spoiled(self, batch, noise):
        return loss(self, batch, noise) * (float("nan") if batch.step == 6 else 1.0)

    def restart_without_regularizer(self, phase):
        assert not next(self.predictor.parameters()).isfinite().any()
        nn.init.zeros_(self.phi)
        restart(self, phase)

    monkeypatch.setattr(MetaReg, "loss", spoiled)
    monkeypatch.setattr(MetaReg, "on_phase_start", restart_without_regularizer)
    result = train(short(tmp_path / "run", **SETTINGS, averages=("sma:start=1", "swad", "ema")))
    assert all(np.isfinite(value) for _, _, _, _, _, value, _ in values(tmp_path / "run"))
    assert set(result.scores) == {"best", "last", "sma", "swad", "ema"}


def test_every_update_of_a_preparation_is_timed_and_processes_can_stop_in_it(tmp_path, monkeypatch):
    """Every update takes a second of this clock; several processes stop only where they agree."""
    seconds, agreed = [0.0], []
    train_step, stop_requested = TrainingState.train_step, loop._Run._stop_requested

    def timed(self, number, inputs):
        seconds[0] += 1
        return train_step(self, number, inputs)

    def asked(self, agree):
        agreed.extend([self.training.step] * agree)
        return stop_requested(self, agree)

    for module in (loop, output):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    monkeypatch.setattr(TrainingState, "train_step", timed)
    monkeypatch.setattr(loop._Run, "_stop_requested", asked)
    train(short(tmp_path / "run", **SETTINGS))
    timings = {r.metric: r.value for r in read_records(tmp_path / "run") if r.metric.startswith("seconds")}
    assert timings == {"seconds_total": 18, "seconds_per_step": 1, "seconds_evaluation": 0}
    assert agreed == [-2, 4, 8, 12]


def test_a_run_that_stops_in_its_preparation_resumes(tmp_path):
    train(short(tmp_path / "whole", **SETTINGS))
    config = short(tmp_path / "broken", **SETTINGS, checkpoint_every=1)
    with pytest.raises(RunInterrupted, match="Run the same command again to train"):
        train(config, callback=Preparation(3, lambda: os.kill(os.getpid(), signal.SIGINT)))
    crashed, resumed = Preparation(5, lambda: 1 / 0), Preparation()
    with pytest.raises(ZeroDivisionError):
        train(config, callback=crashed)
    train(config, callback=resumed)
    # Checkpoints count the updates of the preparation too.
    assert crashed.prepared == [(4, 6), (5, 6)]
    assert resumed.prepared == [(5, 6), (6, 6)]
    require_same(tmp_path / "whole", tmp_path / "broken")
