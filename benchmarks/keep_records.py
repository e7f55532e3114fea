"""Keep what reports need of finished runs: settings, records and measured rows (compressed); no weights, no paths.

    python benchmarks/keep_records.py runs benchmarks/results/pacs-resnet50

Afterwards these commands show the runs from the kept files alone:

    swad report benchmarks/results/pacs-resnet50 --no-page
    swad measure flatness benchmarks/results/pacs-resnet50 --stored -o figures
    swad measure surface benchmarks/results/pacs-resnet50 --stored -o figures
    swad measure corruption benchmarks/results/pacs-resnet50 --stored -o figures
    swad measure windows benchmarks/results/pacs-resnet50 --stored -o figures

With a .json file as the destination, only the final accuracies are kept, for sweeps whose records would be large.
Other entries of the file, such as the date and the command of the sweep, stay:

    python benchmarks/keep_records.py paper-small/runs benchmarks/results/table2-digits-cpu.json

Left out, because no report uses it or because it is large:

- records of how the range of an average moved during training; the last ones stay
- losses around the single snapshots of a window, and differences on single domains
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from swad.testbed.paper.fit_on_val import FILE as FIT_ON_VAL
from swad.testbed.results.measurement_rows import FLATNESS, ROBUSTNESS, SURFACE, WINDOWS, read_rows
from swad.testbed.results.records import CONFIG, DONE, LIVE, RECORDS, RecordError
from swad.testbed.results.runs import find_runs, result_checksum
from swad.testbed.results.selection import collect_results
from swad.util.files import atomic_write, sha256, write_json, write_text
from swad.util.jsonl import compressed_path, read_lines, stored_path

PATHS = ("data_dir", "weights", "cache", "branch_from")
"""Settings that may hold paths of the machine, of which the last part is kept."""
RANGES = ("start_step", "end_step", "n_averaged", "threshold")
ROWS = (FLATNESS, SURFACE, ROBUSTNESS, WINDOWS)


def keep_runs(runs: Path, destination: Path) -> int:
    """Copy every finished run below `runs` to the same path below `destination`, and return the bytes written."""
    kept = 0
    for run in find_runs(runs):
        if not run.finished:
            print(f"skipped {run.path}, which is unfinished")
        elif not (run.path / CONFIG).exists():
            print(f"skipped {run.path}, which is of another program")
        else:
            kept += keep_run(run.path, destination / run.path.relative_to(runs))
    return kept


def keep_run(run: Path, destination: Path) -> int:
    """Copy one finished run, and return the bytes written."""
    config, done = (json.loads((run / name).read_text()) for name in (CONFIG, DONE))
    for section in config["config"].values():
        section.update({name: Path(section[name]).name for name in PATHS if section.get(name)})
    done["notes"] = [note for note in done.get("notes", ()) if "waiting for another process" not in note]  # with a path
    write_json(destination / CONFIG, config)
    write_text(destination / RECORDS, _lines(_kept_records(json.loads(line) for _, line in read_lines(run / RECORDS))))
    for name in ROWS:
        if stored_path(run / name).exists():
            # As lines of version 1, which have no checksum: gzip has one.
            rows = _lines({"v": 1, **row} for row in filter(_is_shown, read_rows(run, name)))
            with atomic_write(compressed_path(destination / name)) as partial:
                partial.write_bytes(gzip.compress(rows.encode(), mtime=0))  # the same rows give the same file
    if (run / FIT_ON_VAL).exists():
        write_json(destination / FIT_ON_VAL, json.loads((run / FIT_ON_VAL).read_text()))
    checksums = {name: sha256(destination / name) for name in (CONFIG, RECORDS)}
    write_json(destination / DONE, done | {"checksums": {**checksums, DONE: result_checksum(done)}})
    return sum(path.stat().st_size for path in destination.iterdir())


def keep_accuracies(runs: Path, destination: Path) -> int:
    """Write the accuracies in percent of all runs on one dataset into a file, and return its bytes.

    They stand by algorithm and trial, target, and weights: on the target, and as a mean over the sources.
    """
    results, *others = collect_results(find_runs(runs))
    if others:
        names = ", ".join(each.dataset for each in (results, *others))
        raise SystemExit(f"a .json file keeps one dataset; {runs} holds {names}: give the runs of one")
    on_target: dict[str, dict[str, dict[str, float]]] = {}
    on_sources: dict[str, dict[str, dict[str, float]]] = {}
    for row in results.results.itertuples():
        weights = str(None if row.weights == LIVE else row.weights)
        for content, value in ((on_target, row.value), (on_sources, row.source)):
            if value == value:
                by_target = content.setdefault(f"{row.algorithm} trial {row.trial}", {})
                by_target.setdefault(row.target, {})[weights] = round(100 * value, 10)
    entries = json.loads(destination.read_text()) if destination.exists() else {}
    entries |= {"dataset": results.dataset, "target_accuracy_in": on_target, "sources_accuracy_out": on_sources}
    write_json(destination, entries)
    return destination.stat().st_size


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def _kept_records(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    records = list(records)
    last = {(record["metric"], record["average"]): number for number, record in enumerate(records)}
    return [
        record
        for number, record in enumerate(records)
        if record["metric"] not in RANGES or last[record["metric"], record["average"]] == number
    ]


def _is_shown(row: dict[str, Any]) -> bool:
    """Whether a report shows a row: not the losses in single directions, and no mean over both sides."""
    return row["kind"] not in ("flatness", "difference") and row.get("domain", "seen") is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="directory of runs")
    parser.add_argument("destination", type=Path, help="directory for the kept files, or a .json file")
    arguments = parser.parse_args()
    keep = keep_accuracies if arguments.destination.suffix == ".json" else keep_runs
    try:
        size = keep(arguments.runs, arguments.destination)
    except RecordError as error:
        raise SystemExit(f"error: {error}") from None
    print(f"wrote {arguments.destination}, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
