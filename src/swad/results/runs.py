"""Run directories as selection, tables and figures read them: settings, records, and whether the run has finished."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swad.results.records import CONFIG, DONE, RECORDS, Record, RecordError, iterate_records
from swad.util.files import sha256


@dataclass(frozen=True)
class RunData:
    """The content of a run directory: settings by name with the role of each, records, and whether it has finished."""

    path: Path
    config: dict[str, Any]
    records: tuple[Record, ...] = field(repr=False)
    finished: bool
    roles: Mapping[str, str] = field(default_factory=dict, repr=False)
    warnings: tuple[str, ...] = ()
    """What the run itself warned of at its end."""

    @property
    def targets(self) -> tuple[str, ...]:
        """The held-out domains: usually one, and two in runs for the selection "lodo"."""
        target = self.config.get("target")
        if target is None:
            return ()
        return (str(target),) if isinstance(target, str) else tuple(str(name) for name in target)

    @property
    def dataset(self) -> str:
        """The name of the dataset; for the dataset "folder", the name of the user's directory."""
        name = str(self.config.get("dataset", "unknown"))
        data = self.config.get("data_dir")
        return Path(str(data)).name or name if name == "folder" and data else name

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return str(self.config.get("algorithm", "erm"))

    @property
    def trial(self) -> int:
        """The number of the trial, which determines the split into training and validation."""
        return int(self.config.get("trial", 0))

    def settings(self, *roles: str) -> dict[str, Any]:
        """Return the settings with one of these roles, sorted by name.

        The role of a setting is declared with its field in `swad.training.config` and stored in `config.json`:
        identity (names the run), hyperparameter (varied by a search), protocol (must agree for runs to be compared),
        machine (how and where it was computed) or output (which results were kept).
        """
        return {name: self.config[name] for name in sorted(self.config) if self.role(name) in roles}

    def role(self, name: str) -> str:
        """Return the role of one setting."""
        return self.roles.get(name, "hyperparameter")


def load_run(directory: str | os.PathLike[str]) -> RunData:
    """Read a run directory, finished or not."""
    directory = Path(directory)
    path = directory / CONFIG
    config, roles = _settings(path, _read_object(path))
    finished = (directory / DONE).exists()
    done = _read_object(directory / DONE) if finished else {}
    require_unchanged(directory, done)
    # A run that has just started has a config and no records yet.
    records = tuple(iterate_records(directory)) if (directory / RECORDS).exists() else ()
    warnings = done.get("warnings")
    texts = tuple(text for text in warnings if isinstance(text, str)) if isinstance(warnings, list) else ()
    return RunData(directory, config, records, finished, roles, texts)


def require_unchanged(directory: Path, done: Mapping[str, Any]) -> None:
    """Require that settings and records still are those with which the run finished.

    Args:
        directory: The run directory.
        done: The content of its `done.json`, which holds the checksum of every such file.
    """
    checksums = done.get("checksums")
    if not isinstance(checksums, dict):
        return
    for name in (CONFIG, RECORDS):
        path = directory / name
        try:
            same = sha256(path) == checksums.get(name)
        except OSError as error:
            raise RecordError(f"cannot read {path} ({error.strerror}): restore it or remove the run") from None
        if not same:
            raise RecordError(
                f"{path} changed after the run finished (its checksum in {DONE} differs): "
                "restore the file, or remove the run and train it again"
            )


def _read_object(path: Path) -> dict[str, Any]:
    """Read a file that must hold a JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"cannot read {path} ({error.strerror}): give the directory of a run") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not JSON ({error}): restore the file or remove the run") from None
    if not isinstance(content, dict):
        raise RecordError(
            f"{path} must hold a JSON object, got {type(content).__name__}: restore the file or remove the run"
        )
    return content


def _settings(path: Path, content: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return settings and roles by name. The file groups the settings by section."""
    try:
        settings = {name: value for section in content["config"].values() for name, value in section.items()}
        roles = dict(content["roles"])
    except (KeyError, AttributeError, TypeError, ValueError):
        raise RecordError(f"{path} was not written by this version of swad: train the run again") from None
    return settings, roles


def find_runs(root: str | os.PathLike[str]) -> list[RunData]:
    """Read every run in a directory and its subdirectories, in the order of their paths."""
    root = Path(root)
    if not root.is_dir():
        raise RecordError(f"{root} is not a directory: give one that holds runs")
    folders = sorted(path.parent for path in root.rglob(CONFIG) if (path.parent / RECORDS).exists())
    if not folders:
        raise RecordError(f"{root} holds no run (a directory with {CONFIG} and {RECORDS}): train one first")
    runs = [load_run(folder) for folder in folders]
    # A run that failed before its first evaluation, such as one with a mistyped target, must not add a column.
    return [run for run in runs if run.records] or runs
