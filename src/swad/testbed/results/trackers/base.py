"""What a tracker is: a tool that is given the values of a run, step by step.

One file per tool holds a class `Tracker` for it. It only sends what it is given;
`swad.testbed.results.trackers.tracking` decides what is sent, keeps the state between two attempts, and takes care of
failures. The names of the curves are the same in all tools.
"""

from __future__ import annotations

import importlib.util
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from swad.testbed.results.records import Record
from swad.testbed.results.run_data import RunData
from swad.util.names import did_you_mean

NAMES = ("wandb", "mlflow", "tensorboard")
"""The tools; each is also the name of the package that it needs."""

PROJECT = "swad"
"""Project in Weights & Biases and experiment in MLflow, unless their environment variables name another."""

Status = Literal["finished", "interrupted", "failed"]


class TrackerError(RuntimeError):
    """A tracker cannot be used. The message is one line that says what to do."""


class BaseTracker(ABC):
    """Sends the values of one run to a tool.

    Args:
        run: The run.
        state: Plain values that an earlier attempt at this run left, such as the ID of the run in the tool; empty at
            first. The tracker may change it.
    """

    survives_kill = True
    """Whether the tool keeps the values that it was given before the process was killed."""

    def __init__(self, run: RunData, state: dict[str, Any]) -> None:
        self.run, self.state = run, state
        self.name = f"{run.target}-{run.trial}"  # as in records

    @abstractmethod
    def start(self) -> str:
        """Start, or continue, the run in the tool. Returns where it can be seen."""

    def n_sent(self) -> int | None:
        """Return how many values the tool has; None if it cannot tell, so that `state` decides."""
        return None

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the values of one step by the names of their curves."""

    @abstractmethod
    def finish(self, status: Status) -> None:
        """Send what is left and end the run in the tool."""


def metric_name(record: Record) -> str:
    """Name a record's curve. The metric comes first, so that the tools group the domains of one metric.

    Characters that one of the tools refuses become underscores, so that a curve has the same name in all of them. No
    name continues another one, because MLflow may store a curve as a file and `/` as a folder.

    >>> metric_name(Record("r", 1, "photo", "out", "accuracy", 0.5, "swad"))
    'accuracy/photo/out/swad'
    >>> metric_name(Record("r", 1, "../[a]", "out", "loss", 0.5))
    'loss/.._a_/out/live'
    """
    live = None if record.domain is None else "live"
    parts = (record.metric, record.domain, record.split, record.average or live)
    names = [re.sub(r"[^\w.\- :]+", "_", part) for part in parts if part is not None]
    return "/".join("_" if name.strip(". ") == "" else name for name in names)


def name_problems(names: Iterable[str]) -> list[str]:
    """List the names that are not trackers, and the trackers that are not installed, one sentence each."""
    problems = []
    for name in names:
        if name not in NAMES:
            hint = did_you_mean(name, NAMES)
            problems.append(f"a tracker must be one of {', '.join(NAMES)}, got {name!r}{hint and ': '}{hint}")
        elif importlib.util.find_spec(name) is None:
            problems.append(f"{name} is not installed: {INSTALL}, or leave it off")
    return problems


INSTALL = 'pip install "swad[log]"'
"""How to install the tools."""
