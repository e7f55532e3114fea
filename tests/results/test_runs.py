import json
from pathlib import Path

import pytest

from helpers.configs import stored
from swad.results.records import RecordError, RecordWriter, read_records
from swad.results.runs import find_runs, load_run


def test_runs_are_found_in_subdirectories(tmp_path: Path) -> None:
    for name in ("b", "a/deep"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(stored({"target": "photo", "trial": 2, "dataset": "PACS"})))
        with RecordWriter(folder, name) as writer:
            writer.add(1, "loss", 1.0)
    (tmp_path / "b" / "done.json").write_text("{}")
    deep, b = find_runs(tmp_path)
    assert (deep.finished, b.finished) == (False, True)
    assert (b.targets, b.trial, b.dataset, b.algorithm) == (("photo",), 2, "PACS", "erm")
    assert load_run(b.path).records == b.records
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
