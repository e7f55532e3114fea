"""The image cache holds the right bytes, is built once, and is rebuilt when it does not match the files."""

import errno
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from swad.data import cache as cache_module
from swad.data import cache_build
from swad.data.cache import default_folder, open_cache
from swad.data.cache_build import BLOCK, FORMAT, IMAGES, INDEX
from swad.data.domains import ArrayDomain, DataError, Dataset, FileDomain

WORKER = Path(__file__)


def write_image(path: Path, height: int, width: int, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    smooth = np.random.RandomState(seed).randint(0, 256, (3, 3, 3)).astype(np.uint8)
    Image.fromarray(smooth).resize((width, height), Image.Resampling.BICUBIC).save(path)


def make_files(root: Path, per_domain: int = 5, sizes=((20, 24),)) -> Path:
    """Domains a and b, JPEG and PNG in turn, of these sizes in turn."""
    for d, domain in enumerate("ab"):
        for i in range(per_domain):
            suffix = ("jpg", "png")[i % 2]
            write_image(root / domain / f"{i:03}.{suffix}", *sizes[i % len(sizes)], seed=1000 * d + i)
    return root


def read(root: Path) -> Dataset:
    domains = []
    for domain in "ab":
        files = tuple(sorted(f"{domain}/{file.name}" for file in (root / domain).iterdir()))
        domains.append(FileDomain(domain, np.zeros(len(files), np.int64), root, files))
    return Dataset("two domains", tuple(domains), ("one",))


def twin(dataset: Dataset, size: tuple[int, int] | None = None) -> np.ndarray:
    """Every image decoded by itself, resized where asked."""
    images = [domain.image(i) for domain in dataset.domains for i in range(len(domain))]
    return np.stack(
        [np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR) if size else image) for image in images]
    )


def never(line: str) -> None:
    raise AssertionError(f"expected no log line, got {line!r}")


@pytest.fixture
def root(tmp_path) -> Path:
    return make_files(tmp_path / "data")


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "caches"


def only_cache(folder: Path) -> Path:
    (cache,) = (entry for entry in folder.iterdir() if entry.is_dir())
    return cache


# --- content ----------------------------------------------------------------------------------------


def test_images_of_one_small_size_keep_it(root, folder):
    dataset = read(root)
    cache = open_cache(dataset, folder, log=never)
    assert isinstance(cache.images, np.memmap)
    assert cache.images.shape == (10, 20, 24, 3)
    assert (cache.images == twin(dataset)).all()
    assert cache.sizes.tolist() == [[20, 24]] * 10
    assert cache.sizes.dtype == np.int64
    assert (cache.first_row("a"), cache.first_row("b")) == (0, 5)
    assert cache.nbytes == 10 * 20 * 24 * 3
    assert cache.describe() == "image cache: all 10 images have their original size of 20 × 24"
    with pytest.raises(ValueError, match="read-only"):
        cache.images[0] = 0


def test_images_of_several_sizes_become_256_squares(tmp_path, folder):
    dataset = read(make_files(tmp_path / "data", sizes=((20, 24), (300, 256), (256, 256))))
    cache = open_cache(dataset, folder, log=never)
    assert (cache.images == twin(dataset, (256, 256))).all()
    assert cache.sizes[:4].tolist() == [[20, 24], [300, 256], [256, 256], [20, 24]]
    assert cache.describe() == "image cache: 8 of 10 images were resized to 256 × 256"


def test_large_images_become_squares_of_256_or_of_the_requested_size(tmp_path, folder):
    dataset = read(make_files(tmp_path / "data", per_domain=1, sizes=((257, 200),)))
    assert open_cache(dataset, folder).images.shape == (2, 256, 256, 3)
    small = open_cache(dataset, folder, 16, log=never)
    assert (small.images == twin(dataset, (16, 16))).all()
    assert len([entry for entry in folder.iterdir() if entry.is_dir()]) == 2


def test_worker_processes_give_the_same_bytes_and_report_progress(tmp_path, folder):
    dataset = read(make_files(tmp_path / "data", per_domain=BLOCK + 3))
    seen: list[tuple[str, int, int | None]] = []
    cache = open_cache(dataset, folder, workers=2, progress=lambda *state: seen.append(state), log=never)
    assert (cache.images == twin(dataset)).all()
    assert seen[-1] == ("decoding images", 2 * BLOCK + 6, 2 * BLOCK + 6)
    assert ("reading image headers", 3, 3) in seen
    alone = open_cache(dataset, folder / "alone", workers=1)
    assert (alone.images == cache.images).all()
    one, other = (json.loads((at.path / INDEX).read_text()) for at in (cache, alone))
    assert one == other


