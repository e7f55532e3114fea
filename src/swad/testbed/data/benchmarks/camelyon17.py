"""Camelyon17-WILDS: patches of lymph nodes from five hospitals, with tumor in the center or without.

It is read in the layout of the package `wilds`, which is not needed: ``metadata.csv`` and ``patches``. All patches of a
hospital are its domain; the splits of WILDS are not used, as in DomainBed.
"""

from __future__ import annotations

from pathlib import Path

from swad.testbed.data.benchmark import Benchmark, Download, Options
from swad.testbed.data.domains import Dataset
from swad.testbed.data.image_folder import read_tree
from swad.testbed.data.table import find_table, list_images, read_columns

URL = "https://worksheets.codalab.org/rest/bundles/0xe45e15f39fb54e9d9e919556af67aabe/contents/blob/"


def read(benchmark: Benchmark, root: Path | None, check_counts: bool, options: Options) -> Dataset:
    """List the patches of the metadata."""
    table = find_table(benchmark, root, "metadata.csv")
    frame = read_columns(table, ("patient", "node", "x_coord", "y_coord", "tumor", "center"))
    node = "patient_" + frame["patient"] + "_node_" + frame["node"]
    frame["path"] = "patches/" + node + "/patch_" + node + "_x_" + frame["x_coord"] + "_y_" + frame["y_coord"] + ".png"
    frame["domain"] = "hospital_" + frame["center"]
    frame["label"] = frame["tumor"].replace({"0": "normal", "1": "tumor"})
    return read_tree(benchmark, table.parent, list_images(benchmark, table, frame, options), check_counts)


BENCHMARK = Benchmark(
    name="Camelyon17",
    folder="camelyon17_v1.0",
    domains=tuple(f"hospital_{center}" for center in range(5)),
    counts={f"hospital_{center}": n for center, n in enumerate((59436, 34904, 85054, 129838, 146722))},
    n_classes=2,
    classes=("normal", "tumor"),
    license="CC0",
    citation="Bandi et al.: From Detection of Individual Metastases to Classification of Lymph Node Status at the "
    "Patient Level. IEEE TMI, 2018. Koh et al.: WILDS. ICML 2021.",
    homepage="https://wilds.stanford.edu/datasets/#camelyon17",
    sources=((Download(URL, "camelyon17_v1.0.tar.gz"),),),
    read=read,
)
