"""SAGM steps with the gradient at the weights plus the gradient at weights that are pulled back from SAM's."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional

from helpers.sharpness import Spy, coral, entropy, gradient_of, gradients
from helpers.tiny_algorithms import Points, batch_for, make, tell
from swad.testbed.algorithms.base import StepContext
from swad.testbed.algorithms.registry import AlgorithmError, canonical_name, get_algorithm
from swad.testbed.algorithms.sagm import SAGM
from swad.testbed.algorithms.sam import combine


@pytest.mark.parametrize(("rho", "alpha"), [(0.05, 0.001), (0.5, 0.3), (0.3, 0.0)])
def test_the_gradient_is_the_sum_of_two(rho, alpha):
    """Against autograd in double precision, with all weights as one vector; α = .3 is much larger than published."""
    algorithm = make("sagm", rho=rho, matching=alpha)
    batch, spy = batch_for(algorithm), Spy(algorithm)
    here, there, point = gradients(algorithm.predictor, entropy(batch), rho, alpha)
    loss = algorithm.update(batch, {}, StepContext())
    torch.testing.assert_close(spy.points[1].double(), point, rtol=0, atol=1e-6)
    torch.testing.assert_close(gradient_of(algorithm), here + there, rtol=1e-3, atol=1e-6)
    twin = make("sagm")
    torch.testing.assert_close(loss, functional.cross_entropy(twin.predictor(batch.images), batch.labels))


def quadratic(name, **options):
    """Return an algorithm whose loss is w A w / 2 in the weight of a linear head, and that weight and matrix."""
    algorithm = make(name, Points(3), **options)
    weight, curvature = algorithm.predictor.head.weight, torch.tensor([[3.0, 1, 0], [1, 2, 0.5], [0, 0.5, 1]])
    algorithm.predictor.head.bias.requires_grad_(False)
    algorithm.loss = lambda batch, noise: (weight @ curvature * weight).sum() / 2
    return algorithm, weight, curvature


def test_sgd_makes_the_step_of_the_sum():
    """In closed form: the gradient is A w at w, and A (w + c A w) at the other point, with c = ρ / |A w| - α."""
    algorithm, weight, a = quadratic("sagm", rho=0.4, matching=0.05, lr=0.1)
    tell(algorithm, optimizer="sgd", momentum=0.0)
    w = weight.detach().clone()
    c = 0.4 / (w @ a).norm() - 0.05
    algorithm.update(batch_for(algorithm), {}, StepContext())
    torch.testing.assert_close(weight.detach(), w - 0.1 * (2 * w @ a + c * w @ a @ a), rtol=1e-5, atol=1e-6)


def test_matching_brings_the_gradient_and_sams_together():
    """On a quadratic, steps with a large α end where the scalar product of the two gradients is larger."""

    def product(alpha):
        algorithm, weight, a = quadratic("sagm", rho=0.5, matching=alpha, lr=0.01)
        tell(algorithm, optimizer="sgd", momentum=0.0)
        before = weight.detach().clone()
        algorithm.update(batch_for(algorithm), {}, StepContext())
        change, w = weight.detach() - before, before
        grad = w @ a
        sam = (w + 0.5 * grad / grad.norm()) @ a
        return (((grad + change @ a) * (sam + change @ a)).sum() - (grad * sam).sum()).item()

    assert product(0.5) > product(0.0)


def test_the_sum_is_clipped():
    clipped, free = make("sagm", rho=0.5), make("sagm", rho=0.5)
    clipped.update(batch_for(clipped), {}, StepContext(clip=1e-3))
    free.update(batch_for(free), {}, StepContext())
    whole = gradient_of(free)
    torch.testing.assert_close(gradient_of(clipped), whole / whole.norm() * 1e-3, rtol=1e-3, atol=1e-8)


# --- combinations -----------------------------------------------------------------------------------------------


def test_coral_with_sagm_by_hand():
    algorithm = make("coral+sagm", gamma=2.0, rho=0.3, matching=0.1)
    batch = batch_for(algorithm)
    here, there, _ = gradients(algorithm.predictor, coral(batch, 2.0), 0.3, 0.1)
    algorithm.update(batch, {}, StepContext())
    torch.testing.assert_close(gradient_of(algorithm), here + there, rtol=1e-3, atol=1e-6)


def test_combinations_have_the_hyperparameters_of_both():
    assert get_algorithm("erm+sagm") is get_algorithm("sagm") is SAGM
    kind = get_algorithm("SAGM + Mixup")
    assert kind is get_algorithm("mixup+sagm")
    assert canonical_name("Mixup+SAGM") == "mixup+sagm"
    own = [field.name for field in dataclasses.fields(kind.Hyperparameters)]
    assert own == ["lr", "batch_size", "weight_decay", "dropout", "alpha", "rho", "matching"]
    assert "Zhang, Cisse" in kind.paper or "mixup" in kind.paper.lower()
    assert kind.paper.endswith("CVPR, 2023.")


def test_an_algorithm_with_the_same_hyperparameter_cannot_be_combined():
    with pytest.raises(AlgorithmError, match=r"^SAGM has the hyperparameter rho, and so has Odd: rename it"):
        combine(type("Odd", (get_algorithm("coral"),), {"Hyperparameters": get_algorithm("sam").Hyperparameters}), SAGM)
    with pytest.raises(AlgorithmError, match=r"SAGM needs an algorithm that steps on one loss, .* without \+sagm"):
        get_algorithm("mldg+sagm")
