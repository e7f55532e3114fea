"""Reading MNIST from its idx files: a big-endian header with type and shape, then raw bytes; gzipped or not."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from swad.testbed.data.benchmark import Benchmark, Download
from swad.testbed.data.domains import ByteArray, IntArray
from swad.util.images import DataError

SERVERS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
FILES = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
SOURCES = tuple(
    tuple(Download(f"{server}{n}.gz", f"{n}.gz", sha256=s, unpack=False) for n, s in FILES.items())
    for server in SERVERS
)
TOTAL = 70000
LICENSE = "CC BY-SA 3.0"
MNIST = "LeCun, Bottou, Bengio, Haffner: Gradient-Based Learning Applied to Document Recognition. IEEE 86(11), 1998."


def find(root: Path) -> dict[str, Path] | None:
    """Return the paths of the four files, in ``root`` or where torchvision would put them; None if one is missing."""
    for folder in (root, root / "MNIST", root / "raw", root / "MNIST" / "raw"):
        paths: dict[str, Path] = {}
        for name in FILES:
            # Some tools replace the dash before idx by a dot when they unpack.
            for variant in (name, f"{name}.gz", name.replace("-idx", ".idx")):
                if (folder / variant).is_file():
                    paths[name] = folder / variant
                    break
        if len(paths) == len(FILES):
            return paths
    return None


def read_idx(path: Path) -> ByteArray:
    """Read the array of an idx file of unsigned bytes."""
    try:
        raw = path.read_bytes()
        data = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        zero, dtype, rank = struct.unpack(">HBB", data[:4])
        shape = struct.unpack(f">{rank}I", data[4 : 4 + 4 * rank])
        if zero != 0 or dtype != 8:
            raise ValueError("it is not an idx file of unsigned bytes")
        return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}; download it again") from error


def read_mnist(benchmark: Benchmark, root: Path | None, check_counts: bool) -> tuple[ByteArray, IntArray]:
    """Read all images and labels of MNIST, training and test together, in a fixed shuffled order.

    DomainBed shuffles with the run's seed. Here the order is the same in every run, so a trial changes the splits and
    not the domains.
    """
    if root is None:
        raise DataError(f"{benchmark.name} is read from MNIST's idx files; give the folder that contains them (--data)")
    files = find(root)
    if files is None:
        raise DataError(
            f"{root} does not contain the four idx files of MNIST ({', '.join(FILES)}); "
            f"run `swad datasets download {benchmark.name}`"
        )
    arrays = {name: read_idx(path) for name, path in files.items()}
    images = np.concatenate([arrays["train-images-idx3-ubyte"], arrays["t10k-images-idx3-ubyte"]])
    labels = np.concatenate([arrays["train-labels-idx1-ubyte"], arrays["t10k-labels-idx1-ubyte"]])
    if images.ndim != 3 or images.shape[1:] != (28, 28) or len(images) != len(labels):
        raise DataError(f"{root}: expected n images of 28 × 28 and n labels, got {images.shape} and {labels.shape}")
    if check_counts and len(images) != TOTAL:
        raise DataError(
            f"{root} has {len(images)} digits, expected {TOTAL}; download it again or load it with check_counts=False"
        )
    order = np.random.RandomState(0).permutation(len(images))
    return images[order], labels[order].astype(np.int64)


def deal(n: int, n_domains: int) -> Iterator[slice]:
    """Assign ``n`` images to domains in turn, as cards are dealt: each domain gets every ``n_domains``-th image."""
    for domain in range(n_domains):
        yield slice(domain, n, n_domains)
