"""The defaults of the base class: dropout, pending buffers and compiled forwards; and mistakes of an author."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from helpers.tiny_algorithms import CLASSES, Points, batch_for, make, noise_for, tell
from swad.testbed.algorithms import AlgorithmError
from swad.testbed.algorithms.base import Algorithm, RunInfo, StepContext
from swad.testbed.algorithms.erm import ERM
from swad.testbed.algorithms.hyperparameters import Hyperparameters
from swad.testbed.algorithms.registry import get_algorithm, list_algorithms


def test_the_dropout_mask_keeps_the_mean():
    noise = make("erm", dropout=0.1).draw_randomness(torch.Generator().manual_seed(0), 1)["dropout_mask"]
    assert noise.unique().tolist() == pytest.approx([0, 1 / 0.9])
    assert noise.mean().item() == pytest.approx(1, abs=0.02)
    assert make("erm").draw_randomness(torch.Generator(), 1) == {}


@pytest.mark.parametrize(
    ("name", "masks"),
    {
        "mldg": ("dropout_mask", "dropout_mask_after"),
        "masf": ("dropout_mask", "dropout_mask_after"),
        "pi_model": ("dropout_mask", "second_dropout_mask"),
        "sagnet": ("dropout_mask", "dropout_mask_style", "dropout_mask_adversary"),
        "sam": ("dropout_mask", "dropout_mask_after"),
        "coral+sagm": ("dropout_mask", "dropout_mask_after"),
        "pi_model+sam": ("dropout_mask", "dropout_mask_after", "second_dropout_mask", "second_dropout_mask_after"),
    }.items(),
)
def test_every_pass_with_dropout_has_a_mask_of_its_own(name, masks):
    noise = noise_for(make(name, dropout=0.5))
    assert len({tuple(noise[mask].flatten().tolist()) for mask in masks}) == len(masks)


def test_pending_buffers_are_written_after_the_step():
    algorithm = make("group_dro")
    held, before = algorithm.q, algorithm.q.clone()
    algorithm.loss(batch_for(algorithm), noise_for(algorithm))
    assert held.equal(before)
    pending = algorithm.pending_buffers["q"]
    algorithm.step(StepContext(), "main")  # also in an update of an author's own
    assert algorithm.q is held  # a captured graph reads the same tensor
    assert held.equal(pending)
    assert not held.equal(before)
    assert algorithm.pending_buffers == {}


@pytest.mark.parametrize(
    ("name", "optimizer", "rate"),
    [
        ("dmg", "masks", "mask_lr"),
        ("dson", "mixtures", "mixture_lr"),
        ("masf", "metric", "metric_lr"),
        ("metareg", "regularizer", "meta_lr"),
    ],
)
def test_a_learning_rate_meant_for_adam_is_adams_whatever_optimizer_the_network_has(name, optimizer, rate):
    """SGD would hardly move these parameters: their gradients are small."""
    algorithm = make(name)
    tell(algorithm, optimizer="sgd")
    assert isinstance(algorithm.optimizers["main"], torch.optim.SGD)
    assert isinstance(algorithm.optimizers[optimizer], torch.optim.Adam)
    assert algorithm.optimizers[optimizer].param_groups[0]["lr"] == getattr(algorithm.hyperparameters, rate)


def test_both_ways_to_call_the_network_are_compiled():
    algorithm = make("erm", dropout=0.5)
    calls = []

    def compile(function):
        def compiled(*arguments):
            calls.append(function.__name__)
            return function(*arguments)

        return compiled

    algorithm.compile_forward(compile)
    batch = batch_for(algorithm)
    algorithm.scores(batch, {})
    algorithm.scores(batch, noise_for(algorithm))
    assert calls == ["scores", "features"]


class Wrong(ERM):
    """ERM with one mistake, the function `mistake(algorithm, loss)`, and a layer that no optimizer has."""

    def __init__(self, mistake=lambda algorithm, loss: loss, extra=False):
        super().__init__(Points(3, classes=CLASSES), Hyperparameters(batch_size=4), RunInfo((1, 1)))
        self.mistake = mistake
        self.register_buffer("memory", torch.zeros(3))
        if extra:
            self.extra = nn.Linear(2, 2)

    def loss(self, batch, noise):
        return self.mistake(self, super().loss(batch, noise))


def leave_pending(**values):
    def mistake(algorithm, loss):
        algorithm.pending_buffers |= values
        return loss

    return mistake


@pytest.mark.parametrize(
    ("mistake", "got"),
    [
        (lambda algorithm, loss: loss.expand(4), "a tensor of shape (4,)"),
        (lambda algorithm, loss: loss.detach() * 0 + 2, "tensor(2.)"),
        (lambda algorithm, loss: loss.item() * 0, "0.0"),
        (lambda algorithm, loss: None, "None"),
    ],
)
def test_a_loss_must_be_a_scalar_with_a_gradient(mistake, got):
    algorithm = Wrong(mistake)
    with pytest.raises(AlgorithmError) as caught:
        algorithm.update(batch_for(algorithm, 1, (1, 1, 3)), {}, StepContext())
    assert f"a loss must be a scalar tensor with a gradient, got {got} from Wrong" in str(caught.value)


@pytest.mark.parametrize(("name", "shape"), [("memori", (3,)), ("memory", (1,))])
def test_a_pending_buffer_must_have_the_name_and_shape_of_a_buffer(name, shape):
    algorithm = Wrong(leave_pending(**{name: torch.ones(shape)}))
    with pytest.raises(AlgorithmError, match=rf"got '{name}' of shape {re.escape(str(shape))} from Wrong: register"):
        algorithm.update(batch_for(algorithm, 1, (1, 1, 3)), {}, StepContext())


def test_an_algorithm_must_have_a_loss():
    algorithm = Algorithm(Points(3), Hyperparameters(batch_size=4), RunInfo((1, 1)))
    with pytest.raises(AlgorithmError, match="but Algorithm has none: define loss"):
        algorithm.update(batch_for(algorithm, 1, (1, 1, 3)), {}, StepContext())


def test_every_parameter_must_be_in_an_optimizer():
    rule = r"but extra\.weight, extra\.bias of Wrong are in none: add them .* or freeze them .* requires_grad_\(False\)"
    with pytest.raises(AlgorithmError, match=rule):
        _ = Wrong(extra=True).optimizers
    frozen = Wrong(extra=True)
    frozen.extra.requires_grad_(False)
    assert set(frozen.optimizers) == {"main"}


def test_make_optimizers_must_return_a_dict(monkeypatch):
    monkeypatch.setattr(Wrong, "make_optimizers", lambda self: [self.optimizer(self.parameters())])
    with pytest.raises(AlgorithmError, match="must return a dict of optimizers by name, got list from Wrong"):
        _ = Wrong().optimizers


def test_a_misspelled_attribute_in_make_optimizers_is_named(monkeypatch):
    monkeypatch.setattr(Wrong, "make_optimizers", lambda self: self.predictr)
    with pytest.raises(RuntimeError, match="'Wrong' object has no attribute 'predictr'") as caught:
        _ = Wrong().optimizers
    assert [entry for entry in caught.traceback if entry.name == "<lambda>"], "the line in make_optimizers is kept"


def test_gradients_are_accumulated_only_for_one_mean_over_images_without_random_numbers():
    assert [name for name in list_algorithms() if get_algorithm(name).accumulates()] == ["erm"]
    own = {
        "mean_over_images": {},
        "groups_by_domain": {"groups_by_domain": True},
        "update": {"update": lambda self, batch, noise, ctx: None},
        "draw_randomness": {"draw_randomness": lambda self, generator, step: {}},
    }
    assert [name for name, members in own.items() if type("Own", (ERM,), members).accumulates()] == ["mean_over_images"]
    assert not type("Own", (Algorithm,), {}).accumulates(), "the author has to say so"


def test_pooled_batches_cannot_be_grouped_by_domain():
    algorithm = make("erm")
    rows = torch.zeros(12, 2)
    assert algorithm.by_domain(rows).shape == (3, 4, 2)
    assert algorithm.domain_labels(rows).tolist() == [0] * 4 + [1] * 4 + [2] * 4
    tell(algorithm, pooled=True)
    for grouped in (algorithm.by_domain, algorithm.domain_labels):
        with pytest.raises(AlgorithmError, match="ERM groups images by domain, which pooled batches mix: use balanced"):
            grouped(rows)


class OwnGradients(Wrong):
    """ERM with gradients of an author's own, in an optimizer of an author's own or in that of the base class."""

    def __init__(self, make_optimizer, lay_out):
        super().__init__()
        self.make_optimizer, self.lay_out = make_optimizer, lay_out

    def make_optimizers(self):
        return {"main": self.make_optimizer(self)}

    def update(self, batch, noise, ctx):
        loss = self.backward(self.loss, batch, noise, ctx)
        for weight in self.predictor.parameters():
            weight.grad = self.lay_out(weight.grad)
        self.optimizers["main"].step()
        return loss


def from_protocol(name):
    def make(algorithm):
        tell(algorithm, optimizer=name)
        return algorithm.optimizer(algorithm.predictor.parameters(), lr=0.1)

    return make


def reversed_strides(values):
    """Return the same values, with the first dimension innermost in memory."""
    order = tuple(reversed(range(values.ndim)))
    return values.permute(order).contiguous().permute(order)


LAYOUTS = {
    "transposed": reversed_strides,
    "every second row": lambda grad: grad.repeat_interleave(2, 0)[::2],
    "expanded": lambda grad: grad.mean().expand_as(grad),
}
MAKERS = {
    "adam": from_protocol("adam"),
    "sgd": from_protocol("sgd"),
    "own": lambda algorithm: torch.optim.AdamW(algorithm.parameters(), lr=0.1, fused=True),
}


def trained(make_optimizer, lay_out, n_steps=3):
    algorithm = OwnGradients(make_optimizer, lay_out)
    for step in range(1, n_steps + 1):
        algorithm.update(batch_for(algorithm, step, (1, 1, 3)), {}, StepContext())
    return [weight.detach().clone() for weight in algorithm.parameters()]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("maker", MAKERS)
def test_a_fused_step_reads_gradients_of_any_layout(maker, layout):
    """On the CPU torch's fused optimizers read the memory of a gradient in its order, whatever its strides."""
    lay_out = LAYOUTS[layout]
    moved = trained(MAKERS[maker], lay_out)
    expected = trained(MAKERS[maker], lambda grad: lay_out(grad).contiguous())
    for weight, right in zip(moved, expected, strict=True):
        torch.testing.assert_close(weight, right, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_fused_step_reads_moments_of_any_layout(name):
    """A run that moves from a GPU to a CPU, or the other way, may change between channels-last and contiguous."""

    def third_step(change):
        algorithm = OwnGradients(MAKERS[name], lambda grad: grad)
        for step in (1, 2):
            algorithm.update(batch_for(algorithm, step, (1, 1, 3)), {}, StepContext())
        for state in algorithm.optimizers["main"].state.values():
            state.update({key: change(value) for key, value in state.items()})
        algorithm.update(batch_for(algorithm, 3, (1, 1, 3)), {}, StepContext())
        return [weight.detach() for weight in algorithm.parameters()]

    for weight, right in zip(third_step(reversed_strides), third_step(lambda value: value), strict=True):
        torch.testing.assert_close(weight, right, rtol=0, atol=0)


def test_a_parameter_must_be_dense_in_memory():
    algorithm = Wrong()
    algorithm.predictor.gain = nn.Parameter(torch.ones(4, 4)[:, ::2])
    rule = r"must be dense in memory, but predictor\.gain of Wrong is a view of a larger tensor: .* \.contiguous\(\)"
    with pytest.raises(AlgorithmError, match=rule):
        _ = algorithm.optimizers
    algorithm.predictor.gain = nn.Parameter(torch.ones(4, 3).t())
    assert set(algorithm.optimizers) == {"main"}
