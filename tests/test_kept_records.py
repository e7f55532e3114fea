"""The files that benchmarks/keep_records.py keeps of runs show the same results as the runs themselves."""

import importlib
import json
from dataclasses import replace

import pandas as pd
import pytest

from helpers.domainbed_sweep import write_published
from helpers.measured_runs import write_measured_run
from keep_records import keep_accuracies, keep_runs
from swad.testbed.measurements.flatness import Flatness
from swad.testbed.results.comparisons import compare_methods
from swad.testbed.results.measured import measured
from swad.testbed.results.measured_report import report
from swad.testbed.results.measurement_rows import FLATNESS, RowFile, read_rows
from swad.testbed.results.records import Record, RecordWriter
from swad.testbed.results.runs import find_runs
from swad.testbed.results.selection import collect_results
from swad.testbed.results.surfaces import read_surface

pytest.importorskip("matplotlib")


@pytest.fixture
def runs(tmp_path):
    root = tmp_path / "runs"
    for number, target in enumerate(("art", "photo")):
        for trial in range(3):
            folder = root / "PACS" / "erm" / f"{target}-{trial}"
            paths = {"data_dir": "/home/me/data/PACS", "weights": "/home/me/resnet50.safetensors", "cache": None}
            write_measured_run(folder, target, trial, 1 + number / 3 + trial**2 / 7, **paths)
            with RecordWriter(folder) as writer:
                for step in (50, 100):
                    writer.append(Record("r", step, None, None, "end_step", step, "swad"))
            with RowFile(folder, FLATNESS) as file:
                file.append(
                    {"key": file.rows[0]["key"], "kind": "flatness", "model": "step-000050", "losses": [0.125] * 9}
                )
            (folder / "weights").mkdir()
            (folder / "weights" / "swad.safetensors").write_bytes(b"large")
    return root


def test_runs_of_other_programs_and_unfinished_ones_are_skipped(runs, tmp_path, capsys):
    write_published(runs / "published")
    (runs / "PACS" / "erm" / "art-0" / "done.json").unlink()
    keep_runs(runs, tmp_path / "kept")
    out = capsys.readouterr().out
    assert out.count("which is of another program") == 4  # a run for each target
    assert out.count("which is unfinished") == 1
    assert len(find_runs(tmp_path / "kept")) == 5


@pytest.mark.slow
def test_kept_records_give_the_same_tables_without_weights_and_paths(here, runs, tmp_path):
    kept = tmp_path / "kept"
    size = keep_runs(runs, kept)
    files = [path for path in kept.rglob("*") if path.is_file()]
    assert size == sum(path.stat().st_size for path in files)
    names = {"config.json", "done.json", "records.jsonl", "flatness.jsonl.gz", "surface.jsonl.gz"}
    assert {path.name for path in files} == names
    assert not [path for path in files if path.suffix != ".gz" and "home" in path.read_text()]
    config = json.loads((kept / "PACS" / "erm" / "art-0" / "config.json").read_text())["config"]
    values = {name: value for section in config.values() for name, value in section.items()}
    assert [values[name] for name in ("data_dir", "weights", "cache")] == ["PACS", "resnet50.safetensors", None]

    again = tmp_path / "again"
    assert keep_runs(kept, again) == size
    assert all((again / path.relative_to(kept)).read_bytes() == path.read_bytes() for path in files)

    before, after = find_runs(runs), find_runs(kept)
    assert [run.path.relative_to(kept) for run in after] == [run.path.relative_to(runs) for run in before]
    compared = [compare_methods(collect_results(each)[0]) for each in (before, after)]
    pd.testing.assert_frame_equal(*compared)
    rows = after.records[(after.records.metric == "end_step") & (after.records.weights == "swad")]
    assert rows[["run", "step", "value"]].to_numpy().tolist() == [[number, 100, 100] for number in range(6)]
    tables = [report(measured(each, Flatness), Flatness).tables for each in (before, after)]
    assert tables[0] == tables[1]

    surfaces = [[replace(read_surface(run), run=None) for run in each] for each in (before, after)]
    assert surfaces[0] == surfaces[1]
    assert not [row for run in after for row in read_rows(run.path, FLATNESS) if row["kind"] == "flatness"]

    options = ("--stored", "--weights", "swad", "--figure-formats", "svg")
    out = here("measure", "flatness", kept, *options).stdout
    assert "F: PACS, unseen" in out
    assert "± standard error over 3 trials" in out
    assert "ERM (best)" not in out
    linear = (kept / "figures" / "flatness.svg").read_text()
    here("measure", "flatness", kept, *options, "--log")
    assert (kept / "figures" / "flatness.svg").read_text() != linear
    for command, *option in (("measure flatness", "--radii", "0:60:5"), ("measure surface", "--corners", "best,swad")):
        error = here(*command.split(), kept, "--stored", *option, code=1).stderr
        assert error == f"error: --stored shows a measurement as it was made: leave out {option[0]}\n"
    error = here("measure", "corruption", kept, "--stored", code=1).stderr
    assert error.endswith(
        "error: no robustness.jsonl has a complete measurement: run `swad measure corruption` first\n"
    )


def test_accuracies_are_kept_of_one_dataset(runs, tmp_path):
    write_measured_run(runs / "VLCS", "art", 0, 1.0, dataset="VLCS")
    with pytest.raises(SystemExit, match=r"keeps one dataset; .* holds PACS, VLCS: give the runs of one"):
        keep_accuracies(runs, tmp_path / "kept.json")


def test_a_changed_record_is_noticed(runs, tmp_path):
    keep_runs(runs, tmp_path / "kept")
    records = tmp_path / "kept" / "PACS" / "erm" / "art-0" / "records.jsonl"
    records.write_text(records.read_text().replace("0.85", "0.95"))
    with pytest.warns(UserWarning, match="changed after the run finished"):
        assert len(find_runs(tmp_path / "kept")) == 5


@pytest.mark.parametrize("script", ["keep_records", "parity"])
def test_a_wrong_directory_is_one_line(monkeypatch, tmp_path, script):
    arguments = ["nowhere", "kept"] if script == "keep_records" else ["ours=nowhere", "--json", "parity.json"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [script, *arguments])
    with pytest.raises(SystemExit, match=r"^error: nowhere is not a directory: give one that holds runs$"):
        importlib.import_module(script).main()
    assert not list(tmp_path.iterdir())


def test_parity_refuses_two_runs_of_one_target_and_trial(monkeypatch, tmp_path):
    for name in ("a", "b"):
        write_measured_run(tmp_path / "runs" / name, "photo", 0)
    monkeypatch.setattr("sys.argv", ["parity", f"ours={tmp_path / 'runs'}", "--json", str(tmp_path / "parity.json")])
    with pytest.raises(SystemExit, match="has several runs of one target and trial: give one of each"):
        importlib.import_module("parity").main()
