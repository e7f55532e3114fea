"""The directory of a run: its settings, records, checkpoint, weights and result, written by one process at a time.

    config.json        all settings
    records.jsonl      every measured value
    checkpoint/        the state to resume from; removed when the run is finished
    branch/            the state after 80 % of training, where another run may branch off (imagenet recipe)
    weights/           models as safetensors, each with its model card
    segments/          mean weights between evaluations, on request
    predictions.npz    what the weights predict for every image of the final evaluation
    done.json          the result; written last

Every file is written atomically, so a run that is killed at any moment leaves the old version or the new one. Whatever
is read back has a checksum: the checkpoint and the weights in the file itself, settings and records in the checkpoint
and in `done.json`. Damage is an error, not another result.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from swad.testbed.results.failures import remove_failure
from swad.testbed.results.predictions import PREDICTIONS
from swad.testbed.results.records import (
    CONFIG,
    DONE,
    RECORDS,
    DirectoryLockedError,
    Record,
    RecordError,
    RecordWriter,
    iterate_records,
)
from swad.testbed.results.runs import require_unchanged, result_checksum
from swad.testbed.training.config import ConfigError, ResolvedConfig, stored_options
from swad.util.files import (
    atomic_write,
    disk_advice,
    read_json,
    remove_partial_files,
    require_no_link,
    require_regular,
    sha256,
    write_json,
)
from swad.util.names import one_line, snapshot_name

CHECKPOINT = "checkpoint"
BRANCH = "branch"
WEIGHTS = "weights"
SEGMENTS = "segments"
_FOLDERS = (CHECKPOINT, BRANCH, WEIGHTS, SEGMENTS)


class RunError(RuntimeError):
    """A run that cannot start or continue; the message is one line that says what to do."""


class RunLockedError(RunError):
    """Another process trains the run."""


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an error of the disk while `path` is written into a one-line `RunError`."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}; {disk_advice(error)}") from None
    except DirectoryLockedError as error:
        raise RunLockedError(str(error)) from None
    except RecordError as error:
        raise RunError(str(error)) from None


def read_stored(path: Path) -> Any | None:
    """Read JSON; None if there is no such file."""
    try:
        return read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RunError(f"cannot read {path} ({error.strerror}): restore it or choose another directory") from None
    except ValueError as error:
        raise RunError(f"cannot read {path} ({one_line(error)}): repair it or choose another directory") from None


@dataclass(frozen=True)
class RunResult:
    """The scores of every set of weights, the steps that each average took, and the files of the models."""

    run_dir: Path
    config: ResolvedConfig
    steps: int
    """Optimizer steps made: fewer than configured if every requested average was complete earlier."""
    scores: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]
    """Loss and accuracy by weights ("swad", "best", ...), domain and split."""
    ranges: Mapping[str, Mapping[str, Any]]
    """The steps that each average took: start_step, end_step, n_averaged, threshold, reason."""
    weights: Mapping[str, str]
    """Model files by name, relative to the run directory."""
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """How the run was computed: engine, input pipeline, precision, and every fallback with its reason."""

    def target_accuracy(self, label: str, split: str = "in") -> float:
        """Mean accuracy over the held-out domains."""
        if not self.config.targets:
            raise ValueError(f"the run {self.run_dir} has no target: use source_accuracy")
        scores = self._scores(label)
        accuracies = [scores[name][split]["accuracy"] for name in self.config.targets]
        return sum(accuracies) / len(accuracies)

    def source_accuracy(self, label: str, split: str = "out") -> float:
        """Mean accuracy over the source domains."""
        sources = [splits for name, splits in self._scores(label).items() if name not in self.config.targets]
        return sum(splits[split]["accuracy"] for splits in sources) / len(sources)

    def _scores(self, label: str) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
        if label not in self.scores:
            raise ValueError(f"the run {self.run_dir} has the weights {', '.join(self.scores)}; got {label!r}")
        return self.scores[label]

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values, without the directory and the config, which has its own file."""
        content = dataclasses.asdict(self)
        del content["run_dir"], content["config"]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any], config: ResolvedConfig) -> RunResult:
        """Read a result back, from the content of a `done.json` whose checksum is right."""
        stored = {name: value for name, value in content.items() if name != "checksums"}
        tuples = {name: tuple(content.get(name, ())) for name in ("warnings", "notes")}
        return cls(**{**stored, **tuples, "run_dir": config.output, "config": config})


