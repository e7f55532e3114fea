"""Compare a step of the demo with a plain loop on this CPU: one run alone, and one run per core as in `swad demo`.

    python benchmarks/demo.py --json benchmarks/results/demo-speed-cpu.json

The plain loop has torchvision's transforms, a loader with a worker for every domain, and torch's AveragedModel.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, RandomSampler
from torchvision.transforms import v2

from measurements import header, make_parser, timed, write
from swad.testbed.data import benchmarks
from swad.testbed.data.domains import ImageSpec
from swad.testbed.data.splits import DomainSplit, hold_out
from swad.testbed.paper.demo import make_configs
from swad.testbed.training.distributed import Dist
from swad.testbed.training.resolve import resolve
from swad.testbed.training.state import TrainingState


def demo_loops() -> dict[str, Callable[[], object]]:
    """Return two functions that make a step of the demo: ours, and a plain loop with torchvision's transforms."""
    config = resolve(make_configs(Path("unused"), (0,), None, "cpu")[0])
    torch.set_num_threads(config.threads or torch.get_num_threads())
    sources = hold_out(benchmarks.load("digits", None), config.targets).sources
    training = TrainingState(config, sources, Dist(torch.device("cpu")), None, lambda text: None)
    stream = training.loader.inputs(1, 10**9)
    model = copy.deepcopy(training.predictor)
    mean = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    per_domain = training.algorithm.hyperparameters.batch_size
    loaders = []
    for part in sources.train:
        plain = PlainImages(part, sources.image_spec)
        sampler = RandomSampler(plain, replacement=True, num_samples=10**7)
        loaders.append(DataLoader(plain, per_domain, sampler=sampler, num_workers=1, persistent_workers=True))
    streams: list[Iterator[list[torch.Tensor]]] = []

    def plain_step() -> None:
        streams.extend(iter(loader) for loader in loaders[len(streams) :])  # workers start when they are needed
        batches = [next(batch_stream) for batch_stream in streams]
        images, labels = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        mean.update_parameters(model)

    return {"ours": lambda: training.train_step(*next(stream)), "plain": plain_step}


class PlainImages(torch.utils.data.Dataset):
    """A split of a domain with torchvision's transforms."""

    def __init__(self, part: DomainSplit, image_spec: ImageSpec) -> None:
        self.part = part
        self.transform = v2.Compose(
            [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(image_spec.mean, image_spec.std)]
        )

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        key = self.part.keys[i]
        return self.transform(self.part.domain.image(key)), int(self.part.domain.labels[key])


def demo(steps: int) -> dict[str, float]:
    """Compare a step of the demo with a plain loop on this CPU: one run alone, and one run per core as in the demo."""
    loops = demo_loops()
    for step in loops.values():
        timed(step, 20, "cpu")
    alone: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(5):  # interleaved, so that other load on the machine affects both
        for name, step in loops.items():
            alone[name].append(timed(step, steps // 5, "cpu"))
    measured = {f"alone_{name}_ms": min(values) for name, values in alone.items()}
    measured["alone_ratio"] = measured["alone_plain_ms"] / measured["alone_ours_ms"]
    del loops, step  # this stops the workers
    filled: dict[str, list[float]] = {name: [] for name in alone}
    for _ in range(2):
        for name, values in filled.items():
            values.append(on_every_core(name, steps))
    measured |= {f"filled_{name}_ms": min(values) for name, values in filled.items()}
    measured["filled_ratio"] = measured["filled_plain_ms"] / measured["filled_ours_ms"]
    return measured


def on_every_core(name: str, steps: int) -> float:
    """Return the milliseconds per step of the whole machine, with a run on every core."""
    n = len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    ready, queue = context.Barrier(n), context.SimpleQueue()
    runs = [context.Process(target=_time_steps, args=(name, steps, ready, queue)) for _ in range(n)]
    for run in runs:
        run.start()
    times = [queue.get() for _ in runs]
    for run in runs:
        run.join()
    return statistics.mean(times) / n


def _time_steps(name: str, steps: int, ready: Barrier, queue: SimpleQueue[float]) -> None:
    step = demo_loops()[name]
    timed(step, 20, "cpu")
    ready.wait()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    queue.put((time.perf_counter() - start) / steps * 1e3)
    ready.wait()  # keep every core busy until the last process is done


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=int, default=500, help="steps per measurement")
    arguments = parser.parse_args()
    measured = demo(arguments.steps)
    print(", ".join(f"{name} {value:.2f}" for name, value in measured.items()))
    write({**header(), "network": "small", "demo": measured}, arguments.json)


if __name__ == "__main__":
    main()
