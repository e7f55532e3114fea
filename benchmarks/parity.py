"""Is our training the published one? Target accuracies of several implementations at every evaluation, as one file.

    python benchmarks/parity.py --json benchmarks/results/parity-resnet50-h200.json \
        "published code=swad/train_output" "exact images, fp32=runs-exact" "fast images, bf16=runs-fast"

Each directory is searched for runs: ours, trained with --target-every-evaluation, or those of the published code. Kept
are the accuracy of the live weights on the target and their mean validation accuracy on the sources, which selects the
best step. `benchmarks/tables.py` makes the table.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from measurements import header, write
from swad.testbed.results.records import LIVE, RecordError
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import find_runs
from swad.testbed.results.training_curves import mean_curve, source_curves


def read_curves(run: RunData) -> dict[str, Any]:
    """Return steps, target accuracies and mean source validation accuracies of a run's live weights, in percent."""
    rows = run.frame
    rows = rows[(rows.metric == "accuracy") & (rows.split == "in") & (rows.weights == LIVE)]
    rows = rows[rows.domain == run.target]
    if rows.empty:
        raise SystemExit(f"{run.path} did not evaluate the target: train it with --target-every-evaluation")
    target = dict(zip(rows.step.tolist(), rows.value.tolist(), strict=True))
    sources = mean_curve(source_curves([run], "accuracy")[0].values())
    steps = sorted(target.keys() & sources.keys())
    return {
        "steps": steps,
        **{
            name: [round(100 * values[step], 3) for step in steps]
            for name, values in (("target", target), ("sources", sources))
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("implementations", nargs="+", metavar="NAME=DIRECTORY", help="name and runs of each")
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    arguments = parser.parse_args()
    curves, directories = {}, []
    for name, _, directory in (each.rpartition("=") for each in arguments.implementations):
        try:
            found = find_runs(directory)
        except RecordError as error:
            raise SystemExit(f"error: {error}") from None
        runs = {f"{run.target}-{run.trial}": run for run in found}
        if len(runs) < len(found):
            raise SystemExit(f"error: {directory} has several runs of one target and trial: give one of each")
        curves[name] = {key: read_curves(run) for key, run in runs.items()}
        directories.append(f'"{name}={Path(directory).name}"')
    command = " ".join(["python benchmarks/parity.py", *directories])  # without paths of the machine
    write({**header(), "command": command, "curves": curves}, arguments.json)


if __name__ == "__main__":
    main()
