"""Run directories as selection, tables and figures read them: settings, records, and whether the run has finished."""

from __future__ import annotations

import dataclasses
import json
import os
import reprlib
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swad.results import domainbed
from swad.results.failures import read_failure
from swad.results.record_table import RecordTable, read_record_table
from swad.results.records import (
    CONFIG,
    DONE,
    LOCK,
    RECORDS,
    Record,
    RecordError,
    make_frame,
    records_frame,
)
from swad.results.summary import MIN_RUNS, StoredRun, read_summary, signature, write_summary
from swad.util.files import sha256
from swad.util.garbage import paused_garbage_collection
from swad.util.names import NO_TARGET
from swad.util.progress import Progress

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class RunData:
    """The content of a run directory: settings by name with the role of each, records, and whether it has finished."""

    path: Path
    config: dict[str, Any]
    records: Sequence[Record] = field(repr=False)
    finished: bool
    roles: Mapping[str, str] = field(default_factory=dict, repr=False)
    warnings: tuple[str, ...] = ()
    """What the run itself warned of at its end."""

    @cached_property
    def table(self) -> RecordTable:
        """The records in columns, where those of one metric, domain, split and average are found at once."""
        return self.records if isinstance(self.records, RecordTable) else RecordTable(self.records)

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """The held-out domains: usually one; two in runs for the selection "lodo"; none if a run trains on all."""
        target = self.config.get("target")
        if target is None:
            return ()
        return (str(target),) if isinstance(target, str) else tuple(str(name) for name in target)

    @cached_property
    def target(self) -> str:
        """The held-out domains as one text; "none" without any."""
        return "+".join(self.targets) or NO_TARGET

    @cached_property
    def table_name(self) -> str:
        """The dataset, and that there is no target: an accuracy on sources must not stand beside one on a target."""
        return self.dataset if self.targets else f"{self.dataset}, no target"

    @cached_property
    def dataset(self) -> str:
        """The name of the dataset; for the dataset "folder", the name of the user's directory."""
        name = str(self.config.get("dataset", "unknown"))
        data = self.config.get("data_dir")
        return Path(str(data)).name or name if name == "folder" and data else name

    @cached_property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return str(self.config.get("algorithm", "erm"))

    @cached_property
    def trial(self) -> int:
        """The number of the trial, which determines the split into training and validation."""
        return int(self.config.get("trial", 0))

    @cached_property
    def hyperparameters(self) -> dict[str, Any]:
        """The settings that a search varies, with those of the algorithm (`lr`, `batch_size`, ...) by their own names.

        >>> roles = {"trial": "identity", "clip": "hyperparameter", "hyperparameters": "hyperparameter"}
        >>> RunData(Path(), {"trial": 0, "clip": 1.0, "hyperparameters": {"lr": 5e-5}}, (), True, roles).hyperparameters
        {'clip': 1.0, 'lr': 5e-05}
        """
        flat: dict[str, Any] = {}
        for name, value in self.settings("hyperparameter").items():
            flat |= value if name == "hyperparameters" and isinstance(value, dict) else {name: value}
        return flat

    @cached_property
    def search_settings(self) -> str:
        """The settings of a search and of its protocol as text, the same for runs that differ in neither.

        >>> roles = {"lr": "hyperparameter", "trial": "identity", "engine": "machine"}
        >>> first = RunData(Path("a"), {"lr": 5e-5, "trial": 0, "engine": "eager"}, (), True, roles)
        >>> second = RunData(Path("b"), {"lr": 5e-5, "trial": 2, "engine": "graph"}, (), True, roles)
        >>> first.search_settings == second.search_settings
        True
        """
        return json.dumps(self.settings("hyperparameter", "protocol"), default=str)

    @cached_property
    def compared_settings(self) -> dict[str, str]:
        """Hyperparameters and settings of the protocol as text, in which runs of one algorithm may differ."""
        settings = {**self.settings("protocol"), **self.hyperparameters}
        identity = ("dataset", "target", "trial")
        return {name: setting_text(value) for name, value in settings.items() if name not in identity}

    def to_frame(self) -> pandas.DataFrame:
        """Return the records as a pandas data frame with one row per record."""
        return records_frame(self.records)

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


