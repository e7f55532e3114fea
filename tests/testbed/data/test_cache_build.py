"""Building an image cache: with threads, with damaged images, on a full disk, killed, and twice at once."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from helpers.image_files import damage_data, decode_all, fail_on_log, make_files, only_cache, read
from swad.testbed.data import cache_build
from swad.testbed.data.cache import open_cache
from swad.testbed.data.cache_build import BLOCK, INDEX
from swad.testbed.data.domains import ArrayDomain, Dataset
from swad.util.images import DataError

WORKER = Path(__file__)


def test_threads_give_the_same_bytes_and_report_progress(tmp_path, folder):
    dataset = read(make_files(tmp_path / "data", per_domain=BLOCK + 3))
    seen: list[tuple[str, int, int | None]] = []
    cache = open_cache(dataset, folder, workers=2, progress=lambda *state: seen.append(state), log=fail_on_log)
    assert (cache.images == decode_all(dataset)).all()
    assert seen[-1] == ("decoding images", 2 * BLOCK + 6, 2 * BLOCK + 6)
    assert ("reading image headers", 3, 3) in seen
    alone = open_cache(dataset, folder / "alone", workers=1)
    assert (alone.images == cache.images).all()
    one, other = (json.loads((at.path / INDEX).read_text()) for at in (cache, alone))
    assert one == other


def test_images_are_decoded_by_as_many_threads_as_workers(tmp_path, folder, monkeypatch):
    dataset, threads = read(make_files(tmp_path / "data", per_domain=2 * BLOCK, sizes=((4, 4),))), set()
    decode = cache_build.read_image
    monkeypatch.setattr(
        cache_build, "read_image", lambda path: (threads.add(threading.get_ident()), time.sleep(1e-3), decode(path))[-1]
    )
    for workers, expected in ((0, 1), (1, 1), (3, 3)):
        threads.clear()
        open_cache(dataset, folder / str(workers), workers=workers)
        assert len(threads) == expected
        assert threading.get_ident() not in threads


def test_an_interrupted_build_decodes_no_further_images(tmp_path, folder, monkeypatch):
    dataset, decoded = read(make_files(tmp_path / "data", per_domain=6 * BLOCK, sizes=((4, 4),))), []
    decode = cache_build.read_image
    monkeypatch.setattr(
        cache_build, "read_image", lambda path: (decoded.append(path), time.sleep(1e-3), decode(path))[-1]
    )

    def interrupt(what: str, done: int, total: int | None) -> None:
        if what == "decoding images":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_cache(dataset, folder, 4, workers=1, progress=interrupt)
    assert len(decoded) <= 4 * BLOCK
    assert not [entry for entry in folder.iterdir() if entry.is_dir()]


def test_large_images_have_small_blocks(root, folder, monkeypatch):
    monkeypatch.setattr(cache_build, "BLOCK_BYTES", 3 * 20 * 24 * 3)
    cache = open_cache(read(root), folder)
    assert (cache.images == decode_all(read(root))).all()
    assert len(json.loads((cache.path / INDEX).read_text())["sha256"]) == 4  # of 3, 3, 3 and 1
    open_cache(read(root), folder, log=fail_on_log)
    damage_data(root, folder)
    lines: list[str] = []
    open_cache(read(root), folder, log=lines.append)
    assert "images 3 to 5 are damaged" in lines[0]


def test_the_progress_of_reading_headers_completes(tmp_path, folder):
    root = make_files(tmp_path / "data", per_domain=BLOCK, sizes=((4, 4), (5, 4)))
    seen: list[tuple[str, int, int | None]] = []
    open_cache(read(root), folder, workers=1, progress=lambda *state: seen.append(state))
    assert seen[0] == ("reading image headers", 2, 2)  # it need not read the second block


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


def test_channels_must_agree(root, folder):
    files = read(root).domains
    array = ArrayDomain("c", np.zeros(1, np.int64), np.zeros((1, 20, 24, 1), np.uint8))
    with pytest.raises(DataError, match=r"same number of channels, got \[1, 3\]"):
        open_cache(Dataset("mixed", (*files, array), ("one",)), folder)


def builder(root: Path, folder: Path, workers: int) -> subprocess.Popen[str]:
    """Start a process that builds, prints what happens, and waits for a line of input after its first block."""
    return subprocess.Popen(
        [sys.executable, str(WORKER), str(root), str(folder), str(workers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_cache_whose_builder_was_killed_is_rebuilt(tmp_path, folder):
    root = make_files(tmp_path / "data", per_domain=BLOCK)
    process = builder(root, folder, workers=2)
    assert process.stdout.readline() == "decoding\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = only_cache(folder)
    assert ".partial-" in left.name
    lines: list[str] = []
    cache = open_cache(read(root), folder, log=lines.append)
    assert [line for line in lines if "the process that was building it was stopped; rebuilding it" in line] == lines
    assert (cache.images == decode_all(read(root))).all()
    assert only_cache(folder) == cache.path


def test_one_of_two_builders_waits_for_the_other(root, folder):
    first = builder(root, folder, workers=1)
    assert first.stdout.readline() == "decoding\n"
    second = builder(root, folder, workers=1)
    assert "waiting for another process that is building it" in second.stdout.readline()
    assert second.poll() is None
    said = [process.communicate("continue\n", timeout=60)[0].split("\n") for process in (first, second)]
    # The second opened what the first had built.
    assert said == [["opened 10", ""]] * 2
    assert (open_cache(read(root), folder, log=fail_on_log).images == decode_all(read(root))).all()


def build_and_report() -> None:
    reported = []

    def progress(what: str, done: int, total: int | None) -> None:
        if what == "decoding images" and not reported:
            reported.append(done)
            print("decoding", flush=True)
            sys.stdin.readline()

    root, folder, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    cache = open_cache(read(root), folder, workers=workers, progress=progress, log=lambda line: print(line, flush=True))
    print("opened", len(cache.images), flush=True)


if __name__ == "__main__":
    build_and_report()
