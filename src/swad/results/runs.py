"""TODO."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swad.results.records import CONFIG, DONE, RECORDS, Record, RecordError, iterate_records


@dataclass(frozen=True)
class RunData:
    """A run folder as it lies on disk: its config, its records, and whether it finished."""

    path: Path
    config: dict[str, Any]
    records: tuple[Record, ...] = field(repr=False)
    finished: bool

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
        data = self.config.get("data")
        return Path(str(data)).name or name if name == "folder" and data else name

    @property
    def algorithm(self) -> str:
        """The algorithm's name, as the config spells it."""
        return str(self.config.get("algorithm", "erm"))

    @property
    def trial(self) -> int:
        """The trial, which names the train-validation split."""
        return int(self.config.get("trial", 0))


def load_run(folder: str | os.PathLike[str]) -> RunData:
    """Read one run folder, finished or not."""
    folder = Path(folder)
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RecordError(f"cannot read {path}: {reason}; give a folder that a run wrote") from None
    except ValueError as error:
        raise RecordError(f"{path} is not JSON ({error}): restore it or leave the run out") from None
    if not isinstance(config, dict):
        raise RecordError(f"{path} must hold a JSON object, got {type(config).__name__}: leave the run out")
    # A run that has just begun has a config and no records yet.
    records = tuple(iterate_records(folder)) if (folder / RECORDS).exists() else ()
    return RunData(folder, config, records, (folder / DONE).exists())


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
