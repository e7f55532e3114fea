from __future__ import annotations

import copy
from collections import deque
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from helpers.tiny_algorithms import batch_for, make, noise_for, tell, update
from swad.testbed.algorithms import eisnet
from swad.testbed.algorithms.eisnet import PERMUTATIONS, triplet_loss
from swad.testbed.models import networks

# --- the views -----------------------------------------------------------------------------------------------------


def puzzle(image, order, gray, mean, std):
    """Return an image with its tiles in another order, pixel by pixel; gray tiles are those of the crop."""
    _, height, width = image.shape
    rows, columns = height // 3, width // 3
    top, left = (height % 3) // 2, (width % 3) // 2
    wanted = image.clone()
    for place in range(9):
        tile = int(PERMUTATIONS[order][place])
        for y in range(rows):
            for x in range(columns):
                pixel = image[:, top + tile // 3 * rows + y, left + tile % 3 * columns + x]
                pixel = grayed(pixel, mean, std) if gray[1 + tile] else pixel
                wanted[:, top + place // 3 * rows + y, left + place % 3 * columns + x] = pixel
    return wanted


def grayed(pixel, mean, std):
    red, green, blue = (pixel * std + mean).tolist()
    return (0.2989 * red + 0.587 * green + 0.114 * blue - mean) / std


@pytest.mark.parametrize("size", [9, 10, 11])
def test_tiles_are_moved_and_grayed_one_by_one(size):
    algorithm = make("eisnet")
    tell(algorithm, image_mean=(0.5, 0.4, 0.3), image_std=(0.2, 0.3, 0.4))
    mean, std = torch.tensor((0.5, 0.4, 0.3)), torch.tensor((0.2, 0.3, 0.4))
    images = torch.randn(12, 3, size, size, generator=torch.Generator().manual_seed(0))
    noise = noise_for(make("eisnet", whole=0.0, grayscale=0.5))
    noise["tile_order"][0] = 0
    before = images.clone()
    whole, tiles = algorithm.make_views(images, noise)
    assert images.equal(before)
    for i, image in enumerate(images):
        gray = noise["gray"][i]
        torch.testing.assert_close(tiles[i], puzzle(image, noise["tile_order"][i], gray, mean, std))
        pixels = [grayed(pixel, mean, std) if gray[0] else pixel for pixel in image.flatten(1).T]
        torch.testing.assert_close(whole[i], torch.stack(pixels, 1).view_as(image))


def test_images_without_three_channels_are_never_gray():
    algorithm = make("eisnet", networks.build("small", 5, channels=1), grayscale=1.0)
    images = torch.randn(12, 1, 28, 28)
    noise = noise_for(algorithm) | {"tile_order": torch.zeros(12, dtype=torch.int64)}
    for view in algorithm.make_views(images, noise):
        assert view.equal(images)


def test_the_permutations_are_different_and_the_first_changes_nothing():
    assert PERMUTATIONS[0] == "012345678"
    assert len(set(PERMUTATIONS)) == len(PERMUTATIONS) == 31
    assert all(sorted(order) == list("012345678") for order in PERMUTATIONS)


def test_most_crops_stay_whole():
    algorithm = make("eisnet", batch_size=1000)
    noise = noise_for(algorithm)
    counts = noise["tile_order"].bincount(minlength=31) / 3000
    assert counts[0].item() == pytest.approx(0.9 + 0.1 / 31, abs=0.02)
    assert counts[1:].max() < 0.01
    assert noise["gray"].float().mean().item() == pytest.approx(0.1, abs=0.01)
    assert sorted(noise["rank"].tolist()) == list(range(3000))


# --- the triplets --------------------------------------------------------------------------------------------------


def unit(generator, *shape):
    return functional.normalize(torch.randn(*shape, generator=generator), dim=-1)


def triplets_by_hand(queries, keys, pairs, queue, negatives, margin, most):
    """Return the loss from a list of all triplets: their weights, and their values in double precision."""
    weights, values = [], []
    for i, j in zip(*pairs.nonzero().T.tolist(), strict=True):
        positive = (queries[i] - keys[j]).double().square().sum()
        found = []
        for n in negatives[i].nonzero().flatten().tolist():
            value = positive - (queries[i] - queue[n]).double().square().sum() + margin
            if 0 < value < margin:
                found.append(value)
        weights += [min(most, len(found)) / len(found) for _ in found]
        values += found
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights) if weights else torch.tensor(0.0)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000), st.sampled_from([0.1, 0.7, 2.0]), st.sampled_from([1, 3, 256]))
def test_the_triplet_loss_and_its_gradient_are_those_of_a_list(seed, margin, most):
    generator = torch.Generator().manual_seed(seed)
    queries, keys, queue = (unit(generator, n, 3) for n in (5, 5, 12))
    pairs, negatives = (torch.rand(shape, generator=generator) < 0.5 for shape in ((5, 5), (5, 12)))
    queries.requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eisnet, "MAX_TRIPLETS", most)
        found = triplet_loss(queries, keys, pairs, queue, negatives, margin)
    wanted = triplets_by_hand(queries, keys, pairs, queue, negatives, margin, most)
    torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-5, atol=1e-6)
    assert found.dtype is torch.float32
    if not wanted.requires_grad:
        assert found.item() == 0
        return
    # For embeddings on the sphere: the twin also has a gradient along the radius, which normalizing removes.
    one, other = (torch.autograd.grad(loss, queries)[0] for loss in (found, wanted))
    tangent = [g - (g * queries).sum(1, keepdim=True) * queries for g in (one, other)]
    torch.testing.assert_close(*tangent, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("margin", [0.0, 1.0])
def test_a_negative_that_is_as_far_as_the_positive_is_not_semi_hard(margin):
    one, other = torch.eye(2)[:1], torch.eye(2)[1:]
    yes = torch.ones(1, 1, dtype=torch.bool)
    assert triplet_loss(one, other, yes, other, yes, margin).item() == 0
    assert triplet_loss(one, one, yes, other, yes, 2.5).item() == pytest.approx(0.5)


def test_a_negative_that_is_farther_by_the_margin_is_not_semi_hard():
    """Squared distances are 0 to the positive, and 2 and 0.8 to the negatives."""
    one, queue = torch.eye(2)[:1], torch.tensor([[0.0, 1.0], [0.6, 0.8]])
    yes = torch.ones(1, 2, dtype=torch.bool)
    assert triplet_loss(one, one, yes[:, :1], queue, yes, 2.0).item() == pytest.approx(1.2)


def test_the_triplet_loss_is_the_mean_of_the_published_draws(monkeypatch):
    """Draw as the published code does: from every pair's semi-hard negatives, with replacement."""
    monkeypatch.setattr(eisnet, "MAX_TRIPLETS", 2)
    generator, random = torch.Generator().manual_seed(1), np.random.default_rng(0)
    queries, keys, queue = unit(generator, 6, 3), unit(generator, 6, 3), unit(generator, 15, 3)
    labels, queue_labels = torch.tensor([0, 1, 0, 1, 0, 2]), torch.arange(15) % 3
    to_keys, to_queue = (torch.cdist(queries, rows).square().numpy() for rows in (keys, queue))
    candidates = []
    for label in (0, 1, 2):
        for i, j in combinations((labels == label).nonzero().flatten().tolist(), 2):
            others = (queue_labels != label).numpy()
            values = to_keys[i, j] - to_queue[i, others] + 1.5
            candidates.append(values[(values > 0) & (values < 1.5)])
    assert {len(values) > 2 for values in candidates if len(values)} == {True, False}, "more and fewer than drawn"
    draws = [
        np.concatenate([random.choice(v, min(2, len(v))) for v in candidates if len(v)]).mean() for _ in range(4000)
    ]
    pairs = (labels[:, None] == labels) & (torch.arange(6)[:, None] < torch.arange(6))
    found = triplet_loss(queries, keys, pairs, queue, labels[:, None] != queue_labels, 1.5)
    assert found.item() == pytest.approx(float(np.mean(draws)), abs=float(4 * np.std(draws) / 4000**0.5))


# --- the loss ------------------------------------------------------------------------------------------------------


def embed(layer, features):
    rows = features.double() @ layer.weight.double().T + layer.bias.double()
    return rows / rows.norm(dim=1, keepdim=True)


def features_of(network, images):
    return network.forward_head(network.forward_features(images), pre_logits=True)


def test_the_loss_is_the_sum_of_its_parts():
    algorithm = make("eisnet", jigsaw=0.6, triplet=3.0, whole=0.3, margin=2.0, dropout=0.5)
    for weights in (algorithm.key_network, algorithm.key_embedding):
        for buffer in weights.buffers():
            buffer.mul_(1.1)  # so that the two networks differ
    update(algorithm, batch_for(algorithm, 9))  # fills a part of the queue
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    whole, tiles = algorithm.make_views(batch.images, noise)
    with torch.no_grad():
        features = features_of(algorithm.predictor, tiles)
        keys = embed(algorithm.key_embedding, features_of(algorithm.key_network, whole))
        queries = embed(algorithm.embedding, features)
        classes = algorithm.predictor.head(features * noise["dropout_mask"])
        orders = algorithm.jigsaw_head(features)
    order = noise["rank"].tolist()
    same = batch.labels[:, None] == batch.labels
    pairs = torch.tensor([[bool(same[i, j]) and order[i] < order[j] for j in range(12)] for i in range(12)])
    rows, labels = (
        torch.cat([keys, algorithm.queue[:12].double()]),
        torch.cat([batch.labels, algorithm.queue_labels[:12]]),
    )
    negatives = batch.labels[:, None] != labels
    triplets = triplets_by_hand(queries, keys, pairs, rows, negatives, 2.0, 256)
    wanted = functional.cross_entropy(classes, batch.labels)
    wanted = wanted + 0.6 * functional.cross_entropy(orders, noise["tile_order"]) + 3 * triplets
    assert triplets > 0.05
    assert algorithm.loss(batch, noise).item() == pytest.approx(wanted.item(), rel=1e-5)


def test_gradients_reach_the_tiles_network_only():
    algorithm = make("eisnet", whole=0.0)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    algorithm.loss(batch, noise).backward()
    assert all(p.grad is not None and p.grad.any() for p in algorithm.parameters())
    assert not any(p.requires_grad for p in (*algorithm.key_network.buffers(), algorithm.queue))
    assert not list(algorithm.key_network.parameters())


def test_the_queue_holds_the_newest_embeddings_of_whole_crops():
    algorithm = make("eisnet", queue_size=30)
    assert set(algorithm.queue_labels.tolist()) == {-1}, "unused places have no label"
    newest: deque = deque(maxlen=30)  # 30 is no multiple of the 12 images of a batch: the oldest leave one by one
    for step in (1, 2, 3, 4):
        batch, noise = batch_for(algorithm, step), noise_for(algorithm, step)
        whole, _ = algorithm.make_views(batch.images, noise)
        with torch.no_grad():
            keys = embed(algorithm.key_embedding, features_of(algorithm.key_network, whole))
        newest.extendleft(zip(keys, batch.labels, strict=True))
        update(algorithm, batch)
        n = len(newest)
        rows, labels = (torch.stack(column) for column in zip(*newest, strict=True))
        torch.testing.assert_close(algorithm.queue[:n].double(), rows, rtol=1e-4, atol=1e-5)
        assert algorithm.queue_labels[:n].equal(labels)
        assert (algorithm.queue_labels[n:] == -1).all()
    tiny = make("eisnet", queue_size=5)
    update(tiny, batch_for(tiny))
    assert tiny.queue_labels.equal(batch_for(tiny).labels[-5:].flip(0))


def test_the_key_network_is_the_average_of_the_weights_after_each_step():
    algorithm = make("eisnet", networks.build("test_resnet", 5, freeze_bn=False), shape=(3, 32, 32), ema=0.9, lr=0.01)
    live = dict(algorithm.predictor.named_parameters()) | {"embedding": algorithm.embedding.weight}
    averages = {name: weight.detach().double() for name, weight in live.items()}
    statistics = copy.deepcopy(algorithm.predictor.state_dict())
    for step in (1, 2, 3):
        update(algorithm, batch_for(algorithm, step, (3, 32, 32)))
        averages = {name: 0.9 * mean + 0.1 * live[name].detach().double() for name, mean in averages.items()}
    copied = dict(algorithm.key_network.named_buffers())
    for name, mean in averages.items():
        found = algorithm.key_embedding.weight if name == "embedding" else copied[name]
        torch.testing.assert_close(found.double(), mean, rtol=1e-5, atol=1e-6)
        assert not found.equal(live[name])
    norms = [name for name in copied if "running" in name]
    assert norms
    assert all(copied[name].equal(statistics[name]) for name in norms), "its statistics never move"
    assert not any(algorithm.predictor.get_buffer(name).equal(statistics[name]) for name in norms)


def test_with_sam_the_queue_is_that_of_the_first_pass_and_the_average_follows_the_step():
    plain, algorithm = make("eisnet"), make("eisnet+sam", rho=0.5, ema=0.9)
    batch = batch_for(plain)
    before = algorithm.key_embedding.weight.clone()
    for each in (plain, algorithm):
        update(each, batch)
    assert algorithm.queue.equal(plain.queue)
    wanted = 0.9 * before + 0.1 * algorithm.embedding.weight
    torch.testing.assert_close(algorithm.key_embedding.weight, wanted)


def test_pooled_batches_have_views_and_pairs_too():
    algorithm, pooled = make("eisnet", batch_size=4), make("eisnet", batch_size=12)
    tell(pooled, pooled=True)
    assert pooled.n_images == algorithm.n_images == 12
    batch = batch_for(algorithm)
    assert pooled.loss(batch, noise_for(pooled)).equal(algorithm.loss(batch, noise_for(algorithm)))


# --- what it learns ------------------------------------------------------------------------------------------------


class Pixels(nn.Module):
    """A linear map from all pixels to features, and a linear head."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(81, 16), nn.Linear(16, 2)

    def forward_features(self, images):
        return self.body(images.flatten(1))

    def forward_head(self, features, pre_logits=False):
        return features if pre_logits else self.head(features)

    def get_classifier(self):
        return self.head


@pytest.mark.slow
def test_it_learns_the_order_of_tiles_and_brings_classes_together():
    """Tiles of different brightness tell their order; noise of the class makes the embeddings."""

    def draw(step):
        generator = torch.Generator().manual_seed(step)
        labels = torch.randint(0, 2, (64,), generator=generator)
        ramp = torch.arange(9.0).view(3, 3).repeat_interleave(3, 0).repeat_interleave(3, 1) / 4 - 1
        images = ramp + (2.0 * labels - 1)[:, None, None] * torch.eye(9) * 0.5
        return (images + 0.3 * torch.randn((64, 9, 9), generator=generator))[:, None], labels

    torch.manual_seed(0)
    algorithm = make("eisnet", Pixels(), 2, (1, 9, 9), batch_size=32, lr=0.01, whole=0.0, ema=0.9, queue_size=128)

    @torch.no_grad()
    def measured():
        images, labels = draw(999)
        noise = noise_for(algorithm, 999)
        whole, tiles = algorithm.make_views(images, noise)
        right = algorithm.jigsaw_head(algorithm.features(tiles)).argmax(1) == noise["tile_order"]
        rows = embed(algorithm.embedding, algorithm.features(whole))
        distances, same = torch.cdist(rows, rows), labels[:, None] == labels
        return right.double().mean().item(), (distances[same].mean() / distances[~same].mean()).item()

    before = measured()
    for step in range(1, 151):
        images, labels = draw(step)
        update(algorithm, batch_for(algorithm, step, (1, 9, 9))._replace(images=images, labels=labels))
    after = measured()
    assert after[0] > 0.5 > before[0]
    assert after[1] < 0.8 * before[1]