def has_records(path: Path) -> bool:
    """Whether a directory contains a run that measured something; a run that failed before is discarded."""
    records = path / RECORDS
    return (path / DONE).exists() or (records.is_file() and records.stat().st_size > 0)


def read_result(config: ResolvedConfig) -> RunResult | None:
    """Return the result of a run if it is finished, else None.

    A run with other settings, or with files that changed after it finished, is refused.
    """
    content = read_done(config.output)
    if content is not None:
        _require_same_settings(config)
    return None if content is None else RunResult.from_json(content, config)


def read_done(path: Path) -> dict[str, Any] | None:
    """Return the content of `done.json` in a run directory, checked against its checksums; None if there is none."""
    content = read_stored(path / DONE)
    if content is None and not (path / DONE).exists():
        return None
    checksums = content.get("checksums") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(checksums, dict):
        raise RunError(
            f"{path / DONE} is not the result of a run that this version of swad finished: "
            "restore the file, or remove the run and train it again"
        )
    if DONE not in checksums:
        raise RunError(f"{path / DONE} lacks its checksum: restore the file, or remove the run and train it again")
    try:
        require_unchanged(path, content)
    except RecordError as error:
        raise RunError(str(error)) from None
    return content


def read_start(config: ResolvedConfig) -> dict[str, Any] | None:
    """Return the state in which a run starts: its checkpoint, or that of the run it branches from; None if neither."""
    state = read_checkpoint(config.output)
    trunk = config.branch_from
    if state is not None or trunk is None:
        return state
    state = read_checkpoint(trunk, BRANCH)
    if state is None:
        raise RunError(f"branch_from must be a run that kept a checkpoint after 80 %, got {trunk}: train it first")
    stored = ResolvedConfig.from_json(_parse_settings(trunk, state["config"]), trunk).options()
    shared = config.replace(**{name: stored[name] for name in _FREE_IN_BRANCH})
    if differences := shared.differences(_parse_settings(trunk, state["config"])):
        raise RunError(
            f"a branch differs from {trunk} in its learning rate and averages only, but {'; '.join(differences)}: "
            "use the same settings, or drop branch_from"
        )
    if incomplete := _incomplete_in_branch(config, trunk, stored, state["step"]):
        raise RunError(
            f"{', '.join(incomplete)} would lack the first {state['step']} steps, which {trunk} trained without: turn "
            f"{'them' if len(incomplete) > 1 else 'it'} off, or drop branch_from"
        )
    return state | {"is_branch": True}


_FREE_IN_BRANCH = (
    "lr_schedule", "averages", "report_live", "early_stop", "snapshots", "keep_segments", "target_every_evaluation",
)  # fmt: skip
"""Settings in which a branch may differ from the run whose first steps it shares."""


def _incomplete_in_branch(config: ResolvedConfig, trunk: Path, stored: Mapping[str, Any], step: int) -> list[str]:
    """List the outputs that a branch asks for and that the trunk, with its stored settings, lacks up to `step`."""
    incomplete = {
        "report_live": config.report_live and not stored["report_live"],  # the best weights may be earlier
        "target_every_evaluation": config.target_every_evaluation and not stored["target_every_evaluation"],
        "snapshots": not all((trunk / file).exists() for file in _snapshot_files(config.snapshots, step)),
        "keep_segments": config.keep_segments,
    }
    return [name for name, lacking in incomplete.items() if lacking]


def _snapshot_files(snapshots: Sequence[int], step: int) -> list[str]:
    """Return the files of the snapshots up to `step`, in a run directory."""
    names = [snapshot_name(snapshot) for snapshot in snapshots if snapshot <= step]
    return [f"{WEIGHTS}/{name}{suffix}" for name in names for suffix in (".safetensors", ".md")]