def test_without_workers_no_process_is_started(tmp_path, folder, monkeypatch):
    root = make_files(tmp_path / "data", per_domain=BLOCK, sizes=((4, 4),))
    monkeypatch.setattr(cache_module, "available_cores", lambda: 2)
    started = []
    monkeypatch.setattr(cache_build, "ProcessPoolExecutor", lambda *_, **__: started.append(1))
    open_cache(read(root), folder, workers=0)
    assert not started
    with pytest.raises(AttributeError):  # a pool that is None
        open_cache(read(root), folder, 2)
    assert started == [1]


def test_large_images_have_small_blocks(root, folder, monkeypatch):
    monkeypatch.setattr(cache_build, "BLOCK_BYTES", 3 * 20 * 24 * 3)
    cache = open_cache(read(root), folder)
    assert (cache.images == twin(read(root))).all()
    assert len(json.loads((cache.path / INDEX).read_text())["sha256"]) == 4  # of 3, 3, 3 and 1
    open_cache(read(root), folder, log=never)
    damaged_data(root, folder)
    lines: list[str] = []
    open_cache(read(root), folder, log=lines.append)
    assert "images 3 to 5 are damaged" in lines[0]


def test_the_progress_of_reading_headers_completes(tmp_path, folder):
    root = make_files(tmp_path / "data", per_domain=BLOCK, sizes=((4, 4), (5, 4)))
    seen: list[tuple[str, int, int | None]] = []
    open_cache(read(root), folder, workers=1, progress=lambda *state: seen.append(state))
    assert seen[0] == ("reading image headers", 2, 2)  # it need not read the second block


def test_a_dataset_in_memory_needs_no_file(folder):
    images = np.random.RandomState(0).randint(0, 256, (6, 8, 8, 2)).astype(np.uint8)
    domains = tuple(ArrayDomain(name, np.zeros(3, np.int64), images[i : i + 3]) for name, i in (("a", 0), ("b", 3)))
    cache = open_cache(Dataset("arrays", domains, ("one",)), folder, log=never)
    assert (cache.images == images).all()
    assert (cache.first_row("b"), cache.path, folder.exists()) == (3, None, False)
    assert cache.describe() == "image cache: all 6 images have their original size of 8 × 8"


def test_arrays_of_another_size_are_resized_and_changes_are_noticed(folder):
    def dataset(seed: int) -> Dataset:
        images = np.random.RandomState(seed).randint(0, 256, (3, 8, 10, 2)).astype(np.uint8)
        return Dataset("arrays", (ArrayDomain("a", np.zeros(3, np.int64), images),), ("one",))

    cache = open_cache(dataset(0), folder, 6, log=never)
    assert cache.images.shape == (3, 6, 6, 2)
    channel = Image.fromarray(dataset(0).domains[0].images[1, :, :, 1]).resize((6, 6), Image.Resampling.BILINEAR)
    assert (cache.images[1, :, :, 1] == np.asarray(channel)).all()
    lines: list[str] = []
    assert (open_cache(dataset(1), folder, 6, log=lines.append).images != cache.images).any()
    assert "1 added and 1 removed images" in lines[0]


def test_the_folder_comes_from_the_environment(root, tmp_path, monkeypatch):
    monkeypatch.setenv("SWAD_CACHE", str(tmp_path / "elsewhere"))
    assert open_cache(read(root)).path.parent == default_folder() == tmp_path / "elsewhere"
    monkeypatch.delenv("SWAD_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "swad" / "images"


# --- reuse ----------------------------------------------------------------------------------------


def test_it_is_built_once(root, folder, monkeypatch):
    first = open_cache(read(root), folder)
    monkeypatch.setattr(cache_module, "build_cache", never)
    again = open_cache(read(root), folder, log=never)
    assert again.path == first.path
    assert (again.images == first.images).all()


def change_image(root: Path, folder: Path) -> None:
    write_image(root / "b" / "002.jpg", 20, 24, seed=77)


def touch_image(root: Path, folder: Path) -> None:
    file = root / "b" / "002.jpg"
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))


def add_image(root: Path, folder: Path) -> None:
    write_image(root / "a" / "900.png", 20, 24, seed=77)


def remove_image(root: Path, folder: Path) -> None:
    (root / "a" / "003.png").unlink()


