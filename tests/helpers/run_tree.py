"""A plausible tree of run folders: several targets and trials, with losses that overfit."""

import json
import math
import random
from pathlib import Path

from helpers.configs import stored
from swad.testbed.results.records import Record, RecordWriter

PACS = ("art_painting", "cartoon", "photo", "sketch")
STEPS, EVERY = 1500, 50


def loss_at(step: int, rng: random.Random, hardness: float) -> float:
    fall = 1.9 * math.exp(-step / 110)
    rise = 0.28 * max(0.0, (step - 550) / 1000) ** 1.3
    return hardness * (0.35 + fall + rise) * math.exp(rng.gauss(0, 0.03))


def write_run(
    folder: Path,
    *,
    dataset: str = "PACS",
    domains: tuple[str, ...] = PACS,
    target: str = "photo",
    trial: int = 0,
    algorithm: str = "erm",
    lr: float = 5e-5,
    finished: bool = True,
    converges: bool = True,
    **settings: object,
) -> None:
    rng = random.Random(f"{dataset}{target}{trial}{algorithm}{lr}")
    name = f"{target}-{trial}"
    folder.mkdir(parents=True)
    config = {
        "dataset": dataset,
        "target": target,
        "trial": trial,
        "algorithm": algorithm,
        "steps": STEPS,
        "evaluate_every": EVERY,
        "averages": ["ema", "swa", "swad"],
        "seed": trial,
        "lr": lr,
        "backbone": "resnet50.tv_in1k",
        "batch_size": 32,
        **settings,
    }
    (folder / "config.json").write_text(json.dumps(stored(config)))
    sources = [domain for domain in domains if domain != target]
    last = STEPS if finished else STEPS // 3
    with RecordWriter(folder) as writer:
        means = []
        for step in range(EVERY, last + 1, EVERY):
            losses = [loss_at(step, rng, 0.7 + 0.25 * domains.index(domain)) for domain in sources]
            accuracies = [0.98 - 0.18 * loss for loss in losses]
            means.append((step, sum(losses) / len(losses)))
            writer.append(
                *(Record(name, step, d, "out", "loss", v) for d, v in zip(sources, losses, strict=True)),
                *(Record(name, step, d, "out", "accuracy", v) for d, v in zip(sources, accuracies, strict=True)),
                Record(name, step, None, None, "valley_loss", means[-1][1]),
                Record(name, step, None, None, "train_loss", 2 * math.exp(-step / 150)),
            )
        if converges:
            start = min(means, key=lambda pair: pair[1])[0]
            threshold = 1.3 * min(loss for _, loss in means)
            end = max(step for step, loss in means if loss <= threshold)
            writer.append(Record(name, min(start + 2 * EVERY, last), None, None, "threshold", threshold, "swad"))
        else:
            start, end = last - EVERY, last
        for metric, value in (("start_step", start), ("end_step", end), ("n_averaged", end - start + 1)):
            writer.append(Record(name, last, None, None, metric, value, "swad"))
        if not finished:
            return
        base = 0.95 - 0.07 * domains.index(target) + rng.gauss(0, 0.004)
        gains = {"best": 0.0, "last": -0.01, "ema": 0.002, "swa": 0.012, "swad": 0.024}
        for average, gain in gains.items():
            accuracy = base + gain + rng.gauss(0, 0.003)
            for split, shift in (("in", 0.0), ("out", -0.004), ("full", -0.001)):
                writer.append(Record(name, last, target, split, "accuracy", accuracy + shift, average))
                writer.append(Record(name, last, target, split, "loss", 1 - accuracy, average))
            for domain in sources:
                value = 0.95 + gain / 2 + rng.gauss(0, 0.002)
                writer.append(Record(name, last, domain, "out", "accuracy", value, average))
        writer.append(
            Record(name, last, None, None, "seconds_total", 700 + rng.random() * 50),
            Record(name, last, None, None, "seconds_per_step", 0.41 + rng.random() * 0.02),
            Record(name, last, None, None, "seconds_evaluation", 65 + rng.random() * 5),
        )
    (folder / "weights").mkdir()
    (folder / "done.json").write_text("{}")


def make_tree(root: Path, targets: tuple[str, ...] = PACS, trials: int = 3) -> Path:
    for target in targets:
        for trial in range(trials):
            write_run(root / target / f"trial-{trial}", target=target, trial=trial)
    return root
