"""DomainNet: 345 classes in six styles, the largest of the five; 9,431 images that occur twice are left out.

The archives contain duplicates (clipart 704, infograph 1,596, painting 3,493, real 2,380, sketch 1,258). DomainBed
publishes their names, one ``<domain>/<class>/<image>`` a line; the list is read from ``domain_net_duplicates.txt``
beside the domains or in the folder above (``fetch`` puts it there), or from the option ``duplicates``. The files
stay on disk and are left out when the dataset is read.
"""

from __future__ import annotations

from pathlib import Path

from swad.data.benchmark import Benchmark, Download, Options
from swad.data.domains import DataError, Defaults

LIST = "domain_net_duplicates.txt"
SOURCE = "http://csr.bu.edu/ftp/visda/2019/multi-source/"


def duplicates(path: Path, options: Options) -> frozenset[str]:
    """The images to leave out; none where no list is found (the counts then tell)."""
    given = options.get("duplicates")
    for candidate in [Path(given)] if given else [path / LIST, path.parent / LIST]:
        if candidate.is_file():
            lines = (line.strip() for line in candidate.read_text("utf-8").splitlines())
            return frozenset(line for line in lines if line)
    if given:
        raise DataError(f"the list of DomainNet duplicates {given} is not a file; give the path of {LIST}")
    return frozenset()


BENCHMARK = Benchmark(
    name="DomainNet",
    folder="domain_net",
    domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    counts={
        "clipart": 48129,
        "infograph": 51605,
        "painting": 72266,
        "quickdraw": 172500,
        "real": 172947,
        "sketch": 69128,
    },
    n_classes=345,
    defaults=Defaults(steps=15000, evaluate_every=500),
    license="fair-use notice: non-commercial research",
    citation="Peng, Bai, Xia, Huang, Saenko, Wang: Moment Matching for Multi-Source Domain Adaptation. ICCV 2019.",
    homepage="http://ai.bu.edu/M3SDA/",
    downloads=(
        Download(SOURCE + "groundtruth/clipart.zip", "clipart.zip"),
        Download(SOURCE + "infograph.zip", "infograph.zip"),
        Download(SOURCE + "groundtruth/painting.zip", "painting.zip"),
        Download(SOURCE + "quickdraw.zip", "quickdraw.zip"),
        Download(SOURCE + "real.zip", "real.zip"),
        Download(SOURCE + "sketch.zip", "sketch.zip"),
        Download(
            "https://raw.githubusercontent.com/facebookresearch/DomainBed/main/domainbed/misc/" + LIST,
            LIST,
            sha256="a52b4ab70203f4f3df381077694dba3e33ff44c26407e1c5faca76919c702770",
            unpack=False,
        ),
    ),
    max_unpacked=60 * 2**30,
    options={"duplicates": None},
    excluded=duplicates,
)
