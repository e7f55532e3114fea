"""One run per directory, and no file that is written by half."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import time
from pathlib import Path
from random import Random

import pytest
import torch

from helpers import HELPERS
from helpers.forked import run
from helpers.runs import RecordingCallback, crash_at, interrupt_at, require_same, short
from helpers.special_files import at_most, replace_by
from swad.testbed.averages import segment_log
from swad.testbed.measure.saved_run import open_run
from swad.testbed.results import runs
from swad.testbed.results.records import RecordError, RecordWriter
from swad.testbed.training import loop
from swad.testbed.training.config import ConfigError, ResolvedConfig, RunConfig
from swad.testbed.training.loop import RunError, RunInterrupted, train
from swad.testbed.training.resolve import resolve
from swad.testbed.training.run_dir import read_checkpoint
from swad.util.images import DataError


def test_the_result_of_a_finished_run_is_returned_without_training(finished_run):
    before = {path: path.stat().st_mtime_ns for path in finished_run.rglob("*")}
    callback = RecordingCallback()
    result = train(short(finished_run), callback=callback)
    assert callback.events == ["end"]
    assert result.target_accuracy("swad") == result.scores["swad"]["paper"]["in"]["accuracy"]
    assert before == {path: path.stat().st_mtime_ns for path in finished_run.rglob("*")}


def test_only_the_main_process_reports_a_finished_run(finished_run, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    callback = RecordingCallback()
    assert train(short(finished_run), callback=callback).scores
    assert callback.events == []


def test_a_run_that_failed_before_its_first_evaluation_is_not_reported(tmp_path):
    train(short(tmp_path / "paper-0"))
    with pytest.raises(ZeroDivisionError):
        train(short(tmp_path / "board-0", target="board"), callback=crash_at(1))
    found = runs.find_runs(tmp_path)
    assert [run.targets for run in found] == [("paper",)]


def test_a_run_that_failed_before_its_first_evaluation_frees_its_directory(tmp_path, image_folder):
    settings = {"dataset": "folder", "network": "test_resnet", "weights": "random", "averages": (), "steps": 1}
    settings |= {"hyperparameters": {"batch_size": 2}, "evaluate_every": 1, "target": "snow", "workers": 0}
    with pytest.raises(DataError, match="is not one; check the path"):
        train(short(tmp_path / "run", **settings, data_dir=tmp_path / "nowhere"))
    assert train(short(tmp_path / "run", **settings, data_dir=image_folder)).steps == 1
    with pytest.raises(RunError, match="contains a run with other settings"):
        train(short(tmp_path / "run", **settings, data_dir=tmp_path / "nowhere"))


def test_other_settings_are_refused_and_named(tmp_path, finished_run):
    with pytest.raises(RunError, match=r"trial was 0, now 1\): use the same settings"):
        train(short(finished_run, trial=1))
    run_dir = tmp_path / "run"
    with pytest.raises(RunInterrupted):
        train(short(run_dir), callback=interrupt_at(6))
    with pytest.raises(RunError) as caught:
        train(short(run_dir, hyperparameters={"batch_size": 8, "lr": 0.1}))
    assert "(lr was 0.08, now 0.1)" in str(caught.value)
    assert "\n" not in str(caught.value)
    train(short(run_dir, workers=1, checkpoint_every=8))  # settings of the machine may change
    require_same(finished_run, run_dir)


def test_an_image_folder_may_be_named_by_another_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = resolve(RunConfig.from_options(dataset="folder", target="a", output="run", data_dir=Path("images")))
    other = resolve(one.replace(data_dir=tmp_path / "x" / ".." / "images"))
    assert not other.differences(one.to_json())
    stored = one.to_json()
    stored["config"]["data"]["data_dir"] = "images"
    assert not other.differences(stored)


def test_a_directory_that_another_process_writes_is_refused(tmp_path):
    run_dir = tmp_path / "run"
    with RecordWriter(run_dir), pytest.raises(RunError, match="is being written by process"):
        train(short(run_dir))
    assert sorted(path.name for path in run_dir.iterdir()) == ["records.jsonl", "run.lock"]


@pytest.mark.slow
def test_a_run_resumes_after_the_kernel_refused_a_checkpoint(tmp_path, finished_run):
    """The kernel refuses part of the file; with space again the run resumes as if nothing had happened."""
    run_dir = tmp_path / "run"
    ended = run([HELPERS / "run_worker.py", run_dir], env={**os.environ, "LIMIT_FILE_SIZE": "100000"})
    assert ended.stdout.startswith("RunError: cannot write "), ended
    assert "File too large" in ended.stdout
    assert len(ended.stdout.splitlines()) == 1
    assert not list(run_dir.rglob("*.partial"))
    train(short(run_dir))
    require_same(finished_run, run_dir)


@pytest.mark.parametrize("place", ["checkpoint", "weights"])
def test_a_full_disk_is_reported_in_one_line(tmp_path, finished_run, monkeypatch, place):
    run_dir = tmp_path / "run"
    real = os.replace

    def full(source, target):
        if place in str(target):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(
            RunError, match="No space left on device; free disk space, then run the same command again"
        ) as caught:
            train(short(run_dir))
    assert "\n" not in str(caught.value)
    assert not list(run_dir.rglob("*.partial"))
    train(short(run_dir))
    require_same(finished_run, run_dir)


def test_a_directory_that_cannot_be_written_is_reported(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(RunError, match="is a file: choose a directory"):
        train(short(file))
    with pytest.raises(RunError, match=r"(?i)not a directory"):
        train(short(file / "run"))

    def read_only(*args):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(RunError, match=r"(?i)read-only file system"):
        train(short(tmp_path / "run"))


def test_partial_files_of_a_killed_process_are_removed(tmp_path, finished_run):
    run_dir = tmp_path / "run"
    with pytest.raises(RunInterrupted):
        train(short(run_dir), callback=interrupt_at(6))
    partial = run_dir / "checkpoint" / "state.pt.123-0a1b2c3d.partial"
    partial.write_bytes(b"half a checkpoint")
    train(short(run_dir))
    assert not partial.exists()
    require_same(finished_run, run_dir)


def test_partial_files_of_others_in_the_run_directory_stay(tmp_path):
    """A run in the current directory must not remove a download there, or the file that a run below it writes."""
    run_dir = tmp_path / "run"
    others = [run_dir / "movie.partial", run_dir / "other-run" / "weights" / "swad.safetensors.123-0a1b2c3d.partial"]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half a file")
    train(short(run_dir))
    assert all(path.exists() for path in others)


def test_a_damaged_checkpoint_is_reported_in_one_line(tmp_path):
    run_dir = tmp_path / "run"
    with pytest.raises(RunInterrupted):
        train(short(run_dir), callback=interrupt_at(6))
    (run_dir / "checkpoint" / "state.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(
        RunError, match=r"cannot read .*state.pt .*: remove .*checkpoint to start the run again"
    ) as caught:
        train(short(run_dir))
    assert "\n" not in str(caught.value)


def test_a_run_that_another_process_just_finished_is_not_erased(tmp_path, finished_run, monkeypatch):
    """The other process finishes after this one looked for a result and before it has the lock."""
    run_dir = tmp_path / "run"
    shutil.copytree(finished_run, run_dir)
    real, calls = loop.read_result, []

    def too_early(config):
        calls.append(config)
        return None if len(calls) == 1 else real(config)

    monkeypatch.setattr(loop, "read_result", too_early)
    callback = RecordingCallback()
    result = train(short(run_dir), callback=callback)
    assert calls
    assert callback.events == ["end"]
    assert result.scores == train(short(finished_run)).scores
    require_same(finished_run, run_dir)


def flip(path: Path, position: int, bit: int = 0) -> None:
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(bytes(content))


def interrupted(run_dir: Path, **changes: object) -> Path:
    """A run that was interrupted after step 6 of 24."""
    with pytest.raises(RunInterrupted):
        train(short(run_dir, **changes), callback=interrupt_at(6))
    return run_dir


def test_a_flipped_bit_in_a_checkpoint_is_noticed(tmp_path):
    state = interrupted(tmp_path / "run") / "checkpoint" / "state.pt"
    flip(state, state.stat().st_size // 2)
    with pytest.raises(RunError, match=r"cannot read .*state.pt .*checksum.*: remove .*checkpoint to start"):
        train(short(tmp_path / "run"))


def test_a_flipped_bit_in_the_records_of_an_interrupted_run_is_noticed(tmp_path):
    records = interrupted(tmp_path / "run") / "records.jsonl"
    flip(records, records.read_bytes().index(b'"value":') + 8)
    with pytest.raises(RunError, match="changed since the checkpoint was saved: restore the file"):
        train(short(tmp_path / "run"))


@pytest.mark.parametrize("name", ["config.json", "records.jsonl"])
def test_a_flipped_bit_in_a_finished_run_changes_no_table_unnoticed(tmp_path, finished_run, name):
    run_dir = Path(shutil.copytree(finished_run, tmp_path / "run"))
    flip(run_dir / name, (run_dir / name).read_bytes().rindex(b"0"))
    with pytest.raises(RecordError, match=f"{name} changed after the run finished .*: restore the file"):
        runs.load_run(run_dir)
    with pytest.raises(RunError, match=f"{name} changed after the run finished"):
        train(short(run_dir))
    with pytest.raises(RunError, match=f"{name} changed after the run finished"):
        open_run(run_dir)


def test_a_flipped_bit_in_a_result_is_noticed(tmp_path, finished_run):
    done = Path(shutil.copytree(finished_run, tmp_path / "run")) / "done.json"
    flip(done, done.read_bytes().index(b'"accuracy": 0.') + 14)
    with pytest.raises(RunError, match=r"done.json is damaged: restore"):
        train(short(done.parent))
    with pytest.raises(RecordError, match=r"done.json is damaged: restore"):
        runs.load_run(done.parent)


def test_the_settings_of_the_checkpoint_count(tmp_path):
    run_dir = interrupted(tmp_path / "run")
    (run_dir / "config.json").unlink()
    with pytest.raises(RunError, match=r"other settings \(lr was 0.08, now 0.1\)"):
        train(short(run_dir, hyperparameters={"batch_size": 8, "lr": 0.1}))


def test_other_images_are_refused_although_their_number_is_the_same(tmp_path, noise_folder):
    settings = {"dataset": "folder", "data_dir": noise_folder, "target": "a", "network": "test_resnet"}
    settings |= {"weights": "random", "workers": 0, "averages": (), "hyperparameters": {"batch_size": 2}}
    interrupted(tmp_path / "run", **settings)
    shutil.copy(noise_folder / "b" / "dark" / "0.png", noise_folder / "b" / "dark" / "9.png")
    with pytest.raises(RunError, match=r"the data changed since .* \(b: other files or sizes\): restore the images"):
        train(short(tmp_path / "run", **settings))


JUNK = [{}, [], 3, "text", None, {"checksums": {}}, {"checksums": 1}, 10**400, {"config": 5, "format": 2, "roles": 0}]


@pytest.mark.parametrize("name", ["done.json", "config.json"])
@pytest.mark.parametrize("content", [*map(json.dumps, JUNK), "[" * 100_000, "1" * 5000, "{", "\x00"], ids=range(13))
def test_json_of_another_shape_is_one_line(tmp_path, finished_run, name, content):
    run_dir = Path(shutil.copytree(finished_run, tmp_path / "run"))
    (run_dir / name).write_text(content)
    for use in (lambda: train(short(run_dir)), lambda: open_run(run_dir)):
        with pytest.raises((RunError, ConfigError)) as caught:
            use()
        assert "\n" not in str(caught.value)
    if content != "{}" or name != "done.json":
        try:
            runs.load_run(run_dir)
        except RecordError as error:
            assert "\n" not in str(error)


def test_settings_of_other_types_are_one_line(tmp_path, finished_run):
    """Without checksums, since a whole new `config.json` with matching checksums may be written as well."""
    content = json.loads((finished_run / "config.json").read_text())
    random = Random(0)
    values = [None, 5, -1, 1e400, 10**400, "x", [], {}, [[[]]], {"a": 1}, True]
    for _ in range(300):
        changed = json.loads(json.dumps(content))
        section = changed["config"][random.choice(list(changed["config"]))]
        section[random.choice(list(section))] = random.choice(values)
        try:
            ResolvedConfig.from_json(changed, tmp_path).differences(content)
            short(tmp_path).differences(changed)
        except ConfigError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("name", ["checkpoint/state.pt", "config.json", "records.jsonl", "run.lock"])
def test_a_pipe_in_the_place_of_a_file_is_one_line(tmp_path, name):
    run_dir = interrupted(tmp_path / "run")
    replace_by("pipe", run_dir / name)
    with at_most(20), pytest.raises(RunError, match=r"is a pipe or a device, not a file") as refused:
        train(short(run_dir))
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", [None, "x", 1.5, [], True])
@pytest.mark.parametrize("name", ["step", "loss_count", "recorded", "images", "records_offset", "clock", "best"])
def test_a_checkpoint_with_an_edited_value_is_one_line(tmp_path, name, value):
    state = tmp_path / "checkpoint" / "state.pt"
    state.parent.mkdir()
    values = {"step": 4, "loss_count": 2, "records_offset": 0, "records_sha256": "", "config": "{}"}
    torch.save({**values, **{each: {} for each in ("recorded", "images", "clock", "best")}}, state)
    assert read_checkpoint(tmp_path) is not None
    torch.save({**torch.load(state, weights_only=True), name: value}, state)
    with pytest.raises(
        RunError, match=rf"its {name} is {type(value).__name__}\): remove .*checkpoint to start the run"
    ):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("value", [None, "x", [], True])
@pytest.mark.parametrize(("group", "name"), [("best", "score"), ("best", "step"), ("clock", "total")])
def test_a_checkpoint_with_an_edited_number_is_one_line(tmp_path, group, name, value):
    state = tmp_path / "checkpoint" / "state.pt"
    state.parent.mkdir()
    values = {"step": 4, "loss_count": 2, "records_offset": 0, "records_sha256": "", "config": "{}"}
    groups = {"recorded": {}, "images": {}, "clock": {}, "best": {"weights": None}}
    torch.save({**values, **groups, group: {name: value}}, state)
    with pytest.raises(
        RunError, match=rf"its {name} is {type(value).__name__}\): remove .*checkpoint to start the run"
    ):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(("name", "value"), [("step", 25), ("step", -1), ("loss_count", -5), ("records_offset", -5)])
def test_a_checkpoint_with_an_impossible_count_is_one_line(tmp_path, name, value):
    run = interrupted(tmp_path / "run")
    path = run / "checkpoint" / "state.pt"
    torch.save({**torch.load(path, weights_only=True), name: value}, path)
    with pytest.raises(RunError, match=rf"its {name} is {value}.*: remove .*checkpoint to start the run"):
        train(short(run))


@pytest.mark.slow
def test_a_checkpoint_of_an_earlier_format_is_one_line_and_changes_nothing(tmp_path):
    run = interrupted(tmp_path / "run")
    state = torch.load(run / "checkpoint" / "state.pt", weights_only=True)
    state["averages"]["header"] = json.dumps({"version": 1, "members": {}})
    torch.save(state, run / "checkpoint" / "state.pt")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=r"this state has version 1, .*: remove .*checkpoint to start") as refused:
        train(short(run))
    assert "\n" not in str(refused.value)
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_checkpoint_with_other_content_is_one_line(tmp_path):
    state = interrupted(tmp_path / "run") / "checkpoint" / "state.pt"
    original = torch.load(state, weights_only=True)
    random = Random(0)
    contents = [{}, [], 5, torch.ones(3), {"step": 4}, {**original, "best": {"x": 1}}, {**original, "step": "4"}]
    for _ in range(25):
        changed = dict(original)
        name = random.choice([name for name in changed if name != "images"])
        changed[name] = random.choice([None, "x", [], {"x": 1}, torch.ones(2)])
        contents.append(changed)
    for content in contents:
        torch.save(content, state)
        with pytest.raises(RunError) as caught:
            train(short(tmp_path / "run"))
        assert "\n" not in str(caught.value)


def test_an_interrupt_after_the_result_is_written_keeps_the_finished_run(tmp_path, finished_run, monkeypatch):
    """Ctrl-C while the checkpoint of a finished run is removed."""
    run_dir = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: signal.raise_signal(signal.SIGINT))
        with pytest.raises(RunInterrupted):
            train(short(run_dir, checkpoint_every=1000))
    assert train(short(run_dir, checkpoint_every=1000)).scores == train(short(finished_run)).scores
    require_same(finished_run, run_dir)


def test_settings_that_were_edited_during_training_are_not_sealed(tmp_path, finished_run):
    run_dir = tmp_path / "run"

    class Editor:
        def on_stage(self, description: str) -> None:
            path = run_dir / "config.json"
            path.write_text(path.read_text().replace('"lr": 0.08', '"lr": 0.1'))

    train(short(run_dir), callback=Editor())
    assert runs.load_run(run_dir).hyperparameters["lr"] == 0.08


def replace_by_copy(path: Path) -> None:
    """As `sed -i` and tools that keep directories in step do, with a line that is gone."""
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes().partition(b"\n")[2])
    os.replace(copy, path)


REPLACEMENTS = {
    "copy": replace_by_copy,
    "removed": lambda path: path.unlink(missing_ok=True),
    "link": lambda path: (path.unlink(missing_ok=True), path.symlink_to("elsewhere")),
    "emptied": lambda path: path.write_bytes(b"") if path.stat().st_size else path.unlink(),
    "garbage": lambda path: path.write_bytes(b"x" * path.stat().st_size or b"x"),
    "one digit": lambda path: path.write_bytes(path.read_bytes().replace(b'":0.', b'":1.') or b"..."),
}


@pytest.mark.parametrize("how", REPLACEMENTS)
@pytest.mark.parametrize("step", [1, 9, 10, 24, "report"])
def test_records_that_are_replaced_during_training_are_all_there_at_its_end(tmp_path, finished_run, how, step):
    run_dir = tmp_path / "run"
    callback = RecordingCallback({step: lambda: REPLACEMENTS[how](run_dir / "records.jsonl")})
    if step == "report":
        callback.on_stage = lambda description: (
            REPLACEMENTS[how](run_dir / "records.jsonl") if description == "saving ema" else None
        )
    train(short(run_dir), callback=callback)
    require_same(finished_run, run_dir)
    assert len(runs.load_run(run_dir).frame) == len(runs.load_run(finished_run).frame)
    assert any("records.jsonl was re" in text and "lines were written again" in text for text in callback.messages)
    assert not (run_dir / "elsewhere").exists()


def test_a_run_whose_records_were_replaced_resumes_after_a_kill(tmp_path, finished_run):
    """The step after the replacement saves a checkpoint, which fits the records that are at the path."""
    run_dir = tmp_path / "run"
    actions = {3: lambda: replace_by_copy(run_dir / "records.jsonl"), 6: lambda: 1 / 0}
    with pytest.raises(ZeroDivisionError):
        train(short(run_dir), callback=RecordingCallback(actions))
    train(short(run_dir))
    require_same(finished_run, run_dir)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("step", [1, 6, 24])
def test_a_training_that_lost_its_lock_stops_and_can_be_resumed(tmp_path, finished_run, step, replace):
    run_dir = tmp_path / "run"

    def remove() -> None:
        (run_dir / "run.lock").unlink()
        if replace:
            (run_dir / "run.lock").write_text("1\n")

    with pytest.raises(RunError, match=r"run.lock was removed or replaced, .*: this one stops; run the same") as caught:
        train(short(run_dir), callback=RecordingCallback({step: remove}))
    assert "\n" not in str(caught.value)
    assert not (run_dir / "done.json").exists()
    train(short(run_dir))
    require_same(finished_run, run_dir)


def test_two_trainings_after_the_lock_was_removed_double_no_record(tmp_path, finished_run):
    """The second trains the whole run while the first is in the middle of a step."""
    run_dir = tmp_path / "run"

    def start_second() -> None:
        (run_dir / "run.lock").unlink()
        assert run([HELPERS / "run_worker.py", run_dir]).returncode == 0

    with pytest.raises(RunError, match=r"run.lock was removed or replaced"):
        train(short(run_dir), callback=RecordingCallback({10: start_second}))
    assert train(short(run_dir)).scores == train(short(finished_run)).scores
    require_same(finished_run, run_dir)


def test_a_checkpoint_that_is_written_while_the_lock_is_lost_is_not_kept(tmp_path, monkeypatch):
    run_dir, real = tmp_path / "run", torch.save
    saved = []

    def save(*arguments):
        real(*arguments)
        saved.append((run_dir / "checkpoint" / "state.pt").exists())
        if len(saved) == 2:
            (run_dir / "run.lock").unlink()

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(RunError, match=r"run.lock was removed or replaced"):
        train(short(run_dir))
    assert saved == [False, True]
    assert torch.load(run_dir / "checkpoint" / "state.pt", weights_only=True)["step"] == 4


def test_a_removed_run_directory_ends_its_training(tmp_path):
    run_dir = tmp_path / "run"
    callback = RecordingCallback({6: lambda: shutil.rmtree(run_dir)})
    with pytest.raises(RunError, match=r"run.lock was removed or replaced"):
        train(short(run_dir), callback=callback)
    assert not run_dir.exists()


@pytest.mark.parametrize("name", ["run.lock", "records.jsonl", "checkpoint", "branch", "weights", "segments"])
@pytest.mark.parametrize("dangling", [False, True])
def test_no_link_in_a_run_directory_is_followed_for_writing(tmp_path, name, dangling):
    """A run directory from somebody else may hold links to files of the user."""
    run_dir, other = tmp_path / "run", tmp_path / "other"
    run_dir.mkdir()
    if not dangling:
        if "." in name:
            other.write_text("precious")
        else:
            other.mkdir()
            (other / "segment-00000004.pt").write_text("precious")
    (run_dir / name).symlink_to(other)
    with pytest.raises(RunError, match=f"cannot write .*: {name} is a symbolic link.*; remove the link") as caught:
        train(short(run_dir, keep_segments=True))
    assert "\n" not in str(caught.value)
    assert [path.name for path in run_dir.iterdir() if path.name != "run.lock"] in ([name], [])
    if dangling:
        assert not other.exists()
    else:
        assert (other if "." in name else other / "segment-00000004.pt").read_text() == "precious"


def test_links_at_other_files_of_a_run_are_replaced(tmp_path, finished_run):
    run_dir, precious = tmp_path / "run", tmp_path / "precious"
    precious.write_text("precious")
    for name in ("weights", "checkpoint"):
        (run_dir / name).mkdir(parents=True)
    for name in ("weights/swad.safetensors", "weights/swad.md", "failure.json"):
        (run_dir / name).symlink_to(precious)
    for name in ("checkpoint/state.pt", "done.json", "config.json"):
        (run_dir / name).symlink_to(tmp_path / "new")
    train(short(run_dir))
    assert precious.read_text() == "precious"
    assert not (tmp_path / "new").exists()
    require_same(finished_run, run_dir)


def test_a_link_above_the_run_directory_is_followed(tmp_path, finished_run):
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to("disk")
    train(short(tmp_path / "runs" / "run"))
    require_same(finished_run, tmp_path / "disk" / "run")


def test_what_a_kill_during_a_write_left_is_removed_at_the_next_start(tmp_path, finished_run):
    run_dir = tmp_path / "run"
    killed = run([HELPERS / "run_worker.py", run_dir], env={**os.environ, "KILL_IN_SAVE": "1"})
    assert killed.returncode == -signal.SIGKILL, killed
    (run_dir / "weights" / "last.safetensors.123-0a1b2c3d.partial").write_bytes(b"half a file of an earlier version")
    assert [path for path in run_dir.rglob("*") if ".tmp" in path.name and path.parent.name.endswith(".partial")]
    train(short(run_dir))
    assert not [path for path in run_dir.rglob("*") if ".tmp" in path.name or ".partial" in path.name]
    require_same(finished_run, run_dir)


def test_time_is_not_counted_twice_when_the_result_cannot_be_written(tmp_path, monkeypatch):
    run_dir = tmp_path / "run"
    real = os.replace

    def full(source, target):
        if str(target).endswith("done.json"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    began = time.perf_counter()
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(RunError, match="No space left"):
            train(short(run_dir, checkpoint_every=1000))
    elapsed = time.perf_counter() - began
    state = torch.load(run_dir / "checkpoint" / "state.pt", weights_only=True)
    assert state["clock"]["total"] < elapsed


def test_a_full_disk_while_segments_are_kept_is_one_line(tmp_path, monkeypatch):
    def write(path, segment):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(segment_log, "_write", write)
    with pytest.raises(RunError, match=r"cannot write .*segments: No space left on device; free disk space, then run"):
        train(short(tmp_path / "run", keep_segments=True))
