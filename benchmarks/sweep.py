"""Measure what a sweep costs besides its runs: scheduling, planning, tables, a large cluster, and a worker's next run.

    python benchmarks/sweep.py --json benchmarks/results/sweep-cpu.json       # all sections that need no GPU
    python benchmarks/sweep.py --overhead --plan                              # only these
    python benchmarks/sweep.py --cluster --runs 10000 --workers 100           # a smaller cluster
    python benchmarks/sweep.py --warm-worker --data data --weights resnet50.safetensors    # on a GPU
    python benchmarks/sweep.py --shared-gpu --steps 1000 --data data --weights resnet50.safetensors

overhead     A sweep of short runs on the digits with one local worker: the time of the whole sweep beyond the time that
             the worker spends in its runs, which is measured in the worker.
plan         DomainBed's plan for one algorithm: expanded, counted, and the state of every run read.
table        Finished runs, with the records of real ones, read and tabulated: first without a summary, then with it.
cluster      A sweep with threads as workers, in which only the training function is replaced: it sleeps and writes the
             files of a finished run. One run in a hundred loses its worker half way. At the end every record is
             counted, and the share of time that workers were busy is printed.
warm worker  Two runs of a local worker on image files: where the time of each goes.
shared gpu   As many runs with one, two and three workers on one GPU, without and with NVIDIA's Multi-Process Service,
             after a short run that warms each worker up: seconds for a run.

Directories are made in memory (/dev/shm) where there is such a place, so that the disk is not measured.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from measurements import header, make_parser, write
from swad.experiments.launchers.base import Outcome, Task
from swad.experiments.launchers.local import LocalLauncher
from swad.experiments.launchers.work import train_task
from swad.experiments.sweep.directory import State, SweepDir
from swad.experiments.sweep.plan import expand
from swad.experiments.sweep.run import run_sweep
from swad.experiments.sweep.spec import SweepSpec
from swad.results.method_results import collect_results
from swad.results.records import RECORDS, Record, read_records
from swad.results.runs import find_runs
from swad.training import loop
from swad.training.config import RunConfig
from swad.training.run_dir import RunDir, read_done


@contextmanager
def directory() -> Iterator[Path]:
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="swad-sweep-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


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


class CountingLauncher(LocalLauncher):
    """Also keeps the time that runs take in the worker."""

    run_seconds = 0.0

    def wait(self, timeout: float | None = None) -> list[Outcome]:
        outcomes = super().wait(timeout)
        self.run_seconds += sum(outcome.seconds for outcome in outcomes)
        return outcomes


def overhead(n_runs: int, steps: int) -> dict[str, float]:
    with directory() as folder, CountingLauncher(1) as launcher:
        warm_up = RunConfig.from_options(output=folder / "warm-up", dataset="digits", target="paper", steps=2)
        launcher.submit([Task("warm-up", warm_up)])
        launcher.wait()
        launcher.run_seconds = 0.0
        sweep = SweepDir(folder / "sweep")
        sweep.add(digits_spec(n_runs, steps))
        total, status = seconds(lambda: run_sweep(sweep, launcher))
        assert status.count(State.DONE) == n_runs, status
    runs = launcher.run_seconds
    return {
        "runs": n_runs,
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

    def __call__(self, config: RunConfig, *, callback: object | None = None) -> None:
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
            first_s, _ = seconds(lambda root=root: find_runs(root))
            again_s, runs = seconds(lambda root=root: find_runs(root))
            collect_s, _ = seconds(lambda runs=runs: collect_results(runs))
            assert len(runs) == size, len(runs)
            measured[str(size)] = {
                "find_first_s": first_s,
                "find_again_s": again_s,
                "collect_s": collect_s,
                "tabulate_s": again_s + collect_s,
            }
            print(f"  {size:,} runs: {first_s:.2f} s first, then {again_s:.2f} + {collect_s:.2f} s", flush=True)
            shutil.rmtree(root)
    return measured


# -- cluster ---------------------------------------------------------------------------------------------------------


class ThreadLauncher:
    """Workers that are threads of this process."""

    def __init__(self, n_workers: int, train: Callable[..., None]) -> None:
        self._train, self.slots = train, n_workers
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(n_workers)]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            self._outcomes.put(train_task(task, self._train))

    def submit(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self._tasks.put(task)

    def wait(self, timeout: float | None = None) -> list[Outcome]:
        outcomes = []
        try:
            outcomes.append(self._outcomes.get(timeout=timeout))
            while True:
                outcomes.append(self._outcomes.get_nowait())
        except queue.Empty:
            return outcomes

    def stop(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> ThreadLauncher:
        return self

    def __exit__(self, *_: object) -> None:
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()


def cluster(n_runs: int, n_workers: int, run_seconds: float) -> dict[str, float]:
    with directory() as folder:
        train = Simulated(folder, n_records=20, lose_every=100, seconds=run_seconds)
        sweep = SweepDir(folder / "sweep")
        sweep.add(digits_spec(n_runs))
        with ThreadLauncher(n_workers, train) as launcher:
            total, status = seconds(lambda: run_sweep(sweep, launcher))
        resume_s, again = seconds(lambda: run_sweep(sweep, ThreadLauncher(1, train)))
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


# -- warm worker -----------------------------------------------------------------------------------------------------

PARTS = {
    "load dataset": ("swad.training.loop", "load_dataset"),
    "identify images": ("swad.training.loop", "domain_contents"),
    "open image cache": ("swad.training.loop", "open_cache"),
    "images to device": ("swad.data.cached_loader", "build_store"),
    "build network": ("swad.models.networks", "build"),
    "fuse kernels": ("swad.training.state", "fuse_kernels"),
    "save weights": ("swad.training.output", "save_weights"),
}
"""Functions outside steps and evaluation, which do not call one another."""


def train_timed(config: RunConfig, *, callback: object | None = None) -> None:
    """Train, and write where the time went into the run directory. Runs in the worker."""
    import importlib

    spent: dict[str, float] = defaultdict(float)
    originals = []

    def timed(label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                spent[label] += time.perf_counter() - start

        return call

    targets: list[tuple[Any, str, str]] = [
        (importlib.import_module(module), name, label) for label, (module, name) in PARTS.items()
    ]
    targets += [(RunDir, "save_checkpoint", "save checkpoint"), (RunDir, "finish", "write result")]
    targets += [(loop._Run, "_build", "whole set-up")]
    graphs = importlib.import_module("swad.models.cuda_graph")
    targets += [(graphs.CapturedGraph, "__init__", "capture graphs (in steps and evaluation)")]
    for owner, name, label in targets:
        originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, timed(label, getattr(owner, name)))
    start = time.perf_counter()
    try:
        result = loop.train(config)
    finally:
        for owner, name, function in originals:
            setattr(owner, name, function)
    total = time.perf_counter() - start
    values = {r.metric: r.value for r in read_records(config.output) if r.metric.startswith("seconds")}
    steps, evaluation = values["seconds_per_step"] * result.steps, values["seconds_evaluation"]
    outside = total - steps - evaluation
    known = sum(spent[label] for label in PARTS) + spent["save checkpoint"] + spent["write result"]
    times = {"total": total, "steps": steps, "evaluation": evaluation, "outside": outside, **spent}
    times["other"] = outside - known
    (config.output / "times.json").write_text(json.dumps(times))


def warm_worker(n_runs: int, n_images: int, **options: Any) -> dict[str, dict[str, float]]:
    """Train runs that hold out one domain after another in one worker."""
    with directory() as folder:
        tasks = pacs_tasks(folder, n_runs, n_images, cache=folder / "cache", **options)
        measured = {}
        with LocalLauncher(1, train=train_timed) as launcher:
            for number, task in enumerate(tasks, 1):
                start = time.perf_counter()
                launcher.submit([task])
                (outcome,) = launcher.wait()
                assert outcome.status == "finished", outcome.message
                times = json.loads((task.config.output / "times.json").read_text())
                times["start worker, imports, scheduling"] = time.perf_counter() - start - times["total"]
                measured[f"run {number}"] = times
                print(
                    f"run {number}: " + ", ".join(f"{label} {value:.2f}" for label, value in times.items()), flush=True
                )
    return measured


def pacs_tasks(
    folder: Path, n_runs: int, n_images: int, *, data_dir: Path | None, steps: int, **options: Any
) -> list[Task]:
    """Return runs that hold out one domain after another, on PACS or on noise in files like its own."""
    options |= {
        "dataset": "PACS",
        "data_dir": data_dir or synthetic_images(folder / "data", n_images),
        "check_counts": False,
        "steps": steps,
        "evaluate_every": max(1, steps // 10),
        "averages": ("swad", "swa", "ema"),
        "input_pipeline": "gpu",
    }
    targets = ("sketch", "photo", "cartoon", "art_painting")
    return [
        Task(str(i), RunConfig.from_options(output=folder / f"run-{i}", target=targets[i % 4], trial=i // 4, **options))
        for i in range(n_runs)
    ]


def synthetic_images(folder: Path, n_images: int) -> Path:
    """Files with the names of PACS: noise, the same few images again and again."""
    import io

    import numpy as np
    from PIL import Image

    from swad.data import benchmarks

    random, contents = np.random.RandomState(0), []
    for _ in range(50):
        file = io.BytesIO()
        noise = random.randint(0, 255, (57, 57, 3)).astype(np.uint8)
        Image.fromarray(noise).resize((227, 227)).save(file, "JPEG")
        contents.append(file.getvalue())
    domains, n = benchmarks.get("PACS").domains, 0
    for domain in domains:
        for label in ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"):
            path = folder / "PACS" / domain / label
            path.mkdir(parents=True)
            for i in range(n_images // len(domains) // 7):
                (path / f"{i:04d}.jpg").write_bytes(contents[n % len(contents)])
                n += 1
    return folder


# -- shared gpu ------------------------------------------------------------------------------------------------------


def shared_gpu(n_runs: int, n_images: int, *, data_dir: Path | None, steps: int, **options: Any) -> dict[str, float]:
    """Measure the seconds for a run with several workers on one GPU; with MPS where it is installed."""
    measured = {}
    with directory() as folder:
        options |= {"data_dir": data_dir or synthetic_images(folder / "data", n_images), "cache": folder / "cache"}
        for service in (nullcontext(""), mps(folder)) if shutil.which(MPS_CONTROL) else (nullcontext(""),):
            with service as suffix:
                for n_workers in (1, 2, 3):
                    name = f"{n_workers} at a time{suffix}"
                    with LocalLauncher(n_workers) as launcher:
                        finish(launcher, pacs_tasks(folder / name / "warm-up", n_workers, 0, steps=20, **options))
                        start = time.perf_counter()
                        finish(launcher, pacs_tasks(folder / name, n_runs, 0, steps=steps, **options))
                        measured[name] = (time.perf_counter() - start) / n_runs
                    print(f"{name}: {measured[name]:.1f} s for a run", flush=True)
                    shutil.rmtree(folder / name)
    return measured


MPS_CONTROL = "nvidia-cuda-mps-control"


@contextmanager
def mps(folder: Path) -> Iterator[str]:
    """Start NVIDIA's Multi-Process Service for the processes that are started inside."""
    import subprocess

    place = folder / "mps"
    place.mkdir()
    os.environ.update(CUDA_MPS_PIPE_DIRECTORY=str(place), CUDA_MPS_LOG_DIRECTORY=str(place))
    subprocess.run([MPS_CONTROL, "-d"], check=True)
    try:
        yield ", MPS"
    finally:
        subprocess.run([MPS_CONTROL], input="quit\n", text=True, check=False)
        del os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]


