"""The image cache: right bytes, built once, and never used when it is not what the files are."""

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
from swad.data.cache_build import BLOCK, FORMAT, IMAGES, INDEX, gpu_decoder_missing
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
    raise AssertionError(f"nothing was to be said, got {line!r}")


@pytest.fixture
def root(tmp_path) -> Path:
    return make_files(tmp_path / "data")


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "caches"


def only_cache(folder: Path) -> Path:
    (cache,) = (entry for entry in folder.iterdir() if entry.is_dir())
    return cache


# --- what is in it --------------------------------------------------------------------------------------------


def test_images_of_one_small_size_stay_as_they_are(root, folder):
    dataset = read(root)
    cache = open_cache(dataset, folder, log=never)
    assert isinstance(cache.images, np.memmap)
    assert cache.images.shape == (10, 20, 24, 3)
    assert (cache.images == twin(dataset)).all()
    assert cache.sizes.tolist() == [[20, 24]] * 10
    assert cache.sizes.dtype == np.int64
    assert (cache.rows("a"), cache.rows("b")) == (0, 5)
    assert cache.nbytes == 10 * 20 * 24 * 3
    assert cache.describe() == "20 × 24 as in the files: nothing is changed before augmentation"
    with pytest.raises(ValueError, match="read-only"):
        cache.images[0] = 0


def test_images_of_several_sizes_become_256_squares(tmp_path, folder):
    dataset = read(make_files(tmp_path / "data", sizes=((20, 24), (300, 256), (256, 256))))
    cache = open_cache(dataset, folder, log=never)
    assert (cache.images == twin(dataset, (256, 256))).all()
    assert cache.sizes[:4].tolist() == [[20, 24], [300, 256], [256, 256], [20, 24]]
    assert cache.describe() == "8 of 10 images are resized to 256 × 256 first"


def test_large_images_become_256_squares_and_other_sizes_can_be_asked_for(tmp_path, folder):
    dataset = read(make_files(tmp_path / "data", per_domain=1, sizes=((257, 200),)))
    assert open_cache(dataset, folder).images.shape == (2, 256, 256, 3)
    small = open_cache(dataset, folder, 16, log=never)
    assert (small.images == twin(dataset, (16, 16))).all()
    assert len([entry for entry in folder.iterdir() if entry.is_dir()]) == 2


def test_processes_decode_to_the_same_bytes_and_say_how_far_they_are(tmp_path, folder):
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
    monkeypatch.setattr(cache_module, "cores", lambda: 2)
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


def test_the_headers_bar_comes_to_its_end(tmp_path, folder):
    root = make_files(tmp_path / "data", per_domain=BLOCK, sizes=((4, 4), (5, 4)))
    seen: list[tuple[str, int, int | None]] = []
    open_cache(read(root), folder, workers=1, progress=lambda *state: seen.append(state))
    assert seen[0] == ("reading image headers", 2, 2)  # it need not read the second block


def test_a_data_set_in_memory_needs_no_file(folder):
    images = np.random.RandomState(0).randint(0, 256, (6, 8, 8, 2)).astype(np.uint8)
    domains = tuple(ArrayDomain(name, np.zeros(3, np.int64), images[i : i + 3]) for name, i in (("a", 0), ("b", 3)))
    cache = open_cache(Dataset("arrays", domains, ("one",)), folder, log=never)
    assert (cache.images == images).all()
    assert (cache.rows("b"), cache.path, folder.exists()) == (3, None, False)
    assert cache.describe() == "8 × 8 in memory: nothing is changed before augmentation"


def test_arrays_of_another_size_are_resized_and_noticed_when_they_change(folder):
    def dataset(seed: int) -> Dataset:
        images = np.random.RandomState(seed).randint(0, 256, (3, 8, 10, 2)).astype(np.uint8)
        return Dataset("arrays", (ArrayDomain("a", np.zeros(3, np.int64), images),), ("one",))

    cache = open_cache(dataset(0), folder, 6, log=never)
    assert cache.images.shape == (3, 6, 6, 2)
    channel = Image.fromarray(dataset(0).domains[0].images[1, :, :, 1]).resize((6, 6), Image.Resampling.BILINEAR)
    assert (cache.images[1, :, :, 1] == np.asarray(channel)).all()
    lines: list[str] = []
    assert (open_cache(dataset(1), folder, 6, log=lines.append).images != cache.images).any()
    assert "1 new images and 1 fewer" in lines[0]


