"""Which run a worker trains next."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence

from swad.testbed.training.config import RunConfig
from swad.testbed.workers import claims as c
from swad.testbed.workers.claims import Claim, Claims, Watcher, sample

Runs = Callable[[], Sequence[RunConfig]]
"""Returns the runs that are known now: a search that ended adds some, and so does an extension of a sweep."""


class Queue:
    """The runs that nobody trains, for one worker.

    The worker reads the claims of one shard, tries a random run that has none, and stays with the shard while it has
    some: one listing for every run. Workers start at different shards, so that they meet rarely.
    """

    def __init__(self, runs: Runs, claims: Claims) -> None:
        self.ended = False
        self._runs, self._claims, self._watcher = runs, claims, Watcher()
        self._configs: dict[str, RunConfig] = {}
        self._by_shard: dict[str, list[str]] = {}
        self._open: deque[str] = deque()  # shards with runs that have not ended, as far as this worker knows
        self._running: dict[str, int] = {}  # claims of the shard that was read last
        self._skipped: set[str] = set()
        self._watched: dict[str, bool] = {}  # whether the owner was seen alive, since the last run of this worker
        self._plan()

    def take(self) -> tuple[RunConfig, Claim] | None:
        """Claim a run; None once all are ended or trained by others, who were seen alive."""
        while not self.ended:
            if (taken := self.look()) is not None:
                return taken
            if self._skipped:  # ask for them again
                self.ended = False
                self._skipped.clear()
            if not self.ended:
                time.sleep(c.BEAT)
        return None

    def look(self) -> tuple[RunConfig, Claim] | None:
        """Claim a run. Without one, `ended` says whether to look again after `BEAT` seconds."""
        running: dict[str, int] = {}
        for _ in range(len(self._open)):
            shard = self._open[0]
            if (taken := self._claim_in(shard)) is not None:
                self._watched = {}
                return taken
            self._open.popleft()
            running |= self._running
            if self._running or not self._skipped.isdisjoint(self._by_shard[shard]):  # else all its runs have ended
                self._open.append(shard)
        if self._plan():
            return self.look()
        return self._take_over(running)

    def skip(self, config: RunConfig) -> None:
        """Leave a run for a while to the process that trains it without a claim: `swad train`."""
        self._skipped.add(self._claims.name(config.output))

    def _plan(self) -> bool:
        """Read the list of runs; return whether it has new ones."""
        new = {self._claims.name(config.output): config for config in self._runs()}
        added = new.keys() - self._configs.keys()
        self._configs.update(new)
        for name in added:
            self._by_shard.setdefault(name[: c.DIGITS], []).append(name)
        shards = {name[: c.DIGITS] for name in added}.union(self._open)
        self._open = deque(random.sample(sorted(shards), len(shards)))
        return bool(added)

    def _claim_in(self, shard: str) -> tuple[RunConfig, Claim] | None:
        """Claim a run of a shard; without one, note those that others train."""
        while True:
            marks, names = self._claims.marks(shard), self._by_shard[shard]
            if not (free := [name for name in names if name not in marks and name not in self._skipped]):
                break
            name = random.choice(free)
            if (claim := self._claims.take(name)) is not None:
                return self._configs[name], claim
        held = ((name, marks[name]) for name in names if name in marks)
        self._running = {name: mark for name, mark in held if isinstance(mark, int) and name not in self._skipped}
        return None

    def _take_over(self, running: dict[str, int]) -> tuple[RunConfig, Claim] | None:
        watched = sample(running, self._watched)
        self._watched = {name: self._watched.get(name, False) for name in watched}
        for name, number in watched.items():
            alive, content = self._watcher.is_alive(self._claims.path(name, number))
            if alive is False and (claim := self._claims.take(name, number, content)) is not None:
                self._watched = {}
                return self._configs[name], claim
            self._watched[name] = self._watched[name] or alive is True
        self.ended = all(self._watched.values())
        return None
