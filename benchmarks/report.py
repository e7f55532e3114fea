"""What tables and page of many finished runs cost: `swad report` without and with its page.

    python benchmarks/report.py --counts 500 1000 2000 5000 --json benchmarks/results/report-cpu.json

Each count is measured in new processes, from the command line as a user runs it. Wall-clock and CPU seconds are given,
because on a busy machine wall-clock time says little.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measurements import header, make_parser, write
from synthetic_runs import write_runs


def measure(*arguments: str | Path) -> tuple[float, float]:
    """Return wall-clock and CPU seconds of a `swad` command."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "swad", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return round(time.perf_counter() - start, 2), round(cpu, 2)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[500, 1000, 2000, 5000], help="Numbers of runs.")
    arguments = parser.parse_args()
    report = {**header(), "runs": (rows := [])}
    print(f"{'runs':>6} {'tables, s':>18} {'tables and page, s':>20} {'page, MB':>9}")
    for count in arguments.counts:
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory, "runs")
            write_runs(root, count)
            tables = measure("report", root, "--no-page")
            page = measure("report", root)
            size = round((root / "report.html").stat().st_size / 1e6, 1)
        texts = [f"{wall:.1f} ({cpu:.1f} CPU)" for wall, cpu in (tables, page)]
        print(f"{count:6} {texts[0]:>18} {texts[1]:>20} {size:9}", flush=True)
        rows.append({"runs": count, "tables": tables, "page": page, "mb": size})
        write(report, arguments.json)


if __name__ == "__main__":
    main()
