"""The measurements of the lab on a finished run's saved weights, written down beside them as they are computed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from swad.averaging.batchnorm import update_bn
from swad.experiments.saved_run import Images, SavedRun, device_of
from swad.flatness._bound import Bound, bound
from swad.flatness._captured import captured
from swad.flatness._compare import Comparison, compare
from swad.flatness._directions import Normalize
from swad.flatness._divergence import divergence
from swad.flatness._hessian import curvature
from swad.flatness._local import checked_radii
from swad.flatness._losses import image_losses
from swad.flatness._rows import HEAD, PART, Progress
from swad.flatness._surface import Line, Plane, Surface, line, plane
from swad.flatness._worst_case import worst_case
from swad.models.networks import batch_norms, features
from swad.results.flatness_rows import FLATNESS, SURFACE, Row, RowFile
from swad.training.run_dir import RunError

PUBLISHED_RADII = tuple(5.0 * k for k in range(13))
"""0 to 60 in steps of 5, as in the published code, which measured ResNet-50."""
SMALL_RADII = tuple(2.0 * k for k in range(13))
"""For the small network: over them its loss rises from hundredths to a few units."""
SHARES = tuple(k / 10 for k in range(11))
"""Of the weights' own length, where directions are normalized by layer or filter: from nothing to all of it."""

GRID = 21
MARGIN = 0.4
"""Of a plane around its corners, as a share of its longer side."""
BOTH = ("seen", "unseen")


@dataclass(frozen=True)
class FlatnessConfig:
    """What decides the numbers of `flatness`, the weights aside."""

    radii: tuple[float, ...] | None = None
    """None: as published, or scaled for the small network; shares of the weights where directions are normalized."""
    directions: int = 100
    images: int | None = 200
    """Of every domain; None: all."""
    normalize: Normalize = "sphere"
    seed: int = 0
    include: tuple[str, ...] = ()
    """Patterns of the parameters that are moved; none: all."""
    exclude: tuple[str, ...] = ()
    """Patterns of those that are not."""

    def of(self, subject: SavedRun, device: torch.device) -> dict[str, Any]:
        """As it is written down. The number of directions may grow, and a GPU draws others than a CPU."""
        usual = SMALL_RADII if subject.config.model.network == "small" else PUBLISHED_RADII
        radii = usual if self.normalize == "sphere" else SHARES
        return {
            "radii": list(checked_radii(radii if self.radii is None else self.radii)),
            "images": self.images,
            "normalize": self.normalize,
            "seed": self.seed,
            "device": device.type,
            **_filters(self.include, self.exclude),
        }


