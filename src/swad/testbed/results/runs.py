"""Run directories: read one, or find all below a directory."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import reprlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swad.testbed.results import domainbed
from swad.testbed.results.failures import read_failure
from swad.testbed.results.record_table import RecordTable, read_record_table
from swad.testbed.results.records import CONFIG, DONE, LOCK, MAX_COUNT, RECORDS, Record, RecordError, make_frame
from swad.testbed.results.run_data import RunData
from swad.testbed.results.summary import MIN_RUNS, Signature, read_summary, signature, write_summary
from swad.util.files import MAX_BYTES, read_json, require_regular, sha256
from swad.util.garbage import paused_garbage_collection
from swad.util.names import is_name
from swad.util.progress import Progress

if TYPE_CHECKING:
    import pandas


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


def require_unchanged(directory: Path, done: Mapping[str, Any]) -> None:
    """Require that settings, records and the result still are those with which the run finished.

    Args:
        directory: The run directory.
        done: The content of its `done.json`, which holds the checksum of every such file.
    """
    checksums = done.get("checksums")
    if not isinstance(checksums, dict):
        return
    if DONE in checksums and checksums[DONE] != result_checksum(done):
        raise RecordError(f"{directory / DONE} is damaged: restore the file, or remove the run and train it again")
    for name in (CONFIG, RECORDS):
        path = directory / name
        try:
            require_regular(path, MAX_BYTES)
            same = sha256(path) == checksums.get(name)
        except OSError as error:
            raise RecordError(f"cannot read {path} ({error.strerror}): restore it or remove the run") from None
        if not same:
            raise RecordError(
                f"{path} changed after the run finished (its checksum in {DONE} differs): "
                "restore the file, or remove the run and train it again"
            )


def result_checksum(content: Mapping[str, Any]) -> str:
    """Return the checksum of the content of `done.json` except the checksums."""
    values = {name: value for name, value in content.items() if name != "checksums"}
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def _read_object(path: Path) -> dict[str, Any]:
    """Read a file that must hold a JSON object."""
    try:
        content = read_json(path)
        json.dumps(content, ensure_ascii=False).encode()  # JSON can express text that no terminal can print
    except OSError as error:
        raise RecordError(f"cannot read {path} ({error.strerror}): restore it or give a run directory") from None
    except ValueError as error:
        raise RecordError(f"{path} is not JSON ({error}): restore the file or remove the run") from None
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


def is_count(value: object) -> bool:
    """Return whether a value of a file is a whole number that can be a count."""
    return type(value) is int and 0 <= value < MAX_COUNT


def _is_target(value: object) -> bool:
    return value is None or is_name(value) or (isinstance(value, list) and bool(value) and all(map(is_name, value)))


_RULES: dict[str, tuple[str, Callable[[object], bool]]] = {
    "dataset": ("a name", is_name),
    "algorithm": ("a name", is_name),
    "target": ("the name of a domain or a list of names", _is_target),
    "trial": ("a whole number", is_count),
    "steps": ("a whole number", lambda value: value is None or is_count(value)),
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

    Runs of DomainBed and of the published SWAD code are read too (see `swad.testbed.results.domainbed`).

    A run without usable results is not in the list: one whose settings or records are missing, empty or damaged. It is
    in the list's `skipped` with the reason, tables mention it, and a warning names it unless it has just started.

    Args:
        root: The directory to search.
        warn: Warn about skipped runs; False for a caller that prints `skipped`.
        progress: Called while runs are read.
        summary: Read finished runs from the directory's summary (see `swad.testbed.results.summary`), and write it if
            there are many; the result is the same without it.
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
                runs += domainbed.read_runs(directory)
                continue
            run = reader.load(directory)
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
        self._used: list[tuple[Signature, RunData]] = []
        self._done = self._new = 0

    def load(self, directory: Path) -> RunData:
        """Return a run; raise `RecordError` if it cannot be used."""
        self._done += 1
        # Taken before the files are read: if one changes meanwhile, the summary does not fit it.
        current = signature(directory) if self._keep else None
        stored, run = self._stored.get(directory, (None, None))
        if is_new := run is None or stored != current:
            run = load_run(directory)
            if self._progress is not None and (self._done % 50 == 0 or self._done == self._total):
                self._progress("reading runs", self._done, self._total)
        if current is not None and run.finished:
            self._used.append((current, run))
            self._new += is_new
        return run

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
