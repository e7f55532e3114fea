"""The image cache holds the right bytes, is built once, and is rebuilt when it does not match the files."""

import errno
import fcntl
import json
import os
import random
import weakref
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.image_files import damage_data, decode_all, fail_on_log, make_files, only_cache, read, write_image
from helpers.special_files import at_most, replace_by
from swad.testbed.data import cache as cache_module
from swad.testbed.data import cache_build
from swad.testbed.data.cache import default_folder, open_cache
from swad.testbed.data.cache_build import FORMAT, IMAGES, INDEX, index_checksum
from swad.testbed.data.domains import ArrayDomain, Dataset
from swad.util.images import DataError

# --- content ----------------------------------------------------------------------------------------


def test_images_of_one_small_size_keep_it(root, folder):
    dataset = read(root)
    cache = open_cache(dataset, folder, log=fail_on_log)
    assert isinstance(cache.images, np.memmap)
    assert cache.images.shape == (10, 20, 24, 3)
    assert (cache.images == decode_all(dataset)).all()
    assert cache.sizes.tolist() == [[20, 24]] * 10
    assert cache.sizes.dtype == np.int64
    assert cache.starts == {"a": 0, "b": 5}
    assert cache.describe() == "image cache: all 10 images have their original size of 20 × 24"
    with pytest.raises(ValueError, match="read-only"):
        cache.images[0] = 0


def test_images_of_several_sizes_become_256_squares(tmp_path, folder):
    dataset = read(make_files(tmp_path / "data", sizes=((20, 24), (300, 256), (256, 256))))
    cache = open_cache(dataset, folder, log=fail_on_log)
    assert (cache.images == decode_all(dataset, (256, 256))).all()
    assert cache.sizes[:4].tolist() == [[20, 24], [300, 256], [256, 256], [20, 24]]
    assert cache.describe() == "image cache: 8 of 10 images were resized to 256 × 256"


def test_large_images_become_squares_of_256_or_of_the_requested_size(tmp_path, folder):
    dataset = read(make_files(tmp_path / "data", per_domain=1, sizes=((257, 200),)))
    assert open_cache(dataset, folder).images.shape == (2, 256, 256, 3)
    small = open_cache(dataset, folder, 16, log=fail_on_log)
    assert (small.images == decode_all(dataset, (16, 16))).all()
    assert len([entry for entry in folder.iterdir() if entry.is_dir()]) == 2


def test_a_dataset_in_memory_needs_no_file(folder):
    images = np.random.RandomState(0).randint(0, 256, (6, 8, 8, 2)).astype(np.uint8)
    domains = tuple(ArrayDomain(name, np.zeros(3, np.int64), images[i : i + 3]) for name, i in (("a", 0), ("b", 3)))
    cache = open_cache(Dataset("arrays", domains, ("one",)), folder, log=fail_on_log)
    assert (cache.images == images).all()
    assert (cache.starts["b"], cache.path, folder.exists()) == (3, None, False)
    assert cache.describe() == "image cache: all 6 images have their original size of 8 × 8"


def test_arrays_of_another_size_are_resized_and_changes_are_noticed(folder):
    def dataset(seed: int) -> Dataset:
        images = np.random.RandomState(seed).randint(0, 256, (3, 8, 10, 2)).astype(np.uint8)
        return Dataset("arrays", (ArrayDomain("a", np.zeros(3, np.int64), images),), ("one",))

    cache = open_cache(dataset(0), folder, 6, log=fail_on_log)
    assert cache.images.shape == (3, 6, 6, 2)
    channel = Image.fromarray(dataset(0).domains[0].images[1, :, :, 1]).resize((6, 6), Image.Resampling.BILINEAR)
    assert (cache.images[1, :, :, 1] == np.asarray(channel)).all()
    lines: list[str] = []
    assert (open_cache(dataset(1), folder, 6, log=lines.append).images != cache.images).any()
    assert "the images or the format changed since arrays-" in lines[0]


def test_the_folder_comes_from_the_environment(root, tmp_path, monkeypatch):
    monkeypatch.setenv("SWAD_CACHE", str(tmp_path / "elsewhere"))
    assert open_cache(read(root)).path.parent == default_folder() == tmp_path / "elsewhere"
    monkeypatch.delenv("SWAD_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "swad" / "images"


# --- reuse ----------------------------------------------------------------------------------------


def change_image(root: Path, folder: Path) -> None:
    write_image(root / "b" / "002.jpg", 20, 24, seed=77)


def touch_image(root: Path, folder: Path) -> None:
    file = root / "b" / "002.jpg"
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))


