"""The command line as a whole."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest
import typer

from helpers.commands import environment, swad
from helpers.imports import HEAVY, modules_after
from swad import __main__, cli
from swad.testbed.data import benchmarks
from swad.testbed.results.records import lock_run_directory


@pytest.mark.slow
def test_help_imports_nothing_heavy():
    assert not modules_after("import swad.cli") & (set(HEAVY) - {"rich"})
    text = swad("--help", fresh=True).stdout
    for command in ("demo", "train", "report", "datasets", "doctor"):
        assert command in text


def all_commands() -> list[list[str]]:
    """The names of every command and of every command of a group."""
    commands = typer.main.get_command(cli.app).commands
    nested = [[name, child] for name, command in commands.items() for child in getattr(command, "commands", ())]
    return [*([name] for name in commands), *nested]


@pytest.mark.parametrize("command", all_commands(), ids=" ".join)
def test_help_ends_with_an_example_that_parses(here, command):
    text = here(*command, "--help").stdout
    assert "Usage" in text
    examples = re.findall(r"^ *(?:Example: )?swad (.+)$", text[text.index("Example") :], re.MULTILINE)
    assert examples
    for example in examples:
        words = example.split(" > ")[0].split()
        assert words[0] == command[0]
        parser = typer.main.get_command(cli.app)
        while words and words[0] in getattr(parser, "commands", ()):
            parser = parser.commands[words.pop(0)]
        parser.make_context("swad", words)


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["trian"], "Did you mean 'train'?"),
        (["datasets", "downlod"], "Did you mean 'download'?"),
        (["report", "--formt", "csv"], "No such option: --formt. Did you mean --format?"),
        (["train", "digits", "--algoritm", "erm"], "Did you mean --algorithm?"),
        (["train", "digits", "--lr", "1e-4"], "No such option: --lr. Did you mean --set lr=NUMBER?"),
        (["train", "digits", "--hparams", "lr=1"], "No such option: --hparams. Did you mean --set NAME=VALUE?"),
        (["train", "digits", "--batch-size", "8"], "Did you mean --set batch_size=NUMBER?"),
        (["train", "digits", "--steps", "4", "--steps", "8"], "--steps takes one value, but was given twice"),
        (["train", "digits", "--trials", "3"], "No such option: --trials. Did you mean --trial 0,1,2?"),
        (["sweep", "run", "--algorithms", "erm"], "Did you mean --algorithm?"),
        (["sweep", "run", "-t", ""], "--target needs a value, got ''"),
        (["measure", "tune", ".", "--semantics", "paper", "--semantics", ","], "--semantics needs a value, got ','"),
        (["reproduce", "table5", "-t", '"A,B'], "--target: a list needs commas between values"),
        (["train", "digits", "--groupdro-eta", "1"], "No such option: --groupdro-eta."),
    ],
)
def test_unknown_commands_and_options_get_a_suggestion(here, arguments, suggestion):
    assert suggestion in here(*arguments, code=2).stderr


def test_the_shell_completes_commands_options_and_names():
    script = "import sys; sys.argv = ['swad']; from swad.cli import main; main()"

    def complete(words: str) -> str:
        env = environment() | {
            "_SWAD_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env).stdout

    assert complete("swad tra").split() == ["train"]
    assert complete("swad train --algo").split() == ["--algorithm"]
    assert complete("swad train dig").split() == ["digits"]
    assert complete("swad train digits --algorithm mix").split() == ["mixstyle", "mixup"]


@pytest.mark.parametrize(
    ("command", "parameter", "typed", "completed"),
    [
        ("train", "dataset", "PA", ["PACS"]),  # the case that was typed, or the shell drops it
        ("train", "algorithm", "erm,Co", ["erm,Coral"]),
        ("sweep run", "algorithms", "mix", ["mixstyle", "mixup"]),
        ("sweep run", "datasets", "digits,PA", ["digits,PACS"]),
        ("sweep run", "plan", "app", ["appendix-b3"]),
        ("reproduce", "datasets", "dig", ["digits"]),
        ("algorithms show", "name", "cor", ["coral"]),
        ("datasets show", "name", "pa", ["pacs"]),
        ("datasets download", "name", "pa", ["pacs"]),
    ],
)
def test_names_are_completed_wherever_they_are_taken(command, parameter, typed, completed):
    parser = typer.main.get_command(cli.app)
    for word in command.split():
        parser = parser.commands[word]
    taken = next(param for param in parser.params if param.name == parameter)
    items = taken.shell_complete(parser.make_context("swad", [], resilient_parsing=True), typed)
    assert [item.value for item in items] == completed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "pax"], "there is no dataset"),
        (["train", "PACSS"], "there is no dataset 'PACSS': did you mean 'pacs'?"),
        (["train", "."], "there is no dataset '.'; for your own images use folder --data ."),
        (["train", "digits", "-t", "crayon"], "the target must be one of"),
        (["train", "digits", "-t", "Outlines"], "got 'Outlines': did you mean 'outline'?"),
        (["train", "digits", "--averages", "swadd"], "there is no average 'swadd', only swad"),
        (["train", "digits", "--set", "lr"], "--set takes NAME=VALUE, got 'lr'"),
        (
            ["train", "digits", "--set", "lr=1", "--set", "lr=2"],
            "--set takes one value for each name, got 1 and 2 for lr",
        ),
        (
            ["train", "digits", "--algorithm", "coral", "--target", "paper+board+clutter"],
            "coral needs at least 2 source domains, got outline",
        ),
        (
            ["train", "digits", "--trial", "a"],
            "--trial takes whole numbers such as 0,1,2, or START:STOP such as 0:9; got 'a'",
        ),
        (["train", "pacs"], "needs its directory"),
        (["train", "digits", "--jobs", "0"], "--jobs must be 1 or more, got 0"),
        (["train", "digits", "--jobs", "-1"], "--jobs must be 1 or more, got -1"),
        (["train", "digits", "--device", "tpu9"], "device must be"),
        (["train", "PACS", "-d", ".", "--network", "small", "-t", "photo"], "takes images of 28 to 33 pixels"),
        (["train", "folder"], "(--data)"),
        (["train", "digits", "--steps", "0", "--device", "tpu9"], "error:\n- steps must be a whole number"),
        (["train", "digits", "--algorithm", "corral"], "there is no algorithm 'corral': did you mean 'coral'?"),
        (["train", "digits", "--algorithm", "coral+irm"], "only SAM or SAGM can be combined with another algorithm"),
        (["train", "digits", "--algorithm", "dann+sam"], "SAM needs an algorithm that steps on one loss"),
        (["train", "digits", "--algorithm", "dann", "--set", "rho=1"], "no hyperparameter rho, only lr, batch"),
        (["algorithms", "show", "corral"], "there is no algorithm 'corral': did you mean 'coral'?"),
        (["algorithms", "corral"], "there is no algorithm 'corral': did you mean 'coral'?"),
        (["report", "."], ". holds no run"),
        (["report", ".", "--format", "doc"], "--format must be one of text, markdown, latex, csv, got 'doc'"),
        (["report", ".", "--select", "best"], "--select must be one of iid, last, lodo"),
        (["report", ".", "--paper", "yes"], "--paper must be one of few, all, none"),
        (["report", ".", "--target-split", "val"], "--target-split must be one of in, out, full, test, got 'val'"),
        (["report", ".", "--figure-formats", "gif"], "--figure-formats must be one of svg, pdf, png, got 'gif'"),
        (["demo", "--trial=-1"], "trial must be a whole number of at least 0, got -1"),
    ],
)
def test_errors_are_one_line_without_a_traceback(tmp_path, here, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = here(*arguments, code=1)
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir()), "nothing may be left behind"


def test_a_second_process_in_a_run_directory_is_refused_in_one_line(tmp_path, here):
    run = tmp_path / "digits" / "erm" / "paper-0"
    run.mkdir(parents=True)
    with lock_run_directory(run):
        error = here("train", "digits", "-t", "paper", "--steps", "2", "-o", tmp_path, code=1).stderr
    assert error.startswith(f"error: {run} is being written by process {os.getpid()}: ")
    assert error.count("\n") == 1


def test_a_value_of_the_wrong_type_is_named(here):
    error = here("train", "digits", "--steps", "twenty", code=2).stderr
    assert "--steps" in error
    assert "twenty" in error


def test_a_path_that_cannot_be_used_is_named_with_advice(tmp_path, here):
    (tmp_path / "file").touch()
    error = here("reproduce", "table7", "--scale", "smoke", "-o", tmp_path / "file", code=1).stderr
    assert f"error: cannot use {tmp_path / 'file'}" in error
    assert "(a part of the path is a file): choose another path, or change its permissions" in error


def test_a_file_that_is_missing_is_named(tmp_path, here, monkeypatch):
    """As a reader of a user's own dataset raises it."""
    monkeypatch.setattr(benchmarks, "get", lambda name: (tmp_path / "night.npz").read_bytes())
    assert here("train", "digits", code=1).stderr == f"error: there is no {tmp_path}/night.npz: check the path\n"


def test_ctrl_c_while_the_commands_are_imported_is_one_line(monkeypatch, capsys):
    class Interrupt:
        def find_spec(self, name, *_):
            if name == "swad.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "swad.cli")
    monkeypatch.delattr("swad.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupt(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "Interrupted.\n"


def test_ctrl_c_in_a_command_is_one_line(here, monkeypatch):
    monkeypatch.setattr(benchmarks, "names", lambda: signal.raise_signal(signal.SIGINT))
    assert here("datasets", code=130).stderr == "Interrupted.\n"
