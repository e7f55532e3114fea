"""Finished runs that no one trained, for benchmarks and tests of results at scale.

Their records are those of a ResNet run in number and kind: 50 evaluations, four domains, five averages. Accuracies
depend on algorithm, learning rate and target, so selection, the table and the page have something to show.

    python benchmarks/synthetic_runs.py DIRECTORY 5000
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from swad.testbed.results.records import Record
from swad.testbed.results.run_data import RunData
from swad.testbed.training.config import FORMAT, SETTINGS

DATASETS = {
    "PACS": ("art_painting", "cartoon", "photo", "sketch"),
    "VLCS": ("Caltech101", "LabelMe", "SUN09", "VOC2007"),
    "OfficeHome": ("Art", "Clipart", "Product", "Real"),
    "TerraIncognita": ("L100", "L38", "L43", "L46"),
}
ALGORITHMS = {"erm": 0.0, "coral": 0.012, "mixup": 0.004, "group_dro": -0.008, "sam": 0.009}
AVERAGES = {"best": 0.0, "last": -0.01, "ema": 0.004, "swa": 0.014, "swad": 0.026}
EVALUATIONS, EVERY = 50, 100


def settings(
    dataset: str,
    target: str | Sequence[str],
    trial: int,
    algorithm: str,
    lr: float,
    weight_decay: float,
    dropout: float,
) -> dict[str, Any]:
    """Return the settings of a run by name."""
    return {
        "dataset": dataset,
        "target": target if isinstance(target, str) else list(target),
        "trial": trial,
        "split": "80/20",
        "network": "resnet50",
        "weights": "pretrained",
        "algorithm": algorithm,
        "hyperparameters": {"lr": lr, "batch_size": 32, "weight_decay": weight_decay, "dropout": dropout},
        "steps": EVALUATIONS * EVERY,
        "lr_schedule": "constant",
        "seed": trial,
        "precision": "bf16",
        "averages": ["ema", "swa", "swad"],
        "evaluate_every": EVERY,
        "device": "cuda",
    }


def records(config: dict[str, Any], seed: str) -> Iterator[Record]:
    """Yield the records of a run, in the order in which training writes them."""
    rng = random.Random(seed)
    gauss = rng.gauss
    targets = config["target"] if isinstance(config["target"], list) else [config["target"]]
    domains = DATASETS[config["dataset"]]
    sources = [name for name in domains if name not in targets]
    name = f"{'+'.join(targets)}-{config['trial']}"
    chosen = config["hyperparameters"]
    # The best learning rate is 3e-5, and a little weight decay helps.
    quality = ALGORITHMS.get(config["algorithm"], 0.0) - 0.03 * math.log10(chosen["lr"] / 3e-5) ** 2
    quality += 0.004 * (chosen["weight_decay"] > 0) - 0.01 * chosen["dropout"] + gauss(0, 0.003)
    last = EVALUATIONS * EVERY
    start = EVERY * rng.randint(8, 14)
    end = EVERY * rng.randint(25, 45)
    for step in range(EVERY, last + 1, EVERY):
        fall, rise = math.exp(-step / 500), 0.3 * max(0.0, step - 2500) / 2500
        losses = [(0.3 + 1.9 * fall + rise) * math.exp(gauss(0, 0.03)) for _ in sources]
        for domain, loss in zip(sources, losses, strict=True):
            yield Record(name, step, domain, "out", "loss", loss)
            yield Record(name, step, domain, "out", "accuracy", min(0.9 + quality - 0.6 * fall + gauss(0, 0.004), 1.0))
        yield Record(name, step, None, None, "valley_loss", math.fsum(losses) / len(losses))
        yield Record(name, step, None, None, "train_loss", 2 * fall + 0.05)
        if start <= step <= end:
            yield Record(name, step, None, None, "start_step", start, "swad")
            yield Record(name, step, None, None, "end_step", step, "swad")
            yield Record(name, step, None, None, "n_averaged", step - start + 1, "swad")
        if step == start + 2 * EVERY:
            yield Record(name, step, None, None, "threshold", 0.55, "swad")
    for average, gain in AVERAGES.items():
        for domain in domains:
            hard = 0.15 + 0.05 * domains.index(domain) if domain in targets else 0.0
            accuracy = 0.9 + quality + (gain if domain in targets else gain / 3) - hard + gauss(0, 0.006)
            for split in ("in", "out", "full") if domain in targets else ("out",):
                yield Record(name, last, domain, split, "loss", 1 - accuracy, average)
                yield Record(name, last, domain, split, "accuracy", min(accuracy + gauss(0, 0.002), 1.0), average)
    yield Record(name, last, None, None, "seconds_total", 2400 + gauss(0, 60))
    yield Record(name, last, None, None, "seconds_per_step", 0.4 + gauss(0, 0.01))
    yield Record(name, last, None, None, "seconds_evaluation", 300 + gauss(0, 10))


def configs(
    count: int,
    datasets: Sequence[str] = tuple(DATASETS),
    algorithms: Sequence[str] = tuple(ALGORITHMS),
    trials: int = 3,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the directory and settings of `count` runs: every method, dataset, target and trial, then further draws."""
    cells = [
        (dataset, algorithm, target, trial)
        for dataset in datasets
        for algorithm in algorithms
        for target in DATASETS[dataset]
        for trial in range(trials)
    ]
    for number in range(count):
        dataset, algorithm, target, trial = cells[number % len(cells)]
        draw = number // len(cells)
        rng = random.Random(f"{algorithm}{draw}")
        lr = (1e-5, 3e-5, 5e-5)[draw % 3] if draw < 18 else 10 ** rng.uniform(-5, -3.5)
        weight_decay, dropout = (0.0, 1e-4, 1e-6)[draw // 3 % 3], (0.0, 0.1, 0.5)[draw // 9 % 3]
        name = f"{dataset}/{algorithm}/{target}-{trial}/{draw:04d}"
        yield name, settings(dataset, target, trial, algorithm, lr, weight_decay, dropout)


def stored_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the content of `config.json`."""
    roles = {name: SETTINGS[name].role for name in config}
    return {"format": FORMAT, "config": {"settings": config}, "roles": roles}


def run_in_memory(name: str, config: dict[str, Any]) -> RunData:
    """Return a run without files."""
    return RunData(Path("runs", name), config, tuple(records(config, name)), True, stored_config(config)["roles"])


def write_run(directory: Path, config: dict[str, Any], seed: str) -> None:
    """Write a finished run with its checksums."""
    directory.mkdir(parents=True)
    texts = {
        "config.json": json.dumps(stored_config(config), indent=2) + "\n",
        "records.jsonl": "".join(f"{record.line()}\n" for record in records(config, seed)),
    }
    checksums = {}
    for name, text in texts.items():
        (directory / name).write_text(text)
        checksums[name] = hashlib.sha256(text.encode()).hexdigest()
    (directory / "done.json").write_text(json.dumps({"warnings": [], "checksums": checksums}))


def write_runs(root: Path, count: int, **options: Any) -> None:
    """Write `count` finished runs below `root`; the options are those of `configs`."""
    for name, config in configs(count, **options):
        write_run(root / name, config, name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write finished runs that no one trained.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("count", type=int)
    arguments = parser.parse_args()
    write_runs(arguments.directory, arguments.count)
