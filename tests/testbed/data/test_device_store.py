"""A store on the device and a streaming one return the same bytes."""

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swad.testbed.data import device_store
from swad.testbed.data.cache import ImageCache
from swad.testbed.data.device_store import Resident, Streaming, build_store

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


@pytest.fixture
def no_room(monkeypatch):
    """No image fits on a device, and buffers take six."""
    monkeypatch.setattr(device_store, "_available_bytes", lambda device: 40 * ROW - 1)
    monkeypatch.setattr(device_store, "HOST_BYTES", 6 * ROW)


def test_images_that_fit_are_stored_on_the_device(cache, recwarn):
    lines: list[str] = []
    images = build_store(cache, np.arange(40), CPU, lines.append)
    assert isinstance(images, Resident)
    assert lines == ["40 images (0.0 MB) memory-mapped from the image cache"]
    # Not a copy: the tensor starts where the file is mapped.
    assert images.tensor.data_ptr() == cache.images.ctypes.data
    assert not recwarn.list


def test_images_that_do_not_fit_are_streamed(cache, no_room):
    lines: list[str] = []
    images = build_store(cache, np.arange(40), CPU, lines.append)
    assert isinstance(images, Streaming)
    assert images.host_bytes == 6 * ROW
    assert len(lines) == 1
    assert "40 images (0.0 MB) do not fit on cpu" in lines[0]
    assert "streaming them through 0.0 MB of host memory" in lines[0]
    assert isinstance(build_store(cache, np.arange(39), CPU), Resident)


def test_streaming_is_the_fallback_when_memory_runs_out(cache, monkeypatch):
    def full(*arguments):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(device_store, "Resident", full)
    lines: list[str] = []
    images = build_store(cache, np.arange(40), CPU, lines.append)
    assert isinstance(images, Streaming)
    assert "(out of memory)" in lines[0]


@pytest.mark.parametrize("device", devices)
def test_both_stores_have_the_same_bytes(cache, device, no_room):
    stored = np.arange(3, 40, 2)
    on_device = build_store(cache, stored, torch.device(device))
    assert isinstance(on_device, Resident)
    wanted = [np.random.RandomState(i).choice(stored, size) for i, size in enumerate((1, 4, 5, 13, 30))]
    for rows, images in zip(wanted, Streaming(cache, torch.device(device)).stream(wanted), strict=True):
        expected = torch.from_numpy(cache.images[rows])
        assert images.device.type == on_device.tensor.device.type == device
        assert torch.equal(images.cpu(), expected)
        index = torch.from_numpy(on_device.index_of(rows)).to(device)
        assert torch.equal(on_device.tensor[index].cpu(), expected)


@settings(max_examples=30)
@given(
    batches=st.lists(st.lists(st.integers(0, 39), max_size=12), max_size=6),
    taken=st.integers(0, 6),
    buffers=st.integers(0, 9),
)
def test_a_stream_may_be_left_and_never_overwrites_what_it_gave(cache, batches, taken, buffers):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_store, "HOST_BYTES", buffers * ROW)
        streaming = Streaming(cache, CPU)
    wanted = [np.array(rows, np.int64) for rows in batches]
    left = list(islice(streaming.stream(wanted), taken))
    read = list(streaming.stream(wanted))
    assert len(read) == len(wanted)
    for rows, images in [*zip(wanted, left, strict=False), *zip(wanted, read, strict=True)]:
        assert torch.equal(images, torch.from_numpy(cache.images[rows]))


@pytest.mark.gpu
@cuda
def test_images_are_copied_to_a_gpu_in_chunks(cache, monkeypatch):
    monkeypatch.setattr(device_store, "HOST_BYTES", 6 * ROW)
    lines: list[str] = []
    images = build_store(cache, np.arange(40), torch.device("cuda"), lines.append)
    assert lines == ["40 images (0.0 MB) loaded onto cuda"]
    assert torch.equal(images.tensor.cpu(), torch.from_numpy(cache.images[:]))


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
    stores = [device_store._kept_images(one, CPU) for one in caches[:2]]
    assert device_store._kept_images(caches[0], CPU) is stores[0]
    free = iter([40 * ROW, 8 * 40 * ROW])  # the third fits once the second has left
    monkeypatch.setattr(device_store, "_available_bytes", lambda device: next(free))
    third = device_store._kept_images(caches[2], CPU)
    assert list(device_store._kept.values()) == [stores[0], third]
    monkeypatch.setattr(device_store, "_available_bytes", lambda device: 0)
    assert device_store._kept_images(copy_of(cache), CPU) is None
    assert not device_store._kept


@pytest.mark.gpu
def test_kept_images_are_those_of_a_store_of_its_own(cache, keeping):
    rows = np.array([3, 5, 39])
    own = Resident(cache, rows, torch.device("cuda"))
    first = build_store(cache, np.arange(20), torch.device("cuda"))
    kept = build_store(cache, rows, torch.device("cuda"))
    assert kept is first
    assert own.tensor[own.index_of(rows)].equal(kept.tensor[kept.index_of(rows)])
