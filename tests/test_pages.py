"""Hand-written pages are short, and name commands and options that exist. Links are checked in `test_docs`."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from helpers import ROOT
from helpers.documents import blocks, example, name, pages
from swad import cli
from swad.cli import measure
from swad.testbed import measurements
from swad.testbed.measurements import list_measurements

PAGES = pages()
TABLE = re.compile(r"<!-- table: .*?<!-- end -->", re.DOTALL)
OF_OTHERS = {"--help", "--hparams", "--nproc-per-node", "--resume", "--swad"}
MOST_WORDS = 20_000
MOST_WORDS_OF_README = 1_100


def commands(text: str) -> Iterator[str]:
    """Yield the commands of swad in blocks, each as one line."""
    for block in blocks(text, "", "sh", "console"):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"; (?=swad )", line):
                if found := re.match(r"(?:\$ |(?:\w+=\S+ )+)?swad ([a-z].*)", part.strip()):
                    yield found[1]


def parse(line: str) -> None:
    """Parse a command as the command line does, without running it."""
    words = shlex.split(line, comments=True)
    words = words[: words.index(">")] if ">" in words else words
    command: Any = typer.main.get_command(cli.app)
    with command.make_context("swad", words) as context:
        rest = [*context._protected_args, *context.args]
        while rest and hasattr(command, "commands"):
            title, command, rest = command.resolve_command(context, rest)
            context = command.make_context(title, rest, parent=context)
            rest = [*context._protected_args, *context.args]


@pytest.fixture
def own_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The measurement that a page writes, and then uses."""
    (tmp_path / "entropy.py").write_text(example("reference/writing-a-method.md", "MEASUREMENT = Entropy"))
    monkeypatch.setattr(measurements, "__path__", [*measurements.__path__, str(tmp_path)])
    yield
    sys.modules.pop("swad.testbed.measure.entropy", None)


@pytest.mark.usefixtures("own_measurement")
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_parse(page: Path) -> None:
    for line in commands(page.read_text(encoding="utf-8")):
        try:
            parse(line)
        except Exception as error:
            raise AssertionError(f"swad {line}: {getattr(error, 'message', error)}") from error


def test_commands_are_found_and_wrong_ones_are_refused() -> None:
    seen = {line.split()[0] for page in PAGES for line in commands(page.read_text(encoding="utf-8"))}
    assert {"train", "sweep", "report", "reproduce", "measure", "robustness", "demo"} <= seen
    text = "```\nexport X=1\nX=1 swad train digits --stepz 4\nswad select a; swad report \\\n    b\n```\n"
    assert list(commands(text)) == ["train digits --stepz 4", "select a", "report      b"]
    for line in ("train digits --stepz 4", "train", "datasets shw PACS", "train digits --steps many"):
        with pytest.raises(Exception, match=r"(?i)no such|missing|should be|there is no"):
            parse(line)


def test_options_exist() -> None:
    known = set(OF_OTHERS)

    def collect(command: Any) -> None:
        known.update(opt for param in command.params for opt in (*param.opts, *param.secondary_opts))
        for child in getattr(command, "commands", {}).values():
            collect(child)

    for measurement in list_measurements():
        collect(measure.app.info.cls().get_command(None, measurement))
    collect(typer.main.get_command(cli.app))
    for page in PAGES:
        text = TABLE.sub("", page.read_text(encoding="utf-8"))
        spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
        of_swad = [span for span in spans if span.startswith(("swad ", "--"))]
        found = {option for span in of_swad for option in re.findall(r"(?<![\w-])--[a-z][\w-]+", span)}
        assert {option for option in found if "_" not in option} <= known, name(page)  # ours have no underscores


def test_no_image_of_the_docs_is_unused() -> None:
    used = {
        (page.parent / link).resolve()
        for page in PAGES
        for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    written = {path for folder in ("docs", "docs/measurements") for path in (ROOT / folder).glob("*.png")}
    assert {path.resolve() for path in written} == used


def words(text: str) -> int:
    """Count the words that somebody wrote: no generated tables, no code."""
    for left_out in (TABLE, re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE), re.compile("<!--.*?-->", re.DOTALL)):
        text = left_out.sub("", text)
    return len(re.findall(r"\S*\w\S*", text))


def test_pages_are_short() -> None:
    assert words("one `two` | 3 |\n```\nfour\n```\n<!-- table: a b -->\n5\n<!-- end -->\n<!-- x -->") == 3
    assert sum(words(page.read_text(encoding="utf-8")) for page in PAGES) <= MOST_WORDS


def test_the_readme_is_short() -> None:
    """With tables and code, as `wc -w` counts."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= MOST_WORDS_OF_README
