"""FMoW-WILDS: satellite images of 62 kinds of buildings and land use; the regions of the world are the domains.

It is read in the layout of the package `wilds`, which is not needed: ``rgb_metadata.csv``, ``country_code_mapping.csv``
and ``images``. All images of a region are its domain, without those that the challenge withheld (``seq``); as in
DomainBed, the splits of WILDS are not used.
"""

from __future__ import annotations

from pathlib import Path

from swad.testbed.data.benchmark import Benchmark, Download, Options
from swad.testbed.data.domains import Dataset
from swad.testbed.data.image_folder import read_tree
from swad.testbed.data.table import find_table, list_images, read_columns

URL = "https://worksheets.codalab.org/rest/bundles/0xaec91eb7c9d548ebb15e1b5e60f966ab/contents/blob/"


def read(benchmark: Benchmark, root: Path | None, check_counts: bool, options: Options) -> Dataset:
    """List the images of the metadata, with the region of each one's country."""
    table = find_table(benchmark, root, "rgb_metadata.csv")
    frame = read_columns(table, ("split", "category", "country_code"))
    countries = read_columns(table.with_name("country_code_mapping.csv"), ("alpha-3", "region"))
    regions = dict(zip(countries["alpha-3"], countries["region"], strict=True))
    frame["path"] = "images/rgb_img_" + frame.index.astype(str) + ".png"
    frame["domain"] = [regions.get(code) or "Other" for code in frame["country_code"]]
    frame["label"] = frame["category"]
    frame = frame[frame["split"] != "seq"]
    return read_tree(benchmark, table.parent, list_images(benchmark, table, frame, options), check_counts)


BENCHMARK = Benchmark(
    name="FMoW",
    folder="fmow_v1.1",
    domains=("Africa", "Americas", "Asia", "Europe", "Oceania", "Other"),
    n_classes=62,
    license="Functional Map of the World Challenge Public License",
    citation="Christie et al.: Functional Map of the World. CVPR 2018. Koh et al.: WILDS. ICML 2021.",
    homepage="https://wilds.stanford.edu/datasets/#fmow",
    sources=((Download(URL, "fmow_v1.1.tar.gz"),),),
    read=read,
)
