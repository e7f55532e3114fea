"""What the package consists of, what it needs, and which versions are tested."""

import ast
import email
import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest

import swad
from helpers import ROOT, SOURCE, forked

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REQUIREMENTS = {"": PROJECT["project"]["dependencies"], **PROJECT["project"]["optional-dependencies"]}
MODULES = {
    "accelerate": None,  # of the Trainer of transformers
    "curvlinops-for-pytorch": "curvlinops",
    "huggingface-hub": "huggingface_hub",
    "mlflow-skinny": "mlflow",
    "onnx": None,  # of torch's exporter
    "pillow": "PIL",
    "scikit-learn": None,  # its file of digits is read without an import
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
    code = "import sys; from setuptools import build_meta as b; print(b.build_wheel('..'), b.build_sdist('..'))"
    built = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "copy", capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    wheel, sdist = built.stdout.split()[-2:]
    with zipfile.ZipFile(tmp_path / wheel) as archive:
        assert archive.testzip() is None
        in_wheel = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert in_wheel == {path.relative_to(SOURCE).as_posix() for path in tracked("src/swad")}
    with tarfile.open(tmp_path / sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {path.relative_to(ROOT).as_posix() for folder in folders for path in tracked(folder)}
    wanted |= {"Makefile", "constraints.txt", "constraints-floor.txt", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"}
    assert wanted | {"CITATION.cff", "SECURITY.md", "CODE_OF_CONDUCT.md", "llms.txt"} <= in_sdist


def links(text):
    """Return the targets of links and images, outside code, of Markdown and of HTML in it."""
    parser = pytest.importorskip("markdown_it").MarkdownIt().enable("table")
    tokens = [child for token in parser.parse(text) for child in (token, *(token.children or ()))]
    html = "".join(token.content for token in tokens if token.type.startswith("html"))
    targets = [token.attrs.get("href") or token.attrs.get("src") for token in tokens]
    return [str(target) for target in targets if target] + re.findall(r"""\b(?:href|src)=["']?([^"'\s>]+)""", html)


def headings(text):
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def long_description(folder, address):
    """Let setuptools write the metadata of a copy of the project that has this address, and return its README."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "src/swad/util/version.py"):
        copy = folder / "copy" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
    project = folder / "copy" / "pyproject.toml"
    text = re.sub(r"^Repository = .*\n", "", project.read_text(), flags=re.MULTILINE)
    line = f"Repository = {address!r}\n" if address else ""
    project.write_text(text.replace("[project.urls]\n", f"[project.urls]\n{line}"))
    code = "from setuptools import build_meta as b; b.prepare_metadata_for_build_wheel('..')"
    built = subprocess.run([sys.executable, "-c", code], cwd=folder / "copy", capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.dist-info/METADATA")
    metadata = email.message_from_string(path.read_text(encoding="utf-8"))
    assert metadata["Description-Content-Type"] == "text/markdown"
    return metadata.get_payload()


@pytest.mark.slow
@pytest.mark.parametrize("address", ["https://example.org/swad", "https://example.org/swad/"])
def test_the_description_on_pypi_has_no_relative_link(tmp_path, address):
    text = long_description(tmp_path, address)
    found = links(text)
    assert f"https://example.org/swad/raw/v{swad.__version__}/docs/swad.png" in found
    assert f"https://example.org/swad/blob/v{swad.__version__}/docs/which-average.md" in found
    assert not [link for link in found if not link.startswith("https://") and link not in headings(text)]
    assert len(found) == len(links((ROOT / "README.md").read_text(encoding="utf-8")))


@pytest.mark.slow
def test_the_description_without_an_address_is_the_readme(tmp_path):
    assert long_description(tmp_path, None).strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()


def test_links_of_the_description_become_absolute_and_no_others():
    description = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")["description"]
    text = "[a](b.md#c) ![d](e.png) [f](https://g.org) [h](#i) [![j](k.png)](l.md)"
    blob, raw = "https://x.org/s/blob/v1", "https://x.org/s/raw/v1"
    assert links(description(text, "https://x.org/s", "1")) == [
        *(f"{blob}/b.md#c", f"{raw}/e.png", "https://g.org", "#i", f"{blob}/l.md", f"{raw}/k.png")
    ]
    assert description(text, None, "1") == text
    assert links('<a href="m.md"><img src=n.png></a>') == ["m.md", "n.png"]


@pytest.mark.parametrize("name", ["flatness.local", "robustness.imagenet_c.mce", "robustness.corruptions.corrupt"])
def test_names_below_swad_need_no_other_import(name):
    """In a process where nothing else has imported the module."""
    done = forked.run(["-c", f"import swad; print(callable(swad.{name}))"])
    assert done.stdout == "True\n", done.stderr


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
