"""Datasets are found by name, also in folders of your own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.small_trees import make_tree
from swad.data import benchmarks
from swad.data.domains import DataError

DOCUMENT = Path(__file__).parents[3] / "docs" / "benchmark.md"
(EXAMPLE,) = (
    block for block in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL) if "BENCHMARK" in block
)


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
    (folder / "my_data.py").write_text(EXAMPLE)
    make_tree(tmp_path / "my_data", ["photo", "sketch"], ["cat", "dog"])

    def run(code: str, folder: object = folder) -> subprocess.CompletedProcess[str]:
        code = f"from swad.data import benchmarks; {code}"
        environment = os.environ | {"SWAD_DATASETS": str(folder)}
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)

    loaded = run(f"print(benchmarks.load('MyData', {str(tmp_path)!r}, check_counts=False).domain_names)")
    assert loaded.stdout == "('photo', 'sketch')\n", loaded.stderr
    assert run("print('pacs' in benchmarks.names())").stdout == "True\n"
    (folder / "pacs.py").write_text(EXAMPLE)
    assert "there are 2 files pacs.py: rename yours" in run("benchmarks.names()").stderr
    (folder / "pacs.py").rename(folder / "empty.py").write_text("")
    assert "empty.py does not: add the line" in run("benchmarks.get('empty')").stderr
    assert "must name existing folders" in run("benchmarks.names()", tmp_path / "nowhere").stderr
