"""What the package consists of, what it needs, and which versions are tested."""

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest

import swad
from helpers import ROOT, SOURCE

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REQUIREMENTS = {"": PROJECT["project"]["dependencies"], **PROJECT["project"]["optional-dependencies"]}
MODULES = {
    "accelerate": None,  # of the Trainer of transformers
    "curvlinops-for-pytorch": "curvlinops",
    "huggingface-hub": "huggingface_hub",
    "mlflow-skinny": "mlflow",
    "pillow": "PIL",
    "scikit-learn": None,  # its file of digits is read without an import
    "scikit-posthocs": "scikit_posthocs",
}
"""The module of each package that is not called like it."""
NOT_INSTALLED = {"triton"}  # comes with torch on a GPU


def test_every_data_file_is_in_the_wheel():
    globs = PROJECT["tool"]["setuptools"]["package-data"]["swad"]
    package = SOURCE / "swad"
    declared = {path for glob in globs for path in package.glob(glob)}
    data_files = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert data_files == declared
    assert {path.suffix for path in declared} >= {".json", ".css", ".js", ".html", ".typed"}


def test_every_folder_is_a_package():
    folders = {path.parent for path in (SOURCE / "swad").rglob("*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


GENERATED = [ROOT / "docs" / folder for folder in ("_build", "gallery", "reference/api")]


def tracked(folder):
    """Return the files below a folder that are no leftovers of running them, and no pages that `make docs` wrote."""
    files = {path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    return {path for path in files if not set(GENERATED) & set(path.parents)}


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_the_source_distribution_what_tests_need(tmp_path):
    """Built by setuptools as pip would, from a copy, since a build leaves files behind."""
    folders = ("src", "tests", "docs", "examples", "benchmarks")
    files = [path for path in ROOT.iterdir() if path.is_file()]
    files += [path for folder in folders for path in tracked(folder)]
    for path in files:
        copy = tmp_path / "copy" / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    project = tmp_path / "copy" / "pyproject.toml"  # with an address, as at a release
    project.write_text(
        project.read_text().replace("[project.urls]", '[project.urls]\nRepository = "https://example.org/swad"')
    )
    code = "import sys; from setuptools import build_meta as b; print(b.build_wheel('..'), b.build_sdist('..'))"
    built = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "copy", capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    wheel, sdist = built.stdout.split()[-2:]
    with zipfile.ZipFile(tmp_path / wheel) as archive:
        assert archive.testzip() is None
        in_wheel = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    links = re.findall(r"\]\(([^)]+)\)", metadata)
    assert f"https://example.org/swad/raw/v{swad.__version__}/docs/swad.png" in links
    assert f"https://example.org/swad/blob/v{swad.__version__}/docs/which-average.md" in links
    assert all(link.startswith("https://") for link in links)
    assert in_wheel == {path.relative_to(SOURCE).as_posix() for path in tracked("src/swad")}
    with tarfile.open(tmp_path / sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {path.relative_to(ROOT).as_posix() for folder in folders for path in tracked(folder)}
    wanted |= {"Makefile", "constraints.txt", "constraints-floor.txt", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"}
    assert wanted | {"CITATION.cff", "SECURITY.md", "CODE_OF_CONDUCT.md", "llms.txt"} <= in_sdist


@pytest.mark.parametrize("name", ["flatness.local", "robustness.imagenet_c.mce", "robustness.corruptions.corrupt"])
def test_names_below_swad_need_no_other_import(name):
    """In a fresh process, where nothing else has imported the module."""
    program = f"import swad; print(callable(swad.{name}))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "True\n"


NOT_OF_USERS = ("all", "test", "docs")
NOT_IN_ALL = ("torchcodec",)
"""Decoding on a GPU, which most who install everything do not need."""


def package_of(requirement):
    return re.match(r"[\w-]+", requirement)[0]


def test_every_package_that_is_imported_is_required_and_no_other():
    imported = set()
    for path in (SOURCE / "swad").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module.partition(".")[0])
    of_the_package = [requirements for extra, requirements in REQUIREMENTS.items() if extra not in NOT_OF_USERS]
    packages = {package_of(requirement) for requirements in of_the_package for requirement in requirements}
    modules = {MODULES.get(package, package) for package in packages} - {None}
    assert imported - sys.stdlib_module_names - {"swad"} - NOT_INSTALLED == modules


def test_everything_is_all_extras():
    extras = set(REQUIREMENTS) - {"", *NOT_OF_USERS, *NOT_IN_ALL}
    for name in ("all", "test"):
        assert set(re.search(r"\[(.+)\]", REQUIREMENTS[name][0])[1].split(",")) == extras


def test_the_floor_is_tested_at_the_oldest_versions_allowed():
    """`make floor` installs them: the oldest torch, and the oldest trainer of each integration."""
    lines = (ROOT / "constraints-floor.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    oldest = {}
    for extra in ("vision", "lightning", "transformers", ""):  # last, since the torch meant is the library's
        oldest |= dict(line.split(">=") for line in REQUIREMENTS[extra] if ">=" in line)
    for package in ("torch", "lightning", "transformers", "timm"):
        assert pins[package].startswith(oldest[package]), package