def finish(launcher: LocalLauncher, tasks: Sequence[Task]) -> None:
    launcher.submit(tasks)
    outcomes: list[Outcome] = []
    while len(outcomes) < len(tasks):
        outcomes += launcher.wait()
    assert all(outcome.status == "finished" for outcome in outcomes), outcomes


# -- the report ------------------------------------------------------------------------------------------------------


MEASURED_BY_DEFAULT = ("overhead", "plan", "table", "cluster")
ON_A_GPU = ("warm_worker", "shared_gpu")


def main() -> None:
    parser = make_parser(__doc__)
    for section in MEASURED_BY_DEFAULT + ON_A_GPU:
        parser.add_argument(
            f"--{section.replace('_', '-')}", action="store_true", help="only this section, and others that are named"
        )
    parser.add_argument("--runs", type=int, default=100_000, help="runs of the cluster")
    parser.add_argument("--workers", type=int, default=1000, help="workers of the cluster")
    parser.add_argument("--run-seconds", type=float, default=6.0, help="mean time of a run of the cluster")
    parser.add_argument("--sizes", default="500,1000,2000,5000", help="numbers of runs to tabulate")
    parser.add_argument("--overhead-runs", type=int, default=20)
    parser.add_argument(
        "--steps", type=int, default=300, help="steps of a run for overhead, warm-worker and shared-gpu"
    )
    parser.add_argument("--data", type=Path, help="directory that contains PACS. Default: noise in files like its own")
    parser.add_argument("--images", type=int, default=9991, help="number of those files")
    parser.add_argument("--weights", default="random", help="safetensors file of the network")
    parser.add_argument("--network", default="resnet50.tv_in1k")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--warm-runs", type=int, default=3)
    parser.add_argument("--shared-runs", type=int, default=6)
    arguments = parser.parse_args()
    named = {name for name in MEASURED_BY_DEFAULT + ON_A_GPU if getattr(arguments, name)}
    on_images = {
        "n_images": arguments.images,
        "data_dir": arguments.data,
        "weights": arguments.weights,
        "freeze_bn": True,
        "network": arguments.network,
        "device": arguments.device,
        "steps": arguments.steps,
    }
    report = header()
    measure: dict[str, Callable[[], Any]] = {
        "plan": plan,
        "overhead": lambda: overhead(arguments.overhead_runs, arguments.steps),
        "table": lambda: table([int(size) for size in arguments.sizes.split(",")]),
        "cluster": lambda: cluster(arguments.runs, arguments.workers, arguments.run_seconds),
        "warm_worker": lambda: warm_worker(arguments.warm_runs, **on_images),
        "shared_gpu": lambda: shared_gpu(arguments.shared_runs, **on_images),
    }
    for name, section in measure.items():
        if name in (named or MEASURED_BY_DEFAULT):
            report[name] = section()
            print(f"{name}: {json.dumps(report[name])}", flush=True)
            write(report, arguments.json)


if __name__ == "__main__":
    main()