def test_the_folder_comes_from_the_environment(root, tmp_path, monkeypatch):
    monkeypatch.setenv("SWAD_CACHE", str(tmp_path / "elsewhere"))
    assert open_cache(read(root)).path.parent == default_folder() == tmp_path / "elsewhere"
    monkeypatch.delenv("SWAD_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "swad" / "images"


# --- when it is used again ------------------------------------------------------------------------------------


def test_it_is_built_once(root, folder, monkeypatch):
    first = open_cache(read(root), folder)
    monkeypatch.setattr(cache_module, "_build", never)
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
        (add_image, "domain a has 1 new images and 0 fewer, e.g. a/900.png"),
        (remove_image, "domain a has 0 new images and 1 fewer, e.g. a/003.png"),
        (other_format, f"it has format {FORMAT + 1}, this version reads {FORMAT}"),
        (torn_index, "it cannot be read (JSONDecodeError"),
        (poor_index, "it cannot be read (KeyError: 'shape')"),
        (no_checksums, "its index does not fit its images (checksums 0, expected 1)"),
        (few_sizes, "its index does not fit its images (sizes (3, 2), expected (10, 2))"),
        (other_shape, "(images 20, expected 10; sizes (20, 2), expected (10, 2))"),
        (no_index, "it cannot be read (FileNotFoundError"),
        (short_data, f"{IMAGES} has 1,000 bytes, expected 14,400"),
        (damaged_data, "images 0 to 63 are damaged (checksum)"),
    ],
)
def test_what_is_not_right_is_built_again_with_the_reason(root, folder, harm, reason):
    open_cache(read(root), folder)
    harm(root, folder)
    lines: list[str] = []
    cache = open_cache(read(root), folder, log=lines.append)
    assert len(lines) == 1
    assert reason in lines[0]
    assert lines[0].startswith(f"image cache {cache.path}: ")
    assert lines[0].endswith("; it is built again")
    assert "\n" not in lines[0]
    assert (cache.images == twin(read(root))).all()
    assert open_cache(read(root), folder, log=never).images.shape == cache.images.shape
    assert only_cache(folder) == cache.path


def test_without_someone_to_tell_the_reason_is_a_warning(root, folder):
    open_cache(read(root), folder)
    other_format(root, folder)
    with pytest.warns(UserWarning, match="built again"):
        open_cache(read(root), folder)


def test_a_reader_keeps_its_images_while_another_builds_again(root, folder):
    held = open_cache(read(root), folder)
    before = twin(read(root))
    change_image(root, folder)
    assert (open_cache(read(root), folder, log=lambda line: None).images != before).any()
    assert (held.images == before).all()


def test_a_cache_that_may_only_be_read_is_read(root, folder, monkeypatch):
    first = open_cache(read(root), folder)
    real = os.open

    def read_only(path, flags, *arguments):
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *arguments)

    monkeypatch.setattr(os, "open", read_only)
    assert open_cache(read(root), folder, log=never).path == first.path
    with pytest.raises(DataError, match="read-only file system; see to it or choose another folder"):
        open_cache(read(root), folder, 16)


def test_where_there_are_no_locks_it_goes_on_with_a_warning(root, folder, monkeypatch):
    def no_locks(fd, kind):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.warns(UserWarning, match="cannot lock .*: see to it that one run builds there"):
        assert (open_cache(read(root), folder, log=never).images == twin(read(root))).all()


# --- when building fails --------------------------------------------------------------------------------------


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


def test_a_full_disk_is_one_line_and_nothing_is_left(root, folder, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("posix_fallocate", "pwrite"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(DataError, match="no space left on device; make room there or choose") as caught:
                open_cache(read(root), folder)
        assert "\n" not in str(caught.value)
        assert not [entry for entry in folder.iterdir() if entry.is_dir()]


def test_a_file_in_the_way_is_one_line(root, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SWAD_CACHE", str(tmp_path / "file"))
    for given, option in ((tmp_path / "file", "--cache"), (None, "--cache or SWAD_CACHE")):
        with pytest.raises(DataError, match=rf"cannot write image cache .* choose another folder \({option}\)$"):
            open_cache(read(root), given)


def test_images_that_change_while_they_are_read_are_noticed(root, folder):
    def disturb(*state: object) -> None:
        change_image(root, folder)

    with pytest.raises(DataError, match=r"just built: 1 images of b changed, e.g. b/002.jpg; leave the images alone"):
        open_cache(read(root), folder, progress=disturb)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"size": 0}, "got size 0"), ({"decoder": "tpu"}, "by cpu or gpu, got 'tpu'")],
)
def test_rules_are_stated_in_one_line(root, folder, options, words):
    with pytest.raises(DataError, match=words):
        open_cache(read(root), folder, **options)
    with pytest.raises(DataError, match="no domain 'c'; it has a, b"):
        open_cache(read(root), folder).rows("c")


def test_channels_must_agree(root, folder):
    files = read(root).domains
    array = ArrayDomain("c", np.zeros(1, np.int64), np.zeros((1, 20, 24, 1), np.uint8))
    with pytest.raises(DataError, match=r"one number of channels, got \[1, 3\]"):
        open_cache(Dataset("mixed", (*files, array), ("one",)), folder)


