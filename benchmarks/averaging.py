"""Time and memory of one update of an average, compared with other libraries.

    python benchmarks/averaging.py                       # the CPU, and the GPU if there is one
    python benchmarks/averaging.py --device cuda --json benchmarks/results/averaging-h200.json

All contenders average the same ResNet-50 (161 tensors, 25.6 M parameters). Rounds are interleaved and medians are
reported, so that the ratios are valid on a busy machine too; absolute times depend on the machine. On a GPU it also
compares the update captured in a CUDA graph with the bandwidth limit, measures its share of a bf16 training step of 96
images, and counts how often an update waits for the device.
"""

from __future__ import annotations

import copy
import multiprocessing
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_swa_multi_avg_fn

from measurements import captured, header, make_parser, wait, write
from swad import EMA, SMA, SWAD, AverageGroup

BARE = "torch._foreach_lerp_ alone"


def resnet50(device: str) -> nn.Module:
    import timm

    return timm.create_model("resnet50", pretrained=False).to(device)


def bare_lerp(model: nn.Module) -> Callable[[], None]:
    mean = [p.detach().clone() for p in model.parameters()]
    live = [p.detach() for p in model.parameters()]
    return lambda: torch._foreach_lerp_(mean, live, 0.01)


def bare_add(model: nn.Module) -> Callable[[], None]:
    total = [torch.zeros_like(p) for p in model.parameters()]
    live = [p.detach() for p in model.parameters()]
    return lambda: torch._foreach_add_(total, live)


def parameter_loop(model: nn.Module) -> Callable[[], None]:
    mean = copy.deepcopy(model)
    count = torch.zeros((), dtype=torch.long, device=next(model.parameters()).device)

    @torch.no_grad()
    def update() -> None:
        for averaged, live in zip(mean.parameters(), model.parameters(), strict=True):
            averaged.copy_(averaged + (live - averaged) / (count + 1))
        count.add_(1)

    return update


def averaged_model(model: nn.Module, **options: object) -> Callable[[], None]:
    average = AveragedModel(model, **options)
    return lambda: average.update_parameters(model)


def ours(make: Callable[[nn.Module], SWAD | EMA | AverageGroup]) -> Callable[[nn.Module], Callable[[], None]]:
    def prepare(model: nn.Module) -> Callable[[], None]:
        average = make(model)

        def update() -> None:
            average.update_parameters(model)

        update.average = average  # type: ignore[attr-defined]
        return update

    return prepare


def five(model: nn.Module) -> AverageGroup:
    swads = {name: SWAD(model, semantics=name) for name in ("paper", "text", "reference")}
    return AverageGroup(model, {**swads, "tight": SWAD(model, tolerance_ratio=0.2), "sma": SMA(model, start=0)})


CONTENDERS: dict[str, Callable[[nn.Module], Callable[[], None]]] = {
    BARE: bare_lerp,
    "torch._foreach_add_ alone": bare_add,
    "swad.SWAD": ours(SWAD),
    "swad.AverageGroup, five averages": ours(five),
    "swad.EMA": ours(EMA),
    "AveragedModel(multi_avg_fn=...)": lambda m: averaged_model(m, multi_avg_fn=get_swa_multi_avg_fn()),
    "AveragedModel()": averaged_model,
    "per-parameter loop": parameter_loop,
}


