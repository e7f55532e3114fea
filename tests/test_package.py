"""What the installed package consists of."""

import tomllib

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
