"""The directory of a sweep: what was asked for, and the runs.

    sweep.json    the specs: the first request and every later extension
    runs/         DATASET/ALGORITHM/TARGET-TRIAL/KEY, one directory per run
    claims/       which worker trains which run

Nothing else is stored. The plan follows from the specs, and the state of every run from its own directory, so a sweep
can be killed at any moment, copied, or continued on another machine. The hyperparameters that a search chose follow
from the records of its runs.

>>> import tempfile
>>> sweep = SweepDir(tempfile.mkdtemp())
>>> sweep.add(SweepSpec(datasets=("digits",), targets=("paper",), trials=(0,)))
>>> sweep.add(SweepSpec(datasets=("digits",), targets=("paper",), trials=(0, 1)))
>>> sorted(state.name for state in sweep.states().values())
['PENDING', 'PENDING']
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from swad.testbed.results.failures import FAILURE
from swad.testbed.results.records import DONE, LOCK
from swad.testbed.results.runs import RunList, load_run
from swad.testbed.results.selection import choose
from swad.testbed.sweep.plan import RUNS, PlannedRun, Search, SweepPlan, expand, merge, same_request
from swad.testbed.sweep.search import Point
from swad.testbed.sweep.spec import SweepSpec
from swad.testbed.training.config import ConfigError, RunConfig
from swad.testbed.workers.claims import Claims, Watcher
from swad.testbed.workers.work import State
from swad.util.files import FileLock, is_locked, read_json, write_json

SWEEP = "sweep.json"
FORMAT = 1
"""Version of `sweep.json`."""


class SweepDir:
    """A sweep on disk.

    Args:
        path: Its directory. It need not exist: `add` creates it.
        allow_failed: Choose hyperparameters among the finished runs of a search also where others failed.
    """

    def __init__(self, path: Path | str, *, allow_failed: bool = False) -> None:
        self.path = Path(path)
        self.allow_failed = allow_failed
        self.choices: dict[str, Point] = {}
        """What was chosen, by the names of searches, as far as a plan was asked for."""
        self._chosen: dict[tuple[str, ...], Point] = {}
        self._planned: tuple[Sequence[SweepSpec] | None, Sequence[SweepSpec], SweepPlan] = (None, (), SweepPlan(()))
        # A finished run does not change any more.
        self._done: set[str] = set()
        self._seconds: dict[str, float | None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what a worker process needs: what was read is read again there."""
        return _open, (self.path, self.allow_failed)

    # -- specs ----------------------------------------------------------------------------------------------------

    @property
    def specs(self) -> tuple[SweepSpec, ...]:
        """The requests in their order; empty if there is no sweep in the directory."""
        file = self.path / SWEEP
        try:
            content = read_json(file)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise ConfigError(
                [f"cannot read {file} ({error.strerror}): restore it, or choose another directory"]
            ) from None
        except ValueError as error:
            raise ConfigError([f"cannot read {file} ({error}): restore it, or choose another directory"]) from None
        specs = content.get("specs") if isinstance(content, dict) and content.get("format") == FORMAT else None
        if not isinstance(specs, list) or not all(isinstance(spec, dict) for spec in specs):
            raise ConfigError([f"{file} was not written by this version of swad: choose another directory"])
        return tuple(SweepSpec.from_json(spec, file) for spec in specs)

    def add(self, spec: SweepSpec) -> None:
        """Add a valid request; one that differs only in settings of the machine replaces the earlier one."""
        spec = spec.with_domains()
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError([f"{self.path} is a file: choose a directory for the sweep"])
        self.path.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path / "sweep.lock", on_wait=lambda: None):
            # In their order: of runs with one key the last request decides the settings of the machine.
            specs = [spec if same_request(earlier, spec) else earlier for earlier in self.specs]
            if spec not in specs:
                specs.append(spec)
            write_json(self.path / SWEEP, {"format": FORMAT, "specs": [spec.to_json() for spec in specs]})

    def require(self) -> None:
        """Require that there is a sweep in the directory."""
        if not self.specs:
            raise ConfigError([f"{self.path} contains no sweep ({SWEEP}): name the directory of a `swad sweep run`"])

    # -- runs -----------------------------------------------------------------------------------------------------

    def plan(self, specs: Iterable[SweepSpec] | None = None) -> SweepPlan:
        """Return the runs of some specs, by default of all; runs that follow a choice as far as it is known."""
        requested = self.specs if specs is None else [spec.with_domains() for spec in specs]
        return merge([expand(spec, self.path, self.choose) for spec in requested])

    @property
    def claims(self) -> Claims:
        """Who trains which run. Workers get it together with `configs`."""
        return Claims(self.path / "claims")

    def configs(self, specs: Sequence[SweepSpec] | None = None) -> list[RunConfig]:
        """Return the runs that are known now, for workers and commands, which ask again and again.

        The plan is made again only if the sweep was extended or a search has ended.
        """
        stored, (*before, plan) = self.specs, self._planned
        if before != [specs, stored] or any(self.choose(search) is not None for search in plan.searches):
            plan = self.plan(specs)
            self._planned = specs, stored, plan
        return [run.config for run in plan.runs]

    def states(self, runs: Iterable[PlannedRun] | None = None) -> dict[str, State]:
        """Return the state of runs by key, by default of the whole plan, from their directories and the claims."""
        watcher = Watcher()
        held = {name for name, path in self.claims.held().items() if watcher.is_alive(path)[0] is not False}
        states = {}
        for run in self.plan().runs if runs is None else runs:
            state = self.state(run)
            claimed = held and state is not State.DONE and self.claims.name(run.config.output) in held
            states[run.key] = State.RUNNING if claimed else state
        return states

    def state(self, run: PlannedRun) -> State:
        """Return the state of one run, from its directory alone: that it runs, by its lock."""
        if run.key in self._done:
            return State.DONE
        try:
            names = set(os.listdir(run.config.output))
        except (FileNotFoundError, NotADirectoryError):
            return State.PENDING
        if DONE in names:
            self._done.add(run.key)
            return State.DONE
        if LOCK in names and is_locked(run.config.output / LOCK):
            return State.RUNNING
        return State.FAILED if FAILURE in names else State.PENDING

    def unfinished(self, plan: SweepPlan) -> SweepPlan:
        """Return what is left of a plan: the runs that are not finished, and those that wait for a choice."""
        return SweepPlan(tuple(run for run in plan.runs if self.state(run) is not State.DONE), plan.searches)

    def seconds(self, run: PlannedRun) -> float | None:
        """Return the time that a finished run took; None if its `done.json` does not say."""
        if run.key not in self._seconds:
            try:
                content = read_json(run.config.output / DONE)
                self._seconds[run.key] = float(content["seconds"])
            except (OSError, ValueError, TypeError, LookupError):
                self._seconds[run.key] = None
        return self._seconds[run.key]

    # -- the choice of a search -----------------------------------------------------------------------------------

    def choose(self, search: Search) -> Point | None:
        """Return the hyperparameters that a search chose on its sources; None as long as one of its runs is missing.

        The target's values do not take part: scores are computed from rows of sources alone.
        """
        settled = {State.DONE, State.FAILED} if self.allow_failed else {State.DONE}
        # It stops at the first run that has not ended: workers ask often, and a search may have 100,000 runs.
        if not all(self.state(run) in settled for run in search.runs):
            return None
        finished = [run for run in search.runs if self.state(run) is State.DONE]
        if not finished:
            return None
        name = (search.target, search.choose_by, *(run.key for run in finished))
        if name not in self._chosen:
            runs = RunList(load_run(run.config.output) for run in finished)
            chosen = choose(runs, search.target, "lodo" if search.lodo else "iid", search.choose_by, runs[0].select_by)
            self._chosen[name] = dict(finished[chosen.run].config.hyperparameters)
        self.choices[search.name] = self._chosen[name]
        return self._chosen[name]


def _open(path: Path, allow_failed: bool) -> SweepDir:
    return SweepDir(path, allow_failed=allow_failed)


def runs_folder(path: Path | str) -> Path:
    """Return the folder of a sweep's runs."""
    return Path(path) / RUNS
