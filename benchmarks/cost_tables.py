"""Tables of time and memory from the files that the benchmarks write, for `tables.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swad.testbed.results.tables import Cell, Row, Table

RENAMED = {
    "as published: fp32, images one by one": "as published: fp32, torchvision pipeline",
    "fast images": "gpu input pipeline",
    "+ compiled, batch norms folded": "+ compiled, batch norms fused",
    "plain PyTorch: bf16, compiled": "plain PyTorch: bf16, default",
    "swad.SegmentFeed, five averages": "swad.AverageGroup, five averages",
}
"""Today's names of what older records hold."""

COSTS = {"graph": ("graph, ms", 1, 1), "eager": ("eager, ms", 1, 1), "peak": ("peak, GiB", 2, 1024)}
"""What `methods.py` measured of a step: the column, its decimals, and the divisor of the measured value."""


def costs(source: Path) -> Table:
    """Time and memory of every method's step, the cheapest first, from a file of `methods.py` for one device."""
    content = json.loads(source.read_text())
    methods = content.get("cuda") or content["cpu"]
    measured = [name for name in COSTS if f"{name}_x_erm" in methods["erm"]]
    columns = [column for name in measured for column in (COSTS[name][0], "× ERM")]
    rows = []
    for method in sorted(methods, key=lambda method: (method != "erm", methods[method][f"{measured[0]}_x_erm"])):
        cells = []
        for name in measured:
            _, decimals, divisor = COSTS[name]
            value = methods[method]["peak_mib" if name == "peak" else f"{name}_ms"]
            cells += [Cell(value / divisor, decimals=decimals), Cell(methods[method][f"{name}_x_erm"], decimals=2)]
        rows.append(Row(method, tuple(cells)))
    return Table("Cost", tuple(columns), tuple(rows), (), corner="Algorithm")


# ------------------------------------------------------------ training

PARTS = {
    "step_ms": ("step, ms", 1),
    "data_ms": ("data", 1),
    "network_ms": ("network", 1),
    "optimizer_ms": ("optimizer", 2),
    "averages_ms": ("averages", 2),
    "evaluation_ms": ("evaluation, ms", 0),
    "first_step_s": ("first step, s", 1),
}


def step_parts(source: Path) -> Table:
    """Time of a training step and its parts, each part measured alone, from a file of `training.py`."""
    rows = json.loads(source.read_text())["rows"]
    return _table(((name, _spelled(row)) for name, row in rows.items()), PARTS, "Step")


def step_sizes(source: Path) -> Table:
    """Time of a step when one size varies, from a file of `training.py --curves`."""
    names = {"images": "images of a domain", "size": "image size", "domains": "source domains", "averages": "averages"}
    curves = json.loads(source.read_text())["curves"]
    rows = [
        Row(names[key], (Cell(text=", ".join(f"{point[key]}: {point['step_ms']:.1f}" for point in points)),))
        for key, points in curves.items()
    ]
    return Table("Sizes", ("ms per step",), tuple(rows), (), corner="One size varies")


def whole_run(source: Path) -> Table:
    """Seconds of a whole run, from process start to saved averages, from a file of `training.py --whole`."""
    measured = json.loads(source.read_text())["whole"]
    rows = {
        "cold: kernels are compiled first": measured["cold_s"],
        "warm": measured["warm_s"],
        "warm, evaluations alone": measured["warm_seconds_evaluation"],
        "image cache, built once": measured["image_cache_s"],
    }
    return Table("Run", ("seconds",), tuple(Row(name, (Cell(value),)) for name, value in rows.items()), (), corner="")


PLAIN = "plain PyTorch: bf16, "


def plain_loops(*sources: Path) -> Table:
    """A captured step beside the fastest plain loop of the same run, one file of `training.py --plain` each."""
    columns = ("plain loop: step, ms", "its mode", "one CUDA graph: step, ms")
    rows = []
    for source in sources:
        content = json.loads(source.read_text())
        loops = {RENAMED.get(name, name): row["step_ms"] for name, row in content["rows"].items()}
        ours = loops["+ one CUDA graph"]
        fastest = min((name for name in loops if name.startswith(PLAIN)), key=loops.__getitem__)
        cells = (Cell(loops[fastest]), Cell(text=fastest.removeprefix(PLAIN)), Cell(ours))
        rows.append(Row(content["network"], cells))
    return Table("Plain loop", columns, tuple(rows), (), corner="Network")


