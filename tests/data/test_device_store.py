"""Pixels on the device and pixels on their way to it: the same bytes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swad.data import device_store
from swad.data.cache import ImageCache
from swad.data.device_store import Resident, Streamed, place
from swad.data.domains import DataError

ROW = 5 * 4 * 3
CPU = torch.device("cpu")
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
devices = ["cpu", pytest.param("cuda", marks=cuda)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> ImageCache:
    """Forty images in a file, read-only as a real cache is."""
    file = tmp_path_factory.mktemp("cache") / "images.u8"
    np.random.RandomState(0).randint(0, 256, (40, 5, 4, 3)).astype(np.uint8).tofile(file)
    images = np.memmap(file, np.uint8, "r", shape=(40, 5, 4, 3))
    return ImageCache(images, np.tile([5, 4], (40, 1)), {"a": 0}, "cpu", file.parent)


def test_what_fits_is_resident_and_says_so(cache, recwarn):
    lines: list[str] = []
    images = place(cache, np.arange(40), "cpu", log=lines.append)
    assert isinstance(images, Resident)
    assert lines == ["40 images (0.0 MB) on cpu: read from the image cache as needed, nothing is copied"]
    # Not a copy: the tensor begins where the file is mapped.
    assert images.tensor.data_ptr() == cache.images.ctypes.data
    assert not recwarn.list


def test_what_does_not_fit_is_streamed_and_says_so(cache):
    lines: list[str] = []
    images = place(cache, np.arange(40), "cpu", device_bytes=40 * ROW - 1, host_bytes=6 * ROW, log=lines.append)
    assert isinstance(images, Streamed)
    assert images.host_bytes == 6 * ROW
    assert len(lines) == 1
    assert "40 images (0.0 MB) do not fit on cpu" in lines[0]
    assert "streamed through 0.0 MB of host memory" in lines[0]
    assert isinstance(place(cache, np.arange(40), "cpu", device_bytes=40 * ROW), Resident)


def test_a_device_that_runs_full_falls_back_to_streaming(cache, monkeypatch):
    def full(*arguments):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(device_store, "Resident", full)
    lines: list[str] = []
    images = place(cache, np.arange(40), "cpu", log=lines.append)
    assert isinstance(images, Streamed)
    assert "(its memory is full)" in lines[0]


@pytest.mark.parametrize("device", devices)
def test_resident_and_streamed_give_the_same_bytes(cache, device):
    placed = np.arange(3, 40, 2)
    resident = place(cache, placed, device)
    streamed = place(cache, placed, device, device_bytes=0, host_bytes=8 * ROW)
    assert isinstance(resident, Resident)
    assert isinstance(streamed, Streamed)
    wanted = [np.random.RandomState(i).choice(placed, size) for i, size in enumerate((1, 4, 5, 13, 30))]
    streamed.announce(wanted[0])
    for i, rows in enumerate(wanted):
        resident.announce(rows)
        if i + 1 < len(wanted):
            streamed.announce(wanted[i + 1])
        ours, theirs = resident.take(rows), streamed.take(rows)
        expected = torch.from_numpy(cache.images[rows])
        assert ours.device.type == theirs.device.type == device
        assert torch.equal(ours.cpu(), expected)
        assert torch.equal(theirs.cpu(), expected)
        index = torch.from_numpy(resident.index_of(rows)).to(device)
        assert torch.equal(resident.tensor[index].cpu(), expected)
    assert torch.equal(streamed.take(torch.from_numpy(wanted[3])).cpu(), torch.from_numpy(cache.images[wanted[3]]))


@settings(deadline=None, max_examples=30)
@given(
    takes=st.lists(st.lists(st.integers(0, 39), max_size=12), max_size=6),
    ahead=st.integers(0, 3),
    buffers=st.integers(2, 9),
)
def test_whatever_is_announced_ahead_the_order_holds(cache, takes, ahead, buffers):
    streamed = Streamed(cache, np.arange(40), CPU, buffers * ROW)
    wanted = [np.array(rows, np.int64) for rows in takes]
    announced = 0
    for i, rows in enumerate(wanted):
        while announced < min(len(wanted), i + ahead):
            streamed.announce(wanted[announced])
            announced += 1
        announced = max(announced, i + 1)
        assert torch.equal(streamed.take(rows), torch.from_numpy(cache.images[rows]))
    streamed.close()


def test_what_was_taken_is_not_overwritten_by_what_comes_next(cache):
    streamed = Streamed(cache, np.arange(40), CPU, 4 * ROW)
    taken = [streamed.take(np.arange(i, i + 2)) for i in range(20)]
    for i, images in enumerate(taken):
        assert torch.equal(images, torch.from_numpy(cache.images[i : i + 2]))


@cuda
def test_what_fits_on_a_gpu_is_copied_in_pieces(cache):
    lines: list[str] = []
    images = place(cache, np.arange(40), "cuda", host_bytes=6 * ROW, log=lines.append)
    assert lines == ["40 images (0.0 MB) on cuda: all there"]
    assert torch.equal(images.tensor.cpu(), torch.from_numpy(cache.images[:]))


def test_rules_are_stated_in_one_line(cache):
    resident = place(cache, np.array([3, 5]), "cpu")
    streamed = place(cache, np.array([3, 5]), "cpu", device_bytes=0)
    streamed.announce(np.array([3]))
    cases = [
        (lambda: place(cache, np.array([5, 3]), "cpu"), "sorted, each once, from 0 to 39"),
        (lambda: place(cache, np.array([3, 3]), "cpu"), "sorted, each once, from 0 to 39"),
        (lambda: place(cache, np.array([3, 40]), "cpu"), "sorted, each once, from 0 to 39"),
        (lambda: place(cache, np.array([], np.int64), "cpu"), "one or more"),
        (lambda: place(cache, np.array([1]), "cpu", device_bytes=0, host_bytes=1), "keeps 2 images in host memory"),
        (lambda: resident.take(np.array([4])), "row 4 of the image cache was not placed"),
        (lambda: resident.index_of(np.array([3, 39])), "row 39 of the image cache was not placed"),
        (lambda: streamed.announce(np.array([0])), "row 0 of the image cache was not placed"),
        (lambda: streamed.take(np.array([5])), "another order"),
    ]
    for make, words in cases:
        with pytest.raises(DataError, match=words) as caught:
            make()
        assert "\n" not in str(caught.value)