def setting_text(value: object) -> str:
    """Return the value of a setting as text.

    >>> setting_text({"crop": 0.8, "flip": 0.5}), setting_text(["swad", "ema"]), setting_text(None), setting_text(True)
    ('crop=0.8, flip=0.5', 'swad, ema', 'none', 'true')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={setting_text(part)}" for name, part in value.items())
    if isinstance(value, (list, tuple)) and value:
        return ", ".join(map(setting_text, value))
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


def load_run(directory: str | os.PathLike[str]) -> RunData:
    """Read a run directory, finished or not."""
    directory = Path(directory)
    config, roles = _read_config(directory / CONFIG)
    finished = (directory / DONE).exists()
    done = _read_object(directory / DONE) if finished else {}
    require_unchanged(directory, done)
    # A run that has just started has a config and no records yet.
    records = read_record_table(directory) if (directory / RECORDS).exists() else RecordTable()
    recorded = done.get("warnings")
    texts = tuple(text for text in recorded if isinstance(text, str)) if isinstance(recorded, list) else ()
    return RunData(directory, config, records, finished, roles, texts)


def load_imported(directory: str | os.PathLike[str]) -> list[RunData]:
    """Read a directory that DomainBed or the published SWAD code wrote; see `swad.results.domainbed`."""
    return [
        RunData(run.path, run.config, run.records, run.finished, run.roles)
        for run in domainbed.read_runs(Path(directory))
    ]


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
        json.dumps(content, ensure_ascii=False).encode()  # JSON can express text that no terminal can print
    except OSError as error:
        raise RecordError(f"cannot read {path} ({error.strerror}): restore it or give a run directory") from None
    except ValueError as error:
        raise RecordError(f"{path} is not JSON ({error}): restore the file or remove the run") from None
    except RecursionError:
        raise RecordError(f"{path} is nested too deeply: restore the file or remove the run") from None
    if not isinstance(content, dict):
        raise RecordError(
            f"{path} must hold a JSON object, got {type(content).__name__}: restore the file or remove the run"
        )
    return content


def _read_config(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return settings and roles by name. The file groups the settings by section."""
    content = _read_object(path)
    try:
        settings = {name: value for section in content["config"].values() for name, value in section.items()}
        roles = {str(name): str(role) for name, role in content["roles"].items()}
    except (KeyError, AttributeError, TypeError, ValueError):
        raise RecordError(f"{path} was not written by this version of swad: train the run again") from None
    for name, (rule, is_valid) in _RULES.items():
        if name in settings and not is_valid(settings[name]):
            raise RecordError(
                f"{path}: {name} must be {rule}, got {reprlib.repr(settings[name])}: restore the file or remove the run"
            )
    return settings, roles


