"""TerraIncognita: nine kinds of animals, or none, at four camera traps; a subset of Caltech Camera Traps.

The downloaded images and annotations are arranged as ``location_<n>/<category>/<image>``. The annotations were revised
after the first papers: downloads now give 24,330 images instead of 24,788, and both totals are accepted.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path, PurePosixPath

from swad.testbed.data.benchmark import Benchmark, Download
from swad.testbed.data.domains import Defaults
from swad.util.images import DataError

LOCATIONS = ("100", "38", "43", "46")
CATEGORIES = ("bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon", "squirrel")
SERVERS = (
    "https://storage.googleapis.com/public-datasets-lila",
    "https://lilawildlife.blob.core.windows.net/lila-wildlife",
)
"""The first addresses that LILA gives for its data: at Google and at Microsoft."""
FILES = ("eccv_18_all_images_sm.tar.gz", "eccv_18_annotations.tar.gz")


def arrange(unpacked: Path) -> Path:
    """Sort the images of the four locations into folders by their annotated category."""
    images: dict[str, tuple[str, str]] = {}
    categories: dict[int, str] = {}
    pairs: set[tuple[str, str]] = set()
    annotations = sorted(unpacked.glob("eccv_18_annotation*/*.json"))
    pool = unpacked / "eccv_18_all_images_sm"
    if not annotations or not pool.is_dir():
        raise DataError(f"the TerraIncognita archives must contain {pool.name} and annotations; download them again")
    for path in annotations:
        data = json.loads(path.read_text("utf-8"))
        categories |= {entry["id"]: str(entry["name"]) for entry in data["categories"]}
        images |= {str(e["id"]): (str(e["location"]), str(e["file_name"])) for e in data["images"]}
        pairs |= {(str(e["image_id"]), categories[e["category_id"]]) for e in data["annotations"]}
    tree = unpacked / "arranged"
    for image, category in sorted(pairs):
        location, file = images.get(image, ("", ""))
        if location not in LOCATIONS or category not in CATEGORIES:
            continue
        # The name comes from a downloaded file and must not point outside of the folder.
        if PurePosixPath(file).name != file or not (pool / file).is_file():
            raise DataError(f"TerraIncognita annotates {file!r}, which is not one of its images; download it again")
        folder = tree / f"location_{location}" / category
        folder.mkdir(parents=True, exist_ok=True)
        try:  # An image may have two categories; a hard link takes no space, if the file system supports it.
            os.link(pool / file, folder / file)
        except OSError:
            shutil.copyfile(pool / file, folder / file)
    return tree


BENCHMARK = Benchmark(
    name="TerraIncognita",
    folder="terra_incognita",
    domains=tuple(f"location_{n}" for n in LOCATIONS),
    counts={"location_100": 4879, "location_38": 9767, "location_43": 4020, "location_46": 6122},
    other_totals=(24330,),
    n_classes=10,
    classes=CATEGORIES,
    defaults=Defaults(published_schedule=True),
    license="Community Data License Agreement (permissive variant)",
    citation="Beery, Van Horn, Perona: Recognition in Terra Incognita. ECCV 2018.",
    homepage="https://lila.science/datasets/caltech-camera-traps",
    sources=tuple(tuple(Download(f"{server}/caltechcameratraps/{name}", name) for name in FILES) for server in SERVERS),
    arrange=arrange,
)