def add_image(root: Path, folder: Path) -> None:
    write_image(root / "a" / "900.png", 20, 24, seed=77)


def remove_image(root: Path, folder: Path) -> None:
    (root / "a" / "003.png").unlink()


def torn_index(root: Path, folder: Path) -> None:
    file = only_cache(folder) / INDEX
    file.write_bytes(file.read_bytes()[:100])


def deep_index(root: Path, folder: Path) -> None:
    (only_cache(folder) / INDEX).write_text("[" * 100_000)


def endless_index(root: Path, folder: Path) -> None:
    replace_by("pipe", only_cache(folder) / INDEX)


def poor_index(root: Path, folder: Path) -> None:
    (only_cache(folder) / INDEX).write_text(json.dumps({"name": only_cache(folder).name}))


def change_index(folder: Path, **changes: object) -> None:
    """Replace entries of the index, with a right checksum."""
    file = only_cache(folder) / INDEX
    index = json.loads(file.read_text()) | changes
    file.write_text(json.dumps(index | {"checksum": index_checksum(index)}))


def no_checksums(root: Path, folder: Path) -> None:
    damage_data(root, folder)
    change_index(folder, sha256=[])


def few_sizes(root: Path, folder: Path) -> None:
    change_index(folder, sizes=[[20, 24]] * 3)


def other_shape(root: Path, folder: Path) -> None:
    change_index(folder, shape=[20, 10, 24, 3], sizes=[[20, 24]] * 10)


def empty_shape(root: Path, folder: Path) -> None:
    change_index(folder, shape=[10, 0, 24, 3])


def other_name(root: Path, folder: Path) -> None:
    change_index(folder, name="PACS-0-1")


def wrong_index(root: Path, folder: Path) -> None:
    file = only_cache(folder) / INDEX
    file.write_text(file.read_text().replace("[20, 24]", "[20, 25]", 1))


def no_index(root: Path, folder: Path) -> None:
    (only_cache(folder) / INDEX).unlink()


def short_data(root: Path, folder: Path) -> None:
    os.truncate(only_cache(folder) / IMAGES, 1000)


CHANGED = "the images or the format changed since two_domains-"


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (change_image, CHANGED),
        (touch_image, CHANGED),
        (add_image, CHANGED),
        (remove_image, CHANGED),
        (torn_index, "it cannot be read (JSONDecodeError"),
        (deep_index, "it cannot be read (ValueError: nested too deeply)"),
        (endless_index, "it cannot be read (OSError: "),
        (poor_index, "it cannot be read (KeyError: 'checksum')"),
        (wrong_index, "it cannot be read (ValueError: wrong checksum of index.json)"),
        (no_checksums, "it cannot be read (IndexError"),
        (few_sizes, "it cannot be read (ValueError: cannot reshape"),
        (other_shape, "it cannot be read (ValueError: cannot reshape"),
        (empty_shape, "it cannot be read (ZeroDivisionError"),
        (other_name, "it cannot be read (ValueError: it is the cache PACS-0-1)"),
        (no_index, "it cannot be read (FileNotFoundError"),
        (short_data, "it cannot be read (ValueError: mmap length is greater than file size)"),
        (damage_data, "it cannot be read (ValueError: images 0 to 63 are damaged, wrong checksum)"),
    ],
)
def test_an_outdated_or_damaged_cache_is_rebuilt_with_the_reason(root, folder, harm, reason):
    open_cache(read(root), folder)
    harm(root, folder)
    lines: list[str] = []
    with at_most(20):
        cache = open_cache(read(root), folder, log=lines.append)
    assert len(lines) == 1
    assert reason in lines[0]
    assert lines[0].startswith(f"image cache {cache.path}: ")
    assert lines[0].endswith("; rebuilding it")
    assert "\n" not in lines[0]
    assert (cache.images == decode_all(read(root))).all()
    assert open_cache(read(root), folder, log=fail_on_log).images.shape == cache.images.shape
    assert only_cache(folder) == cache.path


def test_another_format_is_another_directory_that_replaces_the_old_one(root, folder, monkeypatch):
    before = open_cache(read(root), folder)
    monkeypatch.setattr(cache_build, "FORMAT", FORMAT + 1)
    lines: list[str] = []
    after = open_cache(read(root), folder, log=lines.append)
    assert before.path.name in lines[0]
    assert after.path != before.path
    assert only_cache(folder) == after.path