def updates(source: Path) -> Table:
    """Cost of one update of an average, from a file of `averaging.py`."""
    content = json.loads(source.read_text())
    of_device = {
        "cuda": {"ms": ("GPU, ms", 2), "synchronisations": ("host waits", 0), "peak_mib": ("peak, MiB", 0)},
        "cpu": {"ms": ("CPU, ms", 1), "x_lerp": ("× lerp on the CPU", 2)},
    }
    tables = [
        _table(content[device].items(), columns, "Update") for device, columns in of_device.items() if device in content
    ]
    rows = [
        Row(parts[0].name, tuple(cell for part in parts for cell in part.cells))
        for parts in zip(*(table.rows for table in tables), strict=True)
    ]
    return Table("Update", tuple(name for table in tables for name in table.columns), tuple(rows), (), corner="Update")


def imagenet_steps(source: Path) -> Table:
    """Images per second of the ImageNet step, and of plain compiled loops, from a file of `imagenet.py`."""
    networks = json.loads(source.read_text())["steps"]
    loops = {
        "swad, averages included": lambda row: row["swad_images_per_s"],
        "swad, 2,048 images in 8 passes": lambda row: row["accumulated"]["images_per_s"],
        "plain loop, same bytes": lambda row: row["plain_bytes_images_per_s"],
        "plain loop, images ready on the GPU": lambda row: row["plain_ready_images_per_s"],
    }
    rows = (
        Row(name, tuple(Cell(value(row), decimals=0) for row in networks.values())) for name, value in loops.items()
    )
    return Table("Speed", tuple(f"{name}, images/s" for name in networks), tuple(rows), (), corner="Step")


# ------------------------------------------------------------ the lab, sweeps, reports


def perturbed(source: Path) -> Table:
    """Time of one evaluation of perturbed weights, from a file of `flatness.py`."""
    columns = {
        "ms": ("ms", 1),
        "times_faster": ("× faster", 1),
        "forward_share": ("share of a forward pass", 2),
        "peak_mib": ("peak, MiB", 0),
    }
    return _table(json.loads(source.read_text())["rows"].items(), columns, "Evaluation")


def corruption_speeds(source: Path) -> Table:
    """Images per second of every corruption, the fastest first, from a file of `imagenet.py`."""
    speeds = json.loads(source.read_text())["corruptions_images_per_s"]
    rows = tuple(
        Row(name, (Cell(speeds[name], decimals=0),)) for name in sorted(speeds, key=speeds.__getitem__, reverse=True)
    )
    return Table("Speed", ("images/s",), rows, (), corner="Corruption")


def sweep_costs(source: Path) -> Table:
    """What a sweep costs besides its runs, from a file of `sweep.py`."""
    content = json.loads(source.read_text())
    plan, overhead, cluster = content["plan"], content["overhead"], content["cluster"]
    runs, table = max(content["table"].items(), key=lambda item: int(item[0]))
    seconds = {
        f"one local worker, {overhead['runs']} runs: all of the sweep beyond its runs": overhead["sweep_s"]
        - overhead["runs_s"],
        f"expand a plan of {plan['runs']:,} runs": plan["expand_s"],
        f"read the state of {plan['runs']:,} runs": plan["summarise_s"],
        f"tabulate {int(runs):,} finished runs": table["tabulate_s"],
        f"{cluster['workers']:,} simulated workers, {cluster['runs']:,} runs of {cluster['run_s']:g} s": cluster[
            "total_s"
        ],
        f"start it again, with all {cluster['runs']:,} runs finished": cluster["resume_finished_sweep_s"],
    }
    rows = tuple(Row(name, (Cell(value, decimals=2),)) for name, value in seconds.items())
    return Table("Sweep", ("seconds",), rows, (), corner="")


def report_costs(source: Path) -> Table:
    """CPU seconds and sizes of reports of many runs, from a file of `report.py`."""
    columns = ("tables, CPU s", "tables and page, CPU s", "page, MB")
    rows = []
    for row in json.loads(source.read_text())["runs"]:
        values = (row["tables"][1], row["page"][1], row["mb"])
        rows.append(Row(f"{row['runs']:,}", tuple(map(Cell, values))))
    return Table("Report", columns, tuple(rows), (), corner="Runs")


def _table(rows: Any, columns: Mapping[str, tuple[str, int]], corner: str) -> Table:
    """Show some values of every row, each under its title and with its decimals."""
    made = tuple(
        Row(RENAMED.get(name, name), tuple(Cell(row.get(key), decimals=digits) for key, (_, digits) in columns.items()))
        for name, row in rows
    )
    return Table(corner, tuple(title for title, _ in columns.values()), made, (), corner=corner)


def _spelled(row: Mapping[str, float]) -> dict[str, float]:
    """Return a row with the keys that are spelled so since 2026-11-16."""
    return {key.replace("optimiser", "optimizer"): value for key, value in row.items()}
