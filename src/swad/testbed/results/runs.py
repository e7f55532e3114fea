"""Run directories: read one, or find all below a directory.

runs = find_runs("runs")
runs[0]           # one run: its path, settings, and whether it has finished
runs.frame        # path dataset algorithm target trial finished: one row for each run
runs.records      # run step domain split metric weights value: one row for each measured value
runs.skipped      # the run directories that cannot be used, and why
"""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from swad.testbed.results import domainbed
from swad.testbed.results.failures import read_failure
from swad.testbed.results.metrics import metric_problem
from swad.testbed.results.records import CONFIG, DONE, LOCK, MAX_COUNT, RECORDS, RecordError
from swad.testbed.results.run_data import RunData
from swad.util.files import MAX_BYTES, read_bytes, require_regular, sha256
from swad.util.names import is_name, one_line
from swad.util.progress import Progress

if TYPE_CHECKING:
    import pandas

P = ParamSpec("P")
S = TypeVar("S", bound="HasDerived")
T = TypeVar("T")


def load_run(directory: str | os.PathLike[str]) -> RunData:
    """Read a run directory, finished or not."""
    return _load(Path(directory))


def _load(directory: Path) -> RunData:
    from swad.testbed.results.frames import decode_records, read_records_file

    # Strings, as building 5,000 paths for each of these files takes longer than reading them.
    settings_path, done_path, records_path = (os.path.join(directory, name) for name in (CONFIG, DONE, RECORDS))
    known = {CONFIG: _read(settings_path)}
    config, roles = _parse_config(settings_path, known[CONFIG])
    finished = os.path.exists(done_path)
    done = _parse(done_path, _read(done_path)) if finished else {}
    if os.path.exists(records_path):  # a run that has just started has a config and no records yet
        known[RECORDS] = read_records_file(directory)
    require_unchanged(directory, done, known)
    records = decode_records(directory, known[RECORDS]) if RECORDS in known else ()
    recorded = done.get("warnings")
    texts = tuple(text for text in recorded if isinstance(text, str)) if isinstance(recorded, list) else ()
    return RunData(directory, config, records, finished, roles, texts)


def require_unchanged(directory: Path, done: Mapping[str, Any], known: Mapping[str, bytes] | None = None) -> None:
    """Require that settings, records and the result still are those with which the run finished.

    Args:
        directory: The run directory.
        done: The content of its `done.json`, which holds the checksum of every such file.
        known: The content of files that have been read, by name.
    """
    checksums = done.get("checksums")
    if not isinstance(checksums, dict):
        return
    if DONE in checksums and checksums[DONE] != result_checksum(done):
        raise RecordError(f"{directory / DONE} is damaged: restore the file, or remove the run and train it again")
    for name in (CONFIG, RECORDS):
        path = os.path.join(directory, name)
        try:
            if known is not None and name in known:
                found = hashlib.sha256(known[name]).hexdigest()
            else:
                require_regular(Path(path), MAX_BYTES)
                found = sha256(Path(path))
        except OSError as error:
            raise RecordError(f"cannot read {path} ({error.strerror}): restore it or remove the run") from None
        if found != checksums.get(name):
            raise RecordError(
                f"{path} changed after the run finished (its checksum in {DONE} differs): "
                "restore the file, or remove the run and train it again"
            )


def result_checksum(content: Mapping[str, Any]) -> str:
    """Return the checksum of the content of `done.json` except the checksums."""
    values = {name: value for name, value in content.items() if name != "checksums"}
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def _read(path: str) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise RecordError(f"cannot read {path} ({error.strerror}): restore it or give a run directory") from None


def _parse(path: str, data: bytes) -> dict[str, Any]:
    """Return the content of a file that must hold a JSON object."""
    import msgspec

    try:
        content = msgspec.json.decode(data)  # which refuses text that no terminal can print
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise RecordError(f"{path} is not JSON ({one_line(error)}): restore the file or remove the run") from None
    if not isinstance(content, dict):
        raise RecordError(
            f"{path} must hold a JSON object, got {type(content).__name__}: restore the file or remove the run"
        )
    return content


def _parse_config(path: str, data: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """Return settings and roles by name. The file groups the settings by section."""
    content = _parse(path, data)
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
    "select_by": ("the name of a metric", lambda value: not metric_problem("select_by", value)),
    "steps": ("a whole number", lambda value: value is None or is_count(value)),
    "data_dir": ("a path", lambda value: value is None or isinstance(value, str)),
    "hyperparameters": ("numbers by name", lambda value: isinstance(value, dict)),
}
"""The settings that tables, figures and the page rely on, with the rule for each."""


# ------------------------------------------------------------ many runs

MANY = 100
"""Fewer runs than these are read in a moment, and show no progress."""


@dataclass(frozen=True)
class SkippedRun:
    """A run directory without usable results."""

    path: Path
    name: str
    """The path relative to the directory that was searched."""
    reason: str
    run: RunData | None = field(default=None, repr=False)
    """The run without its records, if its settings can be read."""

    @classmethod
    def below(cls, root: Path, path: Path, reason: str, run: RunData | None = None) -> SkippedRun:
        """Return a run directory that was found in a search."""
        return cls(path, str(path.relative_to(root)) if path != root else path.name, reason, run)