def other_format(root: Path, folder: Path) -> None:
    file = only_cache(folder) / INDEX
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": FORMAT + 1}))


def torn_index(root: Path, folder: Path) -> None:
    file = only_cache(folder) / INDEX
    file.write_bytes(file.read_bytes()[:100])


def poor_index(root: Path, folder: Path) -> None:
    (only_cache(folder) / INDEX).write_text(json.dumps({"format": FORMAT}))


def change_index(folder: Path, **changes: object) -> None:
    file = only_cache(folder) / INDEX
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def no_checksums(root: Path, folder: Path) -> None:
    damaged_data(root, folder)
    change_index(folder, sha256=[])


def few_sizes(root: Path, folder: Path) -> None:
    change_index(folder, sizes=[[20, 24]] * 3)


def other_shape(root: Path, folder: Path) -> None:
    change_index(folder, shape=[20, 10, 24, 3], sizes=[[20, 24]] * 20)


def no_index(root: Path, folder: Path) -> None:
    (only_cache(folder) / INDEX).unlink()


def short_data(root: Path, folder: Path) -> None:
    os.truncate(only_cache(folder) / IMAGES, 1000)


def damaged_data(root: Path, folder: Path) -> None:
    file = only_cache(folder) / IMAGES
    data = bytearray(file.read_bytes())
    data[7000] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (change_image, "1 images of b changed, e.g. b/002.jpg"),
        (touch_image, "1 images of b changed, e.g. b/002.jpg"),
        (add_image, "domain a has 1 added and 0 removed images, e.g. a/900.png"),
        (remove_image, "domain a has 0 added and 1 removed images, e.g. a/003.png"),
        (other_format, f"it has format {FORMAT + 1}, this version reads {FORMAT}"),
        (torn_index, "it cannot be read (JSONDecodeError"),
        (poor_index, "it cannot be read (KeyError: 'shape')"),
        (no_checksums, "its index does not match its images (checksums 0, expected 1)"),
        (few_sizes, "its index does not match its images (sizes (3, 2), expected (10, 2))"),
        (other_shape, "(images 20, expected 10; sizes (20, 2), expected (10, 2))"),
        (no_index, "it cannot be read (FileNotFoundError"),
        (short_data, f"{IMAGES} has 1,000 bytes, expected 14,400"),
        (damaged_data, "images 0 to 63 are damaged (wrong checksum)"),
    ],
)
def test_an_outdated_or_damaged_cache_is_rebuilt_with_the_reason(root, folder, harm, reason):
    open_cache(read(root), folder)
    harm(root, folder)
    lines: list[str] = []
    cache = open_cache(read(root), folder, log=lines.append)
    assert len(lines) == 1
    assert reason in lines[0]
    assert lines[0].startswith(f"image cache {cache.path}: ")
    assert lines[0].endswith("; rebuilding it")
    assert "\n" not in lines[0]
    assert (cache.images == twin(read(root))).all()
    assert open_cache(read(root), folder, log=never).images.shape == cache.images.shape
    assert only_cache(folder) == cache.path


def test_without_a_log_the_reason_is_a_warning(root, folder):
    open_cache(read(root), folder)
    other_format(root, folder)
    with pytest.warns(UserWarning, match="rebuilding it"):
        open_cache(read(root), folder)


def test_a_reader_keeps_its_images_while_another_process_rebuilds(root, folder):
    held = open_cache(read(root), folder)
    before = twin(read(root))
    change_image(root, folder)
    assert (open_cache(read(root), folder, log=lambda line: None).images != before).any()
    assert (held.images == before).all()


def test_a_read_only_cache_can_be_used(root, folder, monkeypatch):
    first = open_cache(read(root), folder)
    real = os.open

    def read_only(path, flags, *arguments):
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *arguments)

    monkeypatch.setattr(os, "open", read_only)
    assert open_cache(read(root), folder, log=never).path == first.path
    with pytest.raises(DataError, match=r"Read-only file system.; free disk space or choose another directory"):
        open_cache(read(root), folder, 16)


def test_a_file_system_without_locks_is_a_warning(root, folder, monkeypatch):
    def no_locks(fd, kind):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.warns(UserWarning, match="cannot lock .*: make sure only one process writes"):
        assert (open_cache(read(root), folder, log=never).images == twin(read(root))).all()


