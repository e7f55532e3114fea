"""DomainNet: 345 classes in six styles, the largest of the five benchmarks, without its 9,431 duplicate images.

The archives contain duplicates (clipart 704, infograph 1,596, painting 3,493, real 2,380, sketch 1,258). DomainBed
publishes a list of them, one ``<domain>/<class>/<image>`` per line. It is read from ``domain_net_duplicates.txt`` in
the folder of the domains or in the folder above (the download puts it there), or from the option ``duplicates``. The
files stay on disk and are skipped when the dataset is read.
"""

from __future__ import annotations

from pathlib import Path

from swad.testbed.data.benchmark import Benchmark, Download, Options
from swad.testbed.data.domains import Defaults
from swad.util.images import DataError

LIST = "domain_net_duplicates.txt"
SOURCE = "https://csr.bu.edu/ftp/visda/2019/multi-source/"
ARCHIVES = (
    "groundtruth/clipart.zip",
    "infograph.zip",
    "groundtruth/painting.zip",
    "quickdraw.zip",
    "real.zip",
    "sketch.zip",
)
DUPLICATES = Download(
    "https://raw.githubusercontent.com/facebookresearch/DomainBed/main/domainbed/misc/" + LIST,
    LIST,
    sha256="a52b4ab70203f4f3df381077694dba3e33ff44c26407e1c5faca76919c702770",
    unpack=False,
)


def duplicates(path: Path, options: Options) -> frozenset[str]:
    """Return the duplicates; none if there is no list, which the image counts then reveal."""
    requested = options.get("duplicates")
    for candidate in [Path(requested)] if requested else [path / LIST, path.parent / LIST]:
        if candidate.is_file():
            lines = (line.strip() for line in candidate.read_text("utf-8").splitlines())
            return frozenset(line for line in lines if line)
    if requested:
        raise DataError(f"the option duplicates must be the path of {LIST}, but {requested} is not a file")
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
    defaults=Defaults(steps=15000, evaluate_every=500, published_schedule=True),
    license="fair-use notice: non-commercial research",
    citation="Peng, Bai, Xia, Huang, Saenko, Wang: Moment Matching for Multi-Source Domain Adaptation. ICCV 2019.",
    homepage="http://ai.bu.edu/M3SDA/",
    sources=(
        (*(Download(SOURCE + path, path.split("/")[-1]) for path in ARCHIVES), DUPLICATES),
        "hub:wltjr1007/DomainNet",  # without the duplicates
    ),
    options={"duplicates": None},
    excluded=duplicates,
)
