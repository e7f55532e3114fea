"""The command line as a whole."""

from __future__ import annotations

import re

import pytest
import typer

from helpers import ROOT
from helpers.commands import swad
from helpers.imports import HEAVY, modules_after
from swad import cli


def test_help_imports_nothing_heavy():
    assert not modules_after("import swad.cli") & (set(HEAVY) - {"rich"})
    text = swad("--help").stdout
    for command in ("demo", "train", "report", "datasets", "doctor"):
        assert command in text
        assert "Usage" in swad(command, "--help").stdout


def test_the_documentation_names_every_option_and_no_other():
    text = (ROOT / "docs" / "benchmark.md").read_text()
    written = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - {"--nproc-per-node", "--help"}
    commands = typer.main.get_command(cli.app).commands
    options = {name: [p for p in command.params if p.opts[0].startswith("-")] for name, command in commands.items()}
    there = {opt for found in options.values() for p in found for opt in (*p.opts, *p.secondary_opts)}
    assert written <= there
    missing = [p.opts for p in options["report"] if not written & {*p.opts, *p.secondary_opts}]
    assert not missing


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "pax"], "there is no dataset"),
        (["train", "PACSS"], "there is no dataset 'PACSS': did you mean 'pacs'?"),
        (["train", "digits", "-t", "crayon"], "the target must be one of"),
        (["train", "digits", "-t", "Outlines"], "got 'Outlines': did you mean 'outline'?"),
        (["train", "digits", "--average", "swadd"], "there is no average 'swadd'; choose from swad"),
        (["train", "digits", "--set", "lr"], "--set takes name=number, got 'lr'"),
        (["train", "digits", "--set", "lr=1", "--set", "lr=2"], "--set takes every name once, got lr twice"),
        (
            ["train", "digits", "--algorithm", "coral", "--target", "paper+board+clutter"],
            "coral needs 2 source domains, got outline",
        ),
        (["train", "digits", "--trial", "a"], "comma-separated whole numbers"),
        (["train", "pacs"], "needs its directory"),
        (["train", "digits", "--jobs", "0"], "--jobs must be 1 or more, got 0"),
        (["train", "digits", "--jobs", "-1"], "--jobs must be 1 or more, got -1"),
        (["train", "digits", "--device", "tpu9"], "device must be"),
        (["train", "folder", "-d", ".", "--network", "small", "-t", "x"], "takes images of 28 to 33 pixels"),
        (["train", "folder"], "(--data)"),
        (["train", "digits", "--algorithm", "corral"], "there is no algorithm 'corral': did you mean 'coral'?"),
        (["train", "digits", "--algorithm", "coral+irm"], "only SAM can be combined with another algorithm"),
        (["train", "digits", "--algorithm", "dann+sam"], "SAM needs an algorithm that steps on one loss"),
        (["train", "digits", "--algorithm", "dann", "--set", "rho=1"], "no hyperparameter rho; there are lr, batch"),
        (["algorithms", "show", "corral"], "there is no algorithm 'corral': did you mean 'coral'?"),
        (["report", "."], ". holds no run"),
        (["report", ".", "--format", "doc"], "--format must be one of text, markdown, latex, csv; got 'doc'"),
        (["report", ".", "--select", "best"], "--select must be one of iid, last, lodo"),
        (["report", ".", "--paper", "yes"], "--paper must be one of few, all, none"),
        (["report", ".", "--figure-formats", "gif"], "--figure-formats must be one of svg, pdf, png"),
        (["demo", "--trials", "0"], "at least one trial"),
    ],
)
def test_errors_are_one_line_without_a_traceback(tmp_path, here, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = here(*arguments, code=1)
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir()), "nothing may be left behind"
