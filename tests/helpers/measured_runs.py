"""Run directories with measured flatness and surfaces."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from helpers.configs import stored
from swad.testbed.results.measurement_rows import FLATNESS, SURFACE, Row, RowFile, read_rows
from swad.testbed.results.records import Record, RecordWriter
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import load_run

RADII = (0.0, 5.0, 10.0)
STEEP = {"best": 3.0, "swa": 2.0, "swad": 1.0}
ACCURACY = {"best": 0.80, "swa": 0.82, "swad": 0.85}


def write_measured_run(
    folder: Path, target: str = "photo", trial: int = 0, factor: float = 1.0, **config: object
) -> RunData:
    """Write a finished run whose flatness and plane were measured: F = factor x steepness x radius^2."""
    domains = [name for name in ("art", "cartoon", "photo") if name != target]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps(
            stored({"dataset": "PACS", "target": target, "trial": trial, "algorithm": "erm", "steps": 100} | config)
        )
    )
    with RecordWriter(folder) as writer:
        for step in (50, 100):
            for domain in domains:
                writer.append(
                    Record("r", step, domain, "out", "loss", 1.0), Record("r", step, domain, "out", "accuracy", 0.9)
                )
        for name, value in ACCURACY.items():
            writer.append(Record("r", 100, target, "in", "accuracy", value, name))
    (folder / "done.json").write_text("{}")
    with RowFile(folder, FLATNESS) as file:
        key = file.add_settings({"radii": list(RADII), "images": 10})
        for weights, steep in STEEP.items():
            for domain in (*domains, target):
                for radius in RADII:
                    mean = factor * steep * radius**2 * (2 if domain == target else 1)
                    place = {"weights": weights, "fingerprint": weights, "domain": domain, "radius": radius}
                    row = {"kind": "row", **place, "side": "unseen" if domain == target else "seen", "mean": mean}
                    file.append({"key": key, **row, "low": mean - 1, "high": mean + 2})
        file.mark_shown(key, weights=list(STEEP), fingerprints=list(STEEP))
    with RowFile(folder, SURFACE) as file:
        corners = ["step-000050", "step-000070", "step-000090"]
        content = {"corners": corners, "points": ["swad"], "seen": domains, "unseen": [target]}
        key = file.add_settings({"shape": "plane", **content})
        xs, ys = [-1.0, 0.0, 1.0, 2.0], [-1.0, 0.0, 1.5]
        file.append({"key": key, "kind": "surface", "fingerprint": "1", "xs": xs, "ys": ys, "parameters": 9})
        named = {"1": (0.0, 0.0), "2": (1.0, 0.0), "3": (0.5, 1.0), "mean": (0.5, 1 / 3), "swad": (0.4, 0.3)}
        spots = [(None, x, y) for y in ys for x in xs] + [(name, *where) for name, where in named.items()]
        for name, x, y in spots:
            losses = dict.fromkeys(domains, 0.01 + x**2 + y**2) | {target: 2.0 + x}
            point = {"kind": "surface-point", "name": name, "x": x, "y": y, "distance": 0.5 * (name == "swad")}
            file.append({"key": key, **point, "fingerprint": "1", "losses": losses, "errors": {}})
        file.mark_shown(key, fingerprints=["1"])
    return load_run(folder)


def replace_rows(directory: Path, name: str, replaced: Callable[[Row], Row]) -> None:
    """Write the rows of a file again, each as `replaced` returns it: a line that was edited has a wrong checksum."""
    rows = read_rows(directory, name)
    (directory / name).unlink()
    with RowFile(directory, name) as file:
        file.append(*map(replaced, rows))


def changed(run: RunData, weights: str, **values: object) -> RunData:
    """The run with other numbers of some weights, at the largest radius."""
    with RowFile(run.path, FLATNESS) as file:
        file.append(
            *(
                {**row, **values}
                for row in list(file.rows)
                if row["kind"] == "row" and row["weights"] == weights and row["radius"] == RADII[-1]
            )
        )
    return run
