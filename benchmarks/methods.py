"""Compare the time of a training step of every method with ERM's, and on a GPU the memory.

    python benchmarks/methods.py                                     # the CPU, and the GPU if there is one
    python benchmarks/methods.py --device cuda --network resnet50 --json benchmarks/results/methods-h200.json
    python benchmarks/methods.py --methods coral,coral+sam           # only these, and ERM

A step is loss, backward and optimizer on 3 domains of 32 images that are already on the device. On a CPU it uses the
small network, 28 pixels and fp32 on one thread, as a run on low-resolution images does. On a GPU it uses any timm model
with random weights, 224 pixels and bf16, eager and as a CUDA graph. Four steps in a row are timed together, because the
steps of some methods differ (DANN alternates). Medians are reported. On a CPU rounds are interleaved, so that the
ratios are valid on a busy machine too. On a GPU methods are measured one after another, because their graphs would not
fit into memory together.

MetaReg's steps are those of its training, after the preparation.

Peak memory is the memory that torch allocated on the GPU in eager mode, including weights. It is not measured on a CPU,
where it depends more on the allocator than on the method.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch

from measurements import header, make_parser, wait, write
from swad.testbed.algorithms.base import Algorithm, RunInfo, StepContext
from swad.testbed.algorithms.hyperparameters import fill
from swad.testbed.algorithms.registry import canonical_name, get_algorithm, list_algorithms
from swad.testbed.data.loaders import Batch
from swad.testbed.models import networks
from swad.testbed.training.step import EAGER, GRAPH, Engine

DOMAINS, PER_DOMAIN, CLASSES = 3, 32, 7
IN_A_ROW = 4
"""Steps timed together: a multiple of the number of phases of every method with its defaults."""
EXTRA = ("coral+sam",)

Step = Callable[[int], object]


def build(
    name: str, device: str, network: str, per_domain: int = PER_DOMAIN
) -> tuple[Algorithm, torch.Tensor, torch.Tensor, StepContext]:
    """Return an algorithm in training mode, images and labels of a batch, and the context of its steps."""
    torch.manual_seed(0)
    algorithm_class = get_algorithm(name)
    small, size = (network == networks.SMALL), 28 if network == networks.SMALL else 224
    hyperparameters = fill(algorithm_class.Hyperparameters, {"batch_size": per_domain})
    run_info = RunInfo((per_domain,) * DOMAINS, image_shape=(3, size, size))
    algorithm = algorithm_class(networks.build(network, CLASSES), hyperparameters, run_info)
    layout = torch.contiguous_format if small else torch.channels_last
    algorithm.to(memory_format=layout).to(device).train()
    images = torch.randn(algorithm_class.views * DOMAINS * per_domain, 3, size, size, device=device).to(
        memory_format=layout
    )
    if algorithm_class.views > 1:
        images = images.view(algorithm_class.views, -1, 3, size, size)
    labels = torch.randint(CLASSES, (DOMAINS * per_domain,), device=device)
    on_gpu = device == "cuda"
    ctx = StepContext(lambda: torch.autocast("cuda", torch.bfloat16)) if on_gpu else StepContext(nullcontext)
    return algorithm, images, labels, ctx


def make_step(
    algorithm: Algorithm, images: torch.Tensor, labels: torch.Tensor, ctx: StepContext, engine: str
) -> tuple[Step, list[str]]:
    """Return a function that makes the step of a number, including randomness and phases, with `engine`.

    The list that comes with it says why the engine could not capture a step, once it is known.
    """
    generator = torch.Generator(labels.device)
    refused: list[str] = []
    made = Engine(
        engine, lambda step, _, noise: algorithm.update(Batch(step, images, labels), noise, ctx), refused.append
    )

    def step(number: int) -> object:
        phase = algorithm.phase(number)
        if number > 1 and phase != algorithm.phase(number - 1):
            algorithm.on_phase_start(phase)
        return made(number, phase, {}, algorithm.draw_randomness(generator.manual_seed(number), number))[0]

    return step, refused


def measure_times(names: Sequence[str], device: str, network: str, engine: str, rounds: int) -> dict[str, object]:
    """Return the median seconds per step of each method, or why the engine cannot capture it."""
    together = [names] if device == "cpu" else [[name] for name in names]
    results: dict[str, object] = {}
    for group in together:
        print(f"{device}, {engine}: {', '.join(group)}", file=sys.stderr, flush=True)
        results |= _rounds(group, device, network, engine, rounds)
        if device == "cuda":
            torch.cuda.empty_cache()
    return results


def _rounds(names: Sequence[str], device: str, network: str, engine: str, rounds: int) -> dict[str, object]:
    steps = {name: make_step(*build(name, device, network), engine) for name in names}
    counts = dict.fromkeys(steps, 0)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for k in range(rounds + 3):
        for name, (step, _) in steps.items():
            wait(device)
            start = time.perf_counter()
            for _ in range(IN_A_ROW):
                counts[name] += 1
                step(counts[name])
            wait(device)
            if k >= 3:
                times[name].append((time.perf_counter() - start) / IN_A_ROW)
    return {name: refused[0] if refused else statistics.median(times[name]) for name, (_, refused) in steps.items()}


def measure_memory(names: Sequence[str], network: str) -> dict[str, float]:
    """Return the peak MiB that torch allocates on the GPU in a few steps."""
    peaks = {}
    for name in names:
        print(f"memory: {name}", file=sys.stderr, flush=True)
        _few_steps(name, network, per_domain=2)  # so that lazy loading does not count
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        _few_steps(name, network)
        peaks[name] = torch.cuda.max_memory_allocated() / 2**20
    return peaks


def _few_steps(name: str, network: str, per_domain: int = PER_DOMAIN) -> None:
    step, _ = make_step(*build(name, "cuda", network, per_domain), EAGER)
    for number in range(1, IN_A_ROW + 1):
        step(number)


def table(names: Sequence[str], device: str, network: str, rounds: int) -> dict[str, dict[str, object]]:
    """Measure all methods on a device and print the table."""
    engines = [EAGER, GRAPH] if device == "cuda" else [EAGER]
    times = {engine: measure_times(names, device, network, engine, rounds) for engine in engines}
    memory = measure_memory(names, network) if device == "cuda" else {}
    rows: dict[str, dict[str, object]] = {}
    for name in names:
        row = rows[name] = {"peak_mib": memory[name], "peak_x_erm": memory[name] / memory["erm"]} if memory else {}
        for engine in engines:
            seconds, plain = times[engine][name], times[engine]["erm"]
            if isinstance(seconds, float) and isinstance(plain, float):
                row |= {f"{engine}_ms": seconds * 1e3, f"{engine}_x_erm": seconds / plain}
            else:
                row[engine] = seconds
    times_head = "".join(f"{f'{engine} ms':>12}{'x ERM':>8}" for engine in engines)
    print(f"{'':12}{times_head}" + (f"{'peak MiB':>10}{'x ERM':>8}" if memory else ""))
    for name, row in rows.items():
        cells = "".join(
            f"{row[f'{engine}_ms']:12.2f}{row[f'{engine}_x_erm']:8.2f}" if f"{engine}_ms" in row else f"{'-':>12}{'':8}"
            for engine in engines
        )
        notes = "".join(f"  {engine}: {row[engine]}" for engine in engines if engine in row)
        if memory:
            cells += f"{row['peak_mib']:10.0f}{row['peak_x_erm']:8.2f}"
        print(f"{name:12}{cells}{notes}")
    return rows


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="Default: the CPU, and the GPU if there is one")
    parser.add_argument("--network", default="mobilenetv2_100", help="timm model, for the GPU")
    parser.add_argument("--methods", help="comma-separated names. Default: all, and coral+sam")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    chosen = arguments.methods.split(",") if arguments.methods else [*list_algorithms(), *EXTRA]
    names = list(dict.fromkeys(["erm", *map(canonical_name, chosen)]))
    torch.set_num_threads(1)
    devices = [arguments.device] if arguments.device else ["cpu"] + ["cuda"] * torch.cuda.is_available()
    report = {**header(), "network": {"cpu": networks.SMALL, "cuda": arguments.network}}
    for device in devices:
        network = networks.SMALL if device == "cpu" else arguments.network
        machine = torch.cuda.get_device_name() if device == "cuda" else f"1 of {os.cpu_count()} cores"
        print(f"\n{device}: {network}, {DOMAINS} x {PER_DOMAIN} images, {machine}, torch {torch.__version__}")
        report[device] = table(names, device, network, arguments.rounds)
    write(report, arguments.json)


if __name__ == "__main__":
    main()
