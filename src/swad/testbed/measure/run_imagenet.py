"""Evaluate classifiers on ImageNet, ImageNet-C, ImageNet-R and the Background Challenge, and store every result.

Rows are appended to `robustness.jsonl` in the directory of each model as soon as a part is done (one corruption at one
severity), and during the challenge every minute. A command that was killed resumes there. Images are decoded once for
all models with the same input.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from swad.robustness import backgrounds, imagenet, imagenet_c, imagenet_r
from swad.robustness.backgrounds import ChallengeState
from swad.robustness.evaluation import Classifier, evaluate
from swad.robustness.imagenet import Part
from swad.testbed.measure.imagenet_models import ImageNetModel
from swad.testbed.measure.saved_run import find_device
from swad.testbed.results.imagenet_parts import BENCHMARK, PartResult, part_result
from swad.testbed.results.measurement_rows import ROBUSTNESS, Row, RowFile
from swad.util.grouping import group_by
from swad.util.names import require_choice
from swad.util.progress import Progress

STATE = "challenge-state"
SECONDS = 60.0
"""Time between stored states of the challenge."""


@dataclass(frozen=True)
class Benchmarks:
    """Where the images are.

    Args:
        imagenet: Directory with the 50,000 validation images of ImageNet in class folders, or with a folder val of
            them.
        imagenet_c: Directory of ImageNet-C: CORRUPTION/SEVERITY/CLASS, also inside noise, blur, weather, digital and
            extra.
        imagenet_r: Directory of ImageNet-R with its 200 class folders.
        backgrounds: Directory of the Background Challenge, bg_challenge.
    """

    imagenet: Path | None = None
    imagenet_c: Path | None = None
    imagenet_r: Path | None = None
    backgrounds: Path | None = None

    def parts(self, progress: Progress | None = None) -> list[Part]:
        """Find all images."""
        parts: list[Part] = []
        if self.imagenet is not None:
            parts.append(imagenet.part(self.imagenet))
            if self.imagenet_r is not None:
                parts.append(imagenet_r.clean_part(self.imagenet))
        if self.imagenet_r is not None:
            parts.append(imagenet_r.part(self.imagenet_r))
        if self.backgrounds is not None:
            parts += backgrounds.parts(self.backgrounds)
        if self.imagenet_c is not None:
            parts += imagenet_c.parts(self.imagenet_c, progress)
        return [part for part in parts if len(part.images)]


@dataclass(frozen=True)
class EvaluationConfig:
    """How to evaluate.

    Args:
        device: Device to evaluate on.
        precision: fp32, or bf16.
        batch_size: Images of a forward pass. None: 256 on a GPU, 32 on a CPU.
        workers: Processes that decode images. None: one per core on a GPU, else half of them.
    """

    device: str = "cpu"
    precision: str = "fp32"
    batch_size: int | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        require_choice("--precision", self.precision, ("fp32", "bf16"))


def measure_benchmarks(
    models: Sequence[ImageNetModel],
    benchmarks: Benchmarks,
    config: EvaluationConfig | None = None,
    progress: Progress | None = None,
) -> dict[str, dict[str, PartResult]]:
    """Evaluate models on all parts that are there, and return the results by label and part.

    Parts that are stored already are not evaluated again.

    Args:
        benchmarks: Where the images are.
        config: Device, precision and batches.
        progress: Called after every batch.
    """
    config = config or EvaluationConfig()
    parts = benchmarks.parts(progress)
    with ExitStack() as stack:
        files: dict[Path, RowFile] = {}
        for model in models:
            if model.directory not in files:
                model.directory.mkdir(parents=True, exist_ok=True)
                files[model.directory] = stack.enter_context(RowFile(model.directory, ROBUSTNESS))
        stores = [_Store(model, files[model.directory], config) for model in models]
        for group in group_by(stores, _decoding).values():
            _evaluate(group, parts, config, progress)
        results = {store.model.label: store.results(parts) for store in stores}
        if benchmarks.backgrounds is not None and not backgrounds.missing_folders(benchmarks.backgrounds):
            for label, result in _challenge(stores, benchmarks.backgrounds, parts, config, progress).items():
                results[label][backgrounds.CHALLENGE] = result
        return results


class _Store:
    """The rows of one model: those of the same weights, settings and images count."""

    def __init__(self, model: ImageNetModel, file: RowFile, config: EvaluationConfig) -> None:
        self.model, self.file, self.config = model, file, config
        self.key = file.add_settings({BENCHMARK: "imagenet", "precision": config.precision, **model.input._asdict()})

    def _mark(self, kind: str, part: str, images: str) -> Row:
        model = {"weights": self.model.weights, "fingerprint": self.model.fingerprint}
        return {"kind": kind, **model, "part": part, "images": images}

    def rows(self, kind: str, part: str, images: str) -> list[Row]:
        return self.file.rows_of(self.key, **self._mark(kind, part, images))

    def append(self, kind: str, part: str, images: str, **values: Any) -> None:
        self.file.append({"key": self.key, **self._mark(kind, part, images), **values})

    def lacks(self, part: Part) -> bool:
        """Whether to evaluate the model: one of the nine classes can be evaluated in no other benchmark."""
        answers = self.model.n_outputs != len(backgrounds.FOLDERS) or part.labels is backgrounds.labels()
        return answers and not self.rows(BENCHMARK, part.name, part.images.digest)

    def results(self, parts: Sequence[Part]) -> dict[str, PartResult]:
        found = {part.name: self.rows(BENCHMARK, part.name, part.images.digest) for part in parts}
        return {name: part_result(rows[-1]) for name, rows in found.items() if rows and rows[-1]["n"]}

    def classifier(self) -> Classifier:
        device, bf16 = find_device(self.config.device), self.config.precision == "bf16"
        return Classifier(self.model.load(), self.model.input, self.model.classes, device=device, bf16=bf16)


def _decoding(store: _Store) -> tuple[Any, ...]:
    """Return how the images of a model are decoded. Models that share it share the images, and each normalizes them."""
    input = store.model.input
    return input.size, input.crop, input.interpolation


def _evaluate(
    group: Sequence[_Store], parts: Sequence[Part], config: EvaluationConfig, progress: Progress | None
) -> None:
    by_label = {store.model.label: store for store in group}
    lacking = [(part, [label for label, store in by_label.items() if store.lacks(part)]) for part in parts]
    pending = [(part, labels) for part, labels in lacking if labels]
    if not pending:
        return
    classifiers = {label: by_label[label].classifier() for label in {name for _, names in pending for name in names}}
    counted = evaluate(classifiers, pending, batch_size=config.batch_size, workers=config.workers, progress=progress)
    for part, counts in counted:
        for label, (correct, n) in counts.items():
            by_label[label].append(BENCHMARK, part.name, part.images.digest, correct=correct, n=n, **_expected(part))


def _expected(part: Part) -> dict[str, Any]:
    return {"expected": part.expected, "missing": list(part.images.missing)}


def _challenge(
    stores: Sequence[_Store],
    root: Path,
    parts: Sequence[Part],
    config: EvaluationConfig,
    progress: Progress | None,
) -> dict[str, PartResult]:
    by_name: Mapping[str, Part] = {part.name: part for part in parts}
    objects, behind = by_name[f"{backgrounds.PREFIX}/original"], by_name[f"{backgrounds.PREFIX}/only_bg_t"]
    images = f"{objects.images.digest}-{behind.images.digest}"
    results, challenge = {}, None
    for store in stores:
        if not store.rows(BENCHMARK, backgrounds.CHALLENGE, images):
            if challenge is None:
                challenge = backgrounds.load_challenge(root, find_device(config.device), config.workers, progress)
            _run_challenge(store, challenge, objects, len(behind.images), images, progress)
        result = part_result(store.rows(BENCHMARK, backgrounds.CHALLENGE, images)[-1])
        if result.n:
            results[store.model.label] = result
    return results


def _run_challenge(
    store: _Store,
    challenge: backgrounds.Challenge,
    objects: Part,
    n_backgrounds: int,
    images: str,
    progress: Progress | None,
) -> None:
    classifier, last = store.classifier(), time.monotonic()
    states = store.rows(STATE, backgrounds.CHALLENGE, images)
    state = ChallengeState(states[-1]["position"], tuple(states[-1]["recognized"])) if states else None

    def keep(state: ChallengeState) -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS:
            recognized = list(state.recognized)
            store.append(STATE, backgrounds.CHALLENGE, images, position=state.position, recognized=recognized)
            last = time.monotonic()

    recognized = backgrounds.recognized_objects(
        lambda composed: backgrounds.labels().predict(classifier(composed)),
        challenge,
        state=state,
        batch_size=store.config.batch_size,
        on_round=keep,
        progress=progress
        and (lambda description, done, total: progress(f"{store.model.label}: {description}", done, total)),
    )
    known = torch.isin(challenge.labels.cpu(), backgrounds.labels().known(classifier.classes))
    store.append(
        BENCHMARK,
        backgrounds.CHALLENGE,
        images,
        correct=len(recognized),
        n=int(known.sum()),
        backgrounds=n_backgrounds,
        **_expected(objects),
    )
