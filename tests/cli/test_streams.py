"""A command whose output cannot be written, or is read by a terminal that believes every name."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.commands import SWAD, environment
from helpers.configs import stored
from swad.testbed.results.failures import write_failure
from swad.testbed.results.records import Record, RecordWriter

ESCAPE = "\x1b]0;owned\x07\x1b[2J"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Runs from somebody else, whose names, warnings and errors hold escape sequences."""
    for number, target in enumerate(("photo", "art")):
        run = tmp_path / f"runs{ESCAPE}" / f"{target}{ESCAPE}-0"
        run.mkdir(parents=True)
        settings = {"dataset": "D", "target": target, "trial": 0, "algorithm": "erm", "steps": 2}
        (run / "config.json").write_text(json.dumps(stored(settings)))
        with RecordWriter(run) as writer:
            for domain in (target, f"sketch{ESCAPE}"):
                for split in ("in", "out"):
                    writer.append(Record("r", 2, domain, split, "accuracy", 0.5, f"swad{ESCAPE}"))
        if number:
            write_failure(run, f"failed{ESCAPE}")
        else:
            (run / "done.json").write_text(json.dumps({"warnings": [f"beware{ESCAPE}"]}))
    broken = tmp_path / f"runs{ESCAPE}" / f"broken{ESCAPE}"
    broken.mkdir()
    (broken / "config.json").write_text("{")
    (broken / "records.jsonl").touch()
    return tmp_path / f"runs{ESCAPE}"


@pytest.mark.parametrize("arguments", [["report"], ["report", "--format", "markdown"], ["report", "--format", "csv"]])
def test_escape_sequences_of_names_do_not_reach_the_terminal(hostile: Path, arguments: list[str]) -> None:
    leader, follower = pty.openpty()
    command = [*SWAD, *arguments, str(hostile)]
    with subprocess.Popen(command, stdout=follower, stderr=follower, env=environment()) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                block = os.read(leader, 65536)
            except OSError:  # the last process with the terminal ended
                break
            if not block:
                break
            shown += block
    os.close(leader)
    assert process.returncode == 0, shown
    assert rb"\x1b]0;owned" in shown
    assert b"\x1b]0;" not in shown
    assert b"\x07" not in shown
    assert b"\x1b[2J" not in shown


def ended(arguments: list[str], **options: object) -> tuple[int, str]:
    result = subprocess.run([*SWAD, *arguments], stderr=subprocess.PIPE, text=True, env=environment(), **options)
    return result.returncode, result.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["report", "RUNS"], ["report", "RUNS", "--format", "csv"]]
)
def test_an_output_that_is_full_is_one_line(hostile: Path, arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        code, error = ended([str(hostile) if word == "RUNS" else word for word in arguments], stdout=full)
    assert code == 1
    assert error.endswith(
        "error: cannot use the standard output (No space left on device): free disk space, then run the same command "
        "again\n"
    )
    assert "Traceback" not in error
    assert "Exception ignored" not in error


def test_an_output_that_is_closed_is_one_line() -> None:
    script = [
        sys.executable,
        "-c",
        "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])",
    ]
    command = [*script, *SWAD[1:], "--version"]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=environment())
    assert (result.returncode, result.stderr) == (
        0,
        "warning: the standard output is closed, so nothing is printed there\n",
    )


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    with subprocess.Popen(
        [*SWAD, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def test_a_working_directory_that_was_removed_is_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code, error = ended(["--version"], cwd=gone, preexec_fn=gone.rmdir)
    assert (code, error) == (
        1,
        "error: the working directory was removed: change to another one, then run the same command again\n",
    )
