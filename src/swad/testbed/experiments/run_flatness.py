"""Flatness measurements of a finished run's saved weights, stored in the run directory.

Results are appended to `flatness.jsonl` as soon as they are computed. A measurement that is repeated with the same
settings reads them back; one that was interrupted resumes with the weights that are missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from swad.flatness import (
    Comparison,
    LocalFlatness,
    Logits,
    Normalize,
    Precision,
    average_flatness,
    captured,
    check_radii,
    compare,
    curvature,
    image_losses,
    worst_case,
)
from swad.flatness.ascent import ASCENT, RESTARTS, STEPS
from swad.testbed.measure.saved_run import WINDOW, Images, SavedRun, SourceSplit, find_device
from swad.testbed.results.flatness_stats import SIDES
from swad.testbed.results.measurement_rows import FLATNESS, Row, RowFile
from swad.util.progress import Progress, part_progress

PUBLISHED_RADII = tuple(5.0 * k for k in range(13))
"""0 to 60 in steps of 5, as in the published code, which measured ResNet-50."""
SMALL_RADII = tuple(2.0 * k for k in range(13))
"""For the small network, whose loss rises from hundredths to a few units over them."""
SHARES = tuple(k / 10 for k in range(11))
"""Shares of the weights' norm, for directions that are normalized by layer or filter."""


@dataclass(frozen=True)
class FlatnessConfig:
    """The settings of a local flatness measurement."""

    radii: tuple[float, ...] | None = None
    """None: `PUBLISHED_RADII`, `SMALL_RADII` for the small network, or `SHARES` for normalized directions."""
    n_directions: int = 100
    n_images: int | None = 200
    """Images of every domain; None: all."""
    normalize: Normalize = "sphere"
    seed: int = 0
    include: tuple[str, ...] = ()
    """Name patterns of the parameters to perturb; empty: all."""
    exclude: tuple[str, ...] = ()
    """Name patterns of parameters to keep fixed."""
    split: SourceSplit = "training"
    """Images of the sources: training or validation images, or all, as in the published script."""
    error: bool = False
    """Whether to measure the rise of the 0-1 error, too."""
    logits: Logits = "raw"
    """Whether the logits of all weights are scaled to the same size; see `image_losses`."""
    precision: Precision | None = None
    """Precision of the network. None: on a GPU that in which the run was trained, else fp32."""

    def precision_of(self, run: SavedRun, device: torch.device) -> Precision:
        """Return the precision in which a run is measured."""
        if self.precision is not None:
            return self.precision
        return "bf16" if device.type == "cuda" and run.config.precision == "bf16" else "fp32"

    def settings(self, run: SavedRun, device: torch.device) -> dict[str, Any]:
        """Return the settings that identify stored results.

        The number of directions is not among them, since results with more directions replace those with fewer. The
        kind of device is, since a GPU draws other directions than a CPU.
        """
        distances = SMALL_RADII if run.config.network == "small" else PUBLISHED_RADII
        default = distances if self.normalize == "sphere" else SHARES
        return {
            "radii": list(check_radii(default if self.radii is None else self.radii)),
            **run.image_settings(self.n_images),
            "normalize": self.normalize,
            "seed": self.seed,
            "device": device.type,
            **_changed_settings(self, logits=self.logits, precision=self.precision_of(run, device)),
        }


