"""Datasets are found by name, also in folders of your own."""

import os
import subprocess
import sys

import pytest

from helpers.small_trees import make_tree
from swad.data import benchmarks
from swad.data.domains import DataError

OWN = """
from swad.data.benchmark import Benchmark

BENCHMARK = Benchmark(name="MyData", folder="my_data", domains=("left", "right"), license="CC0")
"""


def test_datasets_are_found_by_name():
    assert {"pacs", "vlcs", "office_home", "terra_incognita", "domain_net"} <= set(benchmarks.names())
    assert {"folder", "rotated_mnist", "colored_mnist", "digits"} <= set(benchmarks.names())
    for spelling in ("OfficeHome", "office-home", "OFFICE_HOME"):
        assert benchmarks.get(spelling).name == "OfficeHome"
    with pytest.raises(DataError, match=r"no dataset 'imagenet'; choose one of .*domain_net, folder, office_home"):
        benchmarks.get("imagenet")


def test_unknown_options_are_refused(tmp_path):
    with pytest.raises(DataError, match="DomainNet has the options: duplicates; got domain"):
        benchmarks.load("DomainNet", tmp_path, domain="x")


def test_a_dataset_in_a_folder_of_your_own(tmp_path):
    """In processes of their own, because the variable is read at import."""
    folder = tmp_path / "datasets"
    folder.mkdir()
    (folder / "my_data.py").write_text(OWN)
    make_tree(tmp_path / "my_data", ["left", "right"], ["cat", "dog"])

    def run(code: str, folder: object = folder) -> subprocess.CompletedProcess[str]:
        code = f"from swad.data import benchmarks; {code}"
        environment = os.environ | {"SWAD_DATASETS": str(folder)}
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)

    loaded = run(f"print(benchmarks.load('MyData', {str(tmp_path)!r}).domain_names, 'pacs' in benchmarks.names())")
    assert loaded.stdout == "('left', 'right') True\n", loaded.stderr
    (folder / "pacs.py").write_text(OWN)
    assert "there are 2 files pacs.py: rename yours" in run("benchmarks.names()").stderr
    (folder / "pacs.py").rename(folder / "empty.py").write_text("")
    assert "empty.py does not: add the line" in run("benchmarks.get('empty')").stderr
    assert "must name existing folders" in run("benchmarks.names()", tmp_path / "nowhere").stderr
