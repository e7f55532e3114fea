"""Reading MNIST's idx files: a big-endian header of type and sizes, then raw bytes; gzipped or not."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from swad.data.benchmark import Benchmark, Download
from swad.data.domains import ByteArray, DataError, IntArray

SOURCE = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FILES = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
DOWNLOADS = tuple(Download(f"{SOURCE}{n}.gz", f"{n}.gz", sha256=s, unpack=False) for n, s in FILES.items())
TOTAL = 70000
LICENSE = "CC BY-SA 3.0"
MNIST = "LeCun, Bottou, Bengio, Haffner: Gradient-Based Learning Applied to Document Recognition. IEEE 86(11), 1998."


def find(root: Path) -> dict[str, Path] | None:
    """The four files, in ``root`` or where torchvision would put them below it."""
    for folder in (root, root / "MNIST", root / "raw", root / "MNIST" / "raw"):
        found: dict[str, Path] = {}
        for name in FILES:
            # Some tools write a dot before idx when they unpack.
            for spelled in (name, f"{name}.gz", name.replace("-idx", ".idx")):
                if (folder / spelled).is_file():
                    found[name] = folder / spelled
                    break
        if len(found) == len(FILES):
            return found
    return None


def read(path: Path) -> ByteArray:
    """The array in one idx file of unsigned bytes."""
    try:
        raw = path.read_bytes()
        data = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        zero, kind, rank = struct.unpack(">HBB", data[:4])
        shape = struct.unpack(f">{rank}I", data[4 : 4 + 4 * rank])
        if zero != 0 or kind != 8:
            raise ValueError("not an idx file of bytes")
        return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}; download it again") from error


def mnist(benchmark: Benchmark, root: Path | None, check_counts: bool) -> tuple[ByteArray, IntArray]:
    """All of MNIST, training and test together, in a fixed shuffled order.

    DomainBed shuffles with the run's seed; here the order is the same in every run, so that a trial changes the
    split and not the domains.
    """
    if root is None:
        raise DataError(f"{benchmark.name} is read from MNIST's idx files; say which folder holds them")
    files = find(root)
    if files is None:
        raise DataError(
            f"{root} does not hold the four idx files of MNIST ({', '.join(FILES)}); "
            f"run `swad datasets fetch {benchmark.name}`"
        )
    parts = {name: read(path) for name, path in files.items()}
    images = np.concatenate([parts["train-images-idx3-ubyte"], parts["t10k-images-idx3-ubyte"]])
    labels = np.concatenate([parts["train-labels-idx1-ubyte"], parts["t10k-labels-idx1-ubyte"]])
    if images.ndim != 3 or images.shape[1:] != (28, 28) or len(images) != len(labels):
        raise DataError(f"{root}: expected n images of 28 × 28 and n labels, got {images.shape} and {labels.shape}")
    if check_counts and len(images) != TOTAL:
        raise DataError(
            f"{root} has {len(images)} digits, expected {TOTAL}; download it again or load with check_counts=False"
        )
    order = np.random.RandomState(0).permutation(len(images))
    return images[order], labels[order].astype(np.int64)


def deal(n: int, hands: int) -> Iterator[slice]:
    """Cut ``n`` images into domains as one deals cards: every ``hands``-th image."""
    for hand in range(hands):
        yield slice(hand, n, hands)