def run_local(
    run: SavedRun,
    names: Sequence[str],
    config: FlatnessConfig | None = None,
    *,
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Measure F_gamma of some of a run's weights on seen and unseen domains, in the same directions and images.

    Each set of weights is stored as soon as it is measured, and reused if it has enough directions.

    Args:
        names: Names of weights; the others are compared with the first. "window" are live weights inside the range that
            SWAD averaged: the mean of F over snapshots.
        config: Radii, directions, images, parameters and what is measured.
        device: Device to measure on.
        workers: Processes that read images.
        progress: Called after every evaluation.
    """
    config = config or FlatnessConfig()
    torch_device = find_device(device)
    names = run.full_names(names)
    window = list(run.window_snapshots) if WINDOW in names else []
    measured_names = list(dict.fromkeys([*(name for name in names if name != WINDOW), *window]))
    groups = {"seen": list(run.held_out.sources.names)}
    if run.config.targets:
        groups["unseen"] = list(run.config.targets)
    with RowFile(run.path, FLATNESS) as file:
        settings = config.settings(run, torch_device)
        key = file.add_settings(settings)
        # The error is a measurement with a key of its own, so that everything that reads one reads the other.
        keys = {"loss": key} | ({"error": file.add_settings(settings | {"measure": "error"})} if config.error else {})
        stored = {}
        for measure, each in keys.items():
            run.require_same_weights(file, each, measured_names)
            stored[measure] = {
                row["model"]: LocalFlatness.from_row(row, groups=groups)
                for row in file.rows_of(each, kind="flatness")
                if row["model"] in measured_names
            }
        known = [result.n_directions for results in stored.values() for result in results.values()]
        n_directions = max([config.n_directions, *known])
        missing = [
            name
            for name in measured_names
            if any(name not in results or results[name].n_directions < n_directions for results in stored.values())
        ]
        if missing:
            images = run.images(config.n_images, torch_device, workers, config.split)
            on_gpu = torch_device.type == "cuda"
            model = run.model(missing[0], torch_device)
            if on_gpu:
                model = model.to(memory_format=torch.channels_last)
            loss_fn = image_losses(
                images.by_domain,
                batch_size=run.batch_size(torch_device),
                measure="both" if config.error else "loss",
                logits=config.logits,
                logits_of=images.seen,
                precision=config.precision_of(run, torch_device),
                channels_last=on_gpu,
            )

            def save(name: str, result: LocalFlatness) -> None:
                by_measure = {"loss": result} | ({"error": result.errors} if result.errors is not None else {})
                file.append(*({"key": keys[measure], **each.to_row(name)} for measure, each in by_measure.items()))
                for measure, each in by_measure.items():
                    stored[measure][name] = each

            compare(
                {name: run.state(name) for name in missing},
                captured(loss_fn, model),
                settings["radii"],
                n_directions,
                config.seed,
                model=model,
                normalize=config.normalize,
                include=config.include,
                exclude=config.exclude,
                groups=groups,
                on_result=save,
                progress=progress,
            )
        comparisons = {}
        for measure, each in reversed(keys.items()):
            results = stored[measure]
            if window:
                results[WINDOW] = average_flatness([results[name] for name in window])
                _append_new(file, [{"key": each, **results[WINDOW].to_row(WINDOW)}])
            comparisons[measure] = Comparison({name: results[name] for name in names})
            _append_new(file, _summary_rows(comparisons[measure], each))
            # Single weights are compared with nothing, so they do not change what the others are compared with.
            file.mark_shown(each, **({"first": names[0]} if len(names) > 1 else {}))
    return comparisons["loss"]


def run_worst_case(
    run: SavedRun,
    names: Sequence[str],
    radii: Sequence[float],
    config: FlatnessConfig | None = None,
    *,
    steps: int = STEPS,
    restarts: int = RESTARTS,
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Search for the worst cross entropy, and the worst 0-1 error, on images of all sources.

    Both are lower bounds of the maximum within each radius. For the error, ascent follows the cross entropy's gradient.
    Of `config`, the images and the patterns of parameters count.
    """
    config = config or FlatnessConfig()
    settings = {"worst_radii": sorted(check_radii(radii)), "steps": steps, "restarts": restarts, "ascent": ASCENT}

    def measure(name: str, images: Images, torch_device: torch.device, name_progress: Progress | None) -> list[Row]:
        model = run.model(name, torch_device)
        seen = images.side("seen")
        batch_size = run.batch_size(torch_device)
        rows: list[Row] = []
        for i, quantity in enumerate(("loss", "error")):
            error_fn = image_losses(seen, batch_size=batch_size, measure="error") if quantity == "error" else None
            result = worst_case(
                model,
                image_losses(seen, batch_size=batch_size),
                list(radii),
                steps,
                restarts,
                measure_fn=error_fn,
                include=config.include,
                exclude=config.exclude,
                progress=part_progress(name_progress, i, 2),
            )
            rows += [{"measure": quantity, **row.as_dict()} for row in result.rows]
        return rows

    return _measure_missing(run, names, "worst_case", settings, measure, config, device, workers, progress)


def run_curvature(
    run: SavedRun,
    names: Sequence[str],
    config: FlatnessConfig | None = None,
    *,
    n_eigenvalues: int = 3,
    trace_vectors: int = 32,
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Compute top eigenvalues and trace of the Hessian of every domain, and of the seen and the unseen mean.

    Of `config`, the images and the patterns of parameters count.
    """
    config = config or FlatnessConfig()
    settings = {"curvature": n_eigenvalues, "trace_vectors": trace_vectors}

    def measure(name: str, images: Images, torch_device: torch.device, name_progress: Progress | None) -> list[Row]:
        model = run.model(name, torch_device)
        rows: list[Row] = []
        sides = [side for side in SIDES if images.side(side)]
        for i, side in enumerate(sides):
            result = curvature(
                model,
                image_losses(images.side(side), batch_size=run.batch_size(torch_device)),
                n_eigenvalues,
                trace_vectors=trace_vectors,
                include=config.include,
                exclude=config.exclude,
                progress=part_progress(name_progress, i, len(sides)),
            )
            rows += [{**row.as_dict(), "domain": row.domain or side} for row in result.rows]
        return rows

    return _measure_missing(run, names, "curvature", settings, measure, config, device, workers, progress)


# --- stored rows ----------------------------------------------------------------------------------------------------


_Measure = Callable[[str, Images, torch.device, Progress | None], list[Row]]
"""Takes the name of weights, images, device and progress, and returns rows."""


def _measure_missing(
    run: SavedRun,
    names: Sequence[str],
    kind: str,
    settings: Mapping[str, Any],
    measure: _Measure,
    config: FlatnessConfig,
    device: str,
    workers: int | None,
    progress: Progress | None,
) -> list[Row]:
    """Measure the weights that have no stored rows of this kind and settings, and return the rows of all."""
    torch_device = find_device(device)
    names = [name for name in run.full_names(names) if name != WINDOW]
    with RowFile(run.path, FLATNESS) as file:
        images_used = {**run.image_settings(config.n_images), "device": torch_device.type}
        key = file.add_settings({**settings, **images_used, **_changed_settings(config)})
        run.require_same_weights(file, key, names)
        missing = [name for name in names if not file.rows_of(key, kind=kind, weights=name)]
        if missing:
            images = run.images(config.n_images, torch_device, workers, config.split)
            for i, name in enumerate(missing):
                rows = measure(name, images, torch_device, part_progress(progress, i, len(missing)))
                file.append(*({"key": key, "kind": kind, "weights": name, **row} for row in rows))
        file.mark_shown(key)
        return [row for name in names for row in file.rows_of(key, kind=kind, weights=name)]


def _changed_settings(config: FlatnessConfig, **further: str) -> dict[str, Any]:
    """Return the settings that differ from the default, so that earlier results keep the key they have without."""
    settings = {"include": list(config.include), "exclude": list(config.exclude), "split": config.split, **further}
    defaults = {"include": [], "exclude": [], "split": "training", "logits": "raw", "precision": "fp32"}
    return {name: value for name, value in settings.items() if value != defaults[name]}


def _summary_rows(comparison: Comparison, key: str) -> list[Row]:
    """Return the rows for tables and figures: F by radius and domain, and paired differences with the first weights."""
    rows: list[Row] = []
    for name, flat in comparison.models.items():
        rows += [{"key": key, "kind": "row", "weights": name, **row.as_dict()} for row in flat.rows]
    first, *others = comparison.models
    for other in others:
        rows += [{"key": key, "kind": "difference", **row.as_dict()} for row in comparison.differences(other, first)]
    return rows


def _append_new(file: RowFile, rows: Sequence[Row]) -> None:
    stored = {json.dumps(row, sort_keys=True) for row in file.rows}
    if new := [row for row in rows if json.dumps(row, sort_keys=True) not in stored]:
        file.append(*new)
