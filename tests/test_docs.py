"""The pages of the site: links, doctests, and the parts that are generated from the code.

`make docs` also checks what only Sphinx knows, and runs the gallery.
"""

from __future__ import annotations

import doctest
import importlib
import re
import sys
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
import typer

from helpers import ROOT, documents

pytest.importorskip("sklearn")
pytest.importorskip("lightning.pytorch")
pytest.importorskip("transformers.trainer")
MarkdownIt = pytest.importorskip("markdown_it").MarkdownIt

from swad import cli  # noqa: E402
from swad.testbed.algorithms import registry as algorithms  # noqa: E402
from swad.testbed.averages import registry as averages  # noqa: E402
from swad.testbed.data import benchmarks  # noqa: E402
from swad.testbed.training.config import SETTINGS  # noqa: E402
from swad.testbed.training.setting import Role  # noqa: E402

DOCS = ROOT / "docs"
sys.path.append(str(DOCS / "_ext"))
docstrings, generated, public_names = map(importlib.import_module, ("docstrings", "generated", "public_names"))

PAGES = documents.pages()


# ------------------------------------------------------------ links


def markdown(page: Path) -> str:
    return generated.expand(page.read_text(encoding="utf-8"))


def links(text: str) -> list[str]:
    """Return the targets of links and images, outside code."""
    tokens = [child for token in MarkdownIt().enable("table").parse(text) for child in token.children or ()]
    return [str(token.attrs.get("href") or token.attrs.get("src") or "") for token in tokens if token.attrs]


def anchors(text: str) -> set[str]:
    """Return what links may name in a page: its headings as MyST and GitHub spell them, and labels."""
    tokens = MarkdownIt().enable("table").parse(text)
    headings = [tokens[k + 1].children for k, token in enumerate(tokens) if token.type == "heading_open"]
    titles = ["".join(child.content for child in children) for children in headings]
    slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return slugs | set(re.findall(r"^\(([\w.-]+)\)=$", text, re.MULTILINE)) | set(re.findall(r"\{#([\w.-]+)\}", text))


def problem(page: Path, link: str) -> str | None:
    """Say what is wrong with a link; None if nothing is."""
    if re.match(r"[a-z]+:", link):
        return None if re.match(r"(https?|mailto):", link) else "has an unknown scheme"
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if target.parent == DOCS / "reference" / "api":
        return None if target.name in public_names.api_pages() else "names no public module"
    if target.parent == DOCS / "gallery":
        example = ROOT / "examples" / "gallery" / f"{target.stem}.py"
        return None if target.stem == "index" or example.exists() else "names no example"
    if not target.exists():
        return "names no file"
    if anchor and target.suffix == ".md" and anchor not in anchors(markdown(target)) | documented():
        return "names no heading"
    return None


@cache
def documented() -> set[str]:
    """Return every name of the reference, with the members of classes."""
    names = set()
    modules = public_names.public_modules()
    for module, listed in modules.items():
        for name in listed:
            names.add(f"{module}.{name}")
            value = getattr(importlib.import_module(module), name)
            if isinstance(value, type):
                names |= {f"{module}.{name}.{member}" for member in dir(value) if not member.startswith("_")}
    return names


@pytest.mark.parametrize("page", PAGES, ids=documents.name)
def test_links_and_images_of_pages_exist(page):
    problems = {link: said for link in links(markdown(page)) if (said := problem(page, link))}
    assert not problems


def test_dead_links_are_found(tmp_path):
    page = DOCS / "reference" / "index.md"
    text = "[a](missing.md) ![b](../missing.png) [c](api/swad.nothing.rst) [d](../gallery/nothing.rst) `[e](f.md)`"
    assert [problem(page, link) for link in links(text)] == [
        *("names no file", "names no file", "names no public module", "names no example")
    ]
    assert problem(page, "#nowhere") == "names no heading"
    assert problem(page, "#reference") is None
    assert problem(page, "commands.md#swad-train") is None
    assert problem(page, "#swad.SWAD.observe") is None


@pytest.mark.parametrize("page", PAGES, ids=documents.name)
def test_python_names_of_pages_are_in_the_reference(page):
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"\{py:\w+\}`(?:[^`<]*<)?[~!]?([\w.]+)>?`", text)
    assert set(named) <= documented() | set(public_names.public_modules())


