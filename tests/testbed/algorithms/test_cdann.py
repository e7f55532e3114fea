from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from helpers.tiny_algorithms import batch_for, make, noise_for, train_points
from swad.testbed.data.loaders import Batch


def test_class_weights_do_not_depend_on_the_largest_label_of_the_batch():
    algorithm = make("cdann")
    labels = torch.tensor([0, 0, 0, 1] * 3)  # of five classes
    assert algorithm.image_weights(labels)[:4].tolist() == pytest.approx([1 / 45, 1 / 45, 1 / 45, 1 / 15])
    assert algorithm.loss(Batch(1, batch_for(algorithm).images, labels), noise_for(algorithm)).isfinite()
    assert make("dann").image_weights(labels).tolist() == pytest.approx([1 / 12] * 12)


def unbalanced(generator):
    """Draw one number that tells the class and three zeros; each domain has 90 % of its images in one class."""
    mostly = torch.tensor([[0], [1]])
    labels = torch.where(torch.rand((2, 64), generator=generator) < 0.9, mostly, 1 - mostly)
    number = 2.0 * labels - 1 + 0.3 * torch.randn((2, 64), generator=generator)
    return functional.pad(number.unsqueeze(-1), (0, 3)), labels


def test_features_keep_the_class_when_domains_differ_in_it():
    """The number tells the domain only through the class: DANN's predictor is pushed to forget it, CDANN's is not."""

    def push(name):
        # Train the discriminator alone until it has converged.
        algorithm = train_points(name, unbalanced, steps=300, lr=0.01, mlp_width=16, d_steps=10_000)
        points, labels = unbalanced(torch.Generator().manual_seed(999))
        features = points.flatten(0, 1).requires_grad_()
        algorithm.domain_loss(features, labels.flatten(), {}).backward()
        return (len(features) * features.grad[:, 0]).abs().mean().item()

    assert push("cdann") < 0.3 * push("dann")