# --- the GPU's decoder ----------------------------------------------------------------------------------------


def test_without_the_gpus_decoder_the_cpu_decodes_and_says_why(root, folder, monkeypatch):
    monkeypatch.setattr(cache_module, "gpu_decoder_missing", lambda device: "there is no GPU")
    lines: list[str] = []
    cache = open_cache(read(root), folder, decoder="gpu", log=lines.append)
    assert lines == ["images are decoded on the CPU: there is no GPU"]
    assert (cache.decoder, cache.path) == ("cpu", open_cache(read(root), folder).path)


def test_jpeg_files_go_to_the_gpus_decoder_and_others_do_not(root, folder, monkeypatch):
    asked: list[str] = []

    def decode(paths, device):
        assert device == "cuda:1"
        asked.extend(paths)
        return {path: np.full((20, 24, 3), 7, np.uint8) for path in paths if "b/" not in path}

    monkeypatch.setattr(cache_module, "gpu_decoder_missing", lambda device: None)
    monkeypatch.setattr(cache_build, "_decode_on_gpu", decode)
    cache = open_cache(read(root), folder, decoder="gpu", device="cuda:1", log=never)
    assert len(asked) == 6
    assert all(path.endswith(".jpg") for path in asked)
    assert (cache.images[[0, 2, 4]] == 7).all()
    expected = twin(read(root))
    assert (cache.images[[1, 3, *range(5, 10)]] == expected[[1, 3, *range(5, 10)]]).all()
    for said in (cache, open_cache(read(root), folder, decoder="gpu", device="cuda:1", log=never)):
        assert "decoded on the GPU, a level of 255 from the CPU's on average and dozens at some" in said.describe()
        assert "; 3 JPEG files were beyond it and are the CPU's" in said.describe()
    assert cache.path != open_cache(read(root), folder).path


def test_files_beyond_the_gpus_decoder_leave_the_others_to_it(root, monkeypatch):
    import torch
    import torchvision

    def decode(data, mode, device):
        assert device == "cuda:1"
        if any(len(one) < 10 for one in data):
            raise RuntimeError("nvjpeg: not supported")
        return [torch.full((3, 2, 2), 7, dtype=torch.uint8) for _ in data]

    monkeypatch.setattr(torchvision.io, "decode_jpeg", decode)
    paths = [str(root / "a" / name) for name in ("000.jpg", "002.jpg", "004.jpg")]
    Path(paths[1]).write_bytes(b"strange")
    assert sorted(cache_build._decode_on_gpu(paths, "cuda:1")) == [paths[0], paths[2]]


def test_the_gpus_pixels_are_the_cpus_within_levels(root, folder):
    if why := gpu_decoder_missing():
        pytest.skip(why)
    cpu, gpu = (open_cache(read(root), folder, decoder=decoder, log=never).images for decoder in ("cpu", "gpu"))
    # Of photographs 1 level on average and up to 70 at edges, where colors are interpolated otherwise.
    assert np.abs(cpu.astype(int) - gpu).mean() < 8


# --- several processes ----------------------------------------------------------------------------------------


def builder(root: Path, folder: Path, workers: int) -> subprocess.Popen[str]:
    """A process that builds, prints what happens, and after its first block waits for a line."""
    return subprocess.Popen(
        [sys.executable, str(WORKER), str(root), str(folder), str(workers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_cache_whose_builder_was_killed_is_built_again(tmp_path, folder):
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
    assert [line for line in lines if "a process was stopped while it built it; it is built again" in line] == lines
    assert (cache.images == twin(read(root))).all()
    assert only_cache(folder) == cache.path
    # The killed process's own workers follow it.
    until = time.monotonic() + 10
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_of_two_builders_at_once_one_builds_and_one_waits(root, folder):
    first = builder(root, folder, workers=1)
    assert [first.stdout.readline() for _ in range(2)] == ["decoding\n", "\n"]
    second = builder(root, folder, workers=1)
    assert "waiting for another process that builds it" in second.stdout.readline()
    assert second.poll() is None
    said = [process.communicate("go on\n", timeout=60)[0].split("\n") for process in (first, second)]
    # The second opened what the first had built.
    assert said == [["opened 10", ""]] * 2
    assert (open_cache(read(root), folder, log=never).images == twin(read(root))).all()


def build_and_tell() -> None:
    import multiprocessing

    told = []

    def progress(what: str, done: int, total: int | None) -> None:
        if what == "decoding images" and not told:
            told.append(done)
            print("decoding", flush=True)
            print(*(child.pid for child in multiprocessing.active_children()), flush=True)
            sys.stdin.readline()

    root, folder, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    cache = open_cache(read(root), folder, workers=workers, progress=progress, log=lambda line: print(line, flush=True))
    print("opened", len(cache.images), flush=True)


if __name__ == "__main__":
    build_and_tell()
