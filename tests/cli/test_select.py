"""`swad select`."""

from __future__ import annotations

import pytest

from helpers.commands import QUICK
from helpers.run_tree import write_run
from swad.testbed.results.runs import load_run
from swad.testbed.results.selection_file import read_selection

pytestmark = pytest.mark.slow  # needs the demo


def test_a_selection_is_written_and_trained_with(demo, here, tmp_path):
    folder, _ = demo
    file = tmp_path / "selection.json"
    printed = here("select", folder, "-o", file).stdout
    assert f"wrote {file} with 20 selected weights" in printed
    assert "Selected runs: digits" in printed
    file.write_text(file.read_text().replace('"dropout": 0.0', '"dropout": 0.125'))
    train = ("train", "digits", *QUICK, "--hyperparameters-from", file, "--set", "batch_size=4", "-o", tmp_path / "new")
    here(*train, "-t", "paper")
    trained = load_run(tmp_path / "new" / "digits" / "erm" / "paper-0").hyperparameters
    assert (trained["dropout"], trained["batch_size"]) == (0.125, 4)
    errors = here(*train, "--algorithm", "coral", code=1).stderr
    assert errors.count("the selection has no run of coral on digits with target") == 4
    assert not (tmp_path / "new" / "digits" / "coral").exists()


def test_the_file_stands_beside_the_runs(here, tmp_path):
    write_run(tmp_path / "one")
    here("select", tmp_path, "--select", "last")
    assert read_selection(tmp_path / "selection.json").selection == "last"
    assert "--select must be one of iid, last" in here("select", tmp_path, "--select", "best", code=1).stderr
