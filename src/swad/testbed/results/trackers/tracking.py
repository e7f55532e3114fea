"""Send the records of a run to trackers: each value once, whatever happens to the run or to the tool.

A run that is killed has sent values that come after its checkpoint. When it is resumed it records them again, and the
tools must not get them twice. Records are in one order, which resuming repeats, so the number of records that were sent
says what is left to send. It is kept in `trackers.json` in the run directory, unless the tool can be asked; for a tool
that loses values when its process is killed, it is written only when the run ends there. A tool therefore keeps the
values of the first attempt; on the CPU the second has the same, and `records.jsonl` always holds those that count.

A tracker that fails is switched off with one warning, and the run continues. `replay` sends what is missing later.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from swad.testbed.results.records import LIVE, Record, RecordError, lock_run_directory
from swad.testbed.results.run_data import RunData
from swad.testbed.results.trackers.base import BaseTracker, Status, metric_name
from swad.util.files import read_json, write_json
from swad.util.names import one_line
from swad.util.progress import Progress

STATE = "trackers.json"


class Tracking:
    """The trackers of one run, as a context manager: leaving it ends the run in every tool.

    Args:
        run: The run.
        names: Names of the trackers.
        records: The records that the run already has. They are sent at once, except those that a tool has.
        warn: Called with the name of a tracker that fails and the reason.
        log: Called with where the run can be seen.
    """

    def __init__(
        self,
        run: RunData,
        names: Iterable[str],
        records: Sequence[Record] = (),
        *,
        warn: Callable[[str, str], None],
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._run, self._warn = run, warn
        self._state = _read_state(run.path / STATE)
        self._trackers: dict[str, BaseTracker] = {}
        self._sent: dict[str, int] = {}  # records, by tracker
        self._n_records = 0  # so far, sent or not
        for name in names:
            try:
                self._start(name, log)
            except Exception as error:
                self._fail(name, error)
        self.log(records)

    def _start(self, name: str, log: Callable[[str], None]) -> None:
        state = self._state.setdefault(name, {"tool": {}, "sent": 0})
        tracker = importlib.import_module(f"swad.testbed.results.trackers.{name}").Tracker(self._run, state["tool"])
        log(f"{name}: {tracker.start()}")
        sent = tracker.n_sent()
        self._sent[name] = state["sent"] if sent is None else sent
        self._trackers[name] = tracker
        self._save()  # what the tool needs to continue its run

    def log(self, records: Sequence[Record]) -> None:
        """Send the records that the tools do not have yet."""
        first, self._n_records = self._n_records, self._n_records + len(records)
        for name, tracker in list(self._trackers.items()):
            new = records[max(self._sent[name] - first, 0) :]
            try:
                for step, group in groupby(new, key=lambda record: record.step):
                    members = list(group)
                    tracker.log(step, {metric_name(record): record.value for record in members})
                    self._sent[name] += len(members)
                if new and tracker.survives_kill:
                    self._keep(name)
            except Exception as error:
                self._fail(name, error)

    def finish(self, status: Status) -> None:
        """End the run in every tool."""
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.finish(status)
                self._keep(name)
            except Exception as error:
                self._fail(name, error)
        self._trackers.clear()

    def _fail(self, name: str, error: Exception) -> None:
        """Switch a tracker off. Its state stays, so that it can be continued."""
        tracker = self._trackers.pop(name, None)
        if tracker is not None and tracker.survives_kill:
            with suppress(OSError):
                self._keep(name)  # a part may have been sent
        self._warn(name, one_line(error, 300))

    def _keep(self, name: str) -> None:
        self._state[name]["sent"] = self._sent[name]
        self._save()

    def _save(self) -> None:
        write_json(self._run.path / STATE, self._state)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        self.finish("finished" if kind is None else "interrupted" if interrupted else "failed")


def _read_state(path: Path) -> dict[str, dict[str, Any]]:
    """Return the state of an earlier attempt; empty if there is none, or if the file is damaged."""
    try:
        content = read_json(path)
        return {
            str(name): {
                "tool": {str(key): str(value) for key, value in state["tool"].items()},
                "sent": int(state["sent"]),
            }
            for name, state in content.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def replay(runs: Sequence[RunData], names: Sequence[str], progress: Progress | None = None) -> list[str]:
    """Send the records of runs to trackers, except the values that they already have. Returns what failed.

    A tracker that fails is given no further run: it would fail, and be waited for, thousands of times.

    Args:
        runs: The runs. One that is being trained is left out: it sends its records itself.
        names: Names of the trackers.
        progress: Follows the runs.
    """
    problems: list[str] = []
    working = list(names)
    for number, run in enumerate(runs, start=1):

        def warn(name: str, reason: str, path: Path = run.path, left: int = len(runs) - number) -> None:
            working.remove(name)
            others = f"; {left} other runs were not sent to it" if left else ""
            problems.append(f"{name} failed for {path} ({reason}){others}")

        try:
            run.path.mkdir(exist_ok=True)  # a file of the published code holds several runs, which have no directory
            with lock_run_directory(run.path):
                Tracking(run, tuple(working), _records(run), warn=warn).finish(
                    "finished" if run.finished else "interrupted"
                )
        except RecordError as error:  # another process writes the run
            problems.append(str(error))
        if progress is not None:
            progress(f"sending records to {', '.join(names)}", number, len(runs))
        if not working:
            break
    return problems


def _records(run: RunData) -> list[Record]:
    frame = run.frame.astype(dict.fromkeys(("domain", "split", "metric", "weights"), object))
    rows = frame.where(frame.notna(), None).itertuples(index=False)
    return [
        Record(
            run.path.name,
            row.step,
            row.domain,
            row.split,
            row.metric,
            row.value,
            None if row.weights == LIVE else row.weights,
        )
        for row in rows
    ]