def remove_checkpoint(path: Path) -> None:
    """Remove the checkpoint of a finished run."""
    shutil.rmtree(path / CHECKPOINT, ignore_errors=True)


def read_checkpoint(path: Path, name: str = CHECKPOINT) -> dict[str, Any] | None:
    """Return the checkpoint in a run directory; None if there is none."""
    file = path / name / "state.pt"
    if not file.exists():
        return None
    try:
        require_regular(file)
        # torch stores a CRC-32 of every tensor and does not check it.
        with zipfile.ZipFile(file) as archive:
            if (damaged := archive.testzip()) is not None:
                raise ValueError(f"the checksum of {damaged} is wrong")
        state = torch.load(file, map_location="cpu", weights_only=True)
        if not isinstance(state, dict):
            raise TypeError(f"it holds {type(state).__name__}")
        for name, kind in _CHECKPOINT_VALUES.items():
            if type(state.get(name)) is not kind:  # True is an int
                raise TypeError(f"its {name} is {type(state.get(name)).__name__}")
        for name in ("loss_count", "records_offset"):
            if state[name] < 0:
                raise ValueError(f"its {name} is {state[name]}")
        numbers = {key: value for key, value in {**state["best"], **state["clock"]}.items() if key != "weights"}
        for name, value in numbers.items():
            if type(value) not in (int, float):
                raise TypeError(f"its {name} is {type(value).__name__}")
    except Exception as error:  # torch and zipfile raise several classes for files that are not checkpoints
        raise damaged_checkpoint(path, error) from None
    return state


_CHECKPOINT_VALUES = {
    "step": int,
    "loss_count": int,
    "recorded": dict,
    "records_offset": int,
    "records_sha256": str,
    "config": str,
    "images": dict,
    "clock": dict,
    "best": dict,
}
"""What a checkpoint holds besides the state of the training, with its type."""


def damaged_checkpoint(path: Path, error: Exception) -> RunError:
    """Return the error for a checkpoint in a run directory that cannot be loaded."""
    file = path / CHECKPOINT / "state.pt"
    return RunError(f"cannot read {file} ({one_line(error, 200)}): remove {file.parent} to start the run again")


def stored_settings(path: Path) -> dict[str, Any]:
    """Return the settings of the run in a directory by field name; empty if there is no run to resume."""
    if not has_records(path):
        return {}
    try:
        return stored_options(read_json(path / CONFIG), path)
    except (OSError, ValueError):  # reported when the directory is opened
        return {}


def _require_same_settings(config: ResolvedConfig) -> None:
    stored = read_stored(config.output / CONFIG)
    if stored is not None and has_records(config.output):
        _require_no_differences(config, stored, config.output / CONFIG)


def _require_no_differences(config: ResolvedConfig, stored: Any, source: Path) -> None:
    try:
        differences = config.differences(stored)
    except ConfigError as error:
        raise RunError(f"cannot read {source} ({error}): restore it, or choose another directory") from None
    if differences:
        raise RunError(
            f"{config.output} contains a run with other settings ({'; '.join(differences)}): "
            "use the same settings, remove it or choose another directory"
        )


