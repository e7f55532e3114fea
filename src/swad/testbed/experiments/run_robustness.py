"""How robust are a run's saved weights? Errors under the corruptions of ImageNet-C, on seen and unseen domains.

No download is needed: the run's own images are corrupted on the device, validation images of the sources and all images
of the target. Every set of weights sees the same corrupted images. Rows are appended to `robustness.jsonl` in the run
directory after each corruption and severity, so an interrupted measurement resumes there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from swad.robustness.corruptions import CORRUPTIONS, SEVERITIES, VERSION, corrupt
from swad.testbed.data.transforms import Normalize
from swad.testbed.experiments.report import Report
from swad.testbed.measure.finished_runs import run_progress
from swad.testbed.measure.saved_run import SavedRun, find_device
from swad.testbed.results.corruption_errors import ROBUSTNESS, read_corruption_errors
from swad.testbed.results.corruption_tables import cases_csv, comparison_table, corruption_summary, corruption_table
from swad.testbed.results.figures.robustness import severity_figure
from swad.testbed.results.figures.style import FORMATS, require_matplotlib, save_figures
from swad.testbed.results.measurement_rows import Row, RowFile
from swad.testbed.results.runs import load_run
from swad.testbed.training.run_dir import RunError
from swad.util.files import write_json, write_text
from swad.util.jsonl import stored_path
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
                _measure(run, file, key, config, fingerprints, missing, find_device(device), workers, progress)
        file.mark_shown(key, weights=list(fingerprints), fingerprints=list(fingerprints.values()))
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
    device: torch.device,
    workers: int | None,
    progress: Progress | None,
) -> None:
    models = {name: run.model(name, device) for name in {name for _, weights in missing for name in weights}}
    normalize, batch_size = Normalize(run.held_out.sources.image_spec, device), run.batch_size(device)
    domains = {}
    for side, splits in (("seen", run.held_out.sources.val), ("unseen", run.held_out.target.full)):
        for split in splits:
            loader = run.loader(split, config.n_images, device, workers)
            # The same images are corrupted alike in every run, by their numbers in the domain.
            parts = loader.bytes(), loader.labels(), torch.from_numpy(loader.keys).to(device)
            domains[split.name, side] = list(zip(*(torch.split(part, batch_size) for part in parts), strict=True))
    for number, ((corruption, severity), weights) in enumerate(missing, start=1):
        rows = []
        for (domain, side), batches in domains.items() if weights else ():
            errors = dict.fromkeys(weights, 0)
            for images, labels, indices in batches:
                if severity:
                    images = corrupt(images, corruption, severity, seed=config.seed, indices=indices)
                normalized = normalize(images)
                for name in weights:
                    errors[name] += int((models[name](normalized).argmax(1) != labels).sum())
            n = sum(len(labels) for _, labels, _ in batches)
            rows += [
                {
                    "key": key,
                    "kind": "error",
                    "weights": name,
                    "fingerprint": fingerprints[name],
                    "domain": domain,
                    "side": side,
                    "corruption": corruption,
                    "severity": severity,
                    "error": wrong / n,
                    "n": n,
                }
                for name, wrong in errors.items()
            ]
        file.append(*rows)
        if progress is not None:
            progress("corruptions", number, len(missing))


# ------------------------------------------------------------ several runs


def measure_robustness(
    weights: Sequence[tuple[SavedRun, Sequence[str]]],
    config: CorruptionConfig,
    *,
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Measure the errors of several runs under corruption, and return their directories, for `report_robustness`.

    Args:
        weights: Runs, and the names of their weights to measure; the others are compared with the first.
        config: Corruptions, severities and images.
        device: Device to measure on.
        workers: Processes that read images.
        progress: Called after every corruption and severity.
    """
    require_matplotlib()  # before measuring for hours
    for i, (run, names) in enumerate(weights):
        labeled = run_progress(progress, run, i, len(weights))
        measure_corruptions(run, names, config, device=device, workers=workers, progress=labeled)
    return [run.path for run, _ in weights]


def report_robustness(paths: Sequence[Path], *, output: Path, formats: Sequence[str] = FORMATS) -> Report:
    """Draw and compare the errors that runs have stored, which needs neither weights nor images.

    Args:
        paths: Run directories.
        output: Directory for the figure, `robustness.json` and `robustness.csv`.
        formats: Formats of the figure.
    """
    require_matplotlib()
    results = read_corruption_errors([load_run(path) for path in paths])
    if not results:
        raise RunError(f"no {ROBUSTNESS} has a complete measurement: run `swad robustness` first")
    figure = severity_figure(results)
    written = save_figures(figure, output / "robustness", formats)
    summary = output / "robustness.json"
    write_json(summary, {"results": corruption_summary(results)})
    cases = output / "robustness.csv"
    write_text(cases, cases_csv(results))
    tables = [table for each in results for table in (corruption_table(each), comparison_table(each)) if table]
    row_files = tuple(stored_path(path / ROBUSTNESS) for path in paths)
    return Report(tuple(tables), (*written, summary, cases), row_files)
