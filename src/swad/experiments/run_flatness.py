"""Flatness measurements of a finished run's saved weights, stored in the run directory.

Results are appended to `flatness.jsonl` and `surface.jsonl` as soon as they are computed. A measurement that is
repeated with the same settings reads them back; one that was interrupted resumes with the weights (or the points of a
surface) that are missing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from swad.averaging.batchnorm import update_bn
from swad.experiments.saved_run import WINDOW, Images, SavedRun, SourceSplit, find_device
from swad.flatness import (
    Bound,
    Comparison,
    Line,
    LocalFlatness,
    Logits,
    Normalize,
    Plane,
    Precision,
    Surface,
    average_flatness,
    bound,
    captured,
    check_radii,
    compare,
    curvature,
    divergence,
    image_losses,
    line,
    plane,
    worst_case,
)
from swad.flatness._worst_case import RESTARTS, STEPS
from swad.models.networks import batch_norms, features
from swad.results.flatness_rows import FLATNESS, SURFACE, Row, RowFile
from swad.training.run_dir import RunError
from swad.util.progress import Progress

PUBLISHED_RADII = tuple(5.0 * k for k in range(13))
"""0 to 60 in steps of 5, as in the published code, which measured ResNet-50."""
SMALL_RADII = tuple(2.0 * k for k in range(13))
"""For the small network, whose loss rises from hundredths to a few units over them."""
SHARES = tuple(k / 10 for k in range(11))
"""Shares of the weights' norm, for directions that are normalized by layer or filter."""

PAPER_CORNERS = (50, 70, 90)
"""Percent of training at which the paper's Figure 4 takes its weights: after steps 2500, 3500 and 4500 of 5000."""
DEFAULT_PRECISION: dict[str, Precision] = {"cpu": "fp32", "cuda": "fp32"}
"""Precision of the network by kind of device."""
GRID = 21
MARGIN = 0.4
"""How far a surface extends beyond its corners, as a share of its longer side."""
SIDES = ("seen", "unseen")


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
    """Precision of the network. None: `DEFAULT_PRECISION` of the device."""

    def settings(self, run: SavedRun, device: torch.device) -> dict[str, Any]:
        """Return the settings that identify stored results.

        The number of directions is not among them, since results with more directions replace those with fewer. The
        kind of device is, since a GPU draws other directions than a CPU.
        """
        distances = SMALL_RADII if run.config.model.network == "small" else PUBLISHED_RADII
        default = distances if self.normalize == "sphere" else SHARES
        return {
            "radii": list(check_radii(default if self.radii is None else self.radii)),
            **_image_settings(run, self.n_images),
            "normalize": self.normalize,
            "seed": self.seed,
            "device": device.type,
            **_pattern_settings(self.include, self.exclude),
            **_changed_settings(split=self.split, logits=self.logits, precision=self.device_precision(device)),
        }

    def device_precision(self, device: torch.device) -> Precision:
        """Return the precision of the network on a device."""
        return self.precision or DEFAULT_PRECISION.get(device.type, "fp32")


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
        run: The run.
        names: Names of weights; the others are compared with the first. "window" are live weights inside the range that
            SWAD averaged: the mean of F over snapshots.
        config: Radii, directions, images, parameters and what is measured.
        device: Device to measure on.
        workers: Processes that read images.
        progress: Called after every evaluation.
    """
    config = config or FlatnessConfig()
    torch_device = find_device(device)
    names = _full_names(run, names)
    window = list(run.window_snapshots) if WINDOW in names else []
    measured_names = list(dict.fromkeys([*(name for name in names if name != WINDOW), *window]))
    groups = {"seen": _source_domains(run), "unseen": list(run.config.data.targets)}
    with RowFile(run.path, FLATNESS) as file:
        settings = config.settings(run, torch_device)
        key = file.add_settings(settings)
        # The error is a measurement with a key of its own, so that everything that reads one reads the other.
        keys = {"loss": key} | ({"error": file.add_settings(settings | {"measure": "error"})} if config.error else {})
        stored = {}
        for measure, each in keys.items():
            _require_same_weights(file, each, run, measured_names)
            stored[measure] = {
                row["model"]: LocalFlatness.from_row(row, groups=groups)
                for row in file.rows_of(each)
                if row["kind"] == "flatness" and row["model"] in measured_names
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
                precision=config.device_precision(torch_device),
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
    *,
    n_images: int | None = 200,
    steps: int = STEPS,
    restarts: int = RESTARTS,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    split: SourceSplit = "training",
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Search for the worst cross entropy, and the worst 0-1 error, on training images of all sources.

    Both are lower bounds of the maximum within each radius. For the error, ascent follows the cross entropy's gradient.
    """
    # "ascent" tells these results from those of steps that did not adapt, which stopped short of the maximum.
    settings = {"worst_radii": sorted(check_radii(radii)), "steps": steps, "restarts": restarts, "ascent": "adaptive"}

    def measure(name: str, images: Images, torch_device: torch.device, name_progress: Progress) -> list[Row]:
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
                include=include,
                exclude=exclude,
                progress=_part_progress(name_progress, i, 2),
            )
            rows += [{"measure": quantity, **row.as_dict()} for row in result.rows]
        return rows

    return _measure_missing(
        run, names, "worst_case", settings, measure, n_images, include, exclude, split, device, workers, progress
    )


