"""Finished runs of the paper's datasets with stated accuracies, without training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from swad.testbed.averages.registry import parse_all
from swad.testbed.data import benchmarks
from swad.testbed.paper.paper_config import PaperConfig
from swad.testbed.paper.reproduce import item_specs
from swad.testbed.paper.reproduction import Reproduction
from swad.testbed.results.records import Record, RecordWriter
from swad.testbed.sweep.directory import SweepDir
from swad.testbed.training.config import RunConfig

Accuracy = Callable[[RunConfig, str], float]
"""``accuracy(config, weights)`` on the target; that on validation and test images of the sources is 0.1 higher."""


def write_stated_runs(items: Iterable[Reproduction], config: PaperConfig, accuracy: Accuracy) -> int:
    """Write every run that the items need and that is known now; return their number."""
    plan = SweepDir(config.output).plan(item_specs(items, config))
    for run in plan.runs:
        write_stated_run(run.config, accuracy)
    return len(plan.runs)


def write_stated_run(config: RunConfig, accuracy: Accuracy) -> None:
    """Write one finished run."""
    folder, target = config.output, config.targets[0]
    if (folder / "done.json").exists():
        return
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.to_json()))
    sources = [name for name in benchmarks.get(config.dataset).domains if name != target]
    names = ["best", "last", *(spec.label for spec in parse_all(config.averages))]
    with RecordWriter(folder) as writer:
        for name in names:
            value = accuracy(config, name)
            writer.append(
                Record(config.name, 100, target, "in", "accuracy", value, name),
                *(
                    Record(config.name, 100, source, split, "accuracy", value + 0.1, name)
                    for source in sources
                    for split in ("out", "test")
                ),
            )
    (folder / "done.json").write_text("{}")
