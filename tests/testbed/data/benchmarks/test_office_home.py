"""OfficeHome's folder of real photographs has several names."""

from helpers.small_trees import make
from swad.testbed.data import benchmarks


def test_office_homes_folder_of_another_name(tmp_path):
    benchmark = benchmarks.get("OfficeHome")
    root = make(benchmark, tmp_path)
    (tmp_path / "office_home" / "Real").rename(tmp_path / "office_home" / "Real World")
    dataset = benchmarks.load("OfficeHome", root, check_counts=False)
    assert dataset.domain_names == benchmark.domains
    dataset.domains[3].image(0)