def test_caches_of_other_images_and_sizes_stay(root, folder, tmp_path):
    other = make_files(tmp_path / "other")
    kept = [open_cache(read(root), folder, 16), open_cache(read(other), folder)]
    for _ in range(2):
        touch_image(root, folder)
        open_cache(read(root), folder, log=lambda line: None)
    assert all(cache.path.is_dir() for cache in kept)
    assert len([entry for entry in folder.iterdir() if entry.is_dir()]) == 3


def test_no_flipped_bit_of_an_index_changes_what_is_read(root, folder):
    want = open_cache(read(root), folder, log=fail_on_log)
    file, rng = only_cache(folder) / INDEX, random.Random(0)
    content = file.read_bytes()
    everywhere = range(len(content))
    for number in range(60):
        damaged = bytearray(content)
        damaged[rng.choice(everywhere)] ^= 1 << rng.randrange(8)
        file.write_bytes(damaged)
        os.utime(file, ns=(0, number))  # two writes may fall into one tick of the clock
        cache = open_cache(read(root), folder, workers=1, log=lambda line: None)
        assert (cache.sizes == want.sizes).all()
        assert (cache.images == want.images).all()
        assert cache.starts == want.starts


def test_without_a_log_the_reason_is_a_warning(root, folder):
    open_cache(read(root), folder)
    touch_image(root, folder)
    with pytest.warns(UserWarning, match="rebuilding it"):
        open_cache(read(root), folder)


def test_a_reader_keeps_its_images_while_another_process_rebuilds(root, folder):
    held = open_cache(read(root), folder)
    before = decode_all(read(root))
    change_image(root, folder)
    assert (open_cache(read(root), folder, log=lambda line: None).images != before).any()
    assert (held.images == before).all()
    known = weakref.ref(held)
    del held
    assert known() is None, "a deleted file that is still mapped would take disk space"


def test_a_read_only_cache_can_be_used(root, folder, monkeypatch):
    first = open_cache(read(root), folder)
    real = os.open

    def read_only(path, flags, *arguments):
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *arguments)

    monkeypatch.setattr(os, "open", read_only)
    assert open_cache(read(root), folder, log=fail_on_log).path == first.path
    with pytest.raises(DataError, match=r"Read-only file system.; free disk space or choose another directory"):
        open_cache(read(root), folder, 16)


def test_a_file_system_without_locks_is_a_warning(root, folder, monkeypatch):
    def no_locks(fd, kind):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.warns(UserWarning, match="cannot lock .*: make sure only one process writes"):
        assert (open_cache(read(root), folder, log=fail_on_log).images == decode_all(read(root))).all()


# --- the next run of a process ----------------------------------------------------------------------


def test_a_cache_is_verified_once_per_process(root, folder, monkeypatch):
    first = open_cache(read(root), folder)
    verified = []
    checksum = cache_module.index_checksum
    monkeypatch.setattr(cache_module, "index_checksum", lambda index: verified.append(index) or checksum(index))
    assert open_cache(read(root), folder, log=fail_on_log) is first
    assert not verified
    # Another time of modification is enough: the file may hold other bytes now.
    os.utime(only_cache(folder) / IMAGES, ns=(0, 0))
    assert open_cache(read(root), folder, log=fail_on_log) is not first
    assert len(verified) == 1


# --- errors ----------------------------------------------------------------------------------------


def test_a_file_instead_of_a_directory_is_a_one_line_error(root, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SWAD_CACHE", str(tmp_path / "file"))
    for given, option in ((tmp_path / "file", "--cache"), (None, "--cache or SWAD_CACHE")):
        with pytest.raises(DataError, match=rf"cannot write image cache .* choose another directory with {option}$"):
            open_cache(read(root), given)


def test_images_that_change_during_the_build_are_noticed(root, folder):
    def disturb(*state: object) -> None:
        change_image(root, folder)

    with pytest.raises(DataError, match=r"the images changed while it was being built; try again"):
        open_cache(read(root), folder, progress=disturb)
    assert not [entry for entry in folder.iterdir() if entry.is_dir()]


def test_a_cache_in_a_directory_that_cannot_be_written_is_read(root, folder, monkeypatch):
    built = open_cache(read(root), folder)
    next(folder.glob("*.lock")).unlink()
    opening = os.open

    def read_only(path, flags, *mode, **options):
        if str(path).startswith(str(folder)) and flags & (os.O_CREAT | os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EROFS, "Read-only file system", path)
        return opening(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", read_only)
    assert (open_cache(read(root), folder, log=fail_on_log).images == built.images).all()
    damage_data(root, folder)
    with pytest.raises(DataError, match=r"cannot write image cache .*Read-only file system.*choose another directory"):
        open_cache(read(root), folder)
