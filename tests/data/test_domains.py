"""Splits, and a target that cannot leak."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from swad.data.domains import ArrayDomain, DataError, Dataset, FileDomain, read_image
from swad.data.splits import HeldOut, hold_out, split, split_seed, subsample


def domain(name: str, n: int, value: int = 0, classes: int = 3) -> ArrayDomain:
    images = np.full((n, 4, 4, 3), value, np.uint8)
    return ArrayDomain(name, np.arange(n, dtype=np.int64) % classes, images)


def toy() -> Dataset:
    return Dataset("toy", tuple(domain(n, 20 + 5 * i, i) for i, n in enumerate("abcd")), ("x", "y", "z"))


def test_the_protocols_check_values():
    assert [split_seed(0, i) for i in range(4)] == [894182419, 1514274641, 1325548499, 1796103049]
    cut = split(2048, 0, 0)
    assert cut.val[:3].tolist() == [548, 677, 1997]
    assert cut.train[:3].tolist() == [895, 510, 1575]
    assert (len(cut.val), len(cut.train), len(cut.test)) == (409, 1639, 0)


@pytest.mark.parametrize("trial", [0, 1, 2])
def test_splits_are_those_of_the_published_code(trial):
    # The obvious twin: two shuffles of lists with the same seed.
    for n, index in [(2048, 0), (3929, 3), (7, 1)]:
        seed = split_seed(trial, index)
        keys = list(range(n))
        np.random.RandomState(seed).shuffle(keys)
        assert split(n, trial, index).val.tolist() == keys[: int(n * 0.2)]
        out = keys[: int(n * 0.4)]
        again = list(range(len(out)))
        np.random.RandomState(seed).shuffle(again)
        half = len(out) // 2
        three = split(n, trial, index, three_way=True)
        assert three.train.tolist() == keys[int(n * 0.4) :]
        assert three.val.tolist() == [out[i] for i in again[:half]]
        assert three.test.tolist() == [out[i] for i in again[half:]]


@given(st.integers(0, 500), st.integers(0, 50), st.integers(0, 9), st.booleans())
def test_splits_are_disjoint_and_complete(n, trial, index, three_way):
    cut = split(n, trial, index, three_way=three_way)
    assert sorted(np.concatenate(cut).tolist()) == list(range(n))
    assert all(keys.dtype == np.int64 for keys in cut)
    assert len(cut.val) + len(cut.test) == int(n * (0.4 if three_way else 0.2))


@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 5))
def test_a_smaller_subsample_is_part_of_a_larger_one(n, m, seed):
    keys = np.arange(1000, 1150, dtype=np.int64)
    small, large = (set(subsample(keys, size, seed).tolist()) for size in sorted((n, m)))
    assert small <= large <= set(keys.tolist())
    assert len(small) == min(n, m, 150)


def test_the_target_is_nowhere_in_the_sources():
    dataset = toy()
    for name in dataset.domain_names:
        sources, target = hold_out(dataset, name)
        assert name not in sources.names
        assert target.names == (name,)
        held = dataset.domains[dataset.index(name)]
        parts = (*sources.train, *sources.val, *sources.test)
        assert all(part.domain is not held for part in parts)
        # Nothing reachable from the sources refers to the held-out images.
        assert not any(value is held or value is dataset for value in vars(sources).values())
        full = np.concatenate([target.train[0].keys, target.val[0].keys])
        assert sorted(full.tolist()) == target.full[0].keys.tolist() == list(range(len(held)))


def test_a_domains_split_does_not_depend_on_the_target():
    dataset = toy()
    by_target = [hold_out(dataset, t).sources for t in ("a", "b")]
    in_c = [next(p.keys.tolist() for p in s.val if p.name == "c") for s in by_target]
    assert in_c[0] == in_c[1] == split(30, 0, 2).val.tolist()


def test_two_targets_and_three_ways():
    held = hold_out(toy(), ["a", 3], trial=1, three_way=True)
    assert isinstance(held, HeldOut)
    assert held.sources.names == ("b", "c")
    assert held.target.names == ("a", "d")
    for part, test in zip(held.sources.val, held.sources.test, strict=True):
        assert not set(part.keys.tolist()) & set(test.keys.tolist())
    assert [len(p) for p in held.target.train] == [12, 21]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("e", "no domain 'e'; it has a, b, c, d"),
        (7, "no domain 7"),
        ("abcd", "no domain"),
        (list("abcd"), "fewer than all 4"),
    ],
)
def test_a_wrong_target_is_refused_in_one_line(target, words):
    with pytest.raises(DataError, match=words) as caught:
        hold_out(toy(), target)
    assert "\n" not in str(caught.value)


def test_too_few_images_to_split():
    tiny = Dataset("tiny", (domain("a", 3), domain("b", 50)), ("x", "y", "z"))
    with pytest.raises(DataError, match=r"domain a of tiny .* too few to split"):
        hold_out(tiny, "b")


def test_domains_check_themselves(tmp_path):
    with pytest.raises(DataError, match="uint8 of shape"):
        ArrayDomain("a", np.zeros(2, np.int64), np.zeros((2, 4, 4), np.uint8))
    with pytest.raises(DataError, match="labels must be int64"):
        ArrayDomain("a", np.zeros(3, np.int64), np.zeros((2, 4, 4, 3), np.uint8))
    with pytest.raises(DataError, match="labels must be 0 or more"):
        FileDomain("a", np.array([-1]), tmp_path, ("x.png",))
    with pytest.raises(DataError, match="label 2, but there are 2 classes"):
        Dataset("toy", (domain("a", 5),), ("x", "y"))
    with pytest.raises(DataError, match="names must differ"):
        Dataset("toy", (domain("a", 5), domain("a", 5)), ("x", "y", "z"))


def test_a_broken_image_is_named(tmp_path):
    path = tmp_path / "broken.jpg"
    path.write_bytes(b"no image at all")
    with pytest.raises(DataError, match=r"cannot decode image .*broken\.jpg"):
        read_image(path)


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_sixteen_bits_of_gray_become_eight(tmp_path, suffix):
    ramp = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)
    Image.fromarray(ramp).save(tmp_path / f"deep.{suffix}")
    found = np.asarray(read_image(tmp_path / f"deep.{suffix}"))
    assert (found == np.arange(256).reshape(16, 16, 1)).all()
    # As the same picture in colors, which Pillow reads itself.
    image = Image.new("I;16B", (2, 1))
    image.putdata([300, 65535])
    image.save(tmp_path / "big_endian.tif")
    assert np.asarray(read_image(tmp_path / "big_endian.tif"))[..., 0].tolist() == [[1, 255]]


def test_sixteen_bits_that_pillow_widened_become_eight_too(tmp_path, monkeypatch):
    Image.fromarray(np.zeros((2, 2), np.uint8)).save(tmp_path / "older.png")
    wide = Image.fromarray(np.full((2, 2), 51400, np.int32))
    wide.format = "PNG"
    monkeypatch.setattr(Image, "open", lambda path: wide)
    assert (np.asarray(read_image(tmp_path / "older.png")) == 200).all()


@pytest.mark.parametrize(("kind", "mode"), [(np.int32, "I"), (np.float32, "F")])
def test_pixels_without_a_known_white_are_refused(tmp_path, kind, mode):
    Image.fromarray(np.ones((4, 4), kind)).save(tmp_path / "x.tif")
    with pytest.raises(DataError, match=rf"x\.tif: its pixels \(mode {mode}\) .* save it with 8 or 16 bits;") as caught:
        read_image(tmp_path / "x.tif")
    assert "\n" not in str(caught.value)


def test_pixels_are_as_they_lie_in_the_file(tmp_path):
    """No turning by EXIF, no blending by alpha."""
    image = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "RGBA")
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "x.png", exif=exif)
    assert (np.asarray(read_image(tmp_path / "x.png")) == np.asarray(image)[..., :3]).all()


def test_domains_and_datasets_do_not_import_torch():
    code = (
        "import sys, swad.data.domains, swad.data.benchmarks as d; d.load('digits'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
