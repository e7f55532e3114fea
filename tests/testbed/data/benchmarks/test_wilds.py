"""Camelyon17 and FMoW are read in the layout of WILDS, from their metadata."""

import dataclasses
import re
import shutil

import numpy as np
import pytest

from helpers.download_server import pack
from helpers.small_trees import make_camelyon17, make_fmow, png
from swad.testbed.data import benchmarks
from swad.testbed.data.benchmark import Download
from swad.testbed.data.download import download_dataset
from swad.testbed.data.verify import check, recognize
from swad.util.images import DataError


def test_patches_of_hospitals(tmp_path):
    root = make_camelyon17(tmp_path / "camelyon17_v1.0")
    dataset = benchmarks.load("camelyon17", tmp_path, check_counts=False)
    assert dataset.classes == ("normal", "tumor")
    assert [len(domain) for domain in dataset.domains] == [4] * 5
    hospital = dataset.domains[2]  # patches 2, 7, 12 and 17, of which 7 and 17 have tumor
    assert hospital.labels.tolist() == [0, 0, 1, 1]
    assert hospital.files[2] == "patches/patient_007_node_1/patch_patient_007_node_1_x_224_y_448.png"
    assert (np.asarray(hospital.image(3)) == 17).all()
    assert benchmarks.load("camelyon17", root, check_counts=False).domains[2].files == hospital.files
    assert benchmarks.missing(benchmarks.get("camelyon17"), tmp_path) == ""
    advice = f"run `swad datasets check {root} --name Camelyon17`"
    with pytest.raises(DataError, match=f"domain hospital_0 has 4 images, expected 59436.*{re.escape(advice)}"):
        benchmarks.load("camelyon17", tmp_path)


def test_regions_of_the_world(tmp_path):
    root = make_fmow(tmp_path / "fmow_v1.1")
    dataset = benchmarks.load("fmow", root)
    counts = {domain.name: len(domain) for domain in dataset.domains}
    # The withheld images are left out; a territory without a region and an unknown country are of no region.
    assert counts == {"Africa": 62, "Americas": 62, "Asia": 62, "Europe": 62, "Oceania": 62, "Other": 124}
    assert len(dataset.classes) == 62
    americas = dataset.domains[1]
    assert americas.files[1] == "images/rgb_img_9.png"
    assert americas.labels.tolist() == list(range(62))
    assert (root / "images" / "rgb_img_9.png").read_bytes() == png(10)


def test_they_are_recognized_and_checked(tmp_path):
    root = make_camelyon17(tmp_path / "camelyon17_v1.0")
    assert recognize(root).name == "Camelyon17"
    result = check(root)
    assert result.decoded == 20
    assert "domain hospital_4 has 4 images, expected 146722" in result.problems
    shutil.rmtree(root / "patches" / "patient_007_node_1")
    with pytest.raises(DataError, match=r"1 file of .*metadata\.csv cannot be found") as caught:
        benchmarks.load("camelyon17", root)
    assert "\n" not in str(caught.value)


def test_a_column_that_is_not_there(tmp_path):
    root = make_fmow(tmp_path / "fmow_v1.1")
    (root / "country_code_mapping.csv").write_text("name,alpha-3\nNamibia,NAM\n")
    with pytest.raises(DataError, match="must name alpha-3,region, but it lacks region and names name,alpha-3"):
        benchmarks.load("fmow", root)


def test_the_archive_has_no_folder_of_its_own(server, tmp_path):
    server.files["c.tar.gz"] = pack(make_camelyon17(tmp_path / "made"), ".", "gz")
    facts = {
        "counts": {f"hospital_{i}": 4 for i in range(5)},
        "sources": ((Download(server.url + "c.tar.gz", "c.tar.gz"),),),
    }
    result = download_dataset(dataclasses.replace(benchmarks.get("camelyon17"), **facts), tmp_path / "root")
    assert result.check.ok
    assert (result.path / "metadata.csv").is_file()