class HasDerived(Protocol):
    """Runs or results that keep what is computed from them."""

    @property
    def derived(self) -> dict[Hashable, Any]:
        """What was computed, by the function and its arguments."""


def once(build: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Keep what a function computes from runs or results, as several parts of a report ask for it."""

    @wraps(build)
    def build_once(source: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (build.__name__, args, *kwargs.items())
        if key not in source.derived:
            source.derived[key] = build(source, *args, **kwargs)
        built: T = source.derived[key]
        return built

    return build_once


class RunList(list[RunData]):
    """Runs in the order of their paths, their records, and the run directories that cannot be used in `skipped`."""

    def __init__(
        self,
        runs: Iterable[RunData] = (),
        skipped: Iterable[SkippedRun] = (),
        records: pandas.DataFrame | None = None,
    ) -> None:
        super().__init__(runs)
        self.skipped = tuple(skipped)
        self.derived: dict[Hashable, Any] = {}
        """What was computed from the runs; see `once`."""
        if records is not None:
            self.records = records

    @classmethod
    def of(cls, runs: Iterable[RunData]) -> RunList:
        """Return runs as a list with their records; one that is such a list as it is."""
        return runs if isinstance(runs, cls) else cls(runs)

    @cached_property
    def records(self) -> pandas.DataFrame:
        """The records of all runs, where `run` is the place in this list; see `swad.testbed.results.frames`."""
        from swad.testbed.results.frames import join_frames

        return join_frames([run.frame for run in self])

    @cached_property
    def repeats(self) -> pandas.DataFrame:
        """The records whose value was recorded before, for the same step, as two processes do that train one run."""
        from swad.testbed.results.frames import repeats

        return repeats(self.records)

    @cached_property
    def frame(self) -> pandas.DataFrame:
        """One row for each run: path, dataset, algorithm, target, trial, finished, and its hyperparameters."""
        import pandas

        rows = [
            {
                **{name: getattr(run, name) for name in ("dataset", "algorithm", "target", "trial", "finished")},
                **{f"hyperparameter.{name}": value for name, value in run.hyperparameters.items()},
            }
            for run in self
        ]
        paths = pandas.Series([str(run.path) for run in self], dtype=object)
        return pandas.DataFrame(rows, index=paths.index).assign(path=paths).rename_axis("run")


def find_runs(root: str | os.PathLike[str], *, warn: bool = True, progress: Progress | None = None) -> RunList:
    """Read every run in a directory and its subdirectories, in the order of their paths.

    Runs of DomainBed and of the published SWAD code are read too (see `swad.testbed.results.domainbed`).

    A run without usable results is not in the list: one whose settings or records are missing, empty or damaged. It is
    in the list's `skipped` with the reason, tables mention it, and a warning names it unless it has just started.

    Args:
        root: The directory to search.
        warn: Warn about skipped runs; False for a caller that prints `skipped`.
        progress: Called while many runs are read.
    """
    from swad.testbed.results.frames import RecordColumns

    root = Path(root)
    if not root.is_dir():
        raise RecordError(f"{root} is not a directory: give one that holds runs")
    directories, imported, skipped = _run_directories(root)
    columns = RecordColumns()
    runs, waiting = [], []
    for number, directory in enumerate(directories, start=1):
        if progress is not None and len(directories) >= MANY and (number % 50 == 0 or number == len(directories)):
            progress("reading runs", number, len(directories))
        try:
            found = domainbed.read_runs(directory) if directory in imported else [_load(directory)]
        except RecordError as error:
            skipped.append(SkippedRun.below(root, directory, str(error).replace(f"{root}{os.sep}", "")))
            continue
        for run in found:
            if run.records:
                runs.append(replace(run, records=partial(columns.of_run, columns.add(run.records))))  # type: ignore[arg-type]
            elif run.finished:
                state = "is empty" if (directory / RECORDS).exists() else "is missing"
                reason = f"the run is finished, but its {RECORDS} {state}: restore the file or repeat the run"
                skipped.append(SkippedRun.below(root, directory, reason, run))
            else:
                failure = read_failure(directory)
                reason = f"the run failed ({failure.error})" if failure else "no value has been recorded yet"
                waiting.append(SkippedRun.below(root, directory, reason, run))
    records = columns.frame if runs else None
    if not runs and waiting:
        # The runs have just started, and a report can show that.
        runs, waiting = [entry.run for entry in waiting if entry.run is not None], []
    if not runs and skipped:
        raise RecordError(f"{root} holds no run with results; {skipped[0].name}: {skipped[0].reason}")
    if not runs:
        raise RecordError(f"{root} holds no run (a directory with {CONFIG} and {RECORDS}): train one first")
    if warn:
        for entry in skipped:
            warnings.warn(f"skipped run {entry.name}: {entry.reason}", stacklevel=2)
    return RunList(runs, sorted([*skipped, *waiting], key=lambda entry: entry.path), records)


def _run_directories(root: Path) -> tuple[list[Path], set[Path], list[SkippedRun]]:
    """Return the run directories below `root`, those among them of DomainBed, and those that cannot be searched."""
    unreadable: list[SkippedRun] = []

    def note(error: OSError) -> None:
        reason = f"the directory cannot be read ({error.strerror})"
        unreadable.append(SkippedRun.below(root, Path(error.filename), reason))

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
        path = os.path.join(directory, CONFIG)
        _parse_config(path, _read(path))
    except RecordError:
        return False
    return True
