"""The directory of a run: its settings, records, checkpoint, weights and result, written by one process at a time.

    config.json        all settings
    records.jsonl      every measured value
    checkpoint/        the state to resume from; removed when the run is finished
    weights/           models as safetensors, each with its model card
    segments/          mean weights between evaluations, on request
    done.json          the result; written last

Every file is written atomically, so a run that is killed at any moment leaves the old version or the new one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from swad.results.records import CONFIG, DONE, RECORDS, Record, RecordError, RecordWriter
from swad.training.config import RunConfig, stored_options
from swad.util.files import atomic_write, write_json

CHECKPOINT = "checkpoint"
WEIGHTS = "weights"
SEGMENTS = "segments"
TENSORBOARD = "tensorboard"


class RunError(RuntimeError):
    """A run that cannot start or continue; the message is one line that says what to do."""


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an error of the disk while `path` is written into a one-line `RunError`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise RunError(f"cannot write {path}: {reason}; check the disk, then run the same command again") from None
    except RecordError as error:
        raise RunError(str(error)) from None


def read_json(path: Path) -> Any | None:
    """Read JSON; None if there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise RunError(f"cannot read {path} ({reason}): repair it or choose another directory") from None


def has_records(path: Path) -> bool:
    """Whether a directory contains a run that measured something; a run that failed before is discarded."""
    records = path / RECORDS
    return (path / DONE).exists() or (records.is_file() and records.stat().st_size > 0)


def read_result(config: RunConfig) -> dict[str, Any] | None:
    """Return the content of `done.json` if the run is finished, else None; refuse a run with other settings."""
    content = read_json(config.output / DONE)
    if content is None:
        return None
    _require_same_settings(config)
    assert isinstance(content, dict)
    return content


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """Return the checkpoint in a run directory; None if there is none."""
    file = path / CHECKPOINT / "state.pt"
    if not file.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises several classes for files that are no checkpoints
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"cannot read {file} ({reason}): remove {file.parent} to start the run again") from None
    return state


def stored_settings(path: Path) -> dict[str, Any]:
    """Return the settings of the run in a directory by field name; empty if there is no run to resume."""
    if not has_records(path):
        return {}
    try:
        return stored_options(json.loads((path / CONFIG).read_text(encoding="utf-8")), path)
    except (OSError, ValueError, AttributeError):  # reported when the directory is opened
        return {}


def _require_same_settings(config: RunConfig) -> None:
    stored = read_json(config.output / CONFIG)
    if stored is None or not has_records(config.output):
        return
    differences = config.differences(stored)
    if differences:
        raise RunError(
            f"{config.output} contains a run with other settings ({'; '.join(differences)}): "
            "use the same settings, remove it or choose another directory"
        )


class RunDir:
    """The directory of an unfinished run, locked for this process.

    A directory with a run of other settings is refused before anything in it changes. `resumed` holds the content of
    the checkpoint, or None if there is none and the run starts from the beginning.
    """

    def __init__(self, config: RunConfig) -> None:
        self.path = config.output
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file: choose a directory for the run")
        if self.path.is_dir():
            _require_same_settings(config)
        with disk_errors(self.path):
            self._records = RecordWriter(self.path, config.name)
        try:
            # Check again, now under the lock: another process may have started a run here in the meantime.
            _require_same_settings(config)
            for partial in self.path.rglob("*.partial"):  # left by a process that was killed while writing
                partial.unlink(missing_ok=True)
            self.resumed = read_checkpoint(self.path)
            self.truncate_records(0 if self.resumed is None else int(self.resumed["records_offset"]))
            self._write_json(CONFIG, config.to_json())
        except BaseException:
            self._records.close()
            raise

    def append(self, *records: Record) -> None:
        """Write the records together: all of them or, with an error, none."""
        with disk_errors(self._records.path):
            self._records.append(*records)

    def records_offset(self) -> int:
        """Force the records to disk and return their size in bytes."""
        with disk_errors(self._records.path):
            return self._records.offset()

    def truncate_records(self, offset: int) -> None:
        """Remove every record written after `offset` was taken."""
        with disk_errors(self._records.path):
            self._records.truncate(offset)

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Save the state to resume from: tensors and plain values only, so that loading it runs no code."""
        content = {**state, "records_offset": self.records_offset()}
        path = self.path / CHECKPOINT / "state.pt"
        with disk_errors(path), atomic_write(path) as partial, partial.open("wb") as file:
            torch.save(content, file)

    def finish(self, result: dict[str, Any]) -> None:
        """Write the result, which marks the run as finished, and remove the checkpoint."""
        self.records_offset()
        self._write_json(DONE, result)
        shutil.rmtree(self.path / CHECKPOINT, ignore_errors=True)

    def close(self) -> None:
        """Release the directory."""
        with disk_errors(self._records.path):
            self._records.close()

    def _write_json(self, name: str, content: Any) -> None:
        with disk_errors(self.path / name):
            write_json(self.path / name, content)
