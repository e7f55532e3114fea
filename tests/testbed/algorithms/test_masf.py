from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch.func import functional_call
from torch.nn import functional

from helpers.tiny_algorithms import Points, batch_for, make, noise_for
from swad.testbed.algorithms.base import StepContext
from swad.testbed.algorithms.masf import class_divergence, clipped, semi_hard_triplet_loss


def divergence_by_hand(scores, labels, held_out, temperature):
    """Compute the divergence class by class and domain by domain, as the authors' code does."""
    n_domains, _, n_classes = scores.shape

    def prediction(domain, of_class):
        rows = [z for z, y in zip(scores[domain], labels[domain].tolist(), strict=True) if y == of_class]
        if not rows:
            return None
        exponentials = torch.exp(sum(rows) / len(rows) / temperature)
        return (exponentials / exponentials.sum()).clamp(1e-8, 1)

    total = 0.0
    for domain in set(range(n_domains)) - {held_out}:
        for k in range(n_classes):
            p, q = prediction(held_out, k), prediction(domain, k)
            if p is not None and q is not None:
                total = total + ((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 2
    return total / n_classes / (n_domains - 1)


def triplet_by_hand(rows, labels, margin):
    labels, total, pairs = labels.tolist(), 0.0, 0

    def distance(i, j):
        return (rows[i] - rows[j]).square().sum()

    for i, y in enumerate(labels):
        negatives = [distance(i, n) for n in range(len(rows)) if labels[n] != y]
        for p in range(len(rows)):
            if p == i or labels[p] != y:
                continue
            pairs += 1
            farther = [d for d in negatives if d > distance(i, p)]
            if negatives:
                total = total + (margin + distance(i, p) - (min(farther) if farther else max(negatives))).clamp(min=0)
    return total / max(pairs, 1)


def require_same_with_gradient(compute, by_hand, rows):
    """Compare values and gradients with respect to `rows`."""
    one, other = (rows.clone().requires_grad_() for _ in range(2))
    value, want = compute(one), torch.as_tensor(by_hand(other), dtype=rows.dtype)
    torch.testing.assert_close(value, want, rtol=1e-9, atol=1e-11)
    gradient = torch.autograd.grad(value, one)[0]
    expected = torch.autograd.grad(want, other)[0] if want.requires_grad else torch.zeros_like(rows)
    torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-9)


@settings(max_examples=25)
@given(some.integers(2, 4), some.integers(1, 6), some.integers(2, 5), some.integers(0, 10**6))
def test_the_divergence_equals_that_of_loops(domains, images, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = 4 * torch.randn(domains, images, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, classes, (domains, images), generator=generator)
    held_out = seed % domains
    require_same_with_gradient(
        lambda rows: class_divergence(rows, labels, torch.tensor([held_out]), 1.7),
        lambda rows: divergence_by_hand(rows, labels, held_out, 1.7),
        scores,
    )


@settings(max_examples=25)
@given(some.integers(1, 9), some.integers(1, 4), some.floats(0, 8), some.integers(0, 10**6))
def test_the_triplet_loss_equals_that_of_loops(images, classes, margin, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(images, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, classes, (images,), generator=generator)
    require_same_with_gradient(
        lambda rows: semi_hard_triplet_loss(rows, labels, margin),
        lambda rows: triplet_by_hand(rows, labels, margin),
        rows,
    )


def test_a_triplet_by_hand():
    """On a line: the images 0 and 1 of one class, 3 and 8 of another."""
    rows, labels = torch.tensor([[0.0], [1], [3], [8]]), torch.tensor([0, 0, 1, 1])
    # (0, 1): 10 + 1 - 9 = 2.  (1, 0): 10 + 1 - 4 = 7.  (3, 8): 25 is farther than all others: 10 + 25 - 9 = 26.
    # (8, 3): the next larger than 25 is 49: 0 after 10 + 25 - 49 < 0.
    assert semi_hard_triplet_loss(rows, labels, 10.0).item() == pytest.approx((2 + 7 + 26 + 0) / 4)
    assert semi_hard_triplet_loss(10 * rows[:, :1], labels, 0.0).item() == pytest.approx(1600 / 4)
    # An image of another class at the same distance is not farther: 10 + 1 - 4, and 10 + 1 - 4 from the other side.
    tied = torch.tensor([[0.0], [1], [-1], [2]])
    assert semi_hard_triplet_loss(tied, torch.tensor([0, 0, 1, 2]), 10.0).item() == pytest.approx(7)


def test_domains_with_the_same_class_means_have_no_divergence():
    scores = torch.tensor([[[2.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [3.0, 0.0]]])
    labels = torch.tensor([[0, 1], [0, 0]])
    assert class_divergence(scores, labels, torch.tensor([0]), 2.0).item() == pytest.approx(0, abs=1e-7)
    # Class 0 with the odds 1 : 1 and e : 1 after the temperature; class 1 is not in both, and counts in the mean.
    scores[0, 0] = 0
    a, b = 0.5, math.e / (1 + math.e)
    want = ((b - a) * math.log(b / a) + (a - b) * math.log((1 - b) / (1 - a))) / 2 / 2
    assert class_divergence(scores, labels, torch.tensor([1]), 2.0).item() == pytest.approx(want, rel=1e-5)


def test_predictions_stay_above_a_floor():
    scores = torch.tensor([[[0.0, 200.0]], [[200.0, 0.0]]])
    found = class_divergence(scores, torch.zeros(2, 1, dtype=torch.long), torch.tensor([1]), 2.0)
    assert found.item() == pytest.approx(2 * math.log(1e8) / 2 / 2, rel=1e-5)


def test_every_tensor_is_clipped_by_itself():
    grads = [torch.tensor([3.0, 4.0]), torch.tensor([0.3, 0.4]), torch.zeros(2)]
    found = clipped(grads, 2.0)
    want = [torch.tensor([1.2, 1.6]), torch.tensor([0.3, 0.4]), torch.zeros(2)]
    assert all(torch.allclose(one, other) for one, other in zip(found, want, strict=True))


def by_functions(algorithm, batch, noise, hparams):
    """Compute both gradients without touching the weights, with the losses by hand."""
    double = copy.deepcopy(algorithm).double()
    network, n, images = double.predictor, algorithm.n_domains, batch.images.double()
    size = len(images) // n
    weights = {name: weight.detach().requires_grad_() for name, weight in network.named_parameters()}

    def outputs(at, rows, mask):
        features = functional_call(
            network.body, {k[5:]: v for k, v in at.items() if k[:4] == "body"}, images[rows].flatten(1)
        )
        kept = features * noise[mask][rows] if mask in noise else features
        return features, functional.linear(kept, at["head.weight"], at["head.bias"])

    def gradient(loss, at):
        found = torch.autograd.grad(loss, list(at.values()), allow_unused=True, retain_graph=True)
        return [torch.zeros_like(w) if g is None else g for g, w in zip(found, at.values(), strict=True)]

    def clip(g):
        return g * min(1.0, hparams["inner_clip"] / g.norm().item()) if g.norm() > 0 else g

    order = noise["order"].tolist()
    parts = [slice(d * size, (d + 1) * size) for d in range(n)]
    losses = [
        functional.cross_entropy(outputs(weights, parts[d], "dropout_mask")[1], batch.labels[parts[d]])
        for d in order[:-1]
    ]
    task = sum(losses) / (n - 1)
    task_gradient = gradient(task, weights)
    after = {
        name: (weight - hparams["inner_lr"] * clip(g)).detach().requires_grad_()
        for (name, weight), g in zip(weights.items(), task_gradient, strict=True)
    }
    passes = [outputs(after, part, "dropout_mask_after") for part in parts]
    labels = batch.labels.view(n, size)
    divergence = divergence_by_hand(torch.stack([z for _, z in passes]), labels, order[-1], hparams["temperature"])
    embeddings = torch.cat([features for features, _ in passes])
    for layer in (double.metric[0], double.metric[2]):
        embeddings = embeddings @ layer.weight.T + layer.bias
        embeddings = torch.where(embeddings > 0, embeddings, 0.2 * embeddings)
    local = hparams["local_weight"] * triplet_by_hand(embeddings, batch.labels, hparams["margin"])
    meta = hparams["global_weight"] * divergence + local
    total = [one + clip(other) for one, other in zip(task_gradient, gradient(meta, after), strict=True)]
    return total, gradient(local, dict(double.metric.named_parameters())), (task + meta).item()


@pytest.mark.parametrize(("domains", "dropout", "clip"), [(3, 0.0, 2.0), (2, 0.5, 0.01), (4, 0.0, 1e-3)])
def test_the_gradients_equal_those_of_functions(domains, dropout, clip):
    hparams = {"inner_clip": clip, "global_weight": 0.7, "local_weight": 0.3, "temperature": 1.5, "margin": 3.0}
    options = {"inner_lr": 0.4, "dropout": dropout, "batch_size": 5, "lr": 1e-3, **hparams}
    algorithm = make("masf", Points(6, 5, classes=3), domains, (1, 1, 6), **options)
    batch, noise = batch_for(algorithm, 3, (1, 1, 6)), noise_for(algorithm, 3)
    batch = batch._replace(labels=batch.labels % 3)
    main, metric, value = by_functions(algorithm, batch, noise, {**hparams, "inner_lr": 0.4})
    before, seen = algorithm.state_dict(), {}
    before = {key: tensor.clone() for key, tensor in before.items()}
    algorithm.step = lambda ctx, *names: seen.update(algorithm.state_dict())
    assert float(algorithm.update(batch, noise, StepContext())) == pytest.approx(value, rel=1e-4)
    assert all(before[key].equal(tensor) for key, tensor in seen.items()), "weights must come back"
    for module, want in ((algorithm.predictor, main), (algorithm.metric, metric)):
        for parameter, gradient in zip(module.parameters(), want, strict=True):
            torch.testing.assert_close(parameter.grad.double(), gradient, rtol=1e-3, atol=1e-6)


def test_the_inner_step_and_the_metric_network_have_learning_rates_of_their_own():
    algorithm = make("masf", lr=0.02, inner_lr=0.5, metric_lr=0.003)
    weight = torch.zeros(2)
    algorithm._inner_step([weight], [torch.tensor([1.0, -2.0])])
    torch.testing.assert_close(weight, torch.tensor([-0.5, 1.0]))
    assert [one.param_groups[0]["lr"] for one in algorithm.optimizers.values()] == [0.02, 0.003]


def test_every_domain_is_held_out_and_not_trained_on():
    algorithm = make("masf", global_weight=0.0, local_weight=0.0)
    held_out = {noise_for(algorithm, step)["order"][-1].item() for step in range(1, 20)}
    assert held_out == {0, 1, 2}
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    shown = batch.images.clone().requires_grad_()
    algorithm.loss(batch._replace(images=shown), noise).backward()
    seen = shown.grad.view(3, -1).norm(dim=1) > 0
    assert seen.tolist() == [domain != noise["order"][-1] for domain in range(3)]