def _is_name(value: object) -> bool:
    # Line breaks and other control characters would garble tables and messages.
    return isinstance(value, str) and value != "" and not any(unicodedata.category(letter) == "Cc" for letter in value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_target(value: object) -> bool:
    return value is None or _is_name(value) or (isinstance(value, list) and bool(value) and all(map(_is_name, value)))


_RULES: dict[str, tuple[str, Callable[[object], bool]]] = {
    "dataset": ("a name", _is_name),
    "algorithm": ("a name", _is_name),
    "target": ("the name of a domain or a list of names", _is_target),
    "trial": ("a whole number", _is_count),
    "steps": ("a whole number", lambda value: value is None or _is_count(value)),
    "data_dir": ("a path", lambda value: value is None or isinstance(value, str)),
    "hyperparameters": ("numbers by name", lambda value: isinstance(value, dict)),
}
"""The settings that tables, figures and the page rely on, with the rule for each."""


# ------------------------------------------------------------ many runs


@dataclass(frozen=True)
class SkippedRun:
    """A run directory without usable results."""

    path: Path
    name: str
    """The path relative to the directory that was searched."""
    reason: str
    run: RunData | None = field(default=None, repr=False)
    """The run without its records, if its settings can be read."""


class RunList(list[RunData]):
    """Runs in the order of their paths, with the run directories that cannot be used in `skipped`."""

    def __init__(self, runs: Iterable[RunData] = (), skipped: Iterable[SkippedRun] = ()) -> None:
        super().__init__(runs)
        self.skipped = tuple(skipped)

    def to_frame(self) -> pandas.DataFrame:
        """Return the records of all runs as a pandas data frame, with each run's directory and settings of identity."""
        identity = ("dataset", "algorithm", "targets", "trial")
        rows = [
            {
                "directory": str(run.path),
                **{name: getattr(run, name) for name in identity},
                **dataclasses.asdict(record),
            }
            for run in self
            for record in run.records
        ]
        return make_frame(rows, ["directory", *identity, *(f.name for f in dataclasses.fields(Record))])


@paused_garbage_collection()
def find_runs(
    root: str | os.PathLike[str], *, warn: bool = True, progress: Progress | None = None, summary: bool = True
) -> RunList:
    """Read every run in a directory and its subdirectories, in the order of their paths.

    Runs of DomainBed and of the published SWAD code are read too (see `swad.results.domainbed`).

    A run without usable results is not in the list: one whose settings or records are missing, empty or damaged. It is
    in the list's `skipped` with the reason, tables mention it, and a warning names it unless it has just started.

    Args:
        root: The directory to search.
        warn: Warn about skipped runs; False for a caller that prints `skipped`.
        progress: Called while runs are read.
        summary: Read finished runs from the directory's summary (see `swad.results.summary`), and write it if there
            are many; the result is the same without it.
    """
    root = Path(root)
    if not root.is_dir():
        raise RecordError(f"{root} is not a directory: give one that holds runs")
    directories, imported, skipped = _run_directories(root)
    reader = _RunReader(root, len(directories) - len(imported), progress, summary)
    runs, waiting = [], []
    for directory in directories:
        name = str(directory.relative_to(root)) if directory != root else directory.name
        try:
            if directory in imported:
                runs += load_imported(directory)
                continue
            run = reader.load(directory, name)
        except RecordError as error:
            skipped.append(SkippedRun(directory, name, str(error).replace(f"{root}{os.sep}", "")))
            continue
        if run.records:
            runs.append(run)
        elif run.finished:
            state = "is empty" if (directory / RECORDS).exists() else "is missing"
            reason = f"the run is finished, but its {RECORDS} {state}: restore the file or repeat the run"
            skipped.append(SkippedRun(directory, name, reason, run))
        else:
            failure = read_failure(directory)
            reason = f"the run failed ({failure.error})" if failure else "no value has been recorded yet"
            waiting.append(SkippedRun(directory, name, reason, run))
    reader.close()
    if not runs and waiting:
        # The runs have just started, and a report can show that.
        runs, waiting = [entry.run for entry in waiting if entry.run is not None], []
    if not runs and skipped:
        raise RecordError(f"{root} holds no run with results; {skipped[0].name}: {skipped[0].reason}")
    if not runs:
        raise RecordError(f"{root} holds no run (a directory with {CONFIG} and {RECORDS}): train one first")
    if warn:
        for entry in skipped:
            warnings.warn(f"skipped run {entry.name}: {entry.reason}", stacklevel=3)  # 2 is the decorator
    return RunList(runs, sorted([*skipped, *waiting], key=lambda entry: entry.path))


class _RunReader:
    """Reads runs, those that the summary holds from there; at the end it updates the summary."""

    def __init__(self, root: Path, total: int, progress: Progress | None, summary: bool) -> None:
        self._root, self._total = root, total
        self._progress = progress if total >= MIN_RUNS else None
        self._keep = summary and total >= MIN_RUNS
        self._stored = read_summary(root) if self._keep else {}
        self._used: dict[str, StoredRun] = {}
        self._done = self._new = 0

    def load(self, directory: Path, name: str) -> RunData:
        """Return a run; raise `RecordError` if it cannot be used."""
        self._done += 1
        # Taken before the files are read: if one changes meanwhile, the summary does not fit it.
        current = signature(directory) if self._keep else None
        stored = self._stored.get(name)
        if stored is None or stored.signature != current:
            run = load_run(directory)
            if current is not None and run.finished:
                self._new += 1
                stored = StoredRun(current, run.config, dict(run.roles), run.warnings, run.table)
                self._used[name] = stored
            if self._progress is not None and (self._done % 50 == 0 or self._done == self._total):
                self._progress("reading runs", self._done, self._total)
            return run
        self._used[name] = stored
        return RunData(directory, stored.config, stored.table, True, stored.roles, stored.warnings)

    def close(self) -> None:
        # A few new runs are read in a moment; writing everything again for them takes longer.
        if self._new > len(self._used) / 50:
            write_summary(self._root, self._used)


def _run_directories(root: Path) -> tuple[list[Path], set[Path], list[SkippedRun]]:
    """Return the run directories below `root`, those among them of DomainBed, and those that cannot be searched."""
    unreadable: list[SkippedRun] = []

    def note(error: OSError) -> None:
        path = Path(error.filename)
        name = str(path.relative_to(root)) if path != root else path.name
        unreadable.append(SkippedRun(path, name, f"the directory cannot be read ({error.strerror})"))

    directories, imported = [], set()
    for directory, subdirectories, file_names in os.walk(root, onerror=note):
        names = {*subdirectories, *file_names}
        # Other tools also write a config.json. Alone, it belongs to a run only if it looks like ours.
        if RECORDS in names or DONE in names or (CONFIG in names and (LOCK in names or _is_ours(directory))):
            directories.append(Path(directory))
        elif domainbed.RESULTS in names:
            directories.append(Path(directory))
            imported.add(Path(directory))
    return sorted(directories), imported, unreadable


def _is_ours(directory: str) -> bool:
    try:
        _read_config(Path(directory) / CONFIG)
    except RecordError:
        return False
    return True
