"""Measure the ImageNet training step against a plain compiled PyTorch loop, the corruptions, and how fast images load.

    python benchmarks/imagenet.py --json benchmarks/results/imagenet-h200.json
    python benchmarks/imagenet.py --accumulate          # also a batch of 2,048 images in 8 passes
    python benchmarks/imagenet.py --quick               # a tiny network on the CPU, to try the script

*swad* makes the step of `swad train imagenet`: 256 random images of 224 pixels as bytes in pinned memory, copied ahead
and normalized on the GPU, bf16, channels_last, SGD with momentum, batch norms trained, SWAD, SWA and EMA updated. The
two plain loops compile the same network with `torch.compile` and have the same precision, layout and optimizer, and no
average. *plain, bytes* copies and normalizes the same bytes; *plain, ready* finds normalized images on the GPU. All
loops run in one process in turns, so that other load and the clock of the GPU affect all of them. The best turn counts.

The corruptions are those of `swad robustness` at severity 3, on a batch of bytes that is on the device already.
*loading* is the speed at which training batches arrive on the device from JPEG files of ImageNet's usual size, 500 ×
375 pixels: decoded by one worker per core, or read by workers and decoded by the device (`--input-pipeline gpu`).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from measurements import header, make_parser, wait, write
from swad.gpu.cuda_graph import to_device
from swad.robustness.corruptions import CORRUPTIONS, corrupt
from swad.testbed.data.augmentation import Augmentation
from swad.testbed.data.domains import FileDomain, ImageSpec
from swad.testbed.data.images import EncodedImages, FileImages, ImageSource
from swad.testbed.data.loaders import Loader, copied_ahead
from swad.testbed.data.sampling import Epochs, Pool
from swad.testbed.data.splits import DomainSplit, Sources
from swad.testbed.data.transforms import Normalize, train_transform
from swad.testbed.models import networks
from swad.testbed.training.config import RunConfig
from swad.testbed.training.dataset import image_spec
from swad.testbed.training.distributed import Dist
from swad.testbed.training.recipes import ImageNetRecipe
from swad.testbed.training.resolve import fill_defaults
from swad.testbed.training.state import TrainingState
from swad.util.processes import available_cores

AVERAGES = ("without_opt_overfit:as=swad", "swa", "ema")
N_IMAGES, N_CLASSES = 1_281_167, 1000
HOST_BATCHES = 4
"""Different batches in pinned memory, used in turn."""


def make_training(network: str, batch_size: int, micro_batch: int, size: int, device: str) -> TrainingState:
    """Return the training that `swad train imagenet` builds, for images that do not exist."""
    requested = RunConfig.from_options(
        dataset="imagenet", target="none", output="unused", data_dir="unused", network=network, averages=AVERAGES,
        device=device, image_size=size, micro_batch=micro_batch, workers=0, hyperparameters={"batch_size": batch_size},
    )  # fmt: skip
    config = fill_defaults(requested, stored={}, n_images=0, bf16=device == "cuda", training_images=(N_IMAGES,))
    labels = np.random.default_rng(0).integers(0, N_CLASSES, N_IMAGES)
    domain = FileDomain("images", labels, Path("unused"), ("unused",) * N_IMAGES)
    train, val = (DomainSplit(domain, name, keys) for name, keys in (("train", np.arange(N_IMAGES)), ("val", labels)))
    classes = tuple(map(str, range(N_CLASSES)))
    spec = image_spec(config, ImageSpec())
    sources = Sources(classes, spec, (train,), (val,), ())
    return TrainingState(config, sources, Dist(torch.device(device)), None, print)


def host_batches(n: int, size: int, device: str) -> list[Tensor]:
    """Return random images as bytes, in pinned memory if there is a GPU."""
    batches = [torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8) for _ in range(HOST_BATCHES)]
    return [batch.pin_memory() for batch in batches] if device == "cuda" else batches


def our_step(training: TrainingState, batches: list[Tensor]) -> Callable[[], object]:
    """Return a function that makes the next step of a training."""
    loader = training.loader

    def inputs() -> Iterator[tuple[int, dict[str, Tensor]]]:
        for step in count(1):
            rows = torch.from_numpy(loader.rows(step)).chunk(loader.n_parts)
            parts = {f"rows.{i}": part for i, part in enumerate(rows)}
            yield step, parts | {f"images.{i}": batches[(step + i) % len(batches)] for i in range(loader.n_parts)}

    stream = inputs()
    if loader.device.type == "cuda":
        stream = copied_ahead(stream, loader.device, partial(to_device, device=loader.device))
    return lambda: training.train_step(*next(stream))


def plain_steps(
    training: TrainingState, batches: list[Tensor], compiled: Callable[..., Any]
) -> dict[str, Callable[[], None]]:
    """Return functions that make a step of a plain loop, with one optimizer, one loss and no average, by name."""
    device, spec, network = training.loader.device, training.sources.image_spec, training.config.network
    assert network is not None
    model = networks.build(network, N_CLASSES, freeze_bn=False).to(device, memory_format=torch.channels_last).train()
    call = compiled(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
    normalize = Normalize(spec, device)
    prepare = compiled(lambda images: normalize(images).contiguous(memory_format=torch.channels_last))
    labels = torch.randint(N_CLASSES, (len(batches[0]),), device=device)
    ready, numbers = prepare(batches[0].to(device)), count()

    def step(images: Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16) if device.type == "cuda" else nullcontext():
            loss = functional.cross_entropy(call(images), labels)
        loss.backward()
        optimizer.step()

    def step_on_bytes() -> None:
        step(prepare(batches[next(numbers) % len(batches)].to(device, non_blocking=True)))

    return {"plain_bytes": step_on_bytes, "plain_ready": lambda: step(ready)}


def measure_steps(network: str, batch_size: int, size: int, device: str, steps: int, rounds: int) -> dict[str, float]:
    """Return images per second of each loop."""
    batches = host_batches(batch_size, size, device)
    measured: dict[str, float] = {}
    start = time.perf_counter()
    training = make_training(network, batch_size, batch_size, size, device)
    loops: dict[str, Callable[[], object]] = {"swad": our_step(training, batches)}
    loops["swad"]()
    wait(device)
    measured["swad_first_step_s"] = time.perf_counter() - start
    compiled = (lambda call: torch.compile(call, dynamic=False)) if device == "cuda" else (lambda call: call)
    loops |= plain_steps(training, batches, compiled)
    seconds = in_turns(loops, steps, rounds, device)
    for name, value in seconds.items():
        measured |= {f"{name}_ms": 1e3 * value, f"{name}_images_per_s": batch_size / value}
    for name in ("plain_bytes", "plain_ready"):
        measured[f"speed_over_{name}"] = seconds[name] / seconds["swad"]
    if device == "cuda":
        measured["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return {"engine": training.engine.kind, **measured}  # type: ignore[dict-item]


def measure_accumulation(
    network: str, batch_size: int, parts: int, size: int, device: str, steps: int
) -> dict[str, float]:
    """Return the speed of a step whose gradients are accumulated over parts."""
    training = make_training(network, batch_size * parts, batch_size, size, device)
    loop = {"swad": our_step(training, host_batches(batch_size, size, device))}
    seconds = in_turns(loop, steps, 2, device)["swad"]
    return {
        "images": batch_size * parts,
        "passes": parts,
        "ms": 1e3 * seconds,
        "images_per_s": batch_size * parts / seconds,
    }


def in_turns(loops: dict[str, Callable[[], object]], steps: int, rounds: int, device: str) -> dict[str, float]:
    """Return seconds per step of each loop: the best of several turns."""
    best = dict.fromkeys(loops, float("inf"))
    for step in loops.values():
        for _ in range(5 if device == "cuda" else 1):  # compile, capture, allocate
            step()
    for _ in range(rounds):
        for name, step in loops.items():
            wait(device)
            start = time.perf_counter()
            for _ in range(steps):
                step()
            wait(device)
            best[name] = min(best[name], (time.perf_counter() - start) / steps)
    return best


def measure_corruptions(n: int, size: int, device: str, seconds: float) -> dict[str, float]:
    """Return images per second of each corruption at severity 3."""
    images = torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, device=device)
    speeds = {}
    for name in CORRUPTIONS:
        corrupt(images, name, 3)
        wait(device)
        calls, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            corrupt(images, name, 3)
            wait(device)
            calls += 1
        speeds[name] = calls * n / (time.perf_counter() - start)
        print(f"{name:20}{speeds[name]:12,.0f} images/s", flush=True)
    return speeds


def measure_loading(n: int, size: int, device: str, seconds: float) -> dict[str, object]:
    """Return images per second from files to batches on the device, by who decodes them."""
    workers = available_cores()
    speeds: dict[str, object] = {"workers": workers}
    with tempfile.TemporaryDirectory() as folder:
        split = DomainSplit(jpeg_files(Path(folder), max(n, 512)), "train", np.arange(max(n, 512)))
        for name in ("workers", "device"):
            loader = loader_of(split, n, size, name == "device", workers, torch.device(device))
            try:
                speed = loading_speed(loader, 2 * workers, seconds, device)
            except RuntimeError as error:  # a torchvision without nvJPEG
                speeds[f"decoded_by_{name}"] = str(error).splitlines()[0]
                continue
            speeds[f"decoded_by_{name}_images_per_s"] = speed
            print(f"loading, decoded by {name}: {speed:,.0f} images/s", flush=True)
    return speeds


def loader_of(split: DomainSplit, n: int, size: int, on_device: bool, workers: int, device: torch.device) -> Loader:
    """Return a loader of epochs as the recipe has it."""
    pool, spec, crops = Pool([split]), ImageSpec(size), Augmentation(**ImageNetRecipe.AUGMENTATION)
    normalize = Normalize(spec, device, torch.channels_last if device.type == "cuda" else None)
    images: ImageSource
    if on_device:
        images = EncodedImages(pool, size, crops, normalize, workers=workers, device=device)
    else:
        images = FileImages(pool, train_transform(spec, crops), normalize, workers=workers, device=device)
    return Loader(pool, Epochs(pool, n, 0), images, device=device)


def loading_speed(loader: Loader, skipped: int, seconds: float, device: str) -> float:
    """Return images per second, without the batches that workers read ahead while they started."""
    batches = loader.inputs(1, 10**9)
    for _ in range(skipped):
        next(batches)
    wait(device)
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        next(batches)
        steps += 1
    wait(device)
    return steps * loader.sampler.batch_size / (time.perf_counter() - start)


def jpeg_files(folder: Path, n: int) -> FileDomain:
    """Write smooth noise with some grain, which compresses like a photograph."""
    draw = np.random.default_rng(0)
    for i in range(32):
        coarse = Image.fromarray(draw.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((500, 375), Image.BICUBIC)
        pixels = np.asarray(coarse) * 0.8 + draw.normal(25, 12, (375, 500, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.jpg", quality=90)
    return FileDomain("images", np.zeros(n, np.int64), folder, tuple(f"{i % 32}.jpg" for i in range(n)))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--networks", default="resnet50_v1,mobilenetv2_100", help="timm models, separated by commas")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224, help="height and width of the images")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=20, help="steps in a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--accumulate", action="store_true", help="also measure a batch in 8 passes")
    parser.add_argument("--quick", action="store_true", help="try the script: a tiny network on the CPU")
    options = parser.parse_args()
    if options.quick:
        options.networks, options.batch_size, options.size, options.device = "test_resnet", 4, 32, "cpu"
        options.steps = options.rounds = 1
    sizes = (options.batch_size, options.size, options.device)
    report = {**header(), "images_per_step": options.batch_size, "size": options.size, "steps": {}}
    for network in options.networks.split(","):
        torch._dynamo.reset()
        if options.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        row = report["steps"][network] = measure_steps(network, *sizes, options.steps, options.rounds)
        print(
            f"{network}: {row['swad_images_per_s']:,.0f} images/s ({row['engine']}, averages included); plain loop on "
            f"the same bytes {row['plain_bytes_images_per_s']:,.0f} (x {row['speed_over_plain_bytes']:.3f}), on ready "
            f"images {row['plain_ready_images_per_s']:,.0f} (x {row['speed_over_plain_ready']:.3f})",
            flush=True,
        )
        write(report, options.json)
        if options.accumulate:
            batch_size, size, device = sizes
            row["accumulated"] = measure_accumulation(network, batch_size, 8, size, device, max(1, options.steps // 4))
            print(f"{network}, 8 passes per step: {row['accumulated']['images_per_s']:,.0f} images/s", flush=True)
            write(report, options.json)
    report["corruptions_images_per_s"] = measure_corruptions(*sizes, 0.02 if options.quick else 0.5)
    write(report, options.json)
    report["loading"] = measure_loading(*sizes, 0.2 if options.quick else 6)
    write(report, options.json)


if __name__ == "__main__":
    main()
