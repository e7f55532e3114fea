from __future__ import annotations

import math

import pytest
import torch

from helpers.gradients import entropy, require_same_loss
from helpers.tiny_algorithms import batch_for, make, noise_for, update
from swad.testbed.algorithms.pi_model import ramp
from swad.testbed.algorithms.registry import get_algorithm, list_algorithms
from swad.testbed.data import benchmarks
from swad.testbed.training.checks import find_problems
from swad.testbed.training.config import RunConfig


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("input_noise", [0.0, 0.15])
def test_loss_and_gradients_by_hand(dropout, input_noise):
    algorithm = make("pi_model", dropout=dropout, input_noise=input_noise, weight=50.0, ramp_up=10)
    batch, noise = batch_for(algorithm), noise_for(algorithm, 7)
    labels, weight = batch.labels.tolist(), 50 * math.exp(-5 * 0.3**2)
    masks = [noise.get(name, [None] * 12) for name in ("dropout_mask", "second_dropout_mask")]
    pixels = [noise.get(name, torch.zeros(12, 1, 1, 1)) for name in ("pixel_noise", "second_pixel_noise")]

    def twin_loss(scores):
        total = 0
        for i in range(12):
            first, second = (scores(batch.images[v][i] + pixels[v][i], masks[v][i]) for v in (0, 1))
            p, q = (z.exp() / z.exp().sum() for z in (first, second))
            total = total + entropy(first, labels[i]) / 12 + weight * ((p - q) ** 2).sum() / (12 * 5)
        return total

    require_same_loss(algorithm, batch, noise, twin_loss)


def test_the_ramp():
    assert ramp(0, 100) == pytest.approx(math.exp(-5))
    assert ramp(50, 100) == pytest.approx(math.exp(-1.25))
    assert [ramp(step, 100) for step in (100, 101, 10_000)] == [1, 1, 1]
    assert ramp(1, 0) == 1
    steps = [ramp(step, 100) for step in range(101)]
    assert steps == sorted(steps)
    algorithm = make("pi_model", weight=10.0, ramp_up=4)
    weights = [noise_for(algorithm, step)["weight"].item() for step in (1, 2, 3, 4, 5)]
    assert weights == pytest.approx([10 * math.exp(-5 * (1 - t) ** 2) for t in (0.25, 0.5, 0.75, 1, 1)])


def test_equal_views_give_the_cross_entropy():
    algorithm, erm = make("pi_model", weight=300.0, ramp_up=0), make("erm")
    batch = batch_for(algorithm)
    same = batch._replace(images=torch.stack([batch.images[0]] * 2))
    assert algorithm.loss(same, noise_for(algorithm)).item() == pytest.approx(
        erm.loss(batch._replace(images=batch.images[0]), {}).item(), rel=1e-5
    )
    # Each view has a dropout mask of its own, so two copies of an image still differ.
    dropped = make("pi_model", weight=300.0, ramp_up=0, dropout=0.5)
    noise = noise_for(dropped)
    assert not noise["dropout_mask"].equal(noise["second_dropout_mask"])
    light, full = (dropped.loss(same, {**noise, "weight": torch.tensor(w)}) for w in (0.0, 300.0))
    assert full > light + 0.01


@pytest.mark.parametrize("name", ["pi_model", "pi_model+sam"])
@pytest.mark.parametrize("dataset", ["digits", "RotatedMNIST", "PACS"])
def test_equal_views_of_low_res_images_are_errors(name, dataset, tmp_path):
    def problems(**own):
        target = benchmarks.get(dataset).domains[0]
        return find_problems(
            RunConfig.from_options(
                dataset=dataset, target=target, output=tmp_path, data_dir=tmp_path, algorithm=name, hyperparameters=own
            )
        )

    rule = (
        "pi_model needs two different views, but low-resolution images are not augmented, and dropout and "
        "input_noise are both 0: set one of them above 0 (input_noise=0.15)"
    )
    assert problems(input_noise=0) == ([] if dataset == "PACS" else [rule])
    assert problems() == problems(weight=3.0) == problems(input_noise=0, dropout=0.1) == []


def test_only_the_pi_model_uses_two_views(tmp_path):
    """A new algorithm with two views must say what makes them differ."""
    assert [name for name in list_algorithms() if get_algorithm(name).views > 1] == ["pi_model"]
    for name in list_algorithms():
        problems = find_problems(
            RunConfig.from_options(dataset="digits", target="paper", output=tmp_path, algorithm=name)
        )
        assert not problems


def test_on_digits_the_weight_stays_below_its_maximum():
    assert benchmarks.get("digits").defaults.steps == 600
    assert noise_for(make("pi_model"), 600)["weight"].item() == pytest.approx(0.22, abs=0.005)


def test_predictions_of_the_views_become_similar():
    """Images are noise around their class, and the views are two draws of the noise."""
    means = torch.randn(5, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    differences = {}
    for weight in (0.0, 300.0):
        algorithm = make("pi_model", weight=weight, ramp_up=0, lr=1e-3)
        for step in range(1, 41):
            batch = batch_for(algorithm, step)
            update(algorithm, batch._replace(images=0.3 * means[batch.labels] + batch.images))
        batch = batch_for(algorithm, 1000)
        with torch.no_grad():
            one, two = (algorithm.predict(0.3 * means[batch.labels] + view).softmax(1) for view in batch.images)
        differences[weight] = (one - two).square().mean().item()
    assert differences[300.0] < differences[0.0] / 2
