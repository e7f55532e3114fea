"""Runs of two hospitals whose predictions are often wrong, with the records that belong to them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from helpers.configs import stored
from swad.testbed.results.predictions import Part, write_predictions
from swad.testbed.results.records import Record, RecordWriter

CLASSES = ("<b>melanoma</b>", "keratosis", "nevus $")
DOMAINS = ("clinic", "lab")
FILE = "{:02}.png"


def write_runs(
    folder: Path, *, trials: int = 1, weights: tuple[str, ...] = ("best", "swad"), has_target: bool = True
) -> Path:
    """Write a run for each target and trial, or one without a target; images are files in `folder`/images."""
    for trial in range(trials):
        for target in DOMAINS if has_target else ("none",):
            _write_run(folder, target, trial, weights)
    return folder


def _write_run(folder: Path, target: str, trial: int, weights: tuple[str, ...]) -> None:
    rng = np.random.default_rng([trial, len(target)])
    parts = [
        Part(
            name,
            split,
            images,
            rng.integers(0, 3, len(images)),
            [f"{name}/{FILE.format(i)}" for i in images],
            str(folder / "images"),
        )
        for name in DOMAINS
        for split, images in (("in", np.arange(40)), ("out", np.arange(40, 50)))
        if split == "out" or name == target
    ]
    labels = np.concatenate([part.labels for part in parts])
    outputs = {}
    for number, name in enumerate(weights):
        logits = rng.normal(size=(len(labels), 3)) + (0.5 + number) * np.eye(3)[labels]
        chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        outputs[name] = chances.argmax(1), chances.astype(np.float32)
    run = folder / f"{target}-{trial}"
    config = {"dataset": "scans", "algorithm": "erm", "target": None if target == "none" else target, "trial": trial}
    with RecordWriter(run) as writer:
        for name, (predictions, _) in outputs.items():
            start = 0
            for part in parts:
                of_part = slice(start, start := start + len(part.images))
                value = float((predictions[of_part] == labels[of_part]).mean())
                for split in (part.split, "full") if part.split == "in" else (part.split,):
                    writer.append(Record(run.name, 10, part.domain, split, "accuracy", value, name))
    (run / "config.json").write_text(json.dumps(stored(config)))
    (run / "done.json").write_text("{}")
    write_predictions(run, CLASSES, parts, outputs)


def write_images(folder: Path, *domains: str) -> None:
    """Write the files of some domains."""
    for name in domains:
        (folder / "images" / name).mkdir(parents=True)
        for i in range(50):
            Image.new("RGB", (300, 200 + i), (5 * i, 90, 200)).save(folder / "images" / name / f"{i:02}.png")
