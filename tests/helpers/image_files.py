"""Small image files in two domains, and the arrays that a cache of them must contain."""

from pathlib import Path

import numpy as np
from PIL import Image

from swad.testbed.data.cache_build import IMAGES
from swad.testbed.data.domains import Dataset, FileDomain


def write_image(path: Path, height: int, width: int, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    smooth = np.random.RandomState(seed).randint(0, 256, (3, 3, 3)).astype(np.uint8)
    Image.fromarray(smooth).resize((width, height), Image.Resampling.BICUBIC).save(path)


def make_files(root: Path, per_domain: int = 5, sizes=((20, 24),)) -> Path:
    """Write domains a and b of alternating JPEG and PNG files, with these sizes in turn."""
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


def decode_all(dataset: Dataset, size: tuple[int, int] | None = None) -> np.ndarray:
    """Decode every image on its own, and resize it if a size is given."""
    images = [domain.image(i) for domain in dataset.domains for i in range(len(domain))]
    return np.stack(
        [np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR) if size else image) for image in images]
    )


def fail_on_log(line: str) -> None:
    raise AssertionError(f"expected no log line, got {line!r}")


def only_cache(folder: Path) -> Path:
    (cache,) = (entry for entry in folder.iterdir() if entry.is_dir())
    return cache


def damage_data(root: Path, folder: Path) -> None:
    file = only_cache(folder) / IMAGES
    data = bytearray(file.read_bytes())
    data[7000] ^= 1
    file.write_bytes(data)
