"""What `swad flatness` and `swad surface` do: measure and show how far they are, print a table, draw."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from swad.cli._console import make_console
from swad.experiments import run_flatness
from swad.experiments.run_flatness import SIDES as BOTH
from swad.experiments.run_flatness import FlatnessConfig
from swad.experiments.saved_run import SavedRun, open_runs
from swad.flatness import check_radii, require_curvlinops
from swad.results.figures.flatness import flatness_figure, method_colors, ranking_figure
from swad.results.figures.style import save_figure
from swad.results.figures.surfaces import line_figure, surface_figure
from swad.results.flatness_runs import (
    RunFlatness,
    curves_by_target,
    difference_curves,
    method_names,
    paired_differences,
    rank_methods,
    read_flatness,
    with_mean,
)
from swad.results.flatness_tables import (
    curvature_table,
    curve_table,
    domain_table,
    points_table,
    verdict_table,
    worst_case_table,
)
from swad.results.labels import weights_label
from swad.results.runs import load_run
from swad.results.surfaces import read_surface
from swad.training.run_dir import RunError
from swad.util.progress import Progress

EVERY = 5.0
"""Least seconds between two lines that say how far it is, where there is no terminal for a bar."""


def show_flatness(
    folders: Sequence[Path],
    *,
    weights: Sequence[str] = (),
    measuring: FlatnessConfig | None = None,
    worst_radii: Sequence[float] = (),
    curvature: bool = False,
    output: Path | None = None,
    formats: Sequence[str] = ("svg", "pdf", "png"),
    device: str = "cpu",
    workers: int | None = None,
    data: Path | None = None,
) -> list[Path]:
    """Measure the flatness of some weights of some runs, print what came out, draw it, and say where it lies."""
    subjects, left_out = open_runs(folders, data)
    chosen = {subject.path: _chosen(subject, weights, subjects) for subject in subjects}
    for text in left_out:
        make_console().print(f"[yellow]note[/]: {text}", highlight=False)
    return flatness_of_runs(
        chosen,
        measuring or FlatnessConfig(),
        worst_radii=worst_radii,
        curvature=curvature,
        place=output if output is not None else Path(folders[0]) / "figures",
        formats=formats,
        device=device,
        workers=workers,
        data=data,
    )


def flatness_of_runs(
    weights: Mapping[Path, Sequence[str]],
    measuring: FlatnessConfig,
    *,
    worst_radii: Sequence[float] = (),
    curvature: bool = False,
    place: Path,
    stem: str = "flatness",
    formats: Sequence[str] = ("svg", "pdf", "png"),
    device: str = "cpu",
    workers: int | None = None,
    data: Path | None = None,
) -> list[Path]:
    """The same for given weights of given run folders; the first of each leads."""
    for radii in (measuring.radii, worst_radii or None):  # now, not after the hours that the rest may take
        if radii is not None:
            check_radii(radii)
    if curvature:
        require_curvlinops()
    subjects, _ = open_runs(list(weights), data)
    options: dict[str, Any] = {"device": device, "workers": workers}
    same: dict[str, Any] = {
        "n_images": measuring.n_images, "include": measuring.include, "exclude": measuring.exclude, **options
    }  # fmt: skip
    kinds = {subject.path: [subject.full_name(name) for name in weights[subject.path]] for subject in subjects}
    for number, subject in enumerate(subjects, start=1):
        names = kinds[subject.path]
        shown = _counted(subject, number, len(subjects))
        with following(f"{shown}: flatness") as progress:
            run_flatness.run_local(subject, names, measuring, progress=progress, **options)
        if worst_radii:
            with following(f"{shown}: worst case") as progress:
                run_flatness.run_worst_case(subject, names, worst_radii, progress=progress, **same)
        if curvature:
            with following(f"{shown}: curvature") as progress:
                run_flatness.run_curvature(subject, names, progress=progress, **same)
    runs = [load_run(subject.path) for subject in subjects]
    read = [one for run in runs if (one := read_flatness(run, kinds[run.path])) is not None]
    read = [
        replace(one, worst_case=one.worst_case if worst_radii else (), curvature=one.curvature if curvature else ())
        for one in read
    ]
    console = make_console()
    written = draw_flatness(read, place, stem, formats)
    written += print_flatness(console, read, place, stem, formats)
    if worst_radii:
        console.print(worst_case_table(read).rich())
        console.print("A lower bound: the true maximum within the radius is this or more.", style="dim")
    if curvature:
        console.print(curvature_table(read, BOTH).rich())
    _say_written(written, [subject.path / "flatness.jsonl" for subject in subjects])
    return written


def show_surface(
    folders: Sequence[Path],
    *,
    corners: Sequence[str] = (),
    points: Sequence[str] | None = None,
    steps: int = run_flatness.GRID,
    margin: float = run_flatness.MARGIN,
    images: int | None = 200,
    output: Path | None = None,
    stem: str = "surface",
    formats: Sequence[str] = ("svg", "pdf", "png"),
    device: str = "cpu",
    workers: int | None = None,
    data: Path | None = None,
) -> list[Path]:
    """Measure the plane through three weights of some runs (two: the line), draw it, and say where it lies."""
    subjects, left_out = open_runs(folders, data)
    for subject in subjects:  # all faults of all runs before the first measurement of any
        for name in corners or run_flatness.default_corners(subject):
            subject.file(name)
    console = make_console()
    for text in left_out:
        console.print(f"[yellow]note[/]: {text}", highlight=False)
    shape = "line" if len(corners) == 2 else "plane"
    for number, subject in enumerate(subjects, start=1):
        shown = _counted(subject, number, len(subjects))
        with following(f"{shown}: {shape}") as progress:
            run_flatness.run_surface(
                subject, corners, points, steps=steps, margin=margin, n_images=images, device=device, workers=workers,
                progress=progress,
            )  # fmt: skip
    runs = [load_run(subject.path) for subject in subjects]
    found = [one for run in runs if (one := read_surface(run, shape)) is not None]
    place = output if output is not None else Path(folders[0]) / "figures"
    draw = line_figure if shape == "line" else surface_figure
    written = save(draw(found), place, "line" if shape == "line" else stem, formats)
    console.print(points_table(found).rich())
    _say_written(written, [subject.path / "surface.jsonl" for subject in subjects])
    return written


# ------------------------------------------------------------ drawing and printing


def draw_flatness(found: Sequence[RunFlatness], place: Path, stem: str, formats: Sequence[str]) -> list[Path]:
    """The figure of every dataset: the mean over targets, and each target."""
    written = []
    datasets = dict.fromkeys(one.run.dataset for one in found)
    for dataset in datasets:
        some = [one for one in found if one.run.dataset == dataset]
        name = stem if len(datasets) == 1 else f"{stem}-{dataset}"
        groups = with_mean(curves_by_target(some))
        written += save(flatness_figure(groups, colors=_colors(some)), place, name, formats)
    return written


def _colors(found: Sequence[RunFlatness]) -> dict[str, int]:
    """The same in all figures of a dataset."""
    return method_colors(method_names(found))


def print_flatness(
    console: Console,
    found: Sequence[RunFlatness],
    place: Path,
    stem: str,
    formats: Sequence[str],
) -> list[Path]:
    """Tables, paired comparisons and the ranking; figures of the last two and a summary as JSON are written."""
    summary: dict[str, Any] = {
        "settings": {},
        "curves": [],
        "domains": [],
        "comparisons": [],
        "differences": [],
        "ranking": [],
        "worst_case": _measured(found, "worst_case"),
        "curvature": _measured(found, "curvature"),
    }
    written: list[Path] = []
    for dataset in dict.fromkeys(one.run.dataset for one in found):
        some = [one for one in found if one.run.dataset == dataset]
        groups = curves_by_target(some)
        summary["settings"][dataset] = {**some[0].settings, "directions": some[0].n_directions}
        for title, sides in with_mean(groups).items():
            for side in BOTH:
                # The mean stands for all where there are several; each target is in the figure and the file.
                if len(groups) == 1 or title not in groups:
                    console.print(curve_table(f"{dataset}, {title}: F on {side} domains", sides[side]).rich())
                summary["curves"] += [
                    {"dataset": dataset, "group": title, "side": side, "method": curve.method, "radius": radius,
                     "mean": mean, "low": low, "high": high}
                    for curve in sides[side]
                    for radius, mean, low, high in zip(curve.radii, curve.mean, curve.low, curve.high, strict=True)
                ]  # fmt: skip
        console.print(domain_table(some).rich())
        summary["domains"] += [
            {"dataset": dataset, "run": f"{one.target}-{one.run.trial}", "domain": domain, "method": curve.method,
             "radius": radius, "mean": mean, "low": low, "high": high}
            for one in some
            for domain, curves in one.curves.items()
            for curve in curves
            for radius, mean, low, high in zip(curve.radii, curve.mean, curve.low, curve.high, strict=True)
        ]  # fmt: skip
        console.print(
            f"F: by how much the loss rises on average at that distance; less is flatter. {some[0].n_directions} "
            "directions; ± half of the 95 % interval.",
            style="dim",
            highlight=False,
        )
        for side in BOTH:
            radius = max(some[0].curves[side][0].radii)
            order = rank_methods(some, side, radius)
            if order is None:
                continue
            told = (
                f"Flat and accurate? F at radius {radius:g} on {side} domains against accuracy on the target, over "
                f"{len(order.rows)} methods: Spearman {order.spearman.value:+.2f} (95 % {order.spearman.low:+.2f} to "
                f"{order.spearman.high:+.2f} {order.interval_over}, p = {order.spearman.p:.2g}), Kendall "
                f"{order.kendall.value:+.2f} (p = {order.kendall.p:.2g})."
            )
            console.print(told, highlight=False)
            summary["ranking"].append(
                {"dataset": dataset, "side": side, "radius": radius, "spearman": vars(order.spearman),
                 "kendall": vars(order.kendall), "resampled": order.resampled,
                 "rows": [vars(row) for row in order.rows]}
            )  # fmt: skip
            name = f"ranking-{side}" if len(summary["settings"]) == 1 else f"ranking-{dataset}-{side}"
            quantity = f"$F_γ$ at γ = {radius:g}, {side}"
            figure = ranking_figure(order, quantity=quantity, colors=_colors(some))
            written += save(figure, place, name, formats)
    several = len({one.run.dataset for one in found}) > 1
    for dataset in dict.fromkeys(one.run.dataset for one in found):
        units = paired_differences([one for one in found if one.run.dataset == dataset])
        if not units:
            continue
        for (target, trial), differences in units.items():
            run = f"{dataset}, " * several + f"{target}, trial {trial}"
            for difference in differences:
                method, reference, side = difference.pair
                text = f"{method} against {reference} on {side} domains: {difference.verdict}"
                summary["comparisons"].append({"run": run, "side": side, "text": text})
                curve, p = difference.curve, difference.p or (None,) * len(difference.curve.radii)
                summary["differences"] += [
                    {"run": run, "first": method, "second": reference, "domain": side, "radius": radius,
                     "mean": mean, "low": low, "high": high, "p": p_value}
                    for radius, mean, low, high, p_value in zip(
                        curve.radii, curve.mean, curve.low, curve.high, p, strict=True
                    )
                ]  # fmt: skip
        title = "Paired differences, on the same directions and images"
        console.print(verdict_table(f"{dataset}: {title.lower()}" if several else title, units).rich())
        console.print(
            "Numbers are radii. A difference is open at a radius if its 95 % interval includes 0.",
            style="dim",
            highlight=False,
        )
        reference, curves = difference_curves(units)
        colors = _colors([one for one in found if one.run.dataset == dataset])
        figure = flatness_figure(curves, colors=colors, reference=reference)
        written += save(figure, place, f"{stem}-paired-{dataset}" if several else f"{stem}-paired", formats)
    path = place / "flatness.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_spelled(summary), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return [*written, path]


def save(figure: Any, folder: Path, stem: str, formats: Sequence[str]) -> list[Path]:
    """Write a figure in every format."""
    return [save_figure(figure, folder / f"{stem}.{kind}") for kind in formats]


# ------------------------------------------------------------ small parts


@contextmanager
def following(what: str) -> Iterator[Progress]:
    """A bar with the time left in a terminal; elsewhere a line now and then. Ctrl-C says that work goes on."""
    from swad.util.progress import progress_bar

    console = Console(stderr=True)
    begun = last = time.monotonic()
    told, before = 0, -1

    def log(_: str, done: int, total: int | None) -> None:
        nonlocal told, before, last
        assert total is not None
        before = done - 1 if before < 0 else before  # what was there already took no time
        tenth, now = 10 * done // total, time.monotonic()
        if tenth > told and (now - last >= EVERY or tenth == 10):
            told, last = tenth, now
            left = (now - begun) * (total - done) / max(1, done - before)
            print(f"{what}: {10 * tenth} %, {now - begun:.0f} s, {left:.0f} s left", file=sys.stderr, flush=True)

    try:
        with progress_bar(console) as bar:
            yield (lambda _, done, total: bar(what, done, total)) if console.is_terminal else log
    except KeyboardInterrupt:
        print("what was measured is kept: run the same command again to go on", file=sys.stderr, flush=True)
        raise


def _chosen(subject: SavedRun, wanted: Sequence[str], subjects: Sequence[SavedRun]) -> list[str]:
    """Of the weights asked for those that this run has; nothing asked for means all that it reports."""
    if not wanted:
        return list(subject.reported)
    found = []
    for name in wanted:
        try:
            subject.file(name)
        except RunError:
            if not any(_has(other, name) for other in subjects):
                raise
            continue
        found.append(name)
    if not found:
        raise RunError(f"{subject.path} has none of {', '.join(wanted)}; it has {', '.join(subject.weights)}")
    return found


def _has(subject: SavedRun, name: str) -> bool:
    try:
        return subject.file(name).is_file()
    except RunError:
        return False


def _counted(subject: SavedRun, number: int, total: int) -> str:
    """A run's name; of several with the folder above it, which as a rule names the method, and how many there are."""
    return f"{subject.path.parent.name}/{subject.path.name} ({number} of {total})" if total > 1 else subject.name


def _measured(found: Sequence[RunFlatness], kind: str) -> list[dict[str, Any]]:
    """Rows of the worst case or the curvature, with what they are of."""
    return [
        {
            "dataset": one.run.dataset,
            "run": f"{one.target}-{one.run.trial}",
            "method": weights_label(one.run, row["weights"]),
            **{key: value for key, value in row.items() if key not in ("key", "kind")},
        }
        for one in found
        for row in getattr(one, kind)
    ]


def _spelled(value: Any) -> Any:
    """With text for the numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {key: _spelled(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _say_written(written: Sequence[Path], rows: Sequence[Path]) -> None:
    """Unbroken, whatever the width: a path is there to be copied."""
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    print(f"rows in {rows[0]}{more}", flush=True)
    print(f"wrote {', '.join(str(path) for path in written)}", flush=True)