# --- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_a_broken_image_is_named(tmp_path, folder, workers):
    root = make_files(tmp_path / "data", per_domain=BLOCK if workers > 1 else 5)
    (root / "b" / "002.jpg").write_bytes((root / "b" / "002.jpg").read_bytes()[:-40])
    (root / "b" / "003.png").write_bytes(b"no image")
    for size, name in ((None, "003.png"), (24, "002.jpg")):
        with pytest.raises(
            DataError, match=rf"cannot decode image {re.escape(str(root))}/b/{name}: .*; replace"
        ) as caught:
            open_cache(read(root), folder, size, workers=workers)
        assert "\n" not in str(caught.value)
        assert not [entry for entry in folder.iterdir() if entry.is_dir()]


def test_a_full_disk_is_a_one_line_error_and_leaves_nothing(root, folder, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("posix_fallocate", "pwrite"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(DataError, match=r"No space left on device.; free disk space or choose") as caught:
                open_cache(read(root), folder)
        assert "\n" not in str(caught.value)
        assert not [entry for entry in folder.iterdir() if entry.is_dir()]


def test_a_file_instead_of_a_directory_is_a_one_line_error(root, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SWAD_CACHE", str(tmp_path / "file"))
    for given, option in ((tmp_path / "file", "--cache"), (None, "--cache or SWAD_CACHE")):
        with pytest.raises(DataError, match=rf"cannot write image cache .* choose another directory with {option}$"):
            open_cache(read(root), given)


def test_images_that_change_during_the_build_are_noticed(root, folder):
    def disturb(*state: object) -> None:
        change_image(root, folder)

    with pytest.raises(
        DataError, match=r"changed while the cache was being built \(1 images of b changed, e.g. b/002.jpg\); try again"
    ):
        open_cache(read(root), folder, progress=disturb)


def test_errors_are_one_line(root, folder):
    with pytest.raises(DataError, match="must be at least 1, got 0"):
        open_cache(read(root), folder, 0)
    with pytest.raises(DataError, match="no domain 'c'; it has a, b"):
        open_cache(read(root), folder).first_row("c")


def test_channels_must_agree(root, folder):
    files = read(root).domains
    array = ArrayDomain("c", np.zeros(1, np.int64), np.zeros((1, 20, 24, 1), np.uint8))
    with pytest.raises(DataError, match=r"same number of channels, got \[1, 3\]"):
        open_cache(Dataset("mixed", (*files, array), ("one",)), folder)


# --- several processes ----------------------------------------------------------------------------------------


def builder(root: Path, folder: Path, workers: int) -> subprocess.Popen[str]:
    """Start a process that builds, prints what happens, and waits for a line of input after its first block."""
    return subprocess.Popen(
        [sys.executable, str(WORKER), str(root), str(folder), str(workers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_cache_whose_builder_was_killed_is_rebuilt(tmp_path, folder):
    root = make_files(tmp_path / "data", per_domain=BLOCK)
    process = builder(root, folder, workers=2)
    assert process.stdout.readline() == "decoding\n"
    children = [int(word) for word in process.stdout.readline().split()]
    assert len(children) == 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = only_cache(folder)
    assert ".partial-" in left.name
    lines: list[str] = []
    cache = open_cache(read(root), folder, log=lines.append)
    assert [line for line in lines if "the process that was building it was stopped; rebuilding it" in line] == lines
    assert (cache.images == twin(read(root))).all()
    assert only_cache(folder) == cache.path
    # The killed process's own workers follow it.
    until = time.monotonic() + 10
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_one_of_two_builders_waits_for_the_other(root, folder):
    first = builder(root, folder, workers=1)
    assert [first.stdout.readline() for _ in range(2)] == ["decoding\n", "\n"]
    second = builder(root, folder, workers=1)
    assert "waiting for another process that is building it" in second.stdout.readline()
    assert second.poll() is None
    said = [process.communicate("continue\n", timeout=60)[0].split("\n") for process in (first, second)]
    # The second opened what the first had built.
    assert said == [["opened 10", ""]] * 2
    assert (open_cache(read(root), folder, log=never).images == twin(read(root))).all()


def build_and_report() -> None:
    import multiprocessing

    reported = []

    def progress(what: str, done: int, total: int | None) -> None:
        if what == "decoding images" and not reported:
            reported.append(done)
            print("decoding", flush=True)
            print(*(child.pid for child in multiprocessing.active_children()), flush=True)
            sys.stdin.readline()

    root, folder, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    cache = open_cache(read(root), folder, workers=workers, progress=progress, log=lambda line: print(line, flush=True))
    print("opened", len(cache.images), flush=True)


if __name__ == "__main__":
    build_and_report()
