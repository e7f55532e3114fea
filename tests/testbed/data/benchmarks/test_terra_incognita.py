"""TerraIncognita's images are sorted by location and annotated category."""

import dataclasses
import json
import os

import pytest

from helpers.download_server import pack
from helpers.small_trees import save_image
from swad.testbed.data import benchmarks
from swad.testbed.data.benchmark import Download
from swad.testbed.data.download import download_dataset
from swad.util.images import DataError


def test_terra_incognita_is_arranged(server, tmp_path):
    counts = {"location_100": 1, "location_38": 1, "location_46": 2}
    facts = {"domains": tuple(counts), "counts": counts, "classes": ("cat", "dog"), "n_classes": 2}
    benchmark = dataclasses.replace(benchmarks.get("TerraIncognita"), **facts)
    images, notes = tmp_path / "images", tmp_path / "notes"
    names = [f"{i}.png" for i in range(5)]
    for name in names:
        save_image(images / name, 0)
    notes.mkdir()
    categories = [{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}, {"id": 3, "name": "car"}]
    places = ["38", "46", 100, "7", "43"]
    pictures = [{"id": n, "location": p, "file_name": n} for n, p in zip(names, places, strict=True)]
    marks = [("0.png", 1), ("0.png", 1), ("1.png", 1), ("1.png", 2), ("2.png", 2), ("3.png", 1), ("4.png", 3)]
    annotations = [{"image_id": n, "category_id": c} for n, c in marks]
    half = {"categories": categories, "images": pictures[:3], "annotations": annotations[:5]}
    rest = {"categories": categories, "images": pictures[3:], "annotations": annotations[5:]}
    (notes / "train.json").write_text(json.dumps(half))
    (notes / "test.json").write_text(json.dumps(rest))
    server.files["i.tar.gz"] = pack(images, "eccv_18_all_images_sm", "gz")
    server.files["a.tar.gz"] = pack(notes, "eccv_18_annotation_files", "gz")
    downloads = tuple(Download(server.url + name, name) for name in ("i.tar.gz", "a.tar.gz"))
    result = download_dataset(dataclasses.replace(benchmark, sources=(downloads,)), tmp_path / "root")
    found = sorted(str(p.relative_to(result.path)) for p in result.path.rglob("*.png"))
    assert found == [
        "location_100/cat/2.png",
        "location_38/dog/0.png",
        "location_46/cat/1.png",
        "location_46/dog/1.png",
    ]
    pictures[0]["file_name"] = "../../secret.png"
    (notes / "train.json").write_text(json.dumps(half))
    server.files["a.tar.gz"] = pack(notes, "eccv_18_annotation_files", "gz")
    os.rename(result.path, tmp_path / "away")
    with pytest.raises(DataError, match="not one of its images"):
        download_dataset(dataclasses.replace(benchmark, sources=(downloads,)), tmp_path / "root")