def measure_times(device: str, rounds: int) -> dict[str, float]:
    """Median seconds per update of each contender, in interleaved rounds."""
    model = resnet50(device)
    updates = {name: prepare(model) for name, prepare in CONTENDERS.items()}
    times: dict[str, list[float]] = {name: [] for name in updates}
    for k in range(rounds + 3):
        for name, update in updates.items():
            wait(device)
            start = time.perf_counter()
            update()
            wait(device)
            if k >= 3:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def measure_memory(device: str) -> dict[str, float]:
    """Peak MiB above the model while building the average and using it, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    peaks = {}
    for name in CONTENDERS:
        queue = context.SimpleQueue()
        process = context.Process(target=_peak, args=(name, device, queue))
        process.start()
        peaks[name] = queue.get()
        process.join()
    return peaks


def _peak(name: str, device: str, queue: object) -> None:
    model = resnet50(device)
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    else:
        CONTENDERS["torch._foreach_add_ alone"](nn.Linear(1, 1))()  # warm up what torch loads lazily
        Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
        before = _resident("VmRSS")
    update = CONTENDERS[name](model)
    for k in range(14):  # evaluations of a falling, then constant loss make SWAD allocate all its buffers
        update()
        if hasattr(update, "average"):
            update.average.observe(max(1.0, 5.0 - k))
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else _resident("VmHWM")
    queue.put((peak - before) / 2**20)  # type: ignore[attr-defined]


def _resident(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def count_synchronizations() -> dict[str, float]:
    """How often an update of each contender makes the host wait for the device, as torch itself reports it."""
    model = resnet50("cuda")
    counts = {}
    for name, prepare in CONTENDERS.items():
        update = prepare(model)
        update()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            for _ in range(10):
                update()
            torch.cuda.set_sync_debug_mode("default")
        counts[name] = sum("called a synchronizing" in str(warning.message) for warning in caught) / 10
    return counts


def measure_gpu() -> dict[str, float]:
    """Compare the captured update with the bandwidth limit, and measure its share of a training step."""
    model = resnet50("cuda").to(memory_format=torch.channels_last)
    averager = SWAD(model)
    averager.update_parameters(model)

    update_graph = _event_ms(captured(lambda: averager.update_parameters(model), warm_up=2), 300)
    averager.count_replays(300)
    update_eager = _event_ms(lambda: averager.update_parameters(model), 100)

    n = sum(p.numel() for p in model.parameters())
    moved = 3 * 4 * n  # read the weights, read the sum, write the sum
    big = [torch.empty(2**30, dtype=torch.uint8, device="cuda") for _ in range(2)]
    bandwidth = 2 * 2**30 / (_event_ms(lambda: big[0].copy_(big[1]), 50) / 1e3)
    floor = moved / bandwidth * 1e3

    images = torch.randn(96, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (96,), device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), 5e-5, fused=True, capturable=True)
    model.eval()  # frozen statistics, as in the protocol

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    results: dict[str, float] = {}
    for name, function in (("eager", step), ("graph", None), ("graph_compiled", None)):
        if function is None:
            if name == "graph_compiled":
                model.compile()
            function = captured(step, warm_up=4)
        results[f"step_{name}_ms"] = _event_ms(function, 30)
    results |= {
        "update_eager_ms": update_eager,
        "update_graph_ms": update_graph,
        "floor_ms": floor,
        "bandwidth_tb_per_s": bandwidth / 1e12,
        "update_graph_over_floor": update_graph / floor,
        "share_of_eager_step": update_eager / results["step_eager_ms"],
        "share_of_graph_step": update_graph / results["step_graph_ms"],
        "share_of_compiled_graph_step": update_graph / results["step_graph_compiled_ms"],
    }
    return results


def _event_ms(function: Callable[[], object], repeats: int) -> float:
    """Milliseconds per call between two events around many calls, the best of five rounds."""
    for _ in range(3):
        function()
    best = float("inf")
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        for _ in range(repeats):
            function()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / repeats)
    return best


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="Default: the CPU, and the GPU if there is one")
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    devices = [arguments.device] if arguments.device else ["cpu"] + ["cuda"] * torch.cuda.is_available()
    report = header()
    for device in devices:
        times, memory = measure_times(device, arguments.rounds), measure_memory(device)
        rows = {
            name: {"ms": times[name] * 1e3, "x_lerp": times[name] / times[BARE], "peak_mib": memory[name]}
            for name in CONTENDERS
        }
        print(f"\n{device}: ResNet-50, {torch.get_num_threads()} CPU threads, torch {torch.__version__}")
        if device == "cuda":
            for name, count in count_synchronizations().items():
                rows[name]["synchronizations"] = count
        print(f"{'':34}{'ms':>8}{'x lerp':>8}{'peak MiB':>10}" + f"{'syncs':>8}" * (device == "cuda"))
        for name, row in rows.items():
            syncs = f"{row['synchronizations']:8.0f}" if device == "cuda" else ""
            print(f"{name:34}{row['ms']:8.2f}{row['x_lerp']:8.2f}{row['peak_mib']:10.0f}{syncs}")
        report[device] = rows
        if device == "cuda":
            report["cuda_details"] = details = measure_gpu()
            print()
            for key, value in details.items():
                print(f"{key:34}{value:10.4f}")
    write(report, arguments.json)


if __name__ == "__main__":
    main()
