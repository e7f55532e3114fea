"""Directories as DomainBed's launcher leaves them, with random accuracies: the same for everyone.

`python tests/helpers/domainbed_sweep.py FOLDER` writes the sweep. The numbers in
`tests/testbed/results/domainbed_golden.json` are what DomainBed's own `collect_results` and `model_selection` (version
b93c22a) make of it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import sys
from pathlib import Path
from typing import Any

SIZES = {"PACS": 4, "VLCS": 4, "RotatedMNIST": 6, "ColoredMNIST": 3}
ALGORITHMS = ("ERM", "CORAL")
SEEDS = (0, 2, 10)
"""As numbers they have another order than as text."""
STEPS = (0, 300, 600, 900, 1000)


def accuracy(draw: random.Random, coarse: bool) -> float:
    """A coarse accuracy makes ties, also such that only the order of additions breaks."""
    return draw.randrange(1, 10) / 10 if coarse else draw.random()


def line(args: dict[str, Any], step: int, accuracies: dict[str, float]) -> str:
    content = {
        "args": args,
        "hparams": {"lr": 10.0 ** -(3 + args["hparams_seed"] / 10), "batch_size": 32, "resnet18": False},
        "step": step,
        "epoch": step / 100,
        "loss": 1.0,
        "step_time": 0.1,
        "mem_gb": 0.0,
        **accuracies,
    }
    return json.dumps(content, sort_keys=True) + "\n"


def write_run(
    root: Path, draw: random.Random, args: dict[str, Any], n_domains: int, n_lines: int, coarse: bool
) -> None:
    name = hashlib.md5(json.dumps(args, sort_keys=True).encode(), usedforsecurity=False).hexdigest()
    folder = root / name
    folder.mkdir(parents=True)
    lines = [
        line(
            args,
            step,
            {
                f"env{i}_{split}_acc": accuracy(draw, coarse)
                for i, split in itertools.product(range(n_domains), ("in", "out"))
            },
        )
        for step in STEPS[:n_lines]
    ]
    (folder / "results.jsonl").write_text("".join(lines))
    if n_lines == len(STEPS):
        (folder / "done").write_text("done")


def write_sweep(root: Path, seed: int = 0) -> Path:
    """Single targets and pairs, three trials, three draws; some runs are unfinished and some are missing."""
    draw = random.Random(seed)
    for (dataset, size), algorithm, trial, hparams_seed in itertools.product(
        SIZES.items(), ALGORITHMS, range(3), SEEDS
    ):
        coarse = dataset != "VLCS"
        for targets in (*([i] for i in range(size)), *map(list, itertools.combinations(range(size), 2))):
            args = {
                "algorithm": algorithm,
                "dataset": dataset,
                "holdout_fraction": 0.2,
                "hparams_seed": hparams_seed,
                "seed": draw.randrange(2**31),
                "steps": 1001,
                "task": "domain_generalization",
                "test_envs": targets,
                "trial_seed": trial,
                "uda_holdout_fraction": 0,
            }
            fate = draw.random()
            missing = fate < 0.04 or (dataset == "ColoredMNIST" and algorithm == "CORAL" and targets == [1])
            n_lines = draw.randrange(1, len(STEPS)) if fate > 0.92 else len(STEPS)
            if not missing:
                write_run(root, draw, args, size, n_lines, coarse)
    return root


def write_auto_lr(root: Path, seed: int = 0) -> Path:
    """Runs of ERM++: a training as usual, then lines of a second one on all images, in the same file."""
    draw = random.Random(seed)
    for trial, hparams_seed, target in itertools.product(range(2), SEEDS, range(4)):
        args: dict[str, Any] = {
            "algorithm": "ERMPlusPlus",
            "auto_lr": True,
            "dataset": "PACS",
            "hparams_seed": hparams_seed,
            "test_envs": [target],
            "trial_seed": trial,
        }
        lines = []
        for holdout, prefix, splits in ((0.2, "", ("in", "out")), (0.0, "fd_", ("in",))):
            for step in STEPS:
                names = (f"{prefix}env{i}_{split}_acc" for i, split in itertools.product(range(4), splits))
                accuracies = {name: accuracy(draw, coarse=True) for name in names}
                lines.append(line({**args, "holdout_fraction": holdout}, step, accuracies))
        folder = root / f"{trial}-{hparams_seed}-{target}"
        folder.mkdir(parents=True)
        (folder / "results.jsonl").write_text("".join(lines))
        (folder / "done").write_text("done")
    return root


def write_published(folder: Path, seed: int = 0) -> Path:
    """A directory of the published SWAD code: the lines of all targets of PACS, one after the other."""
    draw = random.Random(seed)
    folder.mkdir(parents=True)
    lines = []
    for target in range(4):
        for step in range(0, 501, 100):
            accuracies = {f"env{i}_out": draw.random() for i in range(4)} | {f"env{target}_in": draw.random()}
            args = {
                "algorithm": "ERM",
                "dataset": "PACS",
                "holdout_fraction": 0.2,
                "real_test_envs": [target],
                "steps": None,
                "test_envs": [[i] for i in range(4)],
                "trial_seed": 1,
                "unique_name": folder.name,
            }
            sources = [accuracies[f"env{i}_out"] for i in range(4) if i != target]
            summaries = {"train_out": sum(sources) / 3, "test_in": accuracies[f"env{target}_in"], "tr_outloss": 0.5}
            content = {"args": args, "hparams": {"lr": 5e-5, "swad": True}, "step": step, **summaries, **accuracies}
            lines.append(json.dumps(content) + "\n")
    (folder / "results.jsonl").write_text("".join(lines))
    return folder


if __name__ == "__main__":
    write_sweep(Path(sys.argv[1]) / "sweep")
    write_auto_lr(Path(sys.argv[1]) / "auto_lr")
