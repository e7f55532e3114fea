from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional

from helpers.feature_distance import domain_distance, shifted_classes
from helpers.tiny_algorithms import CLASSES, batch_for, make, noise_for, tell, train_points, update
from swad.testbed.algorithms.base import StepContext
from swad.testbed.algorithms.er import MLPs, balanced_cross_entropy


def mlp(module, k, row, mask):
    """Compute one row in double precision with the k-th of the MLPs."""
    (w1, w2, w3), (b1, b2, b3) = ([p[k].double() for p in params] for params in (module.weights, module.biases))
    hidden = (row @ w1 + b1[0]).clamp(min=0)
    hidden = (hidden @ w2 + b2[0]).clamp(min=0)
    return (hidden * mask.double()) @ w3 + b3[0]


def entropy(scores, label):
    return scores.exp().sum().log() - scores[label]


def balanced(losses, labels):
    """Average over the images of each class, then over the classes that occur."""
    classes = sorted(set(labels))
    means = [torch.stack([x for x, y in zip(losses, labels, strict=True) if y == c]).mean() for c in classes]
    return torch.stack(means).mean()


def parts(algorithm, twin, batch, noise):
    """Return the four losses of part 2 and the loss of part 1, image by image, without any scaled gradient."""
    size, domains = algorithm.hyperparameters.batch_size, range(algorithm.n_domains)
    features = twin.forward_head(twin.forward_features(batch.images.double()), pre_logits=True)
    labels = batch.labels.tolist()
    class_loss = torch.stack([entropy(twin.head(f), y) for f, y in zip(features, labels, strict=True)]).mean()
    total, domain_loss = sum(1 / n for n in algorithm.run_info.domain_sizes), 0.0
    for i, row in enumerate(features):
        scores = mlp(algorithm.discriminator, 0, row, noise["domain_mask"][0, i])
        domain_loss += entropy(scores, i // size) / algorithm.run_info.domain_sizes[i // size] / total / size
    others, adversaries, own = [], [], []
    for d in domains:
        inside = [i for i in range(len(labels)) if i // size == d]
        outside = [i for i in range(len(labels)) if i // size != d]
        for losses, module, rows, mask in (
            (others, algorithm.classifiers, outside, "other_mask"),
            (adversaries, algorithm.adversaries, inside, "adversary_mask"),
            (own, algorithm.classifiers, inside, "own_mask"),
        ):
            scores = [mlp(module, d, features[i], noise[mask][d, j]) for j, i in enumerate(rows)]
            chosen = [labels[i] for i in rows]
            losses.append(balanced([entropy(z, y) for z, y in zip(scores, chosen, strict=True)], chosen))
    return class_loss, domain_loss, *(torch.stack(losses).mean() for losses in (others, adversaries, own))


def small(**options):
    algorithm = make("er", **{"mlp_width": 8, "lambda_d": 0.3, "lambda_c": 0.5, "lambda_cp": 0.2, **options})
    tell(algorithm, domain_sizes=(10, 40, 25))
    for module in (algorithm.discriminator, algorithm.classifiers, algorithm.adversaries):
        for parameter in module.parameters():  # far from the small initial ones, so that every term counts
            torch.nn.init.normal_(parameter, std=0.3)
    return algorithm


def require_close(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        scale = other.abs().max().item()
        assert scale > 0
        torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-4 * scale)


def test_the_loss_and_its_gradients_are_those_of_single_images():
    """The twin scales no gradient: it adds up the gradients of the four losses, each with its factor."""
    algorithm = small()
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    twin = copy.deepcopy(algorithm.predictor).double()
    *shared, _ = parts(algorithm, twin, batch, noise)
    loss = algorithm.loss(batch, noise)
    assert loss.item() == pytest.approx(sum(part.item() for part in shared), rel=1e-5)
    loss.backward()

    features = [p for name, p in twin.named_parameters() if not name.startswith("head")]
    wanted = [torch.zeros_like(p) for p in features]
    for part, factor in zip(shared, (1, -0.3, 0.5, -0.2), strict=True):
        for total, gradient in zip(wanted, torch.autograd.grad(part, features, retain_graph=True), strict=True):
            total += factor * gradient
    found = [p.grad for name, p in algorithm.predictor.named_parameters() if not name.startswith("head")]
    require_close(found, wanted)
    head = torch.autograd.grad(shared[0], list(twin.head.parameters()), retain_graph=True)
    require_close([p.grad for p in algorithm.predictor.head.parameters()], head)
    for module, part in ((algorithm.discriminator, shared[1]), (algorithm.adversaries, shared[3])):
        gradients = torch.autograd.grad(part, list(module.parameters()), retain_graph=True)
        require_close([p.grad for p in module.parameters()], [g.double() for g in gradients])
    assert all(p.grad is None for p in algorithm.classifiers.parameters()), "the C_i are fixed in part 2"


def test_a_step_trains_the_classifiers_first_and_alone():
    algorithm = small(lr=0.1, lr_c=0.5)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    before = copy.deepcopy(algorithm)
    loss = algorithm.update(batch, noise, StepContext())

    *_, own = parts(before, copy.deepcopy(before.predictor).double(), batch, noise)
    gradients = torch.autograd.grad(own, list(before.classifiers.parameters()))
    require_close([p.grad for p in algorithm.classifiers.parameters()], [g.double() for g in gradients])
    # Part 2 uses the weights before the step, except for the C_i.
    between = copy.deepcopy(before)
    between.classifiers.load_state_dict(algorithm.classifiers.state_dict())
    assert between.loss(batch, noise).equal(loss)
    assert not before.loss(batch, noise).equal(loss)
    between.loss(batch, noise).backward()
    for name in ("predictor", "discriminator", "adversaries"):
        for one, other in zip(getattr(algorithm, name).parameters(), getattr(between, name).parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
    # Adam's first step has the length of the learning rate.
    moved = {
        name: max((p - q).abs().max().item() for p, q in zip(one.parameters(), other.parameters(), strict=True))
        for (name, one), other in zip(algorithm.named_children(), before.children(), strict=True)
    }
    assert moved == pytest.approx({"predictor": 0.1, "discriminator": 0.1, "classifiers": 0.05, "adversaries": 0.05})


def test_the_network_sees_the_images_once():
    algorithm, seen = small(), []
    algorithm.predictor.stem.register_forward_hook(lambda *args: seen.append(1))
    update(algorithm, batch_for(algorithm))
    assert len(seen) == 1


def test_classes_have_the_same_weight_in_every_group():
    """The published code passes the weights 1 / count, and 0 for absent classes, to torch."""
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(4, 9, CLASSES, generator=generator), torch.randint(0, 3, (4, 9), generator=generator)
    labels[0] = 1
    wanted = []
    for z, y in zip(scores, labels, strict=True):
        counts = [(y == c).sum().item() for c in range(CLASSES)]
        weight = torch.tensor([1 / n if n else 0.0 for n in counts])
        wanted.append(functional.cross_entropy(z, y, weight=weight))
    torch.testing.assert_close(balanced_cross_entropy(scores, labels), torch.stack(wanted).mean())


def test_warm_up_scales_the_losses():
    algorithm, plain = small(warm_up=0.1), small()
    for each in (algorithm, plain):
        tell(each, total_steps=20)
    weights = [noise_for(algorithm, step)["weight"].item() for step in (1, 2, 3)]
    assert weights == pytest.approx([0.01, 0.01, 1])
    batch = batch_for(algorithm)
    one, other = (each.loss(batch, noise_for(each)) for each in (algorithm, plain))
    torch.testing.assert_close(one, 0.01 * other)


def test_the_mlps_start_as_published():
    """Xavier's uniform initialization with a gain of .1, and no bias."""
    torch.manual_seed(0)
    mlps = MLPs(3, 100, 256, 7)
    assert [tuple(p.shape) for p in mlps.weights] == [(3, 100, 1024), (3, 1024, 256), (3, 256, 7)]
    for weight in mlps.weights:
        reference = torch.nn.init.xavier_uniform_(torch.empty(weight.shape[2], weight.shape[1]), 0.1)
        assert weight.std().item() == pytest.approx(reference.std().item(), rel=0.1)
        assert weight.abs().max().item() == pytest.approx(reference.abs().max().item(), rel=0.05)
    assert not any(bias.any() for bias in mlps.biases)


def test_dropout_masks_cover_every_use():
    noise = noise_for(make("er", mlp_width=64, mlp_dropout=0.25))
    shapes = {
        "domain_mask": (1, 12, 64),
        "own_mask": (3, 4, 64),
        "other_mask": (3, 8, 64),
        "adversary_mask": (3, 4, 64),
    }
    for name, shape in shapes.items():
        assert tuple(noise[name].shape) == shape
        assert noise[name].unique().tolist() == pytest.approx([0, 1 / 0.75])
        assert (noise[name] > 0).float().mean().item() == pytest.approx(0.75, abs=0.08)
    assert not noise["own_mask"].equal(noise["adversary_mask"])
    assert [name for name in noise_for(make("er", mlp_dropout=0.0)) if "mask" in name] == []


def test_settings_without_units_or_learning_are_errors():
    kind = type(make("er").hyperparameters)
    assert kind(mlp_dropout=1).problems() == ["mlp_dropout must be a number of at least 0 and below 1, got 1"]
    assert kind(lr_c=0.0).problems() == ["lr_c must be a number above 0, got 0.0"]


@pytest.mark.slow
def test_features_become_invariant_to_the_domain():
    options = {"steps": 150, "features": 1, "lr": 0.02}
    plain = train_points("erm", shifted_classes, **options)
    algorithm = train_points("er", shifted_classes, mlp_width=4, lr_c=1.0, lambda_d=1.0, mlp_dropout=0.0, **options)
    apart, _ = domain_distance(plain)
    assert apart > 0.2
    assert domain_distance(algorithm)[0] < 0.5 * apart