class RunDir:
    """The directory of an unfinished run, locked for this process.

    A directory with a run of other settings is refused before anything in it changes. `resumed` holds the content of
    the checkpoint, or None if there is none and the run starts from the beginning. `finished` holds the
    result if another process finished the run before this one got the lock; then nothing in the directory changes.
    """

    def __init__(self, config: ResolvedConfig) -> None:
        self.path = config.output
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file: choose a directory for the run")
        if self.path.is_dir():
            _require_same_settings(config)
        with disk_errors(self.path):
            for name in _FOLDERS:  # a directory from somebody else may lead to any other place
                require_no_link(self.path / name)
            self._records = RecordWriter(self.path)
        try:
            # Check again, now under the lock: another process may have started or finished a run here meanwhile.
            self.resumed: dict[str, Any] | None = None
            self.finished = read_result(config)
            if self.finished is None:
                self._open_unfinished(config)
        except BaseException:
            self._records.close()
            raise

    def _open_unfinished(self, config: ResolvedConfig) -> None:
        """Go back to the last checkpoint, or to the beginning if there is none."""
        _require_same_settings(config)
        for name in ("", *_FOLDERS):
            remove_partial_files(self.path / name)
        (self.path / PREDICTIONS).unlink(missing_ok=True)  # of an attempt that could not write its result
        state = self.resumed = read_start(config)
        branches = state is not None and "is_branch" in state
        if state is not None and not branches:
            # The settings that count are those of the training; config.json may be missing or edited.
            checkpoint = self.path / CHECKPOINT / "state.pt"
            _require_no_differences(config, _parse_settings(self.path, state["config"]), checkpoint)
            self._require_same_records(state)
        self.truncate_records(0 if state is None or branches else state["records_offset"])
        # Again for a resumed run: settings of the machine may differ, and the file may have been edited.
        self._settings = config.to_json()
        self._write_json(CONFIG, self._settings)

    def _require_same_records(self, state: dict[str, Any]) -> None:
        path, size = self._records.path, state["records_offset"]
        if path.stat().st_size >= size and sha256(path, size) != state["records_sha256"]:
            raise RunError(
                f"{path} changed since the checkpoint was saved: restore the file, or remove {self.path} to start again"
            )

    def warn_with(self, warn: Callable[[str], None]) -> None:
        """Call `warn` with the warnings of later writes."""
        self._records.warn = warn

    def append(self, *records: Record) -> None:
        """Write the records together: all of them or, with an error, none."""
        with disk_errors(self._records.path):
            self._records.append(*records)

    def records(self) -> list[Record]:
        """Return all records of the run."""
        return self._records.records()

    def copy_from_trunk(self, trunk: Path, step: int, snapshots: Sequence[int]) -> None:
        """Start with the records and the snapshots of the run that this one branches from, up to a step."""
        with disk_errors(self._records.path):
            self._records.append(*(record for record in iterate_records(trunk) if record.step <= step))
        for file in _snapshot_files(snapshots, step):
            with disk_errors(self.path / file), atomic_write(self.path / file) as partial:
                shutil.copyfile(trunk / file, partial)

    def records_offset(self) -> int:
        """Force the records to disk and return their size in bytes."""
        with disk_errors(self._records.path):
            return self._records.offset()

    def truncate_records(self, offset: int) -> None:
        """Remove every record written after `offset` was taken."""
        with disk_errors(self._records.path):
            self._records.truncate(offset)

    def save_checkpoint(self, state: dict[str, Any], name: str = CHECKPOINT) -> None:
        """Save the state to resume from: tensors and plain values only, so that loading it runs no code."""
        offset = self.records_offset()
        with disk_errors(self._records.path):
            records_sha256 = self._records.sha256(offset)
        content = {
            **state,
            "config": json.dumps(self._settings, default=str),
            "records_offset": offset,
            "records_sha256": records_sha256,
        }
        path = self.path / name / "state.pt"
        with disk_errors(path), atomic_write(path) as partial, partial.open("wb") as file:
            torch.save(content, file)
            self._records.offset()  # raises an error if another process may have started from the checkpoint before

    def finish(self, result: RunResult) -> None:
        """Write the result, which marks the run as finished, and remove the checkpoint."""
        offset = self.records_offset()
        self._write_json(CONFIG, self._settings)  # the checksum must be that of the settings of this training
        with disk_errors(self._records.path):
            checksums = {CONFIG: sha256(self.path / CONFIG), RECORDS: self._records.sha256(offset)}
        content = result.to_json()
        self._write_json(DONE, {**content, "checksums": {**checksums, DONE: result_checksum(content)}})
        with suppress(OSError):  # the result above decides
            remove_failure(self.path)
        remove_checkpoint(self.path)

    @property
    def has_result(self) -> bool:
        """Whether the result is written, so that nothing in the directory may change any more."""
        return (self.path / DONE).exists()

    def close(self) -> None:
        """Release the directory."""
        with disk_errors(self._records.path):
            self._records.close()

    def _write_json(self, name: str, content: Any) -> None:
        with disk_errors(self.path / name):
            write_json(self.path / name, content)


def _parse_settings(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged_checkpoint(path, error) from None
