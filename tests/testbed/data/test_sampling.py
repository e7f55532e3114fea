"""Epochs without replacement, as pure functions of the seed and the step, in parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.batches import batch_at, iterate, train_loader
from swad.testbed.data.augmentation import Augmentation
from swad.testbed.data.domains import ArrayDomain, ImageSpec
from swad.testbed.data.loaders import Loader
from swad.testbed.data.splits import DomainSplit
from swad.util.images import DataError

SPEC = ImageSpec(size=8)


def splits() -> tuple[DomainSplit, ...]:
    """Two domains of which every second image is for training: 23 in all, whose label is their number."""
    draw = np.random.RandomState(0)
    domains = [
        ArrayDomain(name, np.arange(n) + first, draw.randint(0, 256, (n, 12, 10, 3)).astype(np.uint8))
        for name, n, first in (("a", 20, 0), ("b", 26, 20))
    ]
    return tuple(DomainSplit(domain, "train", np.arange(0, len(domain), 2)) for domain in domains)


def loader(**options) -> Loader:
    return train_loader(splits(), SPEC, **{"batch_size": 6, "seed": 3, "epochs": True, **options})


def test_an_epoch_takes_every_image_at_most_once():
    batches = loader()
    assert batches.sampler.steps_per_epoch == 3
    epochs = [np.concatenate([batches.rows(3 * epoch + step) for step in (1, 2, 3)]) for epoch in range(2)]
    training = {*range(0, 20, 2), *range(20, 46, 2)}
    for rows in epochs:
        assert len(set(rows)) == 18
        assert set(rows) <= training
    assert epochs[0].tolist() != epochs[1].tolist()
    assert loader(seed=4).rows(1).tolist() != batches.rows(1).tolist()
    # The left-out images differ between epochs.
    assert set.union(*({*rows} for rows in (loader().rows(step) for step in range(1, 40)))) == training


def test_labels_and_pixels_belong_together():
    spec = ImageSpec(size=12, low_res=True)
    batch = batch_at(train_loader(splits(), spec, 6, 3, epochs=True), 2)
    domains = [split.domain for split in splits()]
    images = {int(d.labels[i]): d.images[i] for d in domains for i in range(len(d))}
    mean, std = np.array(spec.mean), np.array(spec.std)
    for image, label in zip(batch.images, batch.labels.tolist(), strict=True):
        expected = (images[label] / 255 - mean) / std
        np.testing.assert_allclose(image.permute(1, 2, 0).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"micro_batch": 2}, {"micro_batch": 3, "workers": 1}], ids=str)
def test_a_batch_depends_on_the_seed_and_the_step_alone(options):
    for step, batch in enumerate(iterate(loader(**options), 2, 5), start=2):
        expected = batch_at(loader(), step)
        assert batch.step == step
        assert batch.labels.equal(expected.labels)
        assert batch.images.equal(expected.images)


def test_parts_and_processes_share_a_batch():
    whole = batch_at(loader(), 4)
    ranks = [loader(rank=rank, world_size=2, micro_batch=2) for rank in range(2)]
    assert [rank.n_parts for rank in ranks] == [3, 3]  # 3 images do not divide into parts of 2
    parts = [batch_at(rank, 4) for rank in ranks]
    assert torch.cat([part.images for part in parts]).equal(whole.images)
    assert torch.cat([part.labels for part in parts]).equal(whole.labels)


def test_an_image_is_cropped_anew_in_every_step():
    images = np.random.RandomState(0).randint(0, 256, (1, 40, 60, 3), np.uint8)
    split = DomainSplit(ArrayDomain("a", np.zeros(1, np.int64), images), "train", np.arange(1))
    batches = train_loader([split], SPEC, 1, 3, epochs=True, augmentation=Augmentation(jitter=0, grayscale=0))
    assert not batch_at(batches, 1).images.equal(batch_at(batches, 2).images)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(DataError, match="parts of up to 3 images, but 7 divide only into parts of 1: choose"):
        loader(batch_size=7, micro_batch=3)
    with pytest.raises(DataError, match="must not exceed the 23 training images, got 24: lower batch_size"):
        loader(batch_size=24)
