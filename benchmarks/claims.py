"""How claims scale: the real `Queue` and `Watcher` of every worker, on virtual time.

    python benchmarks/claims.py WORKERS RUNS [SECONDS] [DIGITS] [DEATHS]

An operation on the file system takes 1 ms, and each listed name 1 µs. A search is one event, so two workers want the
same run at once less often than in truth. `DEATHS` of the trainings kill their worker, which
is replaced after 5 s.
"""

from __future__ import annotations

import heapq
import random
import sys
import time
from collections import Counter, deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from swad.testbed.workers import claims as c
from swad.testbed.workers import run_queue

OPERATION, NAME, RESTART = 1e-3, 1e-6, 5.0


class Disk:
    """Stands in for `Claims`: the same answers from memory, counted."""

    def __init__(self, names: list[str]) -> None:
        self.by_shard: dict[str, list[str]] = {}
        for name in names:
            self.by_shard.setdefault(name[: c.DIGITS], []).append(name)
        self.shards: dict[str, dict[str, c.Mark]] = {shard: {} for shard in self.by_shard}
        self.dead: dict[str, float] = {}
        self.now, self.cost, self.counts = 0.0, 0.0, Counter[str]()

    def count(self, what: str, names: int = 0) -> None:
        self.counts[what] += 1
        self.counts["names"] += names
        self.cost += OPERATION + NAME * names

    def name(self, run: Any) -> str:
        return str(run)

    def path(self, name: str, number: int) -> Path:
        return Path(f"{name}.{number}")

    def marks(self, shard: str) -> dict[str, c.Mark]:
        self.count("listings", len(self.shards[shard]))
        return self.shards[shard]

    def take(self, name: str, after: int = 0, seen: bytes = b"") -> str | None:
        shard = name[: c.DIGITS]
        self.count("creations")
        if self.shards[shard].get(name, 0) != after:
            return None
        self.count("listings", len(self.shards[shard]))
        self.count("beats")
        self.shards[shard][name] = after + 1
        self.dead.pop(name, None)
        return name

    def read(self, path: Path) -> bytes:
        """Return the content of a claim, which a living owner changes."""
        self.count("reads")
        return str(self.dead.get(path.stem, self.now) // c.BEAT).encode()


class SimulatedQueue(run_queue.Queue):
    """A queue that shares the list of runs with the others, as the memory of one process must hold all."""

    def _plan(self) -> bool:
        if not self._by_shard:
            self._by_shard, self._configs = self._claims.by_shard, _Same()
            self._open = deque(random.sample(sorted(self._by_shard), len(self._by_shard)))
        return False


class _Same(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return name


def simulate(n_workers: int, n_runs: int, seconds: float, deaths: int = 0) -> None:
    """Simulate a sweep, and print what it cost."""
    random.seed(0)
    disk = Disk([f"{random.getrandbits(48):012x}" for _ in range(n_runs)])
    c._read, c.time = disk.read, SimpleNamespace(monotonic=lambda: disk.now)
    fatal, finished, ended = set(random.sample(range(n_runs), deaths)), Counter[str](), list[float]()
    searching = training = waiting = 0.0
    queues: list[Any] = [SimulatedQueue(list, disk) for _ in range(n_workers)]
    events: list[tuple[float, int, int, str]] = [(0.0, i, i, "") for i in range(n_workers)]  # an end, then a search
    heapq.heapify(events)
    number, trainings = n_workers, 0
    while events:
        disk.now, _, worker, name = heapq.heappop(events)
        disk.cost, number = 0.0, number + 1
        if name:
            finished[name] += 1
            disk.count("ends")
            disk.shards[name[: c.DIGITS]][name] = c.DONE
        taken = queues[worker].look()
        searching += disk.cost
        start = disk.now + disk.cost
        if taken is None and queues[worker].ended:
            ended.append(start)
        elif taken is None:
            waiting += c.BEAT
            heapq.heappush(events, (start + c.BEAT, number, worker, ""))
        else:
            trainings += 1
            length = seconds * random.uniform(0.5, 1.5)
            if trainings in fatal:
                disk.dead[taken[0]] = start + length / 2
                queues[worker] = SimulatedQueue(list, disk)
                heapq.heappush(events, (start + length / 2 + RESTART, number, worker, ""))
            else:
                training += length
                disk.counts["beats"] += int(length / c.BEAT)
                heapq.heappush(events, (start + length, number, worker, taken[0]))
    assert len(finished) == n_runs, "a run was lost"
    assert set(finished.values()) == {1}, "a run was trained twice"
    total, counts = max(ended), disk.counts
    operations = sum(counts.values()) - counts["names"]
    print(
        f"{n_workers} workers, {n_runs} runs of {seconds:g} s, {16**c.DIGITS} shards, {deaths} deaths: {total:,.0f} s, "
        f"training {training / n_workers / total:.1%}, searching {searching / n_workers / total:.2%}, "
        f"watching {waiting / n_workers / total:.2%}; per run {counts['listings'] / n_runs:.2f} listings of "
        f"{counts['names'] / max(1, counts['listings']):,.0f} names, {counts['creations'] / n_runs:.2f} creations, "
        f"{counts['reads'] / n_runs:.2f} reads of claims, {counts['beats'] / n_runs:.2f} beats; "
        f"{operations / total:,.0f} operations/s",
        flush=True,
    )


if __name__ == "__main__":
    values = [float(value) for value in sys.argv[1:]] + [6.0, 1, 0][len(sys.argv) - 3 :]
    c.DIGITS = int(values[3])
    began = time.perf_counter()
    simulate(int(values[0]), int(values[1]), values[2], int(values[4]))
    print(f"  simulated in {time.perf_counter() - began:.0f} s")
