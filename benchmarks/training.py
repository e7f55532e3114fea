"""Measure the time of a training step, an evaluation and a whole run, from the published way to the fastest engine.

    python benchmarks/training.py                                    # synthetic images of PACS's shape
    python benchmarks/training.py --data data --json out.json        # real PACS
    python benchmarks/training.py --data data --whole --json out.json   # and whole runs, from process start to files
    python benchmarks/training.py --curves                           # against batch, image size, domains, averages
    python benchmarks/training.py --rows "CUDA graph" --plain        # against plain loops, eager and compiled

Every row trains with the code of `swad train`. *step* is the wall time of a step, including data and averages. Each
part is also measured alone, captured in a CUDA graph if the row's engine captures the step: *data* builds a batch,
*network* is loss and backward, *optimizer* its step, *averages* the update of SWAD in all three semantics, SWA and EMA.
*evaluation* is one pass over the sources' validation images. *first step* is the time from building the network to the
end of the third step, including compilation. Lower limits on an H200: about 6 ms for the network (2.4 TFLOP at
790 TFLOP/s, activations moved once in each direction), 0.11 ms for the averages (a sum and an EMA move 470 MB at
4.3 TB/s).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from measurements import captured, header, make_parser, timed, wait, write
from swad.testbed.data import benchmarks
from swad.testbed.data.cache import ImageCache, open_cache
from swad.testbed.data.domains import ArrayDomain, Dataset, ImageSpec
from swad.testbed.data.splits import hold_out
from swad.testbed.models import networks
from swad.testbed.training.config import RunConfig
from swad.testbed.training.distributed import Dist
from swad.testbed.training.evaluation import Evaluator
from swad.testbed.training.resolve import resolve
from swad.testbed.training.state import TrainingState
from swad.testbed.training.step import EAGER

AVERAGES = ("swad", "swad_text", "swad_reference", "swa", "ema")


@dataclass(frozen=True)
class Row:
    """One way to train."""

    name: str
    input_pipeline: str
    precision: str
    engine: str


ROWS = (
    Row("as published: fp32, torchvision pipeline", "torchvision", "fp32", "eager"),
    Row("gpu input pipeline", "gpu", "fp32", "eager"),
    Row("+ bf16", "gpu", "bf16", "eager"),
    Row("+ one CUDA graph", "gpu", "bf16", "graph"),
    Row("+ compiled, batch norms fused", "gpu", "bf16", "compile"),
)


def synthetic(domains: int, n: int, size: int) -> Dataset:
    """Return random images with the shape of PACS."""
    draw = np.random.default_rng(0)
    made = tuple(
        ArrayDomain(f"domain {i}", draw.integers(0, 7, n), draw.integers(0, 256, (n, size, size, 3), dtype=np.uint8))
        for i in range(domains)
    )
    return Dataset("PACS", made, tuple("abcdefg"), ImageSpec(min(size, 224)))


def measure(
    row: Row,
    dataset: Dataset,
    cache: ImageCache | None,
    network: str,
    device: str,
    steps: int,
    batch_size: int = 32,
    averages: tuple[str, ...] = AVERAGES,
    parts: bool = True,
) -> dict[str, float]:
    """Return the measurements of one row."""
    config = resolve(
        RunConfig.from_options(
            dataset="PACS", target="photo", output="unused", data_dir="unused", network=network, weights="random",
            freeze_bn=True, device=device, input_pipeline=row.input_pipeline, precision=row.precision,
            engine=row.engine, averages=averages, hyperparameters={"batch_size": batch_size},
        )
    )  # fmt: skip
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.backends.cudnn.benchmark = False
    torch._dynamo.reset()
    sources = hold_out(dataset, dataset.domain_names[0]).sources
    dist = Dist(torch.device(device))
    used = cache if row.input_pipeline == "gpu" else None
    start = time.perf_counter()
    training = TrainingState(config, sources, dist, used, lambda text: None)
    if training.engine.kind != row.engine:
        raise SystemExit(
            f"{row.name!r} needs the engine {row.engine}, and this machine only supports {training.engine.kind}"
        )
    stream = training.loader.inputs(1, 10**9)

    def step() -> None:
        training.train_step(*next(stream))

    for _ in range(3):
        step()
    wait(device)
    measured = {"first_step_s": time.perf_counter() - start}
    for _ in range(10 if device == "cuda" else 1):
        step()
    measured["step_ms"] = timed(step, steps, device)
    measured["images_per_s"] = batch_size * len(sources.names) / measured["step_ms"] * 1e3
    evaluator = Evaluator(training)
    for _ in range(3):
        evaluator.validation_scores(training.predictor)
    measured["evaluation_ms"] = timed(lambda: evaluator.validation_scores(training.predictor), 3, device)
    if device == "cuda":
        measured["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    if parts:
        measured |= split(training, stream, steps, device)
    return measured


PLAIN = "plain PyTorch: bf16, "
MODES = (None, "default", "reduce-overhead")
"""Modes of torch.compile for a plain loop; None: eager. The default is bound by the host, which varies by a third."""


def plain_rows(network: str, device: str, steps: int) -> dict[str, dict[str, float]]:
    """Return the measurements of a plain loop in every mode."""
    return {PLAIN + (mode or "eager"): plain(network, device, steps, mode) for mode in MODES}


def best_plain(rows: Mapping[str, Mapping[str, float]]) -> tuple[str, float]:
    """Return name and milliseconds of the fastest plain loop, with which a step of ours is to be compared."""
    times = {name: row["step_ms"] for name, row in rows.items() if name.startswith(PLAIN)}
    fastest = min(times, key=times.__getitem__)
    return fastest, times[fastest]


def plain(network: str, device: str, steps: int, mode: str | None, batch_size: int = 96) -> dict[str, float]:
    """Return the time of the step that a user would write: no data, no averages, batch norms in evaluation mode."""
    torch._dynamo.reset()
    start = time.perf_counter()
    model = networks.build(network, 7).to(device, memory_format=torch.channels_last).train()
    networks.freeze_statistics(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-5, fused=True)
    images = torch.randn(batch_size, 3, 224, 224, device=device).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(7, (batch_size,), device=device)
    compiled = torch.compile(model, mode=mode) if mode else model

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(compiled(images), labels)
        loss.backward()
        optimizer.step()

    for _ in range(3):
        step()
    wait(device)
    first = time.perf_counter() - start
    ms = timed(step, steps, device)
    return {"step_ms": ms, "images_per_s": batch_size / ms * 1e3, "first_step_s": first}


def split(training: TrainingState, stream: object, steps: int, device: str) -> dict[str, float]:
    """Measure each part of a step alone."""
    as_run = captured if training.engine.kind != EAGER else lambda function: function
    number, inputs = next(stream)  # type: ignore[call-overload]
    placed = {name: value.to(device) for name, value in inputs.items()}
    batch = next(training.loader.parts(number, placed))
    algorithm, noise = training.algorithm, training.draw_randomness(number)

    def gradients() -> None:
        for optimizer in algorithm.optimizers.values():
            optimizer.zero_grad()
        with training.autocast():
            loss = algorithm.loss(batch, noise)
        loss.backward()

    def optimize() -> None:
        for optimizer in algorithm.optimizers.values():
            optimizer.step()

    group = training.group
    assert group is not None
    gradients()
    if training.loader.images.copies_ahead:  # workers read the images
        data = timed(lambda: next(stream), steps, device)  # type: ignore[call-overload]
    else:
        data = timed(as_run(lambda: next(training.loader.parts(number, placed))), steps, device)
        data += timed(lambda: next(stream), steps, device)  # type: ignore[call-overload]
    return {
        "data_ms": data,
        "network_ms": timed(as_run(gradients), steps, device),
        "optimizer_ms": timed(as_run(optimize), steps, device),
        "averages_ms": timed(as_run(lambda: group.update_parameters(training.predictor)), steps, device),
    }


def whole(data: Path, network: str, weights: str, steps: int) -> dict[str, float]:
    """Return seconds to build the image cache, and from process start to saved averages with cold and warm kernels."""
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        env = {
            **os.environ,
            "SWAD_CACHE": str(base / "images"),
            "TORCHINDUCTOR_CACHE_DIR": str(base / "inductor"),
            "TRITON_CACHE_DIR": str(base / "triton"),
        }

        def command(name: str, steps: int, *more: str) -> float:
            line = [
                sys.executable, "-m", "swad", "train", "PACS", "-d", str(data), "-t", "photo", "--network", network,
                "--weights", weights, "--steps", str(steps), "--evaluate-every", "100", "-a", ",".join(AVERAGES),
                "-o", str(base / name), "--device", "cuda", "--input-pipeline", "gpu", "--precision", "bf16", *more,
            ]  # fmt: skip
            start = time.perf_counter()
            result = subprocess.run(line, env=env, capture_output=True, text=True)
            if result.returncode:
                raise SystemExit(result.stderr[-2000:])
            return time.perf_counter() - start

        start = time.perf_counter()
        open_cache(benchmarks.load("PACS", data), base / "images")
        measured["image_cache_s"] = time.perf_counter() - start
        measured["cold_s"] = command("cold", steps)
        measured |= parts_of(base / "cold", "cold")
        measured["warm_s"] = command("warm", steps)
        measured |= parts_of(base / "warm", "warm")
    return measured


def parts_of(folder: Path, name: str) -> dict[str, float]:
    """Return the seconds of a whole run by activity, from its records."""
    rows = [json.loads(line) for line in next(folder.rglob("records.jsonl")).open()]
    return {f"{name}_{row['metric']}": row["value"] for row in rows if row["metric"].startswith("seconds_")}


def curves(network: str, device: str, steps: int, engine: str) -> dict[str, list[dict[str, float]]]:
    """Measure the time of a step while one size varies and the others stay as in PACS."""
    row = Row("curve", "gpu", "bf16" if device == "cuda" else "fp32", engine)
    usual = {"images": 32, "size": 224, "domains": 3, "averages": 5}
    values = {"images": (8, 16, 32, 64, 128), "size": (112, 224, 288), "domains": (2, 3, 5), "averages": (0, 1, 5)}
    measured: dict[str, list[dict[str, float]]] = {}
    known: dict[tuple[int, ...], float] = {}
    for what, choices in values.items():
        for value in choices:
            at = {**usual, what: value}
            key = tuple(at.values())
            if key not in known:  # the default sizes are on every curve
                dataset = synthetic(at["domains"] + 1, 160, at["size"] + 3)
                object.__setattr__(dataset, "image_spec", ImageSpec(at["size"]))
                averages = AVERAGES[: at["averages"]]
                with tempfile.TemporaryDirectory() as folder:
                    cache = open_cache(dataset, folder)
                    figures = measure(row, dataset, cache, network, device, steps, at["images"], averages, parts=False)
                known[key] = figures["step_ms"]
            measured.setdefault(what, []).append({what: value, "step_ms": known[key]})
            print(f"{what} {value}: {known[key]:.2f} ms", flush=True)
    return measured


def show(rows: dict[str, dict[str, float]]) -> None:
    columns = ("step_ms", "images_per_s", "data_ms", "network_ms", "optimizer_ms", "averages_ms", "evaluation_ms",
               "peak_gib", "first_step_s")  # fmt: skip
    print(f"{'':40}" + "".join(f"{name:>14}" for name in columns))
    for name, row in rows.items():
        print(f"{name:40}" + "".join(f"{row.get(column, float('nan')):14.2f}" for column in columns))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, help="directory that contains PACS. Default: random images of its shape")
    parser.add_argument("--network", default="resnet50.tv_in1k")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, help="steps per measurement. Default: 40 on a GPU, 2 on a CPU")
    parser.add_argument("--whole", action="store_true", help="also time whole runs; needs --data")
    parser.add_argument("--curves", action="store_true", help="also measure the cost curves")
    parser.add_argument("--rows", default="", help="only rows whose name contains this text")
    parser.add_argument("--plain", action="store_true", help="also measure plain loops, which takes two minutes")
    parser.add_argument("--weights", default="random")
    arguments = parser.parse_args()
    device, network = arguments.device, arguments.network
    steps = arguments.steps or (40 if device == "cuda" else 2)
    report = {**header(), "network": network}
    dataset = benchmarks.load("PACS", arguments.data) if arguments.data else synthetic(4, 400, 227)
    with tempfile.TemporaryDirectory() as folder:
        cache = open_cache(dataset, folder)
        rows = report["rows"] = {}
        for row in ROWS:
            if arguments.rows in row.name and (device == "cuda" or row.engine == EAGER):
                rows[row.name] = measure(row, dataset, cache, network, device, steps)
                print(f"{row.name}: {rows[row.name]['step_ms']:.2f} ms per step", flush=True)
        if arguments.plain:
            rows |= plain_rows(network, device, steps)
            print("the best plain loop is {}: {:.2f} ms per step".format(*best_plain(rows)), flush=True)
    show(rows)
    write(report, arguments.json)
    if arguments.curves:
        report["curves"] = curves(network, device, steps, "graph" if device == "cuda" else EAGER)
        write(report, arguments.json)
    if arguments.whole:
        if arguments.data is None:
            raise SystemExit("--whole needs image files: pass the directory that contains PACS with --data")
        report["whole"] = measured = whole(arguments.data, network, arguments.weights, 5000)
        print(", ".join(f"{name} {value:.2f}" for name, value in measured.items()))
        write(report, arguments.json)
    shutil.rmtree("unused", ignore_errors=True)


if __name__ == "__main__":
    main()
