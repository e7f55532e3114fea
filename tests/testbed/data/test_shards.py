"""Tar shards give the images of the folders that they were made from."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from helpers.batches import batch_at, train_loader
from helpers.image_files import write_image
from swad.testbed.data import benchmarks, shards, verify
from swad.testbed.data.cache import default_folder
from swad.testbed.data.splits import hold_out
from swad.testbed.training.dataset import domain_contents
from swad.util.images import DataError

SIZES = {"train": 5, "val": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("imagenet")
    for split, n in SIZES.items():
        for c, name in enumerate(("n01", "n02")):
            for i in range(n):
                write_image(root / split / name / f"{name}_{i}.JPEG", 14 + i, 17, seed=100 * c + 10 * n + i)
    return root


def add(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    shard.addfile(member, io.BytesIO(content))


def pack(folder: Path, root: Path, style: str) -> Path:
    """Write two shards for training and one for validation: classes by number, by name, or by folder."""
    for split in SIZES:
        files = sorted((folder / split).rglob("*.JPEG"))
        for k in range(2 if split == "train" else 1):
            (root / split).mkdir(parents=True, exist_ok=True)
            path = root / f"x-{split}-{k}.tar" if style == "number" else root / split / f"{k}.tar"
            with tarfile.open(path, "w") as shard:
                for file in files[k::2] if split == "train" else files:
                    stem = file.parent.name + "/" * (style == "folder") + file.stem
                    add(shard, f"{stem}.JPEG", file.read_bytes())
                    text = str(int(file.parent.name[1:]) - 1) if style == "number" else file.parent.name
                    if style != "folder":
                        add(shard, f"{stem}.cls", text.encode())
    return root


@pytest.mark.parametrize("style", ["number", "name", "folder"])
def test_shards_give_the_images_of_folders(folder, tmp_path, style):
    root = pack(folder, tmp_path / style, style)
    if style == "number":
        (root / "classes.txt").write_text("n01\nn02\n")
    sides = [hold_out(benchmarks.load("imagenet", path), None).sources for path in (folder, root)]
    assert sides[0].classes == sides[1].classes == ("n01", "n02")
    for splits in zip(*((side.train[0], side.val[0]) for side in sides), strict=True):
        images = [
            sorted((int(split.domain.labels[key]), np.asarray(split.domain.image(key)).tobytes()) for key in split.keys)
            for split in splits
        ]
        assert images[0] == images[1]
        assert len(images[0]) == 2 * SIZES[splits[0].split]
    loader = train_loader(sides[1].train, sides[1].image_spec, 4, seed=1, workers=0, epochs=True)
    assert batch_at(loader, 1).images.shape == (4, 3, 224, 224)


def test_an_index_is_made_once(folder, tmp_path, monkeypatch):
    root = pack(folder, tmp_path, "name")
    benchmarks.load("imagenet", root)
    monkeypatch.setattr(shards, "make_index", lambda path: pytest.fail(f"{path} was read again"))
    assert len(benchmarks.load("imagenet", root).domains[0]) == 14
    os.utime(root / "train" / "0.tar", ns=(0, 0))
    with pytest.raises(pytest.fail.Exception, match=r"0\.tar was read again"):
        benchmarks.load("imagenet", root)


def test_classes_without_a_name_or_training_images_are_refused(folder, tmp_path):
    root = pack(folder, tmp_path, "number")
    (root / "classes.txt").write_text("n01\n")
    with pytest.raises(DataError, match=r"classes.txt names 1 classes, and shards have class 1: name all, one a line"):
        benchmarks.load("imagenet", root)
    with tarfile.open(root / "x-val-0.tar", "a") as shard:
        add(shard, "new.jpg", b"")
        add(shard, "new.cls", b"2")
    with pytest.raises(DataError, match="class 2 has images in shards of val or test, but not of train: add some"):
        benchmarks.load("imagenet", root)


def test_a_split_is_a_word_of_its_own(folder, tmp_path):
    for path in pack(folder, tmp_path, "number").glob("*.tar"):
        path.rename(path.with_name(f"latest_{path.name}"))
    assert benchmarks.load("imagenet", tmp_path).domains[0].split_sizes == (10, 4, 0)


def test_another_shard_is_another_dataset(folder, tmp_path):
    root = pack(folder, tmp_path, "name")
    before = domain_contents(benchmarks.load("imagenet", root))
    assert domain_contents(benchmarks.load("imagenet", root)) == before
    with (root / "train" / "1.tar").open("ab") as shard:
        shard.write(bytes(512))
    assert domain_contents(benchmarks.load("imagenet", root)) != before


@pytest.mark.parametrize("sharded", [False, True])
def test_a_check_decodes_every_image(folder, tmp_path, sharded):
    root = pack(folder, tmp_path, "folder") if sharded else shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    assert verify.check(root, "imagenet").ok
    if sharded:
        with tarfile.open(root / "val" / "1.tar", "w") as shard:
            add(shard, "n01/._x.JPEG", b"attributes of macOS: no image of the dataset")
            add(shard, "n01/x.JPEG", b"damaged")
    else:
        (root / "val/n01/x.JPEG").write_bytes(b"damaged")
    result = verify.check(root, "imagenet")
    (bad,) = result.bad
    assert (bad.path.parent.name, result.decoded) == ("1.tar" if sharded else "n01", 2 * sum(SIZES.values()))
    assert not verify.check(root, "imagenet", decode=False).bad


def test_images_that_would_be_lost_are_named(folder, tmp_path):
    shard = next((pack(folder, tmp_path, "folder") / "train").glob("*.tar"))
    before = len(shards.make_index(shard).offsets)
    with tarfile.open(shard, "a") as tar:
        add(tar, "n01/photo.1.jpg", b"")
        add(tar, "n01/photo.1.jpg", b"the newer of two members with one name counts")
    assert shards.make_index(shard).sizes.tolist()[before:] == [45]
    with tarfile.open(shard, "a") as tar:
        add(tar, "n01/photo.2.jpg", b"")
    names = "n01/photo.1.jpg and n01/photo.2.jpg"
    with pytest.raises(DataError, match=f"must differ in their names up to the first dot, got {names}: rename one"):
        shards.make_index(shard)
    with tarfile.open(shard, "w") as tar:
        link = tarfile.TarInfo("n01/link.jpg")
        link.type, link.linkname = tarfile.LNKTYPE, "n01/photo.1.jpg"
        tar.addfile(link)
    with pytest.raises(DataError, match=r"must be plain files, but n01/link.jpg is a link: write the shard with tar"):
        shards.make_index(shard)


def test_a_class_that_is_a_link_to_nothing_is_one_line(tmp_path):
    path = tmp_path / "train-0.tar"
    with tarfile.open(path, "w") as tar:
        add(tar, "n01/photo.jpg", b"")
        link = tarfile.TarInfo("n01/photo.cls")
        link.type, link.linkname = tarfile.SYMTYPE, "missing.cls"
        tar.addfile(link)
    with pytest.raises(DataError, match=r"cannot read shard .*train-0.tar: .*missing.cls"):
        shards.make_index(path)


def test_a_damaged_index_is_made_again(folder, tmp_path):
    root = pack(folder, tmp_path, "name")
    before = benchmarks.load("imagenet", root).domains[0]
    indices = list((default_folder() / "shards").glob("*.npz"))
    assert indices
    for damage in (b"", b"PK\x03\x04 damaged"):
        for index in indices:
            index.write_bytes(damage)
        assert (benchmarks.load("imagenet", root).domains[0].offsets == before.offsets).all()


def test_damaged_shards_are_one_line(folder, tmp_path):
    root = pack(folder, tmp_path, "name")
    domain = benchmarks.load("imagenet", root).domains[0]
    (root / "train" / "0.tar").write_bytes(b"no tar" * 100)
    with pytest.raises(DataError, match=r"cannot read shard .*0\.tar: .*; restore it, uncompressed"):
        benchmarks.load("imagenet", root)
    with pytest.raises(DataError, match=r"cannot decode image .*0\.tar.byte \d+: .*; replace or remove it"):
        domain.image(0)
    with tarfile.open(root / "train" / "0.tar", "w") as shard:
        add(shard, "a.jpg", b"")
    with pytest.raises(DataError, match=r"need a class, a \.cls file or a folder: image a has none"):
        benchmarks.load("imagenet", root)
    for path in (root / "val").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="needs shards for training and validation"):
        benchmarks.load("imagenet", root)
