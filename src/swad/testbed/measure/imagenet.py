"""Classifiers on ImageNet, ImageNet-C, ImageNet-R and the Background Challenge, for `swad robustness`.

Each model stores its rows in a directory of its own, that of its run or the output of the command. Images are decoded
once for all models with the same input, in one stream, and the challenge stores its state every minute.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from swad.robustness import backgrounds, imagenet, imagenet_c, imagenet_r
from swad.robustness.backgrounds import CHALLENGE, PREFIX, ChallengeState
from swad.robustness.evaluation import Classifier, evaluate
from swad.robustness.imagenet import Part
from swad.testbed.measure.base import Job, MeasuredRun, Measurement, Missing, as_stored
from swad.testbed.measure.imagenet_models import ImageNetModel
from swad.testbed.results.imagenet_parts import BENCHMARK, PartResult, part_result
from swad.testbed.results.measurement_rows import ROBUSTNESS, Row
from swad.util.grouping import group_by
from swad.util.options import Bounds
from swad.util.progress import Progress, part_progress

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
class Models:
    """The models of a job, by label; they share their input."""

    by_label: Mapping[str, ImageNetModel]
    bf16: bool

    def model(self, label: str, device: torch.device) -> Classifier:
        """Load a model."""
        model = self.by_label[label]
        return Classifier(model.load(), model.input, model.classes, device=device, bf16=self.bf16)


@dataclass(frozen=True)
class ImageNet(Measurement):
    """Count the correct answers on every part of the benchmarks.

    Args:
        precision: fp32, or bf16.
        batch_size: Images of a forward pass. None: 256 on a GPU, 32 on a CPU.
        parts: The images, from `Benchmarks.parts`.
        backgrounds: Directory of the Background Challenge, if it has all that the challenge needs.
    """

    name, title, file, kind = "imagenet", "Robustness on ImageNet, %", ROBUSTNESS, BENCHMARK
    at_once = 10**6
    bounds = {"batch_size": Bounds(minimum=1)}  # noqa: RUF012
    precision: Literal["fp32", "bf16"] = "fp32"
    batch_size: int | None = None
    parts: tuple[Part, ...] = ()
    backgrounds: Path | None = None

    @property
    def by_name(self) -> dict[str, Part]:
        """The parts by name."""
        return {part.name: part for part in self.parts}

    @property
    def objects_and_backgrounds(self) -> tuple[Part, Part]:
        """The images of the challenge."""
        return self.by_name[f"{PREFIX}/original"], self.by_name[f"{PREFIX}/only_bg_t"]

    def cases(self) -> Sequence[Row]:
        """Every part, and the challenge; other images are another case."""
        cases: list[Row] = [{"part": part.name, "images": part.images.digest} for part in self.parts]
        if self.backgrounds is not None:
            digests = [part.images.digest for part in self.objects_and_backgrounds]
            cases.append({"part": CHALLENGE, "images": "-".join(digests)})
        return cases

    def n_images(self, run: MeasuredRun, case: Row) -> int:
        """Return the number of images of a part."""
        if case["part"] != CHALLENGE:
            return len(self.by_name[case["part"]].images)
        # ResNet-50 recognizes about a fifth of the objects on every background, and the others are given up soon.
        objects, behind = self.objects_and_backgrounds
        return len(objects.images) * len(behind.images) // 5

    def measure_all(self, run: MeasuredRun, missing: Missing) -> Iterator[tuple[Row, list[Row]]]:
        """Decode the images of all parts in one stream; then run the challenge."""
        of_parts = [(case, names) for case, names in missing if case["part"] != CHALLENGE]
        challenge = [(case, names) for case, names in missing if case["part"] == CHALLENGE]
        n_parts, n_challenge = (sum(len(names) for _, names in some) for some in (of_parts, challenge))
        progress = run.progress
        counted = evaluate(
            {name: cast(Any, run.model(name)) for _, names in of_parts for name in names},
            [(self.by_name[case["part"]], names) for case, names in of_parts],
            batch_size=self.batch_size,
            workers=run.workers,
            progress=part_progress(progress, 0, n_parts + n_challenge, n_parts),
        )
        for (case, _), (part, counts) in zip(of_parts, counted if of_parts else (), strict=True):
            rows = ({"weights": name, "correct": right, "n": n} for name, (right, n) in counts.items())
            yield case, [{**row, **_expected(part)} for row in rows]
        run.progress = part_progress(progress, n_parts, n_parts + n_challenge, n_challenge)
        yield from super().measure_all(run, challenge)

    def measure(self, run: MeasuredRun, case: Row, weights: Sequence[str]) -> Iterator[list[Row]]:
        """Run the challenge, model by model."""
        assert self.backgrounds is not None
        challenge = backgrounds.load_challenge(self.backgrounds, run.device, run.workers)
        objects, behind = self.objects_and_backgrounds
        for number, name in enumerate(weights):
            classifier = cast(Any, run.model(name))
            recognized = backgrounds.recognized_objects(
                partial(_predict, classifier),
                challenge,
                state=_last_state(run, name),
                batch_size=self.batch_size,
                on_round=_state_keeper(run, name),
                progress=run.part(number, len(weights)),
            )
            known = torch.isin(challenge.labels.cpu(), backgrounds.labels().known(classifier.classes))
            counts = {"correct": len(recognized), "n": int(known.sum()), "backgrounds": len(behind.images)}
            yield [{"weights": name, **counts, **_expected(objects)}]


def _predict(classifier: Classifier, images: Tensor) -> Tensor:
    return backgrounds.labels().predict(classifier(images))


def _expected(part: Part) -> dict[str, Any]:
    return {"expected": part.expected, "missing": list(part.images.missing)}


def _last_state(run: MeasuredRun, name: str) -> ChallengeState | None:
    states = [row for row in run.kept(name) if row["kind"] == STATE]
    return ChallengeState(states[-1]["position"], tuple(states[-1]["recognized"])) if states else None


def _state_keeper(run: MeasuredRun, name: str) -> Any:
    """Return a function that stores the state of the challenge, at most once a minute."""
    last = time.monotonic()

    def keep(state: ChallengeState) -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS:
            recognized = list(state.recognized)
            run.keep({"kind": STATE, "weights": name, "position": state.position, "recognized": recognized})
            last = time.monotonic()

    return keep


def plan_models(
    models: Sequence[ImageNetModel],
    benchmarks: Benchmarks,
    what: ImageNet | None = None,
    progress: Progress | None = None,
) -> list[Job]:
    """Return a job for the models of each input, for `swad.testbed.measure.engine`.

    Args:
        models: The models.
        benchmarks: Where the images are.
        what: Precision and batches.
        progress: Called while images are found.
    """
    what, parts, root = what or ImageNet(), benchmarks.parts(progress), benchmarks.backgrounds
    what = replace(what, backgrounds=None if root is None or backgrounds.missing_folders(root) else root)
    jobs = []
    for (input, is_nine), members in group_by(models, lambda model: (model.input, _has_nine_classes(model))).items():
        # A model of the nine classes can be evaluated in no other benchmark.
        own = tuple(part for part in parts if not is_nine or part.labels is backgrounds.labels())
        by_label = {model.label: model for model in members}
        for model in members:
            model.directory.mkdir(parents=True, exist_ok=True)
        job = Job(
            Models(by_label, what.precision == "bf16"),
            replace(what, parts=own),
            {label: model.fingerprint for label, model in by_label.items()},
            as_stored({BENCHMARK: "imagenet", "precision": what.precision, **input._asdict()}),
            places={label: (model.directory, model.weights) for label, model in by_label.items()},
        )
        jobs.append(job)
    return jobs


def _has_nine_classes(model: ImageNetModel) -> bool:
    return model.n_outputs == len(backgrounds.FOLDERS)


def stored_results(jobs: Sequence[Job]) -> dict[str, dict[str, PartResult]]:
    """Return what is stored of the models, by label and part; a part without an image of a model's classes is none."""
    results: dict[str, dict[str, PartResult]] = {}
    for job in jobs:
        by_case = {(row["weights"], row["part"], row["images"]): row for row in job.rows()}
        for label in job.fingerprints:
            rows = [by_case.get((label, *case.values())) for case in job.what.cases()]
            results[label] = {row["part"]: part_result(row) for row in rows if row is not None and row["n"]}
    return results
