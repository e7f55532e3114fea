"""TODO."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swad.results.records import CONFIG, DONE, RECORDS, Record, RecordError, iterate_records


@dataclass(frozen=True)
class RunData:
    """A run directory: its settings by field name with the role of each, its records, and whether it finished."""

    path: Path
    config: dict[str, Any]
    records: tuple[Record, ...] = field(repr=False)
    finished: bool
    roles: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def targets(self) -> tuple[str, ...]:
        """The held-out domains: one as a rule, two in runs made for leave-one-domain-out selection."""
        target = self.config.get("target")
        if target is None:
            return ()
        return (str(target),) if isinstance(target, str) else tuple(str(name) for name in target)

    @property
    def dataset(self) -> str:
        """The dataset's name, as the config spells it; of a folder of one's own, that of the folder."""
        name = str(self.config.get("dataset", "unknown"))
        data = self.config.get("data_dir")
        return Path(str(data)).name or name if name == "folder" and data else name

    @property
    def algorithm(self) -> str:
        """The algorithm's name, as the config spells it."""
        return str(self.config.get("algorithm", "erm"))

    @property
    def trial(self) -> int:
        """The trial, which names the train-validation split."""
        return int(self.config.get("trial", 0))

    def settings(self, *roles: str) -> dict[str, Any]:
        """The settings with one of these roles, sorted by name.

        The role of a setting is declared with its field in `swad.training.config` and stored in `config.json`:
        identity (names the run), hyperparameter (varied by a search), protocol (must agree for runs to be compared),
        machine (how and where it was computed) or output (which results were kept).
        """
        return {name: self.config[name] for name in sorted(self.config) if self.role(name) in roles}

    def role(self, name: str) -> str:
        """The role of one setting."""
        return self.roles.get(name, "hyperparameter")


def load_run(folder: str | os.PathLike[str]) -> RunData:
    """Read one run folder, finished or not."""
    folder = Path(folder)
    path = folder / CONFIG
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RecordError(f"cannot read {path}: {reason}; give a folder that a run wrote") from None
    except ValueError as error:
        raise RecordError(f"{path} is not JSON ({error}): restore it or leave the run out") from None
    if not isinstance(content, dict):
        raise RecordError(f"{path} must hold a JSON object, got {type(content).__name__}: leave the run out")
    config, roles = _settings(path, content)
    # A run that has just begun has a config and no records yet.
    records = tuple(iterate_records(folder)) if (folder / RECORDS).exists() else ()
    return RunData(folder, config, records, (folder / DONE).exists(), roles)


def _settings(path: Path, content: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings and their roles, by field name; the file groups the settings by section."""
    try:
        settings = {name: value for section in content["config"].values() for name, value in section.items()}
        roles = dict(content["roles"])
    except (KeyError, AttributeError, TypeError, ValueError):
        raise RecordError(f"{path} was not written by this version of swad: train the run again") from None
    return settings, roles


def find_runs(root: str | os.PathLike[str]) -> list[RunData]:
    """Read every run below a folder (itself included), in the order of their paths."""
    root = Path(root)
    if not root.is_dir():
        raise RecordError(f"{root} is not a folder: give one that holds runs")
    folders = sorted(path.parent for path in root.rglob(CONFIG) if (path.parent / RECORDS).exists())
    if not folders:
        raise RecordError(f"no run below {root} (a folder with {CONFIG} and {RECORDS}): train one first")
    runs = [load_run(folder) for folder in folders]
    # One that failed before it measured anything, for a mistyped target say, must not take a column of the table.
    return [run for run in runs if run.records] or runs
