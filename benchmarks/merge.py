"""Memory and time of merging 20 ResNet-50 checkpoints, against a plain loop of torch.load.

    python benchmarks/merge.py --json benchmarks/results/merge-cpu.json

Every way runs in a process of its own, which reports the peak of its resident memory above that before the merge, in
copies of the weights (102 MB). Pages of mapped files count. The checkpoints, random weights, are in memory (/dev/shm)
where there is such a place, so that the disk is not measured. The ways take turns for several rounds; the median times
and the highest peak are reported. CPU seconds hold on a busy machine too. All results are compared with the mean in
double precision.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import swad
from measurements import directory, header, make_parser, write

N = 20


def load_all(paths: Sequence[Path], output: Path) -> dict[str, torch.Tensor]:
    """The usual script: load every file, then average."""
    states = [torch.load(path, map_location="cpu") for path in paths]
    return {
        name: torch.stack([state[name] for state in states]).mean(0) if value.is_floating_point() else value
        for name, value in states[-1].items()
    }


def running_sum(paths: Sequence[Path], output: Path) -> dict[str, torch.Tensor]:
    """A careful script: load one file after another and add it up."""
    total: dict[str, torch.Tensor] = {}
    for path in paths:
        for name, value in torch.load(path, map_location="cpu").items():
            if name in total and value.is_floating_point():
                total[name] += value
            else:
                total[name] = value
    return {name: value.div_(len(paths)) if value.is_floating_point() else value for name, value in total.items()}


def merged(paths: Sequence[Path], output: Path) -> dict[str, torch.Tensor]:
    return swad.merge(paths)


def merged_and_written(paths: Sequence[Path], output: Path) -> dict[str, torch.Tensor]:
    return swad.merge(paths, output)


WAYS: dict[str, tuple[Callable[..., Any], str]] = {
    "torch.load of all, then the mean": (load_all, "pt"),
    "torch.load one by one, running sum": (running_sum, "pt"),
    "swad.merge, torch files": (merged, "pt"),
    "swad.merge, safetensors": (merged, "safetensors"),
    "swad.merge, safetensors, and write the result": (merged_and_written, "safetensors"),
}


def write_checkpoints(folder: Path) -> tuple[int, dict[str, torch.Tensor]]:
    """Write the checkpoints in both formats; return the size of one and their mean in double precision."""
    import timm
    from safetensors.torch import save_file

    mean: dict[str, torch.Tensor] = {}
    for k in range(N):
        torch.manual_seed(k)
        state = timm.create_model("resnet50", pretrained=False).state_dict()
        torch.save(state, folder / f"{k:02}.pt")
        save_file(state, folder / f"{k:02}.safetensors")
        for name, value in state.items():
            mean[name] = mean.get(name, 0) + value.double() / N
    return sum(value.nbytes for value in state.values()), mean


def measure(name: str, folder: Path) -> dict[str, float]:
    """Return seconds and peak bytes of one way, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=_measure, args=(name, folder, queue))
    process.start()
    result = queue.get()
    process.join()
    return result  # type: ignore[no-any-return]


def _measure(name: str, folder: Path, queue: Any) -> None:
    way, suffix = WAYS[name]
    warm_up = folder / f"warm-up-{suffix}"
    way([warm_up.with_suffix(f".{suffix}")], folder / "warm-up.safetensors")  # what torch and swad load lazily
    paths = sorted(folder.glob(f"[0-9]*.{suffix}"))
    Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
    before, start, cpu_start = _resident("VmRSS"), time.perf_counter(), time.process_time()
    state = way(paths, folder / "merged.safetensors")
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    peak = _resident("VmHWM") - before
    expected = torch.load(folder / "mean.pt")
    error = max((state[key].double() - expected[key]).abs().max().item() for key in expected if "num_b" not in key)
    queue.put({"seconds": seconds, "cpu_seconds": cpu_seconds, "bytes": peak, "error": error})


def _resident(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    report = header()
    with directory() as folder:
        size, mean = write_checkpoints(folder)
        torch.save(mean, folder / "mean.pt")
        from safetensors.torch import save_file

        torch.save({"w": torch.ones(3)}, folder / "warm-up-pt.pt")
        save_file({"w": torch.ones(3)}, folder / "warm-up-safetensors.safetensors")
        rounds = [{name: measure(name, folder) for name in WAYS} for _ in range(arguments.rounds)]
    report |= {"checkpoints": N, "bytes_of_one": size, "ways": {}}
    print(f"{N} ResNet-50 checkpoints of {size / 1e6:.0f} MB")
    for name in WAYS:
        row = {key: statistics.median(each[name][key] for each in rounds) for key in ("seconds", "cpu_seconds")}
        row["peak_copies"] = max(each[name]["bytes"] for each in rounds) / size
        row["largest_error"] = max(each[name]["error"] for each in rounds)
        report["ways"][name] = row
        print(
            f"{name:48}{row['seconds']:7.2f} s{row['cpu_seconds']:7.2f} CPU s{row['peak_copies']:7.2f} copies"
            f"{row['largest_error']:10.1e} largest error"
        )
    write(report, arguments.json)


if __name__ == "__main__":
    main()
