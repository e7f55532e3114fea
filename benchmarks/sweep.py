"""Measure what a sweep costs besides its runs: scheduling, planning, tables, and a large cluster.

    python benchmarks/sweep.py --json benchmarks/results/sweep-cpu.json       # all sections
    python benchmarks/sweep.py --overhead --plan                              # only these
    python benchmarks/sweep.py --cluster --runs 1000 --workers 10             # a smaller cluster

overhead  A sweep of short runs on the digits with one local worker: the time from the first run to the last beyond the
          time that the worker spends in its runs, and the time until it starts the first.
plan      DomainBed's plan for one algorithm: expanded, counted, and the state of every run read.
table     Finished runs, with the records of real ones, read and tabulated.
cluster   A sweep with threads as workers, in which only the training function is replaced: it sleeps and writes the
          files of a finished run. One run in a hundred loses its worker half way. At the end every record is
          counted, and the share of time that workers were busy is printed.

What the workers of a GPU cost is measured by `workers.py`; how claims scale further is simulated by `claims.py`.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from measurements import directory, make_parser, measure_sections
from swad.testbed.results.records import RECORDS, Record, read_records
from swad.testbed.results.runs import find_runs
from swad.testbed.results.selection import collect_results
from swad.testbed.sweep.directory import SweepDir
from swad.testbed.sweep.plan import expand
from swad.testbed.sweep.run import run_sweep
from swad.testbed.sweep.spec import SweepSpec
from swad.testbed.training import loop
from swad.testbed.training.config import RunConfig
from swad.testbed.training.run_dir import RunDir, read_done
from swad.testbed.workers.claims import Claims
from swad.testbed.workers.local import train_locally
from swad.testbed.workers.run_queue import Runs
from swad.testbed.workers.work import State, work
from swad.util.signals import Interrupted


def seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def digits_spec(n_runs: int, steps: int = 10) -> SweepSpec:
    """A sweep of at least this many runs on the digits: random hyperparameters for one target and several trials."""
    draws = min(n_runs, 1000)
    trials = tuple(range(-(-n_runs // draws)))
    options = {"steps": steps, "evaluate_every": max(1, steps // 10)}
    return SweepSpec(
        datasets=("digits",), targets=("paper",), trials=trials, protocol="random", draws=draws, options=options
    )


# -- overhead --------------------------------------------------------------------------------------------------------


def train_timed(config: RunConfig) -> None:
    """Train, and note the start and the end. Runs in the worker."""
    start = time.time()
    loop.train(config)
    config.output.with_suffix(".times").write_text(f"{start} {time.time()}")


def overhead(n_runs: int, steps: int) -> dict[str, float]:
    with directory() as folder:
        sweep = SweepDir(folder / "sweep")
        sweep.add(digits_spec(n_runs, steps))
        began = time.time()
        status = run_sweep(sweep, partial(train_locally, jobs=1, device="cpu", train=train_timed))
        assert status.count(State.DONE) == n_runs, status
        times = sorted(tuple(map(float, path.read_text().split())) for path in folder.rglob("*.times"))
    runs, total = sum(end - start for start, end in times), times[-1][1] - times[0][0]
    return {
        "runs": n_runs,
        "start_worker_s": times[0][0] - began,
        "sweep_s": total,
        "runs_s": runs,
        "overhead_percent": 100 * (total - runs) / runs,
        "overhead_per_run_ms": 1000 * (total - runs) / n_runs,
    }


# -- plan ------------------------------------------------------------------------------------------------------------


def plan() -> dict[str, float]:
    spec = SweepSpec(algorithms=("erm",), protocol="domainbed")
    with directory() as folder:
        sweep = SweepDir(folder)
        expanded_s, expanded = seconds(lambda: expand(spec, folder))
        summarised_s, _ = seconds(lambda: (expanded.counts, sweep.states(expanded.runs)))
    return {"runs": len(expanded.runs), "expand_s": expanded_s, "summarise_s": summarised_s}


# -- simulated runs --------------------------------------------------------------------------------------------------


class Simulated:
    """Trains nothing: writes the files of a finished run, with the records of a real one.

    Args:
        folder: Directory for the real run.
        n_records: Records of a run; 0 for all.
        lose_every: One in this many runs loses its worker at the first attempt, after half of its records.
        seconds: Mean time of an attempt, in which the thread sleeps; single attempts differ from it by up to a half.
    """

    def __init__(self, folder: Path, n_records: int = 0, lose_every: int = 0, seconds: float = 0.0) -> None:
        config = RunConfig.from_options(
            output=folder / "template",
            dataset="digits",
            target="paper",
            steps=50,
            evaluate_every=5,
            averages=("swad", "swa", "ema"),
        )
        loop.train(config)
        self.records = read_records(config.output)[-n_records:]
        self.result = {name: value for name, value in (read_done(config.output) or {}).items() if name != "checksums"}
        self.lose_every = lose_every
        self.lost = Counter[str]()
        self.seconds = seconds
        self.slept: list[float] = []  # threads append to it

    def __call__(self, config: RunConfig) -> None:
        run_dir = RunDir(config)
        try:
            name = config.name
            records = [Record(name, r.step, r.domain, r.split, r.metric, r.value, r.average) for r in self.records]
            half = len(records) // 2
            run_dir.append(*records[:half])
            key = config.output.name
            if self.seconds:
                duration = self.seconds * (0.5 + int(key, 16) % 1000 / 999)
                time.sleep(duration)
                self.slept.append(duration)
            if self.lose_every and int(key, 16) % self.lose_every == 0 and not self.lost[key]:
                self.lost[key] += 1
                raise KeyboardInterrupt
            run_dir.append(*records[half:])
            run_dir.finish(self.result)
        finally:
            run_dir.close()


# -- table -----------------------------------------------------------------------------------------------------------


def table(sizes: Sequence[int]) -> dict[str, Any]:
    measured: dict[str, Any] = {}
    with directory() as folder:
        train = Simulated(folder / "simulated")
        for size in sizes:
            root = folder / str(size)
            for run in expand(digits_spec(size), root).runs:
                train(run.config)
            find_s, runs = seconds(lambda root=root: find_runs(root))
            collect_s, _ = seconds(lambda runs=runs: collect_results(runs))
            assert len(runs) == size, len(runs)
            measured[str(size)] = {
                "find_s": find_s,
                "collect_s": collect_s,
                "tabulate_s": find_s + collect_s,
            }
            print(f"  {size:,} runs: {find_s:.2f} + {collect_s:.2f} s", flush=True)
            shutil.rmtree(root)
    return measured


# -- cluster ---------------------------------------------------------------------------------------------------------


def work_in_threads(runs: Runs, claims: Claims, n_workers: int, train: Callable[..., None]) -> None:
    """Start threads as workers. One that is lost is replaced by another."""
    configs = runs()

    def keep_working() -> None:
        while True:
            try:
                work(lambda: configs, claims, train)
            except Interrupted:
                continue
            return

    threads = [threading.Thread(target=keep_working) for _ in range(n_workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def cluster(n_runs: int, n_workers: int, run_seconds: float) -> dict[str, float]:
    with directory() as folder:
        train = Simulated(folder, n_records=20, lose_every=100, seconds=run_seconds)
        sweep = SweepDir(folder / "sweep")
        sweep.add(digits_spec(n_runs))
        total, status = seconds(lambda: run_sweep(sweep, partial(work_in_threads, n_workers=n_workers, train=train)))
        resume_s, again = seconds(lambda: run_sweep(sweep, partial(work, train=train)))
        assert status.count(State.DONE) == again.count(State.DONE) == n_runs, status
        expected = len(train.records)
        n_lines = [len(path.read_bytes().splitlines()) for path in (folder / "sweep").rglob(RECORDS)]
        assert n_lines == [expected] * n_runs, Counter(n_lines)
    return {
        "runs": n_runs,
        "workers": n_workers,
        "lost_workers": train.lost.total(),
        "run_s": run_seconds,
        "total_s": total,
        "runs_per_s": n_runs / total,
        "busy_percent": 100 * sum(train.slept) / n_workers / total,
        "resume_finished_sweep_s": resume_s,
    }


# -- the report ------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = make_parser(__doc__, sections=("plan", "overhead", "table", "cluster"))
    parser.add_argument("--runs", type=int, default=10_000, help="runs of the cluster")
    parser.add_argument("--workers", type=int, default=100, help="workers of the cluster")
    parser.add_argument("--run-seconds", type=float, default=6.0, help="mean time of a run of the cluster")
    parser.add_argument("--sizes", default="500,1000,2000,5000", help="numbers of runs to tabulate")
    parser.add_argument("--overhead-runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300, help="steps of a run for overhead")
    arguments = parser.parse_args()
    sections = {
        "plan": plan,
        "overhead": lambda: overhead(arguments.overhead_runs, arguments.steps),
        "table": lambda: table([int(size) for size in arguments.sizes.split(",")]),
        "cluster": lambda: cluster(arguments.runs, arguments.workers, arguments.run_seconds),
    }
    measure_sections(sections, arguments)


if __name__ == "__main__":
    main()
