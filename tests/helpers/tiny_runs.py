"""A tiny finished run on the digits, and a process that measures it until it is killed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from swad.testbed.measure import engine
from swad.testbed.measure.saved_run import open_run
from swad.testbed.measurements.flatness import Flatness
from swad.testbed.measurements.surface import Surface
from swad.testbed.results.measurement_rows import RowFile
from swad.testbed.training.loop import RunConfig, train

NAMES = ("best", "swad", "swa")
COARSE = Flatness(images=20, radii=(0.0, 2.0, 5.0), directions=6)


def tiny(output: Path, **changes: Any) -> RunConfig:
    """40 steps of 3 x 8 images: a second."""
    settings: dict[str, Any] = {
        "dataset": "digits",
        "target": "paper",
        "steps": 40,
        "evaluate_every": 10,
        "hyperparameters": {"batch_size": 8},
        "averages": ("swad:n_converge=2", "swa"),
        "snapshots": (10, 20, 30),
    }
    return RunConfig.from_options(output=output, **{**settings, **changes})


def finished(root: Path, **changes: Any) -> Path:
    """The folder of a tiny run."""
    return train(tiny(root / "paper-0", **changes)).run_dir


def copied(folder: Path, to: Path) -> Path:
    """The run again, with nothing measured."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*.jsonl.partial", "flatness.jsonl", "surface.jsonl"))
    return to


def measure(folder: Path, what: str) -> None:
    """Measure the flatness or a surface of a run."""
    measurement = COARSE if what == "flatness" else Surface(images=20, steps=4)
    engine.measure(engine.plan([(open_run(folder), NAMES)], measurement))


def main() -> None:
    """Measure, and be killed before row number `sys.argv[3]` is whole: half of it is written."""
    torch.set_num_threads(1)
    folder, what, fatal = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    append, count = RowFile.append, 0

    def dying(self: RowFile, *rows: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        if count == fatal:
            with self.path.open("a") as file:
                file.write('{"v": 1, "key": "half a li')
            os.kill(os.getpid(), signal.SIGKILL)
        append(self, *rows)

    RowFile.append = dying  # type: ignore[method-assign]
    measure(folder, what)


if __name__ == "__main__":
    main()
