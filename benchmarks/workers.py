"""Measure the workers of a GPU: what the first and the next run of one cost, and several of them at a time.

    python benchmarks/workers.py --data data --weights resnet50.safetensors --json benchmarks/results/workers-h200.json
    python benchmarks/workers.py --shared-gpu --steps 1000 --data data --weights resnet50.safetensors    # only this

warm worker  Runs of one local worker on image files: where the time of each goes.
shared gpu   As many runs with one, two and three workers on one GPU, without and with NVIDIA's Multi-Process Service,
             after a run that warms each worker up: seconds for a run.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from measurements import directory, make_parser, measure_sections
from swad.testbed.data import benchmarks
from swad.testbed.results.records import read_records
from swad.testbed.training import loop
from swad.testbed.training.config import RunConfig
from swad.testbed.training.run_dir import RunDir
from swad.testbed.workers.claims import Claims
from swad.testbed.workers.local import train_locally

# -- warm worker -----------------------------------------------------------------------------------------------------

PARTS = {
    "load dataset": ("swad.testbed.training.loop", "load_dataset"),
    "identify images": ("swad.testbed.training.loop", "domain_contents"),
    "open image cache": ("swad.testbed.training.loop", "open_cache"),
    "images to device": ("swad.testbed.data.images", "build_store"),
    "build network": ("swad.testbed.models.networks", "build"),
    "fuse kernels": ("swad.testbed.training.state", "fuse_kernels"),
    "save weights": ("swad.testbed.training.output", "save_weights"),
}
"""Functions outside steps and evaluation, which do not call one another."""


def train_timed(config: RunConfig) -> None:
    """Train, and write where the time went into the run directory. Runs in the worker."""
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
    graphs = importlib.import_module("swad.gpu.cuda_graph")
    targets += [(graphs.CapturedGraph, "__init__", "capture graphs (in steps and evaluation)")]
    for owner, name, label in targets:
        originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, timed(label, getattr(owner, name)))
    start, began = time.perf_counter(), time.time()
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
    (config.output / "process.json").write_text(json.dumps([os.getpid(), began, time.time()]))


def warm_worker(n_runs: int, n_images: int, **options: Any) -> dict[str, dict[str, float]]:
    """Train runs that hold out one domain after another in one worker."""
    measured = {}
    with directory() as folder:
        runs = pacs_runs(folder, n_runs, n_images, cache=folder / "cache", **options)
        for number, (_, _, _, run) in enumerate(train_runs(folder, runs, 1), 1):
            measured[f"run {number}"] = times = json.loads((run.output / "times.json").read_text())
            print(f"run {number}: " + ", ".join(f"{label} {value:.2f}" for label, value in times.items()), flush=True)
    return measured


def train_runs(folder: Path, runs: Sequence[RunConfig], n_workers: int) -> list[tuple[float, float, int, RunConfig]]:
    """Train runs by some workers; return start, end and process of each, by their starts."""
    claims = Claims(folder / "claims")
    train_locally(partial(tuple, runs), claims, n_workers, device=runs[0].device, train=train_timed)
    noted = []
    for run in runs:
        pid, start, end = json.loads((run.output / "process.json").read_text())
        noted.append((start, end, pid, run))
    return sorted(noted, key=lambda one: one[0])


def pacs_runs(
    folder: Path, n_runs: int, n_images: int, *, data_dir: Path | None, steps: int, **options: Any
) -> list[RunConfig]:
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
        RunConfig.from_options(output=folder / f"run-{i}", target=targets[i % 4], trial=i // 4, **options)
        for i in range(n_runs)
    ]


def synthetic_images(folder: Path, n_images: int) -> Path:
    """Files with the names of PACS: noise, the same few images again and again."""
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
                    runs = pacs_runs(folder / name, n_workers + n_runs, 0, steps=steps, **options)
                    noted = train_runs(folder / name, runs, n_workers)
                    first = {pid: start for start, _, pid, _ in reversed(noted)}  # which warms its worker up
                    warm = [(start, end) for start, end, pid, _ in noted if start != first[pid]]
                    seconds = max(end for _, end in warm) - min(start for start, _ in warm)
                    measured[name] = seconds / len(warm)
                    print(f"{name}: {measured[name]:.1f} s for a run", flush=True)
                    shutil.rmtree(folder / name)
    return measured


MPS_CONTROL = "nvidia-cuda-mps-control"


@contextmanager
def mps(folder: Path) -> Iterator[str]:
    """Start NVIDIA's Multi-Process Service for the processes that are started inside."""
    place = folder / "mps"
    place.mkdir()
    os.environ.update(CUDA_MPS_PIPE_DIRECTORY=str(place), CUDA_MPS_LOG_DIRECTORY=str(place))
    subprocess.run([MPS_CONTROL, "-d"], check=True)
    try:
        yield ", MPS"
    finally:
        subprocess.run([MPS_CONTROL], input="quit\n", text=True, check=False)
        del os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]


# -- the report ------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = make_parser(__doc__, sections=("warm_worker", "shared_gpu"))
    parser.add_argument("--steps", type=int, default=300, help="steps of a run")
    parser.add_argument("--data", type=Path, help="directory that contains PACS. Default: noise in files like its own")
    parser.add_argument("--images", type=int, default=9991, help="number of those files")
    parser.add_argument("--weights", default="random", help="safetensors file of the network")
    parser.add_argument("--network", default="resnet50.tv_in1k")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--warm-runs", type=int, default=3)
    parser.add_argument("--shared-runs", type=int, default=6)
    arguments = parser.parse_args()
    options = {
        "n_images": arguments.images,
        "data_dir": arguments.data,
        "weights": arguments.weights,
        "freeze_bn": True,
        "network": arguments.network,
        "device": arguments.device,
        "steps": arguments.steps,
    }
    sections = {
        "warm_worker": lambda: warm_worker(arguments.warm_runs, **options),
        "shared_gpu": lambda: shared_gpu(arguments.shared_runs, **options),
    }
    measure_sections(sections, arguments)


if __name__ == "__main__":
    main()
