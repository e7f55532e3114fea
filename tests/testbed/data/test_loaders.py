"""Batches are pure functions of the seed and the step."""

import multiprocessing
import os
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.batches import batch_at, iterate, keys_at, train_loader
from swad.testbed.data.augmentation import Augmentation
from swad.testbed.data.domains import ArrayDomain, Dataset, FileDomain, ImageSpec
from swad.testbed.data.loaders import EvalLoader, Loader
from swad.testbed.data.sampling import draw_indices
from swad.testbed.data.splits import hold_out

SMALL = ImageSpec(size=6, low_res=True, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
LARGE = ImageSpec(size=16)
GOLDEN_DRAW = [141, 2, 266, 144, 379]


def arrays(image_spec: ImageSpec) -> Dataset:
    draw = np.random.RandomState(0)
    domains = tuple(
        ArrayDomain(
            name,
            draw.randint(0, 4, 30 + i).astype(np.int64),
            draw.randint(0, 256, (30 + i, 6, 6, 3)).astype(np.uint8),
        )
        for i, name in enumerate("abc")
    )
    return Dataset("arrays", domains, tuple("wxyz"), image_spec)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Dataset:
    root = tmp_path_factory.mktemp("files")
    draw = np.random.RandomState(0)
    domains = []
    for name in "abc":
        paths = []
        for i in range(12):
            paths.append(f"{name}{i}.png")
            Image.fromarray(draw.randint(0, 256, (20, 24, 3)).astype(np.uint8)).save(root / paths[-1])
        domains.append(FileDomain(name, np.arange(12, dtype=np.int64) % 4, root, tuple(paths)))
    return Dataset("files", tuple(domains), tuple("wxyz"), LARGE)


def train(dataset: Dataset, **options) -> Loader:
    sources = hold_out(dataset, "c").sources
    return train_loader(sources.train, sources.image_spec, **{"batch_size": 4, "seed": 7} | options)


def same(left, right) -> bool:
    return left.step == right.step and torch.equal(left.images, right.images) and torch.equal(left.labels, right.labels)


def test_a_batch_is_domain_major():
    dataset = arrays(SMALL)
    batches = train(dataset)
    batch = batch_at(batches, 1)
    assert batch.images.shape == (8, 3, 6, 6)
    assert batch.images.dtype == torch.float32
    assert batch.labels.dtype == torch.int64
    for i, keys in enumerate(keys_at(batches, 1)):
        domain = dataset.domains[i]
        expected = torch.from_numpy(domain.images[keys]).permute(0, 3, 1, 2).float() / 255
        torch.testing.assert_close(batch.images[4 * i : 4 * i + 4], (expected - 0.5) / 0.25)
        assert batch.labels[4 * i : 4 * i + 4].tolist() == domain.labels[keys].tolist()


def test_only_training_images_of_the_sources_are_drawn():
    dataset = arrays(SMALL)
    sources = hold_out(dataset, "c").sources
    batches = train(dataset, batch_size=16)
    seen = [set(), set()]
    for step in range(1, 60):
        for i, keys in enumerate(keys_at(batches, step)):
            seen[i] |= set(keys.tolist())
    assert seen == [set(split.keys.tolist()) for split in sources.train]


@pytest.mark.parametrize("kind", ["arrays", "files"])
def test_resuming_at_a_step_equals_the_unbroken_run(kind, files):
    dataset = files if kind == "files" else arrays(SMALL)
    unbroken = list(iterate(train(dataset), 1, 5))
    assert [batch.step for batch in unbroken] == [1, 2, 3, 4, 5]
    resumed = list(iterate(train(dataset), 4, 5))
    assert all(map(same, unbroken[3:], resumed))
    assert same(batch_at(train(dataset), 3), unbroken[2])
    assert not same(batch_at(train(dataset, seed=8), 3), unbroken[2])


def test_any_number_of_workers_gives_the_same_bits(files):
    alone = list(iterate(train(files, workers=0), 1, 4))
    many = list(iterate(train(files, workers=2), 1, 4))
    assert len(many) == 4
    assert all(map(same, alone, many))


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone")
@pytest.mark.parametrize("default", ["spawn", "forkserver"])
def test_workers_need_no_pickled_loader(files, default):
    """Of a launcher's processes, and from Python 3.14 on, these are the defaults. Functions cannot be pickled."""
    batches, before = train(files, workers=1), multiprocessing.get_start_method(allow_none=True)
    normalize, process = batches.images.prepare, os.getpid()
    batches.images.prepare = lambda images: normalize(images) if os.getpid() == process else pytest.fail("in a worker")
    multiprocessing.set_start_method(default, force=True)
    try:
        assert same(next(iterate(batches, 3, 3)), batch_at(train(files), 3))
    finally:
        multiprocessing.set_start_method(before, force=True)


def test_an_unfinished_iterator_with_workers_can_be_left(files):
    stream = train(files, workers=1).inputs(1, 10**9)
    assert [next(stream)[0] for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("kind", ["arrays", "files"])
def test_the_shares_of_all_ranks_make_the_batch_of_one_process(kind, files):
    dataset = files if kind == "files" else arrays(SMALL)
    whole = batch_at(train(dataset, batch_size=4), 2)
    shares = [batch_at(train(dataset, batch_size=4, rank=rank, world_size=2), 2) for rank in range(2)]
    for which in ("images", "labels"):
        halves = [getattr(share, which).unflatten(0, (2, 2)) for share in shares]
        together = torch.cat(halves, dim=1).flatten(0, 1)
        assert torch.equal(together, getattr(whole, which))


@pytest.mark.parametrize("kind", ["arrays", "files"])
def test_a_pooled_batch_is_drawn_from_all_source_images(kind, files):
    dataset = files if kind == "files" else arrays(SMALL)
    sources = hold_out(dataset, "c").sources
    pooled, parts = train(dataset, pooled=True, batch_size=6), sources.train
    images = [(i, key) for i, part in enumerate(parts) for key in part.keys.tolist()]
    for step in (1, 2):
        batch = batch_at(pooled, step)
        assert batch.images.shape[0] == 6
        drawn = [images[j] for j in draw_indices(7, step, 0, len(images), 6)]
        assert batch.domains.tolist() == [i for i, _ in drawn]
        assert batch.labels.tolist() == [parts[i].domain.labels[key] for i, key in drawn]
        if kind == "arrays":  # which are not augmented
            pixels = np.stack([parts[i].domain.images[key] for i, key in drawn]).transpose(0, 3, 1, 2)
            torch.testing.assert_close(batch.images, (torch.from_numpy(pixels) / 255 - 0.5) / 0.25)
    shares = [batch_at(train(dataset, pooled=True, batch_size=6, rank=rank, world_size=2), 2) for rank in range(2)]
    for which in ("images", "labels", "domains"):
        assert torch.cat([getattr(share, which) for share in shares]).equal(getattr(batch, which))
    assert batch_at(train(dataset), 1).domains is None


def test_the_global_random_state_is_unchanged(files):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    numpy_before = np.random.get_state()[1].copy()
    first = batch_at(train(files), 1)
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numpy_before).all()
    torch.manual_seed(6)
    assert same(batch_at(train(files), 1), first)


def test_one_image_is_augmented_differently_at_each_position(files):
    split = hold_out(files, "c").sources.train[0]
    one = type(split)(split.domain, "train", split.keys[:1])
    images = batch_at(train_loader([one], LARGE, 6, 0), 1).images
    assert len({tuple(image.flatten().tolist()) for image in images}) == 6


def test_the_first_of_several_views_is_that_of_a_single_one(files):
    single, double = batch_at(train(files), 1), batch_at(train(files, views=2), 1)
    assert double.images.shape == (2, *single.images.shape)
    assert torch.equal(double.images[0], single.images)
    assert not torch.equal(double.images[1], single.images)
    small = batch_at(train(arrays(SMALL), views=2), 1)
    assert torch.equal(small.images[0], small.images[1])


def test_drawn_indices_never_change():
    assert draw_indices(0, 1, 0, 1000, 5).tolist() == GOLDEN_DRAW
    assert draw_indices(0, 2, 0, 1000, 5).tolist() != GOLDEN_DRAW


@pytest.mark.parametrize("kind", ["arrays", "files"])
def test_evaluation_passes_once_over_the_split_in_order(kind, files):
    dataset = files if kind == "files" else arrays(SMALL)
    split = hold_out(dataset, "c").target.full[0]
    batches = EvalLoader(split, dataset.image_spec, batch_size=5, workers=0)
    labels = torch.cat([labels for _, labels in batches])
    assert labels.tolist() == split.labels.tolist()
    assert len(batches) == len(split)
    again = list(batches)
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(batches, again, strict=True))


