"""Weights that no result uses: what may go, and what must stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.run_tree import write_run
from swad.testbed.results.accuracy_table import accuracy_table
from swad.testbed.results.records import RecordError, lock_run_directory
from swad.testbed.results.runs import find_runs
from swad.testbed.results.selection import collect_results
from swad.testbed.results.unselected_weights import remove_weights, unselected_weights


def write(folder: Path, **settings: object) -> None:
    write_run(folder, **settings)  # type: ignore[arg-type]
    for name in ("weights/best.safetensors", "weights/best.md", "weights/swad.safetensors", "segments/1.safetensors"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()


def hold_out_two(folder: Path) -> None:
    content = json.loads((folder / "config.json").read_text())
    content["config"]["section"]["target"] = ["photo", "sketch"]
    (folder / "config.json").write_text(json.dumps(content))


def test_selected_and_unfinished_runs_keep_their_weights(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for lr in (1e-5, 2e-5, 3e-5, 4e-5, 5e-5, 6e-5, 7e-5):
        write(runs / f"photo-{lr}", lr=lr)
        write(runs / f"cartoon-{lr}", target="cartoon", lr=lr, finished=lr != 3e-5)
    results = collect_results(find_runs(runs))
    selected = {results[0].runs[number].path for number in results[0].results.run}
    before = {path for path in runs.rglob("*") if path.is_file()}
    table = accuracy_table(results[0]).text()
    files = unselected_weights(results)
    # The best run on cartoon is not known before all of its runs have finished.
    unselected = {path for path in runs.glob("photo-*") if path not in selected}
    assert unselected
    assert set(files) == {run / "weights" / f"{name}.safetensors" for run in unselected for name in ("best", "swad")}
    remove_weights(files)
    assert before - {path for path in runs.rglob("*") if path.is_file()} == set(files)
    results = collect_results(find_runs(runs))
    assert accuracy_table(results[0]).text() == table
    assert unselected_weights(results) == []


def test_runs_with_two_targets_serve_both_and_are_never_selected(tmp_path: Path) -> None:
    for name, target in (("one", "photo"), ("two", "sketch"), ("pair", "photo")):
        write(tmp_path / "runs" / name, target=target)
    hold_out_two(tmp_path / "runs" / "pair")
    files = unselected_weights(collect_results(find_runs(tmp_path / "runs")))
    assert {path.parent.parent.name for path in files} == {"pair"}
    (tmp_path / "runs" / "two" / "done.json").unlink()
    assert unselected_weights(collect_results(find_runs(tmp_path / "runs"))) == []


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "run")
    path = tmp_path / "run" / "weights" / "swad.safetensors"
    with lock_run_directory(tmp_path / "run"), pytest.raises(RecordError, match="is being written by process"):
        remove_weights([path])
    assert path.exists()


def test_weights_behind_a_link_in_a_run_stay(tmp_path: Path) -> None:
    """A run from somebody else may hold a link to the user's files."""
    run, other = tmp_path / "run", tmp_path / "other"
    other.mkdir()
    run.mkdir()
    (other / "precious.safetensors").touch()
    (run / "weights").symlink_to(other)
    with pytest.raises(OSError, match="weights is a symbolic link"):
        remove_weights(run.glob("weights/*.safetensors"))
    assert (other / "precious.safetensors").exists()
