"""How robust are a run's saved weights? Errors under the corruptions of ImageNet-C, on seen and unseen domains.

No download is needed: the run's own images are corrupted on the device, validation images of the sources and all images
of the target. Every set of weights sees the same corrupted images. Rows are appended to `robustness.jsonl` in the run
directory after each corruption and severity, so an interrupted measurement resumes there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swad.data.transforms import Normalize
from swad.experiments.saved_run import SavedRun, find_device
from swad.results.corruption_errors import ROBUSTNESS
from swad.results.flatness_rows import Row, RowFile
from swad.robustness.corruptions import CORRUPTIONS, SEVERITIES, VERSION, corrupt
from swad.util.names import did_you_mean
from swad.util.progress import Progress


@dataclass(frozen=True)
class CorruptionConfig:
    """The settings of a measurement.

    Args:
        corruptions: Names of corruptions. Default: all 15.
        severities: Severities from 1 to 5. Uncorrupted images are always measured too.
        n_images: Images of every domain, stratified by class. None: all.
        seed: Seed of the corruptions.
    """

    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    severities: tuple[int, ...] = SEVERITIES
    n_images: int | None = 200
    seed: int = 0

    def __post_init__(self) -> None:
        problems = [
            f"there is no corruption {name!r}: {did_you_mean(name, CORRUPTIONS) or ', '.join(CORRUPTIONS)}"
            for name in self.corruptions
            if name not in CORRUPTIONS
        ]
        if not self.severities or any(severity not in SEVERITIES for severity in self.severities):
            problems.append(f"severities must be from 1 to 5, got {', '.join(map(str, self.severities)) or 'none'}")
        if problems:
            raise ValueError("; ".join(problems))

    def cases(self) -> Iterator[tuple[str, int]]:
        """Every corruption and severity; first the images as they are."""
        yield "none", 0
        yield from ((name, severity) for name in self.corruptions for severity in self.severities)

    def settings(self) -> dict[str, Any]:
        """The settings that identify stored rows. Further corruptions and severities extend a measurement."""
        return {"images": self.n_images, "seed": self.seed, "version": VERSION}


@dataclass(frozen=True)
class _DomainImages:
    name: str
    side: str
    values: Tensor
    """Bytes, before normalization."""
    labels: Tensor
    indices: Tensor
    """Numbers of the images in their domain: the same images are corrupted alike in every run."""


def measure_corruptions(
    run: SavedRun,
    names: Sequence[str],
    config: CorruptionConfig | None = None,
    *,
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Measure the errors of some of a run's weights; rows that are stored already are not measured again.

    Args:
        names: Names of weights, such as best and swad.
        config: Corruptions, severities and images.
        device: Device to measure on.
        workers: Processes that read images.
        progress: Called after every corruption and severity.
    """
    config = config or CorruptionConfig()
    fingerprints = {run.full_name(name): run.fingerprint(name) for name in names}
    cases = list(config.cases())
    with RowFile(run.path, ROBUSTNESS) as file:
        key = file.add_settings(config.settings())
        done = {_identity(row) for row in file.rows_of(key, kind="error")}
        missing = [
            (case, [name for name, mark in fingerprints.items() if (*case, name, mark) not in done]) for case in cases
        ]
        if any(weights for _, weights in missing):
            with torch.inference_mode():
                _measure(run, file, key, config, fingerprints, missing, device, workers, progress)
        file.mark_shown(key, weights=list(fingerprints))
        wanted = {(*case, name, mark) for case in cases for name, mark in fingerprints.items()}
        return [row for row in file.rows_of(key, kind="error") if _identity(row) in wanted]


def _identity(row: Row) -> tuple[Any, ...]:
    return row["corruption"], row["severity"], row["weights"], row["fingerprint"]


def _measure(
    run: SavedRun,
    file: RowFile,
    key: str,
    config: CorruptionConfig,
    fingerprints: Mapping[str, str],
    missing: Sequence[tuple[tuple[str, int], list[str]]],
    device_name: str,
    workers: int | None,
    progress: Progress | None,
) -> None:
    device = find_device(device_name)
    models = {name: run.model(name, device) for name in {name for _, weights in missing for name in weights}}
    domains = list(_images(run, config.n_images, device, workers))
    normalize, batch_size = Normalize(run.held_out.sources.image_spec, device), run.batch_size(device)
    for number, ((corruption, severity), weights) in enumerate(missing, start=1):
        rows = []
        for domain in domains if weights else ():
            errors = dict.fromkeys(weights, 0)
            for images, labels, indices in _batches(domain, batch_size):
                if severity:
                    images = corrupt(images, corruption, severity, seed=config.seed, indices=indices)
                normalized = normalize(images)
                for name in weights:
                    errors[name] += int((models[name](normalized).argmax(1) != labels).sum())
            rows += [
                {
                    "key": key,
                    "kind": "error",
                    "weights": name,
                    "fingerprint": fingerprints[name],
                    "domain": domain.name,
                    "side": domain.side,
                    "corruption": corruption,
                    "severity": severity,
                    "error": wrong / len(domain.labels),
                    "n": len(domain.labels),
                }
                for name, wrong in errors.items()
            ]
        file.append(*rows)
        if progress is not None:
            progress("corruptions", number, len(missing))


def _batches(domain: _DomainImages, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    for start in range(0, len(domain.labels), size):
        part = slice(start, start + size)
        yield domain.values[part], domain.labels[part], domain.indices[part]


def _images(run: SavedRun, n: int | None, device: torch.device, workers: int | None) -> Iterator[_DomainImages]:
    """Load validation images of the sources and all images of the target."""
    sources, target = run.held_out
    for side, splits in (("seen", sources.val), ("unseen", target.full)):
        for split in splits:
            loader = run.loader(split, n, device, workers)
            keys = torch.from_numpy(loader.keys).to(device)
            yield _DomainImages(split.name, side, loader.bytes(), loader.labels(), keys)
