"""The options that take several values, of every command."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from helpers.run_tree import write_run
from helpers.special_files import at_most
from swad import cli
from swad.cli import _options as parse


def all_options(command: Any = None, name: str = "swad") -> Iterator[tuple[str, Any]]:
    """Every option with the name of its command."""
    command = command or typer.main.get_command(cli.app)
    for child, subcommand in getattr(command, "commands", {}).items():
        yield from all_options(subcommand, f"{name} {child}")
    yield from ((name, option) for option in command.params if option.opts[0].startswith("-"))


def test_every_list_takes_commas_and_repetition():
    lists = {f"{name} {option.opts[0]}" for name, option in all_options() if option.multiple}
    assert len(lists) > 35
    for name, option in all_options():
        default = option.default if isinstance(option.default, str) else ""
        assert option.nargs == 1, f"{name} {option.opts[0]} takes its values otherwise"
        is_list = option.multiple and option.opts[0] != "--launcher-option"  # its values may hold commas
        assert is_list == (option.metavar or "").endswith(",..."), f"{name} {option.opts[0]}: placeholder"
        assert option.multiple or "," not in default, f"{name} {option.opts[0]} has several values by default"


def test_train_sweep_and_reproduce_name_the_same_things_alike():
    names: dict[str, set[str]] = {}
    for name, option in all_options():
        names.setdefault(name.removesuffix(" run"), set()).update(option.opts)
    compared = {"--algorithm", "--averages", "-a", "--target", "-t", "--trial", "--set"}
    assert compared <= names["swad train"] & names["swad sweep"]
    assert {"--dataset", "--target", "-t", "--trial"} <= names["swad sweep"] & names["swad reproduce"]
    every = set().union(*names.values())
    assert not every & {"--algorithms", "--datasets", "--targets", "--trials"}


name = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), min_size=1, max_size=5).filter(
    lambda text: text == text.strip()
)


@given(st.lists(st.lists(name, min_size=1, max_size=3), max_size=3))
def test_names_survive_however_they_are_grouped(groups):
    texts = []
    for group in groups:
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(group)
        texts.append(line.getvalue())
    assert parse.words(texts) == list(dict.fromkeys(word for group in groups for word in group))


@given(st.integers(-50, 50), st.integers(0, 50), st.integers(1, 9))
def test_a_range_of_numbers_has_both_ends(start, length, step):
    wanted = tuple(range(start, start + length + 1, step))
    assert parse.whole_numbers("trial", [f"{start}:{start + length}:{step}"]) == wanted
    assert parse.numbers("image-mean", ["0.5,0.5", "0.5"]) == (0.5, 0.5, 0.5)
    assert parse.numbers("radii", [f"{start}:{start + length}:{step}"]) == wanted
    assert parse.whole_numbers("trial", [f"{start}:{start + length},7", "9"]) == (
        *range(start, start + length + 1),
        7,
        9,
    )


@pytest.mark.parametrize("text", ["a", "1.5", "1:", "3:1", "0:9:0", "0:9:-1", "0:1:2:3", "0:inf"])
def test_wrong_numbers_are_named(text):
    with pytest.raises(ValueError, match=f"--trial takes whole numbers such as 0,1,2, or .*; got '{text}'"):
        parse.whole_numbers("trial", ["0", f"1,{text}"])


@pytest.mark.parametrize("text", ["x", "0:inf:5", "nan:1:1", "0:nan", "1:0:1"])
def test_wrong_radii_are_named(text):
    with pytest.raises(ValueError, match=f"--radii takes numbers such as .*; got '{text}'"):
        parse.numbers("radii", [text])


@pytest.mark.parametrize("text", ["0:1e9:1", "0:1:1e-9", "0:1e300:1", "0:1e9", "-1e9:1e9:7"])
def test_a_range_without_end_is_refused_by_its_size(text):
    with at_most(5), pytest.raises(ValueError, match=r"--radii takes at most 10,000 numbers, got '.*': use a"):
        parse.numbers("radii", ["5", text])
    assert len(parse.numbers("radii", ["1:10000"])) == 10_000
    with pytest.raises(ValueError, match="--trial takes at most 10,000 numbers, got '0:1000000000'"):
        parse.whole_numbers("trial", ["0:1000000000"])


def test_counts_without_end_are_refused():
    assert parse.even_directions(10_000) == 10_000
    with pytest.raises(ValueError, match="--directions must be 10,000 or less, got 100,000,000"):
        parse.even_directions(100_000_000)
    with pytest.raises(ValueError, match="--steps must be 1,000 or less, got 1,001"):
        parse.at_least("steps", 1001, 2, 1000)


def test_settings_have_one_value_for_each_name():
    for texts in (["lr=1e-4,batch_size=8", "mix=outputs"], ["lr=1e-4", "batch_size=8, mix=outputs"]):
        assert parse.settings("set", texts, "") == {"lr": 1e-4, "batch_size": 8, "mix": "outputs"}
    for texts in (["lr=1,2"], ["lr=1", "dropout=0,lr=2"]):
        with pytest.raises(ValueError, match="--set takes one value for each name, got 1 and 2 for lr: another value"):
            parse.settings("set", texts, "")
    with pytest.raises(ValueError, match=r"--set takes NAME=VALUE, got '3': e\.g\. --set lr=1"):
        parse.settings("set", ["dropout=0", "3"], "lr=1")


FOLDER = ["folder", "--network", "test_resnet", "--weights", "random"]


@pytest.mark.parametrize(
    "command",
    [["train", *FOLDER], ["sweep", "run", "--dataset", *FOLDER], ["reproduce", "table5", "--dataset", *FOLDER]],
)
def test_a_comma_in_the_name_of_a_domain(here, own_dataset, tmp_path, monkeypatch, command):
    (own_dataset / "north").rename(own_dataset / "Bonn, north")
    monkeypatch.setattr("swad.testbed.workers.train_all.train_all", lambda configs, jobs: 1 / 0)
    options = ["-d", own_dataset, "-o", tmp_path / "out", "-t"]
    error = here(*command, *options, "Bonn, north", code=1).stderr
    assert "did you mean '\"Bonn, north\"'?" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("command", "link"),
    [
        ("measure corruption", "figures"),
        ("measure surface", "figures"),
        ("measure windows", "figures"),
        ("measure tune", "figures"),
    ],
)
def test_no_link_to_a_directory_in_a_run_is_followed_for_writing(here, tmp_path, command, link):
    run, other = tmp_path / "run", tmp_path / "other"
    other.mkdir()
    (run / link).parent.mkdir(parents=True)
    (run / link).symlink_to(other)
    error = here(*command.split(), run, code=1).stderr
    assert f"cannot use {run / link} ({Path(link).name} is a symbolic link, and no link is followed" in error
    assert "remove the link" in error
    assert error.count("\n") == 1
    assert (
        "is a symbolic link" not in here(*command.split(), run, "--output", run / link, code=1).stderr
    )  # the user names it


def test_a_link_at_the_page_is_kept_only_if_the_user_names_it(here, tmp_path):
    write_run(tmp_path / "runs" / "photo-0")
    other, page = tmp_path / "other.html", tmp_path / "runs" / "report.html"
    other.write_text("precious")
    page.symlink_to(other)
    here("report", tmp_path / "runs")
    assert not page.is_symlink()
    assert other.read_text() == "precious"
    page.unlink()
    page.symlink_to(other)
    here("report", tmp_path / "runs", "--output", page)
    assert page.is_symlink()
    assert "<html" in other.read_text()
