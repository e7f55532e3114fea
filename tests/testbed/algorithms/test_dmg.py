from __future__ import annotations

import copy
from itertools import combinations

import pytest
import torch
from torch.nn import functional

from helpers.tiny_algorithms import batch_for, make, noise_for, tell
from swad.gpu.fused_norm import fuse
from swad.testbed.algorithms.base import StepContext
from swad.testbed.algorithms.dmg import MaskedPredictor
from swad.testbed.data.loaders import Batch
from swad.testbed.models import networks


def small_scores(network, image, masks):
    """Return the scores of one image with a mask after each convolution and before the head."""
    first, second, last = masks
    maps = network.stem(image[None]) * first.view(1, -1, 1, 1)
    maps = network.body(maps) * second.view(1, -1, 1, 1)
    features = network.hidden(functional.max_pool2d(maps, 2, 2).flatten(1))
    return (network.head.weight * last) @ features[0] + network.head.bias


def plain(network):
    """Return a copy without hooks, in double precision."""
    network = copy.deepcopy(network).double()
    for stage in networks.stages(network):
        stage._forward_hooks.clear()
    return network


def overlap_by_hand(logits):
    """Sum over places the mean over pairs of intersection over union, channel by channel."""
    total = 0
    for rows in logits:
        ratios = []
        for one, other in combinations(rows, 2):
            p, q = 1 / (1 + (-one).exp()), 1 / (1 + (-other).exp())
            both = sum(a * b for a, b in zip(p, q, strict=True))
            either = sum(1 - (1 - a) * (1 - b) for a, b in zip(p, q, strict=True))
            ratios.append((both + 1e-6) / (either + 1e-6))
        total = total + sum(ratios) / len(ratios)
    return total