def run_curvature(
    run: SavedRun,
    names: Sequence[str],
    *,
    n_images: int | None = 200,
    n_eigenvalues: int = 3,
    trace_vectors: int = 32,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    split: SourceSplit = "training",
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Compute top eigenvalues and trace of the Hessian of every domain, and of the seen and the unseen mean."""
    settings = {"curvature": n_eigenvalues, "trace_vectors": trace_vectors}

    def measure(name: str, images: Images, torch_device: torch.device, name_progress: Progress) -> list[Row]:
        model = run.model(name, torch_device)
        rows: list[Row] = []
        for i, side in enumerate(SIDES):
            result = curvature(
                model,
                image_losses(images.side(side), batch_size=run.batch_size(torch_device)),
                n_eigenvalues,
                trace_vectors=trace_vectors,
                include=include,
                exclude=exclude,
                progress=_part_progress(name_progress, i, len(SIDES)),
            )
            rows += [{**row.as_dict(), "domain": row.domain or side} for row in result.rows]
        return rows

    return _measure_missing(
        run, names, "curvature", settings, measure, n_images, include, exclude, split, device, workers, progress
    )


def run_surface(
    run: SavedRun,
    corners: Sequence[str] = (),
    points: Sequence[str] | None = None,
    *,
    steps: int = GRID,
    margin: float = MARGIN,
    n_images: int | None = 200,
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Surface:
    """Evaluate the loss on the plane through three of a run's weights, or on the line through two.

    Args:
        run: The run.
        corners: Names of three weights, or of two for a line. By default `default_corners`.
        points: Names of extra weights to project onto the surface. By default the run's averages that are near it.
            The mean of the corners is always among the points.
        steps: Number of grid points along each side.
        margin: How far the grid extends beyond the corners, as a share of the longer side.
        n_images: Images of every domain; None: all.
        device: Device to measure on.
        workers: Processes that read images.
        progress: Called after every point.
    """
    torch_device = find_device(device)
    corners = [run.full_name(name) for name in corners] or list(default_corners(run))
    if len(corners) not in (2, 3) or len(set(corners)) < len(corners):
        raise RunError(f"a plane needs three different weights and a line two; got {', '.join(corners)}")
    states = [run.state(name) for name in corners]
    surface: Plane | Line = plane(*states) if len(states) == 3 else line(*states)
    extra = _averages_near(run, surface) if points is None else [run.full_name(name) for name in points]
    extra = [name for name in extra if name not in corners]
    settings = {
        "shape": "plane" if len(corners) == 3 else "line",
        "corners": corners,
        "points": extra,
        "steps": steps,
        "margin": margin,
        **_image_settings(run, n_images),
        "device": torch_device.type,
        "seen": _source_domains(run),
        "unseen": list(run.config.data.targets),
    }
    with RowFile(run.path, SURFACE) as file:
        key = file.add_settings(settings)
        _require_same_weights(file, key, run, [*corners, *extra])
        done_rows = file.rows_of(key)
        n_points = steps ** (len(corners) - 1) + len(corners) + len(extra) + 1
        if sum(row["kind"] == "surface-point" for row in done_rows) == n_points:
            result = Surface.from_rows(done_rows)
        else:
            images = run.images(n_images, torch_device, workers)
            model = run.model(corners[0], torch_device)
            loss_fn = image_losses(images.by_domain, batch_size=run.batch_size(torch_device), measure="both")
            result = surface.evaluate(
                model,
                captured(loss_fn, model),
                steps,
                margin,
                points={"mean": _mean_state(states), **{name: run.state(name) for name in extra}},
                update_bn=_bn_updater(run, model, images),
                on_row=lambda row: file.append({"key": key, **row}),
                done_rows=done_rows,
                progress=progress,
            )
        file.mark_shown(key)
    return result


def run_bounds(
    run: SavedRun,
    name: str,
    radii: Sequence[float],
    *,
    vc_cover: float | None = None,
    vc: float | None = None,
    diameter: float | None = None,
    delta: float = 0.05,
    n_images: int | None = 200,
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Bound]:
    """Compute Theorems 1 and 2 for a run's weights at several radii.

    VC dimensions are yours to give; the rest is measured. The robust loss is the worst 0-1 error that ascent found, and
    the divergences come from a classifier on the network's features: both are estimates from below. The
    smallest empirical error of any weights is unknown, so Theorem 2 takes 0 for it; the error at some known weights
    would only make its bound too small.

    Args:
        run: The run.
        name: Name of the weights.
        radii: Values of gamma.
        vc_cover: VC dimension of one ball of the cover. Without it only Hoeffding's form has numbers.
        vc: VC dimension of the whole parameter space; Theorem 2 needs it, but for Hoeffding's form.
        diameter: Diameter of the parameter space. By default twice the norm of the weights: a ball around zero with
            the weights on its edge.
        delta: The bounds hold with probability 1 - delta.
        n_images: Images of every source. m counts those that the robust loss is measured on, since the theorems speak
            of one sample: more images make the confidence term smaller.
        device: Device to measure on.
        workers: Processes that read images.
        progress: Called after every ascent step.
    """
    torch_device = find_device(device)
    worst_rows = run_worst_case(
        run, [name], radii, n_images=n_images, device=device, workers=workers, progress=progress
    )
    model = run.model(name, torch_device)
    images = run.images(n_images, torch_device, workers)
    domain_features = {
        domain: _features(model, images.by_domain[domain][0], run.batch_size(torch_device))
        for domain in (*images.seen, *images.unseen)
    }
    target = torch.cat([domain_features[domain] for domain in images.unseen]).numpy()
    divergences = [divergence(domain_features[domain].numpy(), target) for domain in images.seen]
    weights = [tensor.detach().double() for tensor in model.parameters()]
    norm = torch.stack([tensor.square().sum() for tensor in weights]).sum().sqrt().item()
    return [
        bound(
            float(row["lower_bound"]),
            divergences,
            gamma=float(row["radius"]),
            diameter=diameter or 2 * norm,
            dimension=sum(tensor.numel() for tensor in weights),
            m=sum(len(labels) for _, labels in images.side("seen").values()),
            vc_cover=vc_cover,
            vc=vc,
            delta=delta,
        )
        for row in worst_rows
        if row["measure"] == "error" and float(row["radius"]) > 0
    ]


def default_corners(run: SavedRun) -> tuple[str, str, str]:
    """Return three of the run's snapshots, inside the range that SWAD averaged where it has three.

    The paper's, at 50, 70 and 90 % of training, are taken if they are inside; otherwise the first, the middle and the
    last one inside. Weights after t_e have left the valley, so a plane through them shows its slope. If fewer than
    three are inside, those nearest to the range are taken. Without SWAD all snapshots count as inside.
    """
    snapshots = run.snapshots
    if len(snapshots) < 3:
        steps = run.config.training.steps or 5000
        suggestion = ",".join(str(steps * percent // 100) for percent in PAPER_CORNERS)
        raise RunError(
            f"{run.path} saved {len(snapshots) or 'no'} snapshots, and a plane needs three weights: train with "
            f"--snapshots {suggestion}, or name three with --corners ({', '.join(run.reported)})"
        )
    inside = [name for name in snapshots if not _steps_outside(run, name)]
    total = run.config.training.steps
    paper = [f"step-{total * percent // 100:06d}" for percent in PAPER_CORNERS] if total else []
    if paper and all(name in inside for name in paper):
        inside = paper
    elif len(inside) < 3:
        inside = sorted(sorted(snapshots, key=lambda name: _steps_outside(run, name))[:3])
    return inside[0], inside[(len(inside) - 1) // 2], inside[-1]


def corners_outside(run: SavedRun, corners: Sequence[str]) -> list[str]:
    """Return the corners that are live weights from before or after the range that SWAD averaged."""
    return [name for name in corners if name in run.snapshots and _steps_outside(run, name)]


def _steps_outside(run: SavedRun, snapshot: str) -> int:
    """Return how many steps a snapshot is before or after the range that SWAD averaged."""
    start, end = run.averaged_range or (0, sys.maxsize)
    step = int(snapshot.removeprefix("step-"))
    return max(start - step, step - end, 0)


def _averages_near(run: SavedRun, surface: Plane | Line) -> list[str]:
    """Return the run's averages that are close to the corners and to the plane or line.

    The surface says nothing about weights that are further from it than the corners are from each other.
    """
    size = max(surface.x2, abs(surface.x3), surface.y3) if isinstance(surface, Plane) else surface.length
    names = []
    for name in run.averages:
        *coordinates, distance = surface.coordinates(run.state(name))
        if isinstance(surface, Line):
            coordinates = [coordinates[0] * size]
        if distance <= size and all(-size <= value <= 2 * size for value in coordinates):
            names.append(name)
    return names


@torch.no_grad()
def _features(model: nn.Module, images: Tensor, batch_size: int) -> Tensor:
    starts = range(0, len(images), batch_size)
    return torch.cat([features(model, images[start : start + batch_size]).float().cpu() for start in starts])


# --- stored rows ----------------------------------------------------------------------------------------------------


def _measure_missing(
    run: SavedRun,
    names: Sequence[str],
    kind: str,
    settings: Mapping[str, Any],
    measure: Callable[[str, Images, torch.device, Progress], list[Row]],
    n_images: int | None,
    include: Sequence[str],
    exclude: Sequence[str],
    split: SourceSplit,
    device: str,
    workers: int | None,
    progress: Progress | None,
) -> list[Row]:
    """Measure the weights that have no stored rows of this kind and settings, and return the rows of all."""
    torch_device = find_device(device)
    names = [name for name in _full_names(run, names) if name != WINDOW]
    with RowFile(run.path, FLATNESS) as file:
        image_settings = _image_settings(run, n_images)
        further = {**_pattern_settings(include, exclude), **_changed_settings(split=split)}
        key = file.add_settings({**settings, **image_settings, "device": torch_device.type, **further})
        _require_same_weights(file, key, run, names)
        missing = [name for name in names if not _stored_rows(file, key, kind, name)]
        if missing:
            images = run.images(n_images, torch_device, workers, split)
            for i, name in enumerate(missing):
                rows = measure(name, images, torch_device, _part_progress(progress, i, len(missing)))
                file.append(*({"key": key, "kind": kind, "weights": name, **row} for row in rows))
        file.mark_shown(key)
        return [row for name in names for row in _stored_rows(file, key, kind, name)]


def _full_names(run: SavedRun, names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(run.full_name(name) for name in names))


def _source_domains(run: SavedRun) -> list[str]:
    return list(run.held_out.sources.names)


def _image_settings(run: SavedRun, n_images: int | None) -> dict[str, int | None]:
    """Return the settings that determine the images of each domain.

    The size of mixed groups is among them only if predictions depend on the group. Results that were stored before the
    groups were mixed lack it, so they are not reused.
    """
    group_size = run.eval_group_size
    return {"images": n_images} | ({} if group_size is None else {"mixed_groups": group_size})


def _pattern_settings(include: Sequence[str], exclude: Sequence[str]) -> dict[str, list[str]]:
    """Return the patterns that are not empty, so that results for all parameters keep the key they have without."""
    patterns = {"include": list(include), "exclude": list(exclude)}
    return {name: values for name, values in patterns.items() if values}


def _changed_settings(**settings: str) -> dict[str, str]:
    """Return the settings that differ from the default, so that earlier results keep the key they have without."""
    defaults = {"split": "training", "logits": "raw", "precision": "fp32"}
    return {name: value for name, value in settings.items() if value != defaults[name]}


def _stored_rows(file: RowFile, key: str, kind: str, name: str) -> list[Row]:
    return [row for row in file.rows_of(key) if row["kind"] == kind and row["weights"] == name]


def _require_same_weights(file: RowFile, key: str, run: SavedRun, names: Sequence[str]) -> None:
    """Refuse weights files that changed since they were measured."""
    for name in names:
        fingerprint = run.fingerprint(name)
        stored = _stored_rows(file, key, "weights", name)
        if not stored:
            file.append({"key": key, "kind": "weights", "weights": name, "fingerprint": fingerprint})
        elif stored[-1]["fingerprint"] != fingerprint:
            raise RunError(f"{run.file(name)} changed since {file.path} was written: remove that file to measure again")


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


def _part_progress(progress: Progress | None, index: int, n_parts: int) -> Progress:
    """Return the progress callback for one of several parts of equal length."""

    def part_progress(description: str, done: int, total: int | None) -> None:
        if progress is not None:
            progress(description, index * (total or 0) + done, None if total is None else n_parts * total)

    return part_progress


# --- weights --------------------------------------------------------------------------------------------------------


def _mean_state(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    first = states[0]
    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in first.items()
    }


def _bn_updater(run: SavedRun, model: nn.Module, images: Images) -> Callable[[nn.Module], object] | None:
    """Return a function that re-estimates batch-norm statistics on seen images; None if they were frozen.

    Weights between trained ones have no statistics of their own.
    """
    if run.config.model.freeze_bn or not batch_norms(model):
        return None
    seen = torch.cat([domain_images for domain_images, _ in images.side("seen").values()])
    batches = [seen[start : start + 64] for start in range(0, len(seen), 64)]
    return lambda point: update_bn(batches, point)
