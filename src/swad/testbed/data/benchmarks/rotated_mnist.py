"""RotatedMNIST: a sixth of MNIST at each of six angles, 28 × 28 gray (Ghifary et al. 2015; as in DomainBed).

Training and test digits are combined and dealt to the domains, so no digit occurs in two of them. Rotation is
counter-clockwise with bicubic interpolation, and the corners are black.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from swad.testbed.data import mnist
from swad.testbed.data.benchmark import Benchmark, Options
from swad.testbed.data.domains import ArrayDomain, Dataset, Defaults, Domain, ImageSpec

ANGLES = (0, 15, 30, 45, 60, 75)


def read(benchmark: Benchmark, root: Path | None, check_counts: bool, options: Options) -> Dataset:
    """Rotate each domain's sixth of the digits by its angle."""
    from PIL import Image

    images, labels = mnist.read_mnist(benchmark, root, check_counts)
    domains: list[Domain] = []
    for angle, share in zip(ANGLES, mnist.deal(len(images), len(ANGLES)), strict=True):
        rotated = images[share]
        if angle:
            bicubic = Image.Resampling.BICUBIC
            rotated = np.stack([np.asarray(Image.fromarray(image).rotate(angle, bicubic)) for image in rotated])
        domains.append(ArrayDomain(str(angle), labels[share].copy(), np.ascontiguousarray(rotated[..., None])))
    classes = tuple(str(digit) for digit in range(10))
    return Dataset(benchmark.name, tuple(domains), classes, benchmark.image_spec, benchmark.defaults)


BENCHMARK = Benchmark(
    name="RotatedMNIST",
    folder="MNIST",
    domains=tuple(map(str, ANGLES)),
    counts={"0": 11667, "15": 11667, "30": 11667, "45": 11667, "60": 11666, "75": 11666},
    n_classes=10,
    # DomainBed does not normalize these digits: pixels are between 0 and 1.
    image_spec=ImageSpec(size=28, channels=1, low_res=True, mean=(0.0,), std=(1.0,)),
    defaults=Defaults(batch_size=64, lr=1e-3),
    license=mnist.LICENSE,
    citation="Ghifary, Kleijn, Zhang, Balduzzi: Domain Generalization for Object Recognition with Multi-Task "
    f"Autoencoders. ICCV 2015. Digits: {mnist.MNIST}",
    homepage="https://github.com/facebookresearch/DomainBed",
    sources=mnist.SOURCES,
    read=read,
    layout="idx",
)
