"""Kill a sweep again and again with SIGKILL, then compare it with one that was left alone.

    python benchmarks/kills.py --kills 100 --json benchmarks/results/kills-cpu.json

Eight runs on the digits are trained twice with two workers. One sweep is left alone. The other is killed: the whole
command or one of its processes, at a random moment or as soon as a claim appears, which its worker has then not written
yet, or is just writing. The command is started again until nothing is left. Every record (but seconds) and every weight
must be equal to the bit, and no claim may be left.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from measurements import directory, header, make_parser, write
from swad.testbed.results.records import read_records

SPEC = "--algorithm erm,dann --trial 0 --steps 400 --evaluate-every 10 --averages swad,ema --checkpoint-every 10"
MOMENT = (3.0, 20.0)
"""Seconds until a kill: from the imports of the command to the last of its runs."""


def start(sweep: Path) -> subprocess.Popen[bytes]:
    """Start the command in a process group of its own. A run that kills its process again and again is tried again."""
    command = [sys.executable, "-m", "swad", "sweep", "run", *SPEC.split(), "--jobs", "2", "--retry-failed"]
    output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*command, "--output", str(sweep)], start_new_session=True, **output)


def processes(group: int) -> list[int]:
    """Return the processes of a group, from their entries in /proc."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if int(fields[2]) == group:
            found.append(int(entry.name))
    return found


def claims(sweep: Path) -> set[str]:
    """Return the claims of a sweep that are held, and not the marks of ended runs."""
    return {str(path) for path in (sweep / "claims").glob("*/*") if path.suffix[1:].isdigit()}


def wait_for_claim(sweep: Path, process: subprocess.Popen[bytes], seconds: float) -> str | None:
    """Return a claim in the moment in which it appears; None if none does."""
    before, end = claims(sweep), time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        if new := claims(sweep) - before:
            return new.pop()
    return None


def kill(sweep: Path, process: subprocess.Popen[bytes], rng: random.Random) -> str | None:
    """Kill a running sweep, or one of its processes; say what was killed and when, or None if it ended before."""
    moment = "at any time"
    if rng.random() < 0.3:
        claim = wait_for_claim(sweep, process, MOMENT[1])
        if claim is not None:
            moment = "in a claim"
    else:
        time.sleep(rng.uniform(*MOMENT))
    if process.poll() is not None:
        return None
    members = processes(process.pid)
    if rng.random() < 0.3 and len(members) > 1:
        os.kill(rng.choice([pid for pid in members if pid != process.pid]), signal.SIGKILL)
        return f"a process {moment}"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if moment == "in a claim" and any(not Path(path).stat().st_size for path in claims(sweep)):
        moment = "in an empty claim"
    return f"the command {moment}"


def kill_sweep(sweep: Path, kills: int, seed: int) -> Counter[str]:
    """Train a sweep that is killed this often, and count the kills. If it ends before, half of it is trained again."""
    rng, counts = random.Random(seed), Counter[str]()
    process = start(sweep)
    while counts.total() < kills:
        killed = kill(sweep, process, rng)
        counts.update([killed] if killed else [])
        print(f"\r{counts.total()} kills", end="", flush=True)
        if process.poll() is not None:
            if killed is None and counts.total() < kills:
                for run in sorted(path.parent for path in sweep.glob("runs/*/*/*/*/done.json"))[::2]:
                    shutil.rmtree(run)
            process = start(sweep)
    while process.wait() or len(list(sweep.glob("runs/*/*/*/*/done.json"))) < 8:
        process = start(sweep)
    print()
    return counts


def differences(first: Path, second: Path) -> list[str]:
    """List the runs whose records, weights or settings differ."""
    found = []
    runs = sorted(path.parent.relative_to(first) for path in first.glob("runs/*/*/*/*/done.json"))
    for run in runs:
        records = [
            [record for record in read_records(root / run) if not record.metric.startswith("seconds")]
            for root in (first, second)
        ]
        if records[0] != records[1] or not records[0]:
            found.append(f"{run}: records")
        for path in sorted((first / run / "weights").glob("*.safetensors")):
            ours, theirs = load_file(path), load_file(second / run / "weights" / path.name)
            if ours.keys() != theirs.keys() or not all(torch.equal(ours[name], theirs[name]) for name in ours):
                found.append(f"{run}: {path.name}")
    return found if len(runs) == 8 else [*found, f"{len(runs)} runs instead of 8"]


def measure(kills: int, seed: int) -> dict[str, Any]:
    """Compare a sweep that was killed with one that was left alone."""
    with directory() as folder:
        began = time.perf_counter()
        if start(folder / "whole").wait():
            raise RuntimeError("the sweep that is left alone has failed: run its command to see why")
        alone = time.perf_counter() - began
        counts = kill_sweep(folder / "killed", kills, seed)
        return {
            "kills": dict(counts),
            "seconds_alone": round(alone, 1),
            "seconds": round(time.perf_counter() - began - alone, 1),
            "differences": differences(folder / "whole", folder / "killed"),
            "claims_left": len(claims(folder / "killed")),
        }


def main() -> None:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    arguments = parser.parse_args()
    report = {**header(), **measure(arguments.kills, arguments.seed)}
    print(json.dumps(report))
    write(report, arguments.json)
    if report["differences"] or report["claims_left"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