@pytest.mark.parametrize(
    "page", [page for page in PAGES if ">>>" in page.read_text(encoding="utf-8")], ids=documents.name
)
def test_doctests_of_pages(page):
    """README.md is also collected by pytest itself."""
    found = doctest.DocTestParser().get_doctest(
        page.read_text(encoding="utf-8"), {}, documents.name(page), str(page), 0
    )
    runner = doctest.DocTestRunner()
    assert runner.run(found).failed == 0


# ------------------------------------------------------------ generated from the code


@pytest.mark.parametrize("module", [docstrings, generated, public_names], ids=lambda module: module.__name__)
def test_doctests_of_the_generators(module):
    assert doctest.testmod(module).failed == 0


def test_every_public_name_is_in_the_reference():
    lines = (ROOT / "tests" / "public_api.txt").read_text().splitlines()
    public = {re.match(r"[\w.]+", line)[0] for line in lines} - {"swad.__version__"}
    assert public <= documented()
    pages = public_names.api_pages()
    assert ".. autoclass:: swad.SWAD\n" in pages["swad.rst"]
    assert ".. autofunction:: swad.flatness.local\n" in pages["swad.flatness.rst"]
    assert "observe" in pages["swad.rst"].partition(".. autoclass:: swad.Average\n")[2].splitlines()[0]


def test_members_of_public_bases_are_listed_once():
    import swad

    public = {swad.SWAD, swad.Average}
    assert "observe" in public_names.members(swad.Average, public)
    assert "state_dict" in public_names.members(swad.Average, public)  # of a private base
    assert "observe" not in public_names.members(swad.SWAD, public)


def all_commands(group, path="swad"):
    for name, command in group.commands.items():
        yield f"{path} {name}", command
        if hasattr(command, "commands"):
            yield from all_commands(command, f"{path} {name}")


def test_every_command_and_option_is_in_the_reference():
    text = generated.commands()
    sections = dict(re.findall(r"^#+ (swad .+?)\n(.*?)(?=^#+ swad |\Z)", text, re.MULTILINE | re.DOTALL))
    commands = dict(all_commands(typer.main.get_command(cli.app)))
    assert list(sections) == list(commands)
    for name, command in commands.items():
        directives = re.findall(r"^```\{option\} (.+)$", sections[name], re.MULTILINE)
        written = {word for line in directives for word in re.findall(r"(?<!\S)--?[a-z][\w-]*", line)}
        options = [param for param in command.params if param.param_type_name == "option"]
        assert written == {flag for param in options for flag in (*param.opts, *param.secondary_opts)}, name
        assert "$ swad" in sections[name]
    assert "Default: `0,1`." in sections["swad demo"]
    assert "$ swad demo --trial 0 --steps 200 --output quick" in sections["swad demo"]


def test_every_setting_of_a_run_is_in_the_reference():
    from swad.cli.train import PYTHON_ONLY

    named = set(re.findall(r"^Field `(\w+)(?:=False)?`: ([\w]+)", generated.commands(), re.MULTILINE))
    missing = set(SETTINGS) - {name for name, _ in named}
    assert missing == {"dataset", *PYTHON_ONLY}
    assert all(SETTINGS[name].role == role for name, role in named)
    assert set(generated.ROLES) == set(get_args(Role))


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("methods", algorithms.list_algorithms),
        ("averages", averages.names),
        ("datasets", lambda: [benchmarks.get(name).name for name in benchmarks.names()]),
    ],
)
def test_lists_have_every_name(part, names):
    rows = re.findall(r"^\| [\[`]?([\w-]+)", generated.PARTS[part](), re.MULTILINE)
    assert set(names()) <= set(rows)


def test_the_home_page_cites_the_software_as_citation_cff_does():
    yaml = pytest.importorskip("yaml")
    software = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    text = markdown(DOCS / "index.md")
    assert f"  title   = {{{{{software['title']}}}}},\n  author  = {{{{The swad authors}}}},\n" in text
    assert f"  version = {{{software['version']}}}\n" in text
    assert "](#cite)" in text


def test_every_method_has_its_formula_credit_and_hyperparameters():
    text = generated.methods()
    assert "### coral\n\nCORAL: give the features the same mean and covariance in every domain." in text
    assert "Credit: Sun and Saenko: Deep CORAL" in text
    assert "| `gamma` | 1 | 10^U(-1, 1) | weight of the distance between domains, γ |" in text


def test_an_unknown_part_is_refused():
    with pytest.raises(ValueError, match=r"a generated part must be one of modules, commands, .*, got 'metods'"):
        generated.expand("text\n<!-- generated: metods -->\n")
