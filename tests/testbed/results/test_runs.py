import errno
import json
import os
from pathlib import Path

import pytest

from helpers.configs import stored
from helpers.special_files import SPECIAL, at_most, replace_by
from swad.testbed.results.failures import write_failure
from swad.testbed.results.records import Record, RecordError, RecordWriter, read_records
from swad.testbed.results.runs import find_runs, load_run


def test_runs_are_found_in_subdirectories(tmp_path: Path) -> None:
    for name in ("b", "a/deep"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(stored({"target": "photo", "trial": 2, "dataset": "PACS"})))
        with RecordWriter(folder) as writer:
            writer.append(Record("run", 1, None, None, "loss", 1.0))
    (tmp_path / "b" / "done.json").write_text("{}")
    deep, b = find_runs(tmp_path)
    assert (deep.finished, b.finished) == (False, True)
    assert (b.targets, b.trial, b.dataset, b.algorithm) == (("photo",), 2, "PACS", "erm")
    assert load_run(b.path).frame.drop(columns="run").equals(b.frame.drop(columns="run").reset_index(drop=True))
    with pytest.raises(RecordError, match="holds no run"):
        find_runs(_empty(tmp_path))
    with pytest.raises(RecordError, match="is not a directory"):
        find_runs(tmp_path / "nowhere")


def _empty(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def test_a_broken_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot read"):
        load_run(tmp_path)
    broken = {"{": "is not JSON", "[]": "must hold a JSON object, got list", "{}": "not written by this version"}
    for text, said in broken.items():
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(RecordError, match=said):
            load_run(tmp_path)
    with pytest.raises(RecordError, match="cannot read"):
        read_records(tmp_path)


def write_small_run(folder: Path, target: str = "photo") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(stored({"target": target, "trial": 0, "dataset": "PACS"})))
    with RecordWriter(folder) as writer:
        writer.append(Record("run", 1, "art", "out", "loss", 1.0))
    (folder / "done.json").write_text("{}")
    return folder


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["config.json", "records.jsonl", "done.json", "failure.json"])
def test_a_file_of_a_run_that_cannot_be_read_to_its_end_is_skipped_at_once(
    tmp_path: Path, name: str, kind: str
) -> None:
    write_small_run(tmp_path / "good")
    bad = write_small_run(tmp_path / "bad")
    if name == "failure.json":
        (bad / "done.json").unlink()
        (bad / "records.jsonl").write_text("")
    replace_by(kind, bad / name)
    with at_most(5):
        runs = find_runs(tmp_path, warn=False)
    assert [run.path.name for run in runs] == ["good"]
    assert f"bad/{name}" in runs.skipped[0].reason
    assert "\n" not in runs.skipped[0].reason


DAMAGES = {
    "records missing": (lambda run: (run / "records.jsonl").unlink(), "records.jsonl is missing"),
    "records empty": (lambda run: (run / "records.jsonl").write_text(""), "records.jsonl is empty"),
    "records damaged": (lambda run: (run / "records.jsonl").write_text("{}\n"), "line 1 is not a record"),
    "config missing": (lambda run: (run / "config.json").unlink(), "cannot read bad/config.json"),
    "config empty": (lambda run: (run / "config.json").write_text(""), "bad/config.json is not JSON"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_skipped_run_is_named_with_the_reason(tmp_path: Path, damage: str) -> None:
    write_small_run(tmp_path / "good")
    change, reason = DAMAGES[damage]
    change(write_small_run(tmp_path / "bad", "sketch"))
    with pytest.warns(UserWarning, match="skipped run bad: "):
        runs = find_runs(tmp_path)
    assert [run.path.name for run in runs] == ["good"]
    (skipped,) = runs.skipped
    assert skipped.name == "bad"
    assert reason in skipped.reason
    assert str(tmp_path) not in skipped.reason  # pages are shared
    with pytest.raises(RecordError, match="holds no run with results"):
        find_runs(tmp_path / "bad")


def test_a_directory_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_small_run(tmp_path / "good")
    write_small_run(tmp_path / "locked" / "bad")
    scandir = os.scandir

    def refuse(path: str) -> object:
        if Path(path).name == "locked":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    runs = find_runs(tmp_path, warn=False)
    assert [(entry.name, entry.reason) for entry in runs.skipped] == [
        ("locked", "the directory cannot be read (Permission denied)")
    ]


def test_a_config_of_another_tool_is_no_run(tmp_path: Path) -> None:
    write_small_run(tmp_path / "good")
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"architectures": ["BertModel"]}')
    assert find_runs(tmp_path).skipped == ()


def test_a_run_that_failed_before_its_first_value_says_why(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "good") as writer:
        writer.append(Record("run", 1, None, None, "loss", 1.0))
    for name in ("good", "failed", "started"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "config.json").write_text(json.dumps(stored({"dataset": "digits", "target": "paper"})))
    write_failure(tmp_path / "failed", "out of memory")
    reasons = {entry.name: entry.reason for entry in find_runs(tmp_path).skipped}
    assert reasons == {"failed": "the run failed (out of memory)", "started": "no value has been recorded yet"}
