"""A run's folder: one writer, its settings, its checkpoint, and the mark that it is done.

    config.json        the settings, complete
    records.jsonl      every measured value
    checkpoint/        where to go on; gone when the run is done
    weights/           models, as safetensors with their cards
    segments/          segment means, on request
    done.json          the outcome; there only when everything else is

Files are written beside their place and moved there whole, so a run killed at any moment leaves the old or the new.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from swad.results.records import CONFIG, DONE, RECORDS, RecordError, RecordWriter
from swad.training.config import RunConfig

CHECKPOINT = "checkpoint"
WEIGHTS = "weights"
SEGMENTS = "segments"
TENSORBOARD = "tensorboard"


class RunError(RuntimeError):
    """A run that cannot start or go on; the message is one line that says what to do."""


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a file beside `path`, force it to disk and move it there: all of it or, on an error, none."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except Exception as error:
        cause = _disk_error(error)
        raise RunError(f"cannot write {path}: {cause.strerror or cause}") from None
    finally:
        if partial.parent.is_dir():
            partial.unlink(missing_ok=True)


def _disk_error(error: BaseException) -> OSError:
    """The system's error behind what torch and safetensors make of it; anything else is raised as it is."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError):
            return seen
        if number := re.search(r"os error (\d+)", str(seen)):
            return OSError(int(number[1]), os.strerror(int(number[1])))
        seen = seen.__context__
    if "inline_container" in str(error) or "PytorchStreamWriter" in str(error):
        return OSError(errno.EIO, "the file could not be written whole; the disk may be full")
    raise error


def write_json(path: Path, content: Any) -> None:
    """Write JSON whole or not at all."""
    text = json.dumps(content, indent=2, default=str) + "\n"

    def write(partial: Path) -> None:
        partial.write_text(text, encoding="utf-8")

    write_whole(path, write)


def read_json(path: Path) -> Any | None:
    """Read JSON; None where there is no file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise RunError(f"cannot read {path} ({reason}): repair it or choose another folder") from None


def outcome(config: RunConfig) -> dict[str, Any] | None:
    """The outcome of a finished run of the same settings; None while there is none."""
    done = read_json(config.output / DONE)
    if done is None:
        return None
    _require_same(config)
    assert isinstance(done, dict)
    return done


def begun(folder: Path) -> bool:
    """Whether a folder holds a run that measured something; one that failed before, say for want of data, does not."""
    records = folder / RECORDS
    return (folder / DONE).exists() or (records.is_file() and records.stat().st_size > 0)


def _require_same(config: RunConfig) -> None:
    there = read_json(config.output / CONFIG)
    if there is None or not begun(config.output):
        return
    differs = config.differences(there)
    if differs:
        raise RunError(
            f"{config.output} holds a run with other settings ({'; '.join(differs)}): "
            "use the same settings, remove it or choose another folder"
        )


class RunDir:
    """The folder of a run in progress, locked for this process.

    A folder that holds other settings is refused before anything in it changes. `resumed` is the checkpoint's
    content, None where the run begins.
    """

    def __init__(self, config: RunConfig) -> None:
        self.path = config.output
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file: choose a folder for the run")
        if self.path.is_dir():
            _require_same(config)
        try:
            self.records = RecordWriter(self.path, config.name)
        except RecordError as error:
            raise RunError(str(error)) from None
        try:
            # Again, under the lock: another process may have begun here in the meantime.
            _require_same(config)
            self.resumed = self._read_checkpoint()
            self.records.truncate(0 if self.resumed is None else int(self.resumed["offset"]))
            write_json(self.path / CONFIG, config.to_json())
        except RecordError as error:
            self.records.close()
            raise RunError(str(error)) from None
        except BaseException:
            self.records.close()
            raise

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Store where to go on. Tensors and plain values only, so that reading it back runs no code."""
        content = {**state, "offset": self.records.offset()}

        def write(partial: Path) -> None:
            with partial.open("wb") as file:
                torch.save(content, file)

        write_whole(self.path / CHECKPOINT / "state.pt", write)

    def finish(self, outcome: dict[str, Any]) -> None:
        """Mark the run as done and drop what only an unfinished run needs."""
        self.records.offset()
        write_json(self.path / DONE, outcome)
        shutil.rmtree(self.path / CHECKPOINT, ignore_errors=True)

    def close(self) -> None:
        """Let the folder go."""
        self.records.close()

    def _read_checkpoint(self) -> dict[str, Any] | None:
        return read_checkpoint(self.path)


def read_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The content of a folder's checkpoint; None where there is none."""
    path = folder / CHECKPOINT / "state.pt"
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises several classes for files that are no checkpoints
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"cannot read {path} ({reason}): remove {path.parent} to begin the run again") from None
    return state
