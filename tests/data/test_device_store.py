"""A store on the device and a streaming one return the same bytes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swad.data import device_store
from swad.data.cache import ImageCache
from swad.data.device_store import OnDevice, Streaming, build_store
from swad.data.domains import DataError

ROW = 5 * 4 * 3
CPU = torch.device("cpu")
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
devices = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, cuda])]


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> ImageCache:
    """Forty images in a file, read-only as a real cache is."""
    file = tmp_path_factory.mktemp("cache") / "images.u8"
    np.random.RandomState(0).randint(0, 256, (40, 5, 4, 3)).astype(np.uint8).tofile(file)
    images = np.memmap(file, np.uint8, "r", shape=(40, 5, 4, 3))
    return ImageCache(images, np.tile([5, 4], (40, 1)), {"a": 0}, file.parent)


def test_images_that_fit_are_stored_on_the_device(cache, recwarn):
    lines: list[str] = []
    images = build_store(cache, np.arange(40), "cpu", log=lines.append)
    assert isinstance(images, OnDevice)
    assert lines == ["40 images (0.0 MB) memory-mapped from the image cache"]
    # Not a copy: the tensor starts where the file is mapped.
    assert images.tensor.data_ptr() == cache.images.ctypes.data
    assert not recwarn.list


def test_images_that_do_not_fit_are_streamed(cache):
    lines: list[str] = []
    images = build_store(cache, np.arange(40), "cpu", device_bytes=40 * ROW - 1, host_bytes=6 * ROW, log=lines.append)
    assert isinstance(images, Streaming)
    assert images.host_bytes == 6 * ROW
    assert len(lines) == 1
    assert "40 images (0.0 MB) do not fit on cpu" in lines[0]
    assert "streaming them through 0.0 MB of host memory" in lines[0]
    assert isinstance(build_store(cache, np.arange(40), "cpu", device_bytes=40 * ROW), OnDevice)


def test_streaming_is_the_fallback_when_memory_runs_out(cache, monkeypatch):
    def full(*arguments):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(device_store, "OnDevice", full)
    lines: list[str] = []
    images = build_store(cache, np.arange(40), "cpu", log=lines.append)
    assert isinstance(images, Streaming)
    assert "(out of memory)" in lines[0]


@pytest.mark.parametrize("device", devices)
def test_both_stores_return_the_same_bytes(cache, device):
    stored = np.arange(3, 40, 2)
    on_device = build_store(cache, stored, device)
    streaming = build_store(cache, stored, device, device_bytes=0, host_bytes=8 * ROW)
    assert isinstance(on_device, OnDevice)
    assert isinstance(streaming, Streaming)
    wanted = [np.random.RandomState(i).choice(stored, size) for i, size in enumerate((1, 4, 5, 13, 30))]
    streaming.prefetch(wanted[0])
    for i, rows in enumerate(wanted):
        on_device.prefetch(rows)
        if i + 1 < len(wanted):
            streaming.prefetch(wanted[i + 1])
        ours, theirs = on_device.fetch(rows), streaming.fetch(rows)
        expected = torch.from_numpy(cache.images[rows])
        assert ours.device.type == theirs.device.type == device
        assert torch.equal(ours.cpu(), expected)
        assert torch.equal(theirs.cpu(), expected)
        index = torch.from_numpy(on_device.index_of(rows)).to(device)
        assert torch.equal(on_device.tensor[index].cpu(), expected)
    assert torch.equal(streaming.fetch(torch.from_numpy(wanted[3])).cpu(), torch.from_numpy(cache.images[wanted[3]]))


@settings(max_examples=30)
@given(
    fetches=st.lists(st.lists(st.integers(0, 39), max_size=12), max_size=6),
    ahead=st.integers(0, 3),
    buffers=st.integers(2, 9),
)
def test_any_prefetching_keeps_the_order(cache, fetches, ahead, buffers):
    streaming = Streaming(cache, np.arange(40), CPU, buffers * ROW)
    wanted = [np.array(rows, np.int64) for rows in fetches]
    prefetched = 0
    for i, rows in enumerate(wanted):
        while prefetched < min(len(wanted), i + ahead):
            streaming.prefetch(wanted[prefetched])
            prefetched += 1
        prefetched = max(prefetched, i + 1)
        assert torch.equal(streaming.fetch(rows), torch.from_numpy(cache.images[rows]))
    streaming.close()


def test_fetched_images_are_not_overwritten_by_later_ones(cache):
    streaming = Streaming(cache, np.arange(40), CPU, 4 * ROW)
    fetched = [streaming.fetch(np.arange(i, i + 2)) for i in range(20)]
    for i, images in enumerate(fetched):
        assert torch.equal(images, torch.from_numpy(cache.images[i : i + 2]))


@pytest.mark.gpu
@cuda
def test_images_are_copied_to_a_gpu_in_chunks(cache):
    lines: list[str] = []
    images = build_store(cache, np.arange(40), "cuda", host_bytes=6 * ROW, log=lines.append)
    assert lines == ["40 images (0.0 MB) loaded onto cuda"]
    assert torch.equal(images.tensor.cpu(), torch.from_numpy(cache.images[:]))


def test_errors_are_one_line(cache):
    on_device = build_store(cache, np.array([3, 5]), "cpu")
    streaming = build_store(cache, np.array([3, 5]), "cpu", device_bytes=0)
    streaming.prefetch(np.array([3]))
    cases = [
        (lambda: build_store(cache, np.array([5, 3]), "cpu"), "sorted, unique and between 0 and 39"),
        (lambda: build_store(cache, np.array([3, 3]), "cpu"), "sorted, unique and between 0 and 39"),
        (lambda: build_store(cache, np.array([3, 40]), "cpu"), "sorted, unique and between 0 and 39"),
        (lambda: build_store(cache, np.array([], np.int64), "cpu"), "non-empty"),
        (
            lambda: build_store(cache, np.array([1]), "cpu", device_bytes=0, host_bytes=1),
            "at least 120 .2 images., got 1",
        ),
        (lambda: on_device.fetch(np.array([4])), "row 4 of the image cache is not in the store"),
        (lambda: on_device.index_of(np.array([3, 39])), "row 39 of the image cache is not in the store"),
        (lambda: streaming.prefetch(np.array([0])), "row 0 of the image cache is not in the store"),
        (lambda: streaming.fetch(np.array([5])), "in the order in which they were prefetched"),
    ]
    for make, words in cases:
        with pytest.raises(DataError, match=words) as caught:
            make()
        assert "\n" not in str(caught.value)


# --- images that stay between runs ------------------------------------------------------------------


@pytest.fixture
def keeping(monkeypatch):
    monkeypatch.setattr(device_store, "_available_bytes", lambda device: 8 * 40 * ROW)
    device_store.keep_images()
    yield
    device_store.keep_images(False)
    assert not device_store._kept


def copy_of(cache: ImageCache) -> ImageCache:
    return ImageCache(cache.images, cache.sizes, cache.starts, cache.path)


def test_the_least_recently_used_images_leave(cache, keeping, monkeypatch):
    caches = [cache, copy_of(cache), copy_of(cache)]
    stores = [device_store._kept_images(one, CPU, 6 * ROW) for one in caches[:2]]
    assert device_store._kept_images(caches[0], CPU, 6 * ROW) is stores[0]
    free = iter([40 * ROW, 8 * 40 * ROW])  # the third fits once the second has left
    monkeypatch.setattr(device_store, "_available_bytes", lambda device: next(free))
    third = device_store._kept_images(caches[2], CPU, 6 * ROW)
    assert list(device_store._kept.values()) == [stores[0], third]
    monkeypatch.setattr(device_store, "_available_bytes", lambda device: 0)
    assert device_store._kept_images(copy_of(cache), CPU, 6 * ROW) is None
    assert not device_store._kept


@pytest.mark.gpu
def test_kept_images_are_those_of_a_store_of_its_own(cache, keeping):
    rows = np.array([3, 5, 39])
    own = OnDevice(cache, rows, torch.device("cuda"))
    first = build_store(cache, np.arange(20), "cuda")
    kept = build_store(cache, rows, "cuda")
    assert kept is first
    assert own.fetch(rows).equal(kept.fetch(rows))
    assert own.tensor[own.index_of(rows)].equal(kept.tensor[kept.index_of(rows)])
