"""Malformed files of a run end in one line of the project's own error, or are harmless; they never crash a reader."""

import json
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.configs import stored
from swad.testbed.results.accuracy_table import accuracy_table
from swad.testbed.results.comparisons import compare_in_words
from swad.testbed.results.diagnostics import find_problems
from swad.testbed.results.measurement_rows import FLATNESS, read_rows
from swad.testbed.results.records import Record, RecordError, RecordWriter
from swad.testbed.results.run_tables import ranges_table, selected_runs_table, timings_table
from swad.testbed.results.runs import find_runs, load_run
from swad.testbed.results.selection import SELECTIONS, SelectionError, collect_results, select

DEEP = "[" * 100_000 + "]" * 100_000
VALUES: list[Any] = [
    None, True, -1, 0, 3, 10**400, -(10**400), 1e308, -1e308, 5e-324, float("nan"), float("inf"), "nan", "-inf", "",
    "photo", "art", "swad", "accuracy", "out", "in", "[red]x[/]", "\ud800", "\x00", "a\nb", [], ["photo"],
    ["photo", "art"], [1], {}, {"lr": 1}, {"lr": {"deep": [[[1]]]}}, [[[[[[]]]]]],
]  # fmt: skip


def write_small_run(folder: Path, target: str, trial: int) -> None:
    folder.mkdir(parents=True)
    config = {
        "dataset": "D",
        "target": target,
        "trial": trial,
        "algorithm": "erm",
        "steps": 2,
        "split": "80/20",
        "hyperparameters": {"lr": 1e-3},
        "averages": ["swad"],
    }
    (folder / "config.json").write_text(json.dumps(stored(config)))
    source = "art" if target == "photo" else "photo"
    with RecordWriter(folder) as writer:
        for step in (1, 2):
            for metric in ("accuracy", "loss"):
                writer.append(Record(folder.name, step, source, "out", metric, 0.5))
        for average in ("best", "swad"):
            writer.append(
                Record("r", 2, source, "out", "accuracy", 0.5, average),
                Record("r", 2, target, "in", "accuracy", 0.5, average),
                Record("r", 2, target, "out", "accuracy", 0.5, average),
            )
        for metric in ("start_step", "end_step", "n_averaged", "threshold"):
            writer.append(Record(folder.name, 2, None, None, metric, 1.0, "swad"))
        writer.append(Record(folder.name, 2, None, None, "seconds_total", 1.0))
    (folder / "done.json").write_text("{}")


def change_value(content: Any, rng: random.Random) -> Any:
    """Replace, remove or add a value somewhere in a JSON document."""
    if isinstance(content, dict) and content and rng.random() < 0.8:
        key = rng.choice(list(content))
        choice = rng.random()
        if choice < 0.15:
            return {name: value for name, value in content.items() if name != key}
        if choice < 0.25:
            return {**content, "other": rng.choice(VALUES)}
        return {**content, key: change_value(content[key], rng)}
    return rng.choice(VALUES)


def damage(path: Path, rng: random.Random) -> None:
    """Damage a file of JSON lines or a JSON document."""
    data = path.read_bytes()
    choice = rng.random()
    if choice < 0.7:
        lines = data.decode().splitlines()
        index = rng.randrange(len(lines))
        lines[index] = json.dumps(change_value(json.loads(lines[index]), rng))
        path.write_text("\n".join(lines) + "\n")
    elif choice < 0.8:
        path.write_bytes(data[: rng.randrange(len(data))])
    elif choice < 0.9:
        position = rng.randrange(len(data))
        path.write_bytes(data[:position] + rng.randbytes(rng.randrange(1, 9)) + data[position + 4 :])
    elif choice < 0.95:
        path.write_text(DEEP + "\n" if rng.random() < 0.5 else '{"v":' * 50_000 + "\n")
    else:
        path.unlink()
        if rng.random() < 0.5:
            path.mkdir()


def require_one_line(read: Callable[[], object], *errors: type[Exception]) -> None:
    try:
        read()
    except errors as error:
        assert str(error)
        assert "\n" not in str(error)


def read_everything(root: Path, damaged: Path) -> None:
    """Read the runs as reports do; errors other than the project's own propagate."""
    require_one_line(lambda: load_run(damaged), RecordError)
    try:
        runs = find_runs(root, warn=False)
    except RecordError as error:
        assert "\n" not in str(error)
        return
    for method in SELECTIONS:
        for average in ("live", "swad"):
            require_one_line(lambda method=method, average=average: select(runs, method, average), SelectionError)
        for results in collect_results(runs, method):
            compare_in_words(results)
            for table in (accuracy_table(results, "all", True), selected_runs_table(results)):
                for text in (table.text(), table.markdown(), table.latex(), table.csv()):
                    text.encode()
    for table in (ranges_table(runs), timings_table(runs)):
        table.text().encode()
    find_problems(runs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config.json", "records.jsonl"])
@pytest.mark.parametrize("seed", range(2))
def test_damaged_files_never_crash_a_reader(tmp_path: Path, name: str, seed: int) -> None:
    rng = random.Random(f"{name}{seed}")
    for case in range(15):
        root = tmp_path / str(case)
        for target in ("photo", "art"):
            for trial in (0, 1):
                write_small_run(root / f"{target}-{trial}", target, trial)
        damaged = root / rng.choice(["photo-0", "art-1"])
        config = damaged / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text())))
        damage(damaged / name, rng)
        content = (damaged / name).read_bytes()[:300] if (damaged / name).is_file() else None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                read_everything(root, damaged)
        except Exception as error:
            raise AssertionError(f"case {case}: {content!r}") from error


@pytest.mark.parametrize(
    "content",
    ["7\n", '"text"\n', "[]\n", "null\n", "{}\n", DEEP + "\n", "\xff\n", '{"v": 1, "key": "a", "kind": "error"}\n'],
)
def test_damaged_rows_of_flatness_are_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / FLATNESS).write_text(content)
    with pytest.raises(RecordError, match="line 1 is damaged"):
        read_rows(tmp_path, FLATNESS)
    (tmp_path / FLATNESS).unlink()
    (tmp_path / FLATNESS).mkdir()
    with pytest.raises(RecordError, match="cannot read"):
        read_rows(tmp_path, FLATNESS)
