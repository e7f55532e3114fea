"""What the installed package consists of."""

import subprocess
import sys
import tomllib

import pytest

from helpers import ROOT, SOURCE


def test_every_data_file_is_in_the_wheel():
    globs = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["swad"]
    package = SOURCE / "swad"
    declared = {path for glob in globs for path in package.glob(glob)}
    data_files = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert data_files == declared
    assert {path.suffix for path in declared} >= {".json", ".css", ".js", ".html", ".typed"}


def test_every_folder_is_a_package():
    folders = {path.parent for path in (SOURCE / "swad").rglob("*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


@pytest.mark.parametrize("name", ["flatness.local", "robustness.imagenet_c.mce", "robustness.corruptions.corrupt"])
def test_names_below_swad_need_no_other_import(name):
    """In a fresh process, where nothing else has imported the module."""
    program = f"import swad; print(callable(swad.{name}))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "True\n"