def test_evaluation_with_workers_and_kept_bytes(files):
    whole = np.concatenate([np.arange(12)] * 4)
    split = type(hold_out(files, "c").target.full[0])(files.domains[0], "full", whole)
    plain = list(EvalLoader(split, LARGE, 10, workers=0))
    kept = EvalLoader(split, LARGE, 10, workers=2, keep=True)
    for _ in range(2):
        got = list(kept)
        assert len(got) == len(plain) == 5
        assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(plain, got, strict=True))


def test_evaluation_ranks_cover_everything_once(files):
    split = hold_out(files, "c").target.full[0]
    for options in ({}, {"augmentation": Augmentation(), "seed": 3}):
        whole = torch.cat([x for x, _ in EvalLoader(split, LARGE, 5, workers=0, **options)])
        shares = [EvalLoader(split, LARGE, 5, workers=0, rank=rank, world_size=2, **options) for rank in range(2)]
        assert sum(map(len, shares)) == len(split)
        for rank, share in enumerate(shares):
            assert torch.equal(torch.cat([x for x, _ in share]), whole[rank::2])


def test_whole_batches_are_dealt_to_the_ranks(files):
    """For models whose predictions depend on the other images of a batch."""
    split = hold_out(files, "c").target.full[0]
    batches = [images for images, _ in EvalLoader(split, LARGE, 5, workers=0)]
    for rank in range(2):
        share = EvalLoader(split, LARGE, 5, workers=0, whole_batches=True, rank=rank, world_size=2)
        assert all(torch.equal(*pair) for pair in zip((x for x, _ in share), batches[rank::2], strict=True))
