"""The summary of many runs: the same numbers with and without it, and never those of a run that changed."""

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import synthetic_runs
from swad.testbed.results import runs as runs_module
from swad.testbed.results import summary
from swad.testbed.results.diagnostics import find_problems
from swad.testbed.results.method_results import collect_results
from swad.testbed.results.run_tables import accuracy_tables, ranges_table, selected_runs_table, timings_table
from swad.testbed.results.runs import RunList, find_runs
from swad.testbed.results.summary import SUMMARY

COUNT = 24


@pytest.fixture(autouse=True)
def small_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "MIN_RUNS", 3)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sweep")
    # Two draws for each of two algorithms and targets, three trials.
    synthetic_runs.write_runs(root, COUNT, datasets=["PACS"], algorithms=["erm"])
    return root


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "sweep"))


def tables(runs: RunList) -> list[str]:
    """Everything that is printed of the runs."""
    texts = []
    for selection in ("iid", "last", "lodo", "oracle", "oracle_best_step"):
        texts += [table.csv() + "\n".join(table.notes) for table in accuracy_tables(runs, selection)]
        texts += [selected_runs_table(results).csv() for results in collect_results(runs, selection)]
    return [*texts, ranges_table(runs).csv(), timings_table(runs).csv(), *find_problems(runs)]


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Note the runs whose files are read."""
    read: list[Path] = []
    load_run = runs_module.load_run

    def load(directory: Path) -> object:
        read.append(Path(directory))
        return load_run(directory)

    monkeypatch.setattr(runs_module, "load_run", load)
    return read


def test_the_numbers_are_the_same_with_and_without(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = find_runs(root, summary=False)
    assert not (root / SUMMARY).exists()
    assert find_runs(root) == plain
    assert (root / SUMMARY).exists()
    read = forbid_reading(monkeypatch)
    summarized = find_runs(root)
    assert read == []
    assert summarized == plain  # paths, settings, roles, and every record in its order
    assert tables(summarized) == tables(plain)


def test_values_that_are_not_finite_and_warnings_survive(root: Path) -> None:
    run = next(root.rglob("records.jsonl"))
    lines = run.read_text().splitlines()
    values = iter(("nan", "inf", "-inf"))
    lines[:3] = [json.dumps({**json.loads(line), "value": next(values)}) for line in lines[:3]]
    run.write_text("\n".join(lines) + "\n")
    (run.parent / "done.json").write_text(json.dumps({"warnings": ["the disk was slow"]}))
    find_runs(root)
    loaded = next(each for each in find_runs(root) if each.path == run.parent)
    assert [str(record.value) for record in loaded.records[:3]] == ["nan", "inf", "-inf"]
    assert loaded.warnings == ("the disk was slow",)
    assert tables(find_runs(root)) == tables(find_runs(root, summary=False))


def edit_and_date_back(path: Path) -> None:
    status = path.stat()
    text = path.read_text()
    path.write_text(text.replace("0.", "1.", 1))
    assert path.stat().st_size == status.st_size
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "records dated back": lambda run: edit_and_date_back(run / "records.jsonl"),
    "records cut": lambda run: os.truncate(run / "records.jsonl", 100),
    "records removed": lambda run: (run / "records.jsonl").unlink(),
    "settings dated back": lambda run: edit_and_date_back(run / "config.json"),
    "run removed": shutil.rmtree,
    "run trained again": lambda run: (run / "done.json").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_that_changed_is_read_again(root: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find_runs(root)
    directory = sorted(path.parent for path in root.rglob("done.json"))[3]
    CHANGES[change](directory)
    read = forbid_reading(monkeypatch)
    changed = find_runs(root, warn=False)
    assert read == ([] if change == "run removed" else [directory])
    plain = find_runs(root, warn=False, summary=False)
    assert changed == plain
    assert changed.skipped == plain.skipped
    assert len(changed) == COUNT - (change != "run trained again")


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "one bit": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "other version": lambda data: data.replace(b"swad summary 1", b"swad summary 2", 1),
    "other file": lambda data: b"hello\n" * 100,
    "no line": lambda data: b"x" * 100,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_summary_is_rebuilt(root: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = find_runs(root)
    whole = (root / SUMMARY).read_bytes()
    (root / SUMMARY).write_bytes(DAMAGES[damage](whole))
    read = forbid_reading(monkeypatch)
    assert find_runs(root) == plain
    assert len(read) == COUNT
    assert (root / SUMMARY).read_bytes() == whole


def test_a_summary_that_cannot_be_written_or_read_is_none(root: Path) -> None:
    plain = find_runs(root, summary=False)
    (root / SUMMARY).mkdir()
    assert find_runs(root) == plain
    assert not [path for path in root.iterdir() if path.suffix == ".partial"]


def test_new_runs_are_added_and_few_runs_have_no_summary(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_runs(root)
    name, config = list(synthetic_runs.configs(COUNT + 12, datasets=["PACS"], algorithms=["erm"]))[-1]
    synthetic_runs.write_run(root / name, config, name)
    progress: list[tuple[str, int, int | None]] = []
    assert len(find_runs(root, progress=lambda *update: progress.append(update))) == COUNT + 1
    read = forbid_reading(monkeypatch)
    assert len(find_runs(root)) == COUNT + 1
    assert read == []
    monkeypatch.setattr(runs_module, "MIN_RUNS", summary.MIN_RUNS)
    find_runs(root)
    assert len(read) == COUNT + 1


def test_readers_at_the_same_time_leave_a_summary(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = find_runs(root, summary=False)
    with ThreadPoolExecutor(4) as pool:
        assert all(runs == plain for runs in pool.map(find_runs, [root] * 8))
    read = forbid_reading(monkeypatch)
    assert find_runs(root) == plain
    assert read == []
    assert [path.name for path in root.iterdir() if path.is_file()] == [SUMMARY]


def test_progress_counts_the_runs_that_are_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    progress: list[tuple[str, int, int | None]] = []
    find_runs(root, progress=lambda *update: progress.append(update))
    assert progress[-1] == ("reading runs", COUNT, COUNT)
    monkeypatch.setattr(runs_module, "MIN_RUNS", COUNT + 1)
    find_runs(root, progress=lambda *_: pytest.fail("a bar for a moment"))