def test_loss_and_gradients_by_hand():
    """The gradient of a logit is that of its masks as free numbers, times p (1 - p)."""
    algorithm = make("dmg", overlap=0.7)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    network = plain(algorithm.predictor.network)
    logits = [rows.detach().double().requires_grad_() for rows in algorithm.predictor.masks.logits]
    masks, losses = [], []
    for n, (image, label) in enumerate(zip(batch.images.double(), batch.labels, strict=True)):
        drawn = [noise[f"mask_{k}"][n] < torch.sigmoid(rows[n // 4]) for k, rows in enumerate(logits)]
        masks.append([mask.double().requires_grad_() for mask in drawn])
        scores = small_scores(network, image, masks[-1])
        losses.append(scores.exp().sum().log() - scores[label])
    overlap = overlap_by_hand(logits)
    loss = algorithm.loss(batch, noise)
    assert loss.item() == pytest.approx((sum(losses) / 12 + 0.7 * overlap).item(), rel=1e-5)
    loss.backward()
    (sum(losses) / 12 + 0.7 * overlap).backward()
    for weight, twin in zip(algorithm.predictor.network.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(weight.grad.double(), twin.grad, rtol=1e-3, atol=1e-6)
    for k, rows in enumerate(algorithm.predictor.masks.logits):
        p = torch.sigmoid(rows.detach().double())
        wanted = logits[k].grad.clone()
        for n in range(12):
            wanted[n // 4] += masks[n][k].grad * (p * (1 - p))[n // 4]
        torch.testing.assert_close(rows.grad.double(), wanted, rtol=1e-3, atol=1e-7)


@torch.no_grad()
def test_predictions_are_means_over_the_masks_of_all_domains():
    predictor = make("dmg").predictor
    images = torch.randn(5, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    network = plain(predictor.network)
    for mode in (True, False):
        scores, features = predictor.train(mode)(images), networks.features(predictor, images)
        for image, row in zip(images.double(), scores, strict=True):
            branches = [
                small_scores(network, image, [torch.sigmoid(rows[d].double()) for rows in predictor.masks.logits])
                for d in range(3)
            ]
            torch.testing.assert_close(row.double(), sum(branches) / 3, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(networks.head(predictor)(features), scores)


@torch.no_grad()
def test_resnets_are_masked_before_the_last_two_stages_and_the_head():
    network = networks.build("test_resnet", 5).eval()
    predictor = MaskedPredictor(network, 2).eval()
    images = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    branches = []
    twin = plain(network)
    for d in range(2):
        first, second, last = (torch.sigmoid(rows[d].double()) for rows in predictor.masks.logits)
        maps = twin.layer1(twin.maxpool(twin.act1(twin.bn1(twin.conv1(images.double())))))
        maps = twin.layer3(torch.einsum("nchw,c->nchw", twin.layer2(maps), first))
        maps = twin.layer4(torch.einsum("nchw,c->nchw", maps, second))
        branches.append(twin.fc(maps.mean((2, 3)) * last))
    torch.testing.assert_close(predictor(images).double(), sum(branches) / 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "channels"),
    [("resnet50_v1", [512, 1024, 2048]), ("resnet18", [128, 256, 512]), ("mobilenetv2_100", [32, 96, 1280])],
)
def test_masked_channels_are_those_of_the_paper(name, channels):
    pytest.importorskip("timm")
    with torch.device("meta"):
        predictor = MaskedPredictor(networks.build(name, 7), 3)
    assert [tuple(rows.shape) for rows in predictor.masks.logits] == [(3, count) for count in channels]


def test_masks_of_ones_are_the_plain_network():
    algorithm, erm = make("dmg", dropout=0.5), make("erm", dropout=0.5)
    for rows in algorithm.predictor.masks.logits:
        torch.nn.init.constant_(rows, 40.0)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    wanted = erm.loss(batch, {"dropout_mask": noise["dropout_mask"]}) + 3 * 0.1  # each of three places overlaps fully
    torch.testing.assert_close(algorithm.loss(batch, noise), wanted)
    torch.testing.assert_close(algorithm.predictor(batch.images), erm.predictor(batch.images))


def test_logits_start_between_zero_and_one():
    logits = torch.cat([rows.flatten() for rows in make("dmg").predictor.masks.logits])
    assert 0 <= logits.min() < 0.1 < 0.9 < logits.max() < 1
    assert logits.mean().item() == pytest.approx(0.5, abs=0.05)


def test_every_image_draws_its_own_mask_with_the_probability_of_its_domain():
    algorithm = make("dmg", batch_size=500)
    masks = algorithm.predictor.masks
    for k, rows in enumerate(masks.logits):
        uniform = noise_for(algorithm)[f"mask_{k}"]
        assert uniform.shape == (1500, rows.shape[1])
        masks.uniform = [uniform] * 3
        drawn = masks(k, torch.ones(1500, rows.shape[1])).detach()
        assert set(drawn.unique().tolist()) == {0.0, 1.0}
        shares = drawn.view(3, 500, -1).mean(1)
        torch.testing.assert_close(shares, rows.detach().sigmoid(), rtol=0, atol=0.12)
        assert not drawn[0].equal(drawn[1])


def test_masks_are_drawn_in_training_only():
    algorithm = make("dmg", overlap=0.0)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    drawn = algorithm.loss(batch, noise)
    assert algorithm.predictor.masks.uniform is None
    assert not drawn.equal(algorithm.loss(batch, noise_for(algorithm, 2)))
    algorithm.eval()
    assert algorithm.loss(batch, noise).equal(algorithm.loss(batch, noise_for(algorithm, 2)))
    algorithm.train()
    with pytest.raises(IndexError):
        algorithm.loss(Batch(1, batch.images, torch.full((12,), 99)), noise)
    assert algorithm.predictor.masks.uniform is None
    twin = copy.deepcopy(algorithm)
    torch.nn.init.constant_(twin.predictor.masks.logits[0], -40.0)
    assert algorithm.loss(batch, noise).equal(drawn), "a copy has its own masks"
    assert not twin.loss(batch, noise).equal(drawn)


def test_the_part_before_the_first_mask_is_computed_once():
    predictor = make("dmg").predictor
    counts = []
    for stage in networks.stages(predictor.network):
        stage.register_forward_pre_hook(lambda module, args: counts.append(len(args[0])))
    assert len(predictor(torch.zeros(4, 3, 28, 28))) == 4
    assert counts == [4, 12]


def test_pooled_batches_use_the_mask_of_each_images_domain():
    algorithm, pooled = make("dmg"), make("dmg", batch_size=12)
    tell(pooled, pooled=True)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    mixed = Batch(1, batch.images[order], batch.labels[order], domains=(torch.arange(12) // 4)[order])
    assert noise_for(pooled).keys() == noise.keys()
    assert all(rows.shape == noise[name].shape for name, rows in noise_for(pooled).items())
    for own, each, numbers in ((algorithm, batch, noise), (pooled, mixed, {k: v[order] for k, v in noise.items()})):
        own.loss(each, numbers).backward()
        assert own.predictor.masks.domains is None
    for one, other in zip(algorithm.parameters(), pooled.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_the_penalty_separates_masks():
    def overlap(weight):
        algorithm = make("dmg", overlap=weight, mask_lr=0.05)
        for step in range(1, 21):
            algorithm.update(batch_for(algorithm, step), noise_for(algorithm, step), StepContext())
        return algorithm.predictor.masks.overlap().item()

    start = make("dmg").predictor.masks.overlap().item()
    assert overlap(10.0) < min(start, overlap(0.0)) - 0.2


def test_masks_have_a_learning_rate_of_their_own():
    algorithm = make("dmg", lr=1e-5, mask_lr=0.1, weight_decay=0.5)
    rates = {
        name: (float(group["lr"]), group["weight_decay"])
        for name, optimizer in algorithm.optimizers.items()
        for group in optimizer.param_groups
    }
    assert rates == {"main": (1e-5, 0.5), "masks": (0.1, 0.5)}
    assert algorithm.constant_lr == ("masks",)


def test_networks_without_maps_after_a_stage_are_errors():
    predictor = make("dmg").predictor
    hook = next(iter(networks.stages(predictor.network)[0]._forward_hooks.values()))
    with pytest.raises(networks.NetworkError, match=r"DMG needs maps with 12 channels .*, got a tuple: choose another"):
        hook(None, None, (torch.zeros(3, 12, 4, 4),))


def test_fused_batch_norms_give_the_same_loss():
    """The plain-torch form of fusion; the kernels need a GPU."""
    algorithm = make("dmg", networks.build("test_resnet", 5), shape=(3, 32, 32))
    batch, noise = batch_for(algorithm, shape=(3, 32, 32)), noise_for(algorithm)
    wanted = algorithm.loss(batch, noise)
    assert fuse(algorithm.predictor, batch.images[:2], kernels=False) > 0
    torch.testing.assert_close(algorithm.loss(batch, noise), wanted, rtol=1e-4, atol=1e-5)