def flatness(
    subject: SavedRun,
    names: Sequence[str],
    measuring: FlatnessConfig | None = None,
    *,
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Measure F_gamma of some of a run's weights, on seen and unseen domains, in the same directions and images.

    Rows are appended to the run's `flatness.jsonl` as they are computed, and what is there is not computed again.
    The first of `names` is what the others are compared with.
    """
    measuring = measuring or FlatnessConfig()
    where = device_of(device)
    names = list(dict.fromkeys(subject.known(name) for name in names))
    with RowFile(subject.folder, FLATNESS) as file:
        settings = measuring.of(subject, where)
        key = file.add_settings(settings)
        for name in names:
            _require_same_weights(file, key, subject, name)
        raw = [row for row in file.rows_of(key) if row["kind"] in (HEAD, PART) and row["model"] in names]
        stops = {name: max((r["stop"] for r in raw if r["model"] == name and "stop" in r), default=0) for name in names}
        n = max(measuring.directions, *stops.values())
        groups = {"seen": _sources(subject), "unseen": list(subject.config.data.targets)}
        if all(stop == n for stop in stops.values()):
            order = [row for name in names for row in raw if row["model"] == name]
            found = Comparison.from_rows(order, groups=groups)
        else:
            images = subject.images(measuring.images, where, workers)
            model = subject.model(names[0], where)
            found = compare(
                {name: subject.state(name) for name in names},
                captured(image_losses(images.by_domain, batch_size=subject.batch_size(where)), model),
                settings["radii"],
                n,
                measuring.seed,
                model=model,
                normalize=measuring.normalize,
                include=measuring.include,
                exclude=measuring.exclude,
                groups=groups,
                sink=lambda row: file.append({"key": key, **row}),
                done=raw,
                progress=progress,
            )
        _append_new(file, _summary(found, key))
        file.mark_shown(key, **({"first": names[0]} if len(names) > 1 else {}))  # one alone leads nothing
        file.rewrite(_without_old_sums)
    return found


def worst(
    subject: SavedRun,
    names: Sequence[str],
    radii: Sequence[float],
    *,
    images: int | None = 200,
    steps: int = 20,
    restarts: int = 3,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Climb to the worst cross entropy, and to the worst 0-1 error, on the training images of all sources.

    Both are lower bounds of the maximum within each radius. The error climbs the cross entropy in its place.
    """
    where = device_of(device)
    names = list(dict.fromkeys(subject.known(name) for name in names))
    content = {"worst_radii": sorted(checked_radii(radii)), "images": images, "steps": steps, "restarts": restarts}
    with RowFile(subject.folder, FLATNESS) as file:
        key = file.add_settings({**content, "device": where.type, **_filters(include, exclude)})
        for name in names:
            _require_same_weights(file, key, subject, name)
        missing = [name for name in names if not _rows(file, key, "worst_case", name)]
        pictures = subject.images(images, where, workers).side("seen") if missing else {}
        for place, name in enumerate(missing):
            model = subject.model(name, where)
            batch = subject.batch_size(where)
            found = []
            for turn, measure in enumerate(("loss", "error")):
                judge = image_losses(pictures, batch_size=batch, measure="error") if measure == "error" else None
                climbed = worst_case(
                    model,
                    image_losses(pictures, batch_size=batch),
                    list(radii),
                    steps,
                    restarts,
                    measure_fn=judge,
                    include=include,
                    exclude=exclude,
                    progress=_share(progress, 2 * place + turn, 2 * len(missing)),
                )
                found += [
                    {"key": key, "kind": "worst_case", "weights": name, "measure": measure, **row.as_dict()}
                    for row in climbed.rows
                ]
            file.append(*found)
        file.mark_shown(key)
        return [row for name in names for row in _rows(file, key, "worst_case", name)]


def curved(
    subject: SavedRun,
    names: Sequence[str],
    *,
    images: int | None = 200,
    n_eigenvalues: int = 3,
    trace_vectors: int = 32,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Top eigenvalues and trace of the Hessian, of every domain and of the mean over those seen."""
    where = device_of(device)
    names = list(dict.fromkeys(subject.known(name) for name in names))
    content = {"curvature": n_eigenvalues, "trace_vectors": trace_vectors, "images": images, "device": where.type}
    with RowFile(subject.folder, FLATNESS) as file:
        key = file.add_settings({**content, **_filters(include, exclude)})
        for name in names:
            _require_same_weights(file, key, subject, name)
        missing = [name for name in names if not _rows(file, key, "curvature", name)]
        pictures = subject.images(images, where, workers) if missing else None
        for place, name in enumerate(missing):
            assert pictures is not None
            model = subject.model(name, where)
            found = []
            for turn, side in enumerate(BOTH):
                loss_fn = image_losses(pictures.side(side), batch_size=subject.batch_size(where))
                rows = curvature(
                    model,
                    loss_fn,
                    n_eigenvalues,
                    trace_vectors=trace_vectors,
                    include=include,
                    exclude=exclude,
                    progress=_share(progress, 2 * place + turn, 2 * len(missing)),
                ).rows
                found += [
                    {"key": key, "kind": "curvature", "weights": name, **row.as_dict(), "domain": row.domain or side}
                    for row in rows
                ]
            file.append(*found)
        file.mark_shown(key)
        return [row for name in names for row in _rows(file, key, "curvature", name)]


def surface(
    subject: SavedRun,
    corners: Sequence[str] = (),
    points: Sequence[str] | None = None,
    *,
    steps: int = GRID,
    margin: float = MARGIN,
    images: int | None = 200,
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Surface:
    """Measure the plane through three of a run's weights, or with two names the line through them.

    Corners default to three of the run's snapshots, evenly chosen. `points` are further weights whose place on the
    plane is wanted, by default the run's averages that are near it; the mean of the corners is always among them. Rows
    go to the run's `surface.jsonl` as they are computed, and what is there is not computed again.
    """
    where = device_of(device)
    corners = [subject.known(name) for name in corners] or list(default_corners(subject))
    if len(corners) not in (2, 3) or len(set(corners)) < len(corners):
        raise RunError(f"a plane goes through three different weights, a line through two; got {', '.join(corners)}")
    states = [subject.state(name) for name in corners]
    slice_: Plane | Line = plane(*states) if len(states) == 3 else line(*states)
    further = _near(subject, slice_) if points is None else [subject.known(name) for name in points]
    further = [name for name in further if name not in corners]
    content = {
        "shape": "plane" if len(corners) == 3 else "line",
        "corners": corners,
        "points": further,
        "steps": steps,
        "margin": margin,
        "images": images,
        "device": where.type,
        "seen": _sources(subject),
        "unseen": list(subject.config.data.targets),
    }
    with RowFile(subject.folder, SURFACE) as file:
        key = file.add_settings(content)
        for name in (*corners, *further):
            _require_same_weights(file, key, subject, name)
        done = file.rows_of(key)
        wanted = steps ** (len(corners) - 1) + len(corners) + len(further) + 1
        if sum(row["kind"] == "surface-point" for row in done) == wanted:
            file.mark_shown(key)
            return Surface.from_rows(done)
        pictures = subject.images(images, where, workers)
        model = subject.model(corners[0], where)
        more = {"mean": _mean(states), **{name: subject.state(name) for name in further}}
        loss_fn = captured(
            image_losses(pictures.by_domain, batch_size=subject.batch_size(where), measure="both"), model
        )
        found = slice_.evaluate(
            model,
            loss_fn,
            steps,
            margin,
            points=more,
            update_bn=_statistics(subject, model, pictures),
            sink=lambda row: file.append({"key": key, **row}),
            done=done,
            progress=progress,
        )
        file.mark_shown(key)
        return found


def bounds(
    subject: SavedRun,
    name: str,
    radii: Sequence[float],
    *,
    vc_cover: float,
    vc: float | None = None,
    diameter: float | None = None,
    delta: float = 0.05,
    images: int | None = 200,
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Bound]:
    """Theorems 1 and 2 for a run's weights at several radii: all terms measured but the VC dimensions, which are given.

    The robust loss is the worst 0-1 error that ascent found, the divergences those of a classifier on the network's
    features: both estimates from below. `diameter` is that of the parameters allowed, by default twice the norm of the
    weights: a ball around zero with them on its edge.

    m counts the images of the sources that the robust loss was measured on, `images` of each, as the theorems speak of
    one sample: more images make the confidence term smaller. The least empirical error that any weights have is not
    known, so Theorem 2 takes 0 for it: the error found at some weights would only make its bound too small.
    """
    where = device_of(device)
    climbed = worst(subject, [name], radii, images=images, device=device, workers=workers, progress=progress)
    model = subject.model(name, where)
    pictures = subject.images(images, where, workers)
    rows = {domain: _features(model, pictures.by_domain[domain][0], subject.batch_size(where)) for domain in
            (*pictures.seen, *pictures.unseen)}  # fmt: skip
    target = torch.cat([rows[domain] for domain in pictures.unseen]).numpy()
    apart = [divergence(rows[domain].numpy(), target) for domain in pictures.seen]
    weights = [tensor.detach().double() for tensor in model.parameters()]
    norm = torch.stack([tensor.square().sum() for tensor in weights]).sum().sqrt().item()
    return [
        bound(
            float(row["lower_bound"]),
            apart,
            gamma=float(row["radius"]),
            diameter=diameter or 2 * norm,
            dimension=sum(tensor.numel() for tensor in weights),
            m=sum(len(labels) for _, labels in pictures.side("seen").values()),
            vc_cover=vc_cover,
            vc=vc,
            delta=delta,
        )
        for row in climbed
        if row["measure"] == "error" and float(row["radius"]) > 0
    ]


def default_corners(subject: SavedRun) -> tuple[str, str, str]:
    """Three of the run's snapshots: the first, the last, and the one in the middle."""
    found = subject.snapshots
    if len(found) < 3:
        steps = subject.config.training.steps or 5000
        wanted = ",".join(str(steps * share // 100) for share in (50, 70, 90))
        raise RunError(
            f"{subject.folder} saved {len(found) or 'no'} snapshots, and a plane needs three weights: train with "
            f"--snapshots {wanted}, or name three with --corners ({', '.join(subject.reported)})"
        )
    return found[0], found[(len(found) - 1) // 2], found[-1]


def _near(subject: SavedRun, where: Plane | Line) -> list[str]:
    """The run's averages that are projected to the neighborhood of the corners and are not far off the plane.

    Of one that is further away than the corners are apart, the surface around its projection says nothing.
    """
    size = max(where.x2, abs(where.x3), where.y3) if isinstance(where, Plane) else where.length
    found = []
    for name in subject.reported:
        if name.startswith("erm_"):
            continue
        *place, distance = where.coordinates(subject.state(name))
        if isinstance(where, Line):
            place = [place[0] * size]
        if distance <= size and all(-size <= value <= 2 * size for value in place):
            found.append(name)
    return found


@torch.no_grad()
def _features(model: nn.Module, images: Tensor, batch_size: int) -> Tensor:
    starts = range(0, len(images), batch_size)
    return torch.cat([features(model, images[start : start + batch_size]).float().cpu() for start in starts])


# --- small parts ----------------------------------------------------------------------------------------------------


def _sources(subject: SavedRun) -> list[str]:
    """The source domains, in the order of the dataset."""
    return list(subject.held_out.sources.names)


def _filters(include: Sequence[str], exclude: Sequence[str]) -> dict[str, list[str]]:
    """As they are written down: only where there are any, so that rows without are found under the key they had."""
    given = {"include": list(include), "exclude": list(exclude)}
    return {name: patterns for name, patterns in given.items() if patterns}


def _rows(file: RowFile, key: str, kind: str, name: str) -> list[Row]:
    return [row for row in file.rows_of(key) if row["kind"] == kind and row["weights"] == name]


def _require_same_weights(file: RowFile, key: str, subject: SavedRun, name: str) -> None:
    """What was measured must be what lies there now."""
    now = subject.fingerprint(name)
    known = _rows(file, key, "weights", name)
    if not known:
        file.append({"key": key, "kind": "weights", "weights": name, "fingerprint": now})
    elif known[-1]["fingerprint"] != now:
        raise RunError(f"{subject.file(name)} changed since {file.path} was written: remove that file to measure anew")


def _summary(found: Comparison, key: str) -> list[Row]:
    """What tables and figures show: a row for each radius and domain, and paired differences."""
    rows: list[Row] = []
    for name, one in found.models.items():
        rows += [{"key": key, "kind": "row", "weights": name, **row.as_dict()} for row in one.rows]
    first, *others = found.models
    for other in others:
        rows += [{"key": key, "kind": "difference", **row.as_dict()} for row in found.differences(other, first)]
    return rows


def _append_new(file: RowFile, rows: Sequence[Row]) -> None:
    known = {json.dumps(row, sort_keys=True) for row in file.rows}
    if new := [row for row in rows if json.dumps(row, sort_keys=True) not in known]:
        file.append(*new)


def _without_old_sums(rows: list[Row]) -> list[Row]:
    """The sums over directions of a part hold those of the parts before it: only the last are needed."""
    last = {(row["key"], row["model"]): place for place, row in enumerate(rows) if row["kind"] == PART}
    return [
        {**row, "image_sums": {}} if row["kind"] == PART and last[row["key"], row["model"]] != place else row
        for place, row in enumerate(rows)
    ]


def _share(progress: Progress | None, place: int, of: int) -> Progress | None:
    """Progress of one of several pieces of equal length."""
    return None if progress is None else lambda n, total: progress(place * total + n, of * total)


def _mean(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    first = states[0]
    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in first.items()
    }


def _statistics(subject: SavedRun, model: nn.Module, images: Images) -> Callable[[nn.Module], object] | None:
    """Where batch-norm statistics were trained, a point between weights has none: they are taken from seen images."""
    if subject.config.model.freeze_bn or not batch_norms(model):
        return None
    pictures = torch.cat([one for one, _ in images.side("seen").values()])
    batches = [pictures[start : start + 64] for start in range(0, len(pictures), 64)]
    return lambda point: update_bn(batches, point)
