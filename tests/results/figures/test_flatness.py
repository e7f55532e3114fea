import dataclasses
import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from helpers.landscapes import Point

pytest.importorskip("matplotlib")

from helpers.configs import stored
from swad.flatness import Comparison, local
from swad.flatness._bound import bound
from swad.flatness._divergence import Divergence
from swad.results.figures import training
from swad.results.figures.flatness import (
    bound_figure,
    colors_of,
    flatness_figure,
    line_figure,
    ranking_figure,
    surface_figure,
)
from swad.results.flatness_rows import FLATNESS, SURFACE, RowFile
from swad.results.flatness_stats import (
    Difference,
    FlatCurve,
    average,
    by_target,
    flatness_of,
    over_targets,
    paired,
    paired_curves,
    ranking_of,
    surfaces_of,
)
from swad.results.flatness_tables import curvature_table, domain_table, verdicts, worst_table
from swad.results.page import build
from swad.results.rank_correlation import ranking
from swad.results.records import Record, RecordWriter
from swad.results.runs import RunData, load_run

RADII = (0.0, 5.0, 10.0)
STEEP = {"best": 3.0, "swa": 2.0, "swad": 1.0}
ACCURACY = {"best": 0.80, "swa": 0.82, "swad": 0.85}


def write_run(folder: Path, target: str = "photo", trial: int = 0, factor: float = 1.0, **config: object) -> RunData:
    """A finished run whose flatness and plane were measured: F = factor x steepness x radius^2."""
    domains = [name for name in ("art", "cartoon", "photo") if name != target]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps(
            stored({"dataset": "PACS", "target": target, "trial": trial, "algorithm": "erm", "steps": 100} | config)
        )
    )
    with RecordWriter(folder, f"{target}-{trial}") as writer:
        for step in (50, 100):
            for domain in domains:
                writer.append(
                    Record("r", step, domain, "out", "loss", 1.0), Record("r", step, domain, "out", "accuracy", 0.9)
                )
        for name, value in ACCURACY.items():
            writer.append(Record("r", 100, target, "in", "accuracy", value, name))
    (folder / "done.json").write_text("{}")
    with RowFile(folder, FLATNESS) as file:
        key = file.add_settings({"radii": list(RADII), "images": 10})
        for weights, steep in STEEP.items():
            for domain in (*domains, target, "seen", "unseen", None):
                for radius in RADII:
                    mean = factor * steep * radius**2 * (2 if domain in ("unseen", target) else 1)
                    row = {"kind": "row", "weights": weights, "domain": domain, "radius": radius, "mean": mean}
                    file.append({"key": key, **row, "low": mean - 1, "high": mean + 2, "n_directions": 8})
        for side in ("seen", "unseen"):
            for radius in RADII:
                mean = -2.0 * radius**2
                row = {"kind": "difference", "first": "swad", "second": "best", "domain": side, "radius": radius}
                file.append({"key": key, **row, "mean": mean, "low": mean - 1, "high": mean / 2, "p": 0.01})
        file.mark_shown(key)
    with RowFile(folder, SURFACE) as file:
        corners = ["step-000050", "step-000070", "step-000090"]
        content = {"corners": corners, "points": ["swad"], "seen": domains, "unseen": [target]}
        key = file.add_settings({"shape": "plane", **content})
        xs, ys = [-1.0, 0.0, 1.0, 2.0], [-1.0, 0.0, 1.5]
        file.append({"key": key, "kind": "surface", "xs": xs, "ys": ys, "parameters": 9})
        named = {"1": (0.0, 0.0), "2": (1.0, 0.0), "3": (0.5, 1.0), "mean": (0.5, 1 / 3), "swad": (0.4, 0.3)}
        spots = [(None, x, y) for y in ys for x in xs] + [(name, *where) for name, where in named.items()]
        for name, x, y in spots:
            losses = dict.fromkeys(domains, 0.01 + x**2 + y**2) | {target: 2.0 + x}
            point = {"kind": "surface-point", "name": name, "x": x, "y": y, "distance": 0.5 * (name == "swad")}
            file.append({"key": key, **point, "losses": losses, "errors": {}})
        file.mark_shown(key)
    return load_run(folder)


@pytest.fixture
def runs(tmp_path: Path) -> list[RunData]:
    return [write_run(tmp_path / "a"), write_run(tmp_path / "b", target="art", factor=3.0)]


# --- reading --------------------------------------------------------------------------------------------------------


def test_curves_are_read_averaged_over_trials_and_over_targets(runs, tmp_path):
    second = write_run(tmp_path / "c", trial=1, factor=2.0)
    found = [one for run in (*runs, second) if (one := flatness_of(run)) is not None]
    groups = by_target(found)
    assert list(groups) == ["art", "photo"]
    methods = [curve.method for curve in groups["photo"]["seen"]]
    assert methods == ["ERM (best)", "SWA", "SWAD"]
    swad = groups["photo"]["seen"][-1]
    assert swad.mean == pytest.approx([0, 1.5 * 25, 1.5 * 100])  # of factors 1 and 2
    # Two independent intervals of -1 and +2 around the mean.
    assert swad.at(10.0)[1:] == pytest.approx((150 - math.sqrt(2) / 2, 150 + math.sqrt(8) / 2))
    whole = over_targets(groups)["unseen"][-1]
    assert whole.mean[-1] == pytest.approx((2 * 150 + 2 * 300) / 2)


def test_the_last_measurement_counts_and_some_weights_can_be_chosen(tmp_path):
    run = write_run(tmp_path / "a")
    with RowFile(run.path, FLATNESS) as file:
        key = file.add_settings({"radii": [7.0], "images": 99})
        row = {"key": key, "kind": "row", "weights": "swa", "domain": "seen", "radius": 7.0, "mean": "inf"}
        file.append({**row, "low": "nan", "high": "nan", "n_directions": 2})
        assert flatness_of(run).settings["images"] == 10  # until it is whole
        file.mark_shown(key)
    found = flatness_of(run)
    assert found is not None
    assert found.settings["images"] == 99
    assert found.curves["seen"][0].mean == (math.inf,)
    assert flatness_of(run, ["swad"]) is None
    assert flatness_of(RunData(tmp_path, {}, (), True)) is None


def test_every_domain_has_its_own_numbers(runs):
    table = domain_table([flatness_of(run) for run in runs])
    assert table.columns == ("art", "cartoon", "photo")
    assert table.rows[2].name == "photo, trial 0: SWAD"
    assert [cell.value for cell in table.rows[2].cells] == [100, 100, 200]
    assert table.rows[2].cells[0].error == 1.5


def test_methods_are_ranked_over_targets(runs):
    found = [one for run in runs if (one := flatness_of(run)) is not None]
    order = ranking_of(found, "unseen", 10.0)
    assert order is not None
    assert [row.method for row in order.rows] == ["SWAD", "SWA", "ERM (best)"]
    assert order.same_order
    assert order.kendall.value == pytest.approx(1)
    assert order.kendall.p == pytest.approx(2 / 6)
    assert order.resampled == "units"
    assert ranking_of(found, "unseen", 11.0) is None
    assert ranking_of([flatness_of(run, ["swad", "swa"]) for run in runs], "seen", 10.0) is None


def test_verdicts_in_words(runs):
    table = verdicts("Who", paired([flatness_of(run) for run in runs]))
    assert [row.name for row in table.rows] == [
        "photo, trial 0: SWAD against ERM (best)",
        "art, trial 0: SWAD against ERM (best)",
        "mean over targets: SWAD against ERM (best)",
    ]
    assert table.rows[0].cells[0].text == "flatter at every radius (p = 0.01)"
    assert table.rows[2].cells[1].text == "flatter at every radius"
    below = FlatCurve("A", (0.0, 1.0, 2.0), (0, -2, -2), (0, -3, -3), (0, -1, -1))
    weakest = Difference("a", "b", "seen", below, "B", (1.0, 0.03, 0.001))  # radius 0 does not count
    assert weakest.verdict == "flatter at every radius (p = 0.03)"
    flat = FlatCurve("A", (1.0, 2.0, 3.0, 4.0), (0,) * 4, (-1, -1, -1, -1), (1, 1, 1, 1))
    assert Difference("a", "b", "seen", flat, "B").verdict == "no difference shown"
    mixed = FlatCurve("A", (1.0, 2.0, 3.0, 4.0), (0,) * 4, (-2, -2, 1, -2), (-1, -1, 2, -1))
    assert Difference("a", "b", "seen", mixed, "B").verdict == "flatter at 1–2, 4, sharper at 3"


def test_trials_of_one_target_are_no_targets(tmp_path):
    photo = [write_run(tmp_path / f"{trial}", trial=trial) for trial in (0, 1)]
    names = [row.name.split(":")[0] for row in verdicts("Who", paired([flatness_of(run) for run in photo])).rows]
    assert names == ["photo, trial 0", "photo, trial 1", "photo, mean over trials"]
    # A third run, of another target, counts as much as the two trials together.
    art = write_run(tmp_path / "art", target="art")
    units = paired([flatness_of(run) for run in (*photo, art)])
    units["art", 0] = [
        dataclasses.replace(one, curve=dataclasses.replace(one.curve, mean=(0, 5, 5), low=(0, 4, 4), high=(0, 30, 130)))
        for one in units["art", 0]
    ]
    *_, last = verdicts("Who", units).rows
    assert last.name == "mean over targets: SWAD against ERM (best)"
    versus, curves = paired_curves(units)
    assert versus == "ERM (best)"
    assert curves["mean over targets"]["seen"][0].mean == pytest.approx([0, (-50 + 5) / 2, (-200 + 5) / 2])


def test_the_first_that_was_named_leads_and_older_files_are_read(tmp_path):
    run = write_run(tmp_path / "a")
    assert flatness_of(run).first == "best"  # by the differences that are there
    with RowFile(run.path, FLATNESS) as file:
        key = file.rows[0]["key"]
        turned = {"kind": "difference", "first": "best", "second": "swad", "domain": "seen", "radius": 5.0}
        file.append({"key": key, **turned, "mean": 50.0, "low": 40.0, "high": 60.0, "p": 0.01})
        for first in ("swad", "best", "swad"):
            file.mark_shown(key, first=first)
            found = flatness_of(run)
            assert found.first == first
            assert {one.second for one in found.differences} == {first}
            assert {one.versus for some in paired([found]).values() for one in some} == {found.weights[first]}
        length = len(file.rows)
        file.mark_shown(key, first="swad")
        assert len(file.rows) == length
    assert flatness_of(run, ["swa", "best"]).first == "swa"


def quadratics(steep: float):
    """Losses of 40 images of two domains around `Point`'s weights, each with eigenvalues of its own."""
    start = Point().vector().detach()
    drawn = torch.Generator().manual_seed(0)
    hessians = {name: steep * torch.rand(40, 10, generator=drawn, dtype=torch.float64) for name in ("art", "photo")}
    return lambda model: {name: one @ (model.vector() - start).square() for name, one in hessians.items()}


def raw_run(folder: Path, algorithm: str, factor: float, seed: int = 0) -> tuple[RunData, dict[str, object]]:
    """A run whose F was measured indeed, of quadratics by image, with its raw rows."""
    folder.mkdir(parents=True)
    config = {"dataset": "PACS", "target": "photo", "trial": 0, "algorithm": algorithm}
    (folder / "config.json").write_text(json.dumps(stored(config)))
    (folder / "done.json").write_text("{}")
    groups, models = {"seen": ["art"], "unseen": ["photo"]}, {}
    with RowFile(folder, FLATNESS) as file:
        key = file.add_settings({"radii": [0.0, 1.0, 2.0], "images": 40})
        for name, steep in (("best", factor), ("swad", factor / 2)):
            flat = local(Point(), quadratics(steep), [0.0, 1.0, 2.0], 40, seed, groups=groups)
            models[name] = flat
            file.append(*({"key": key, **row} for row in flat.to_rows(name)))
            file.append(*({"key": key, "kind": "row", "weights": name, **row.as_dict()} for row in flat.rows))
        both = Comparison(models)
        file.append(*({"key": key, "kind": "difference", **r.as_dict()} for r in both.differences("swad", "best")))
        file.mark_shown(key, first="best")
    return load_run(folder), models


def test_methods_of_two_runs_are_paired_as_if_they_were_measured_together(tmp_path):
    erm, plain = raw_run(tmp_path / "erm", "erm", 2.0)
    sam, other = raw_run(tmp_path / "sam", "sam", 1.0)
    (pairs,) = paired([flatness_of(run) for run in (sam, erm)]).values()
    assert {one.versus for one in pairs} == {"ERM (best)"}
    found = {(one.curve.method, one.side): one for one in pairs}
    assert {name for name, _ in found} == {"SWAD", "SAM (best)", "SAM + SWAD"}
    # The twin: the bootstrap of both models' raw losses together, as the command does it.
    together = Comparison({"SAM": other["best"], "ERM": plain["best"]}).differences("SAM", "ERM")
    for side in ("seen", "unseen"):
        curve = found["SAM (best)", side].curve
        rows = [row for row in together if row.domain == side]
        assert curve.mean == pytest.approx([row.mean for row in rows])
        halves = [(high - low) / 2 for low, high in zip(curve.low, curve.high, strict=True)]
        assert halves[-1] > 0.01
        assert halves == pytest.approx([(row.high - row.low) / 2 for row in rows], rel=0.1)
    assert found["SWAD", "seen"].p  # of one run: as it was stored
    text = build.build([erm, sam])
    for name in ("SWAD", "SAM (best)", "SAM + SWAD"):
        assert f"photo, trial 0: {name} against ERM (best)" in text
    elsewhere, _ = raw_run(tmp_path / "seed", "sam", 1.0, seed=1)
    (pairs,) = paired([flatness_of(run) for run in (erm, elsewhere)]).values()
    assert {one.curve.method for one in pairs} == {"SWAD"}  # other directions have no pairs


def changed(run: RunData, weights: str, **values: object) -> RunData:
    """The run with other numbers of some weights, at the largest radius."""
    with RowFile(run.path, FLATNESS) as file:
        file.append(
            *(
                {**row, **values}
                for row in list(file.rows)
                if row["kind"] == "row" and row["weights"] == weights and row["radius"] == RADII[-1]
            )
        )
    return run


def test_what_is_not_finite_is_not_ranked(tmp_path):
    run = write_run(tmp_path / "a")
    with RecordWriter(run.path, "photo-0") as writer:
        writer.append(Record("r", 100, "photo", "in", "accuracy", 0.7, "ema"))
    with RowFile(run.path, FLATNESS) as file:
        file.append(*({**row, "weights": "ema"} for row in list(file.rows) if row.get("weights") == "swad"))
    run = changed(load_run(run.path), "ema", mean="inf", low="nan", high="nan")
    order = ranking_of([flatness_of(run)], "unseen", 10.0)
    assert [row.method for row in order.rows] == ["SWAD", "SWA", "ERM (best)"]
    assert order.interval_over == "resampled over methods"
    changed(run, "swad", mean="nan")
    assert ranking_of([flatness_of(run)], "unseen", 10.0) is None
    assert "Flatness on PACS" in build.build([run])
    up, down = (FlatCurve("A", (1.0,), (sign * math.inf,), (0.0,), (0.0,)) for sign in (1, -1))
    assert math.isnan(average([up, down]).mean[0])


def test_copies_of_a_method_are_ranked_once(tmp_path):
    run = write_run(tmp_path / "a")
    with RecordWriter(run.path, "photo-0") as writer:
        for name, value in (("last", 0.5), ("ema", ACCURACY["best"])):
            writer.append(Record("r", 100, "photo", "in", "accuracy", value, name))
    with RowFile(run.path, FLATNESS) as file:
        for name, steep in (("last", 9.0), ("ema", 1.0)):
            some = [row for row in list(file.rows) if row.get("weights") == "best"]
            file.append(*({**row, "weights": name, "mean": steep * row["mean"]} for row in some))
    order = ranking_of([flatness_of(load_run(run.path))], "unseen", 10.0)
    # EMA has the numbers of ERM (best), and ERM (last) is not another method.
    assert [row.method for row in order.rows] == ["SWAD", "SWA", "ERM (best)"]


def test_differences_as_curves_are_averaged_over_trials_then_over_targets(runs):
    photo, art = (list(flatness_of(run).differences) for run in runs)
    steeper = [dataclasses.replace(one, curve=dataclasses.replace(one.curve, mean=(0, -70, -400))) for one in photo]
    versus, found = paired_curves({("photo", 0): photo, ("photo", 1): steeper, ("art", 0): art})
    assert versus == "ERM (best)"
    assert list(found) == ["mean over targets", "photo", "art"]
    (swad,) = found["photo"]["seen"]
    assert swad.method == "SWAD"
    assert swad.mean == pytest.approx([0, (-50 - 70) / 2, (-200 - 400) / 2])
    assert found["mean over targets"]["unseen"][0].mean == pytest.approx([0, (-60 - 50) / 2, (-300 - 200) / 2])
    assert list(paired_curves({("art", 0): art})[1]) == ["art"]
    assert paired_curves({}) == ("", {})


def test_an_average_of_one_is_itself_and_radii_are_those_in_common():
    one = FlatCurve("A", (1.0, 2.0), (1.0, 2.0), (0.0, 1.0), (2.0, 3.0))
    other = FlatCurve("A", (2.0, 3.0), (4.0, 5.0), (4.0, 5.0), (4.0, 5.0))
    assert average([one]) is one
    assert average([one, other]).radii == (2.0,)
    assert average([one, other]).mean == (3.0,)


def test_a_surface_that_is_not_whole_is_not_shown(tmp_path):
    run = write_run(tmp_path / "a")
    path = run.path / SURFACE
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:8], lines[-1]]))
    assert surfaces_of(run) is None
    assert surfaces_of(run, "line") is None


# --- drawing --------------------------------------------------------------------------------------------------------


def test_the_figure_shows_curves_and_bands(runs):
    groups = by_target(one for run in runs if (one := flatness_of(run)) is not None)
    figure = flatness_figure({"mean over targets": over_targets(groups), **groups})
    assert len(figure.axes) == 6
    panel = figure.axes[2]  # seen, photo
    drawn = {line.get_label(): line for line in panel.lines}
    for curve in groups["photo"]["seen"]:
        assert tuple(drawn[curve.method].get_xdata()) == curve.radii
        assert tuple(drawn[curve.method].get_ydata()) == curve.mean
    assert len(panel.collections) == 3
    band = panel.collections[-1].get_paths()[0].vertices
    swad = groups["photo"]["seen"][-1]
    assert band[:, 1].max() == pytest.approx(max(swad.high))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ERM (best)", "SWA", "SWAD"]


def test_the_paired_figure_shows_zero_and_whole_bands(runs):
    versus, groups = paired_curves(paired([flatness_of(run) for run in runs]))
    figure = flatness_figure(groups, versus=versus)
    panel = figure.axes[1]  # seen, photo
    assert "minus that of ERM (best)" in figure.axes[0].get_ylabel()
    (curve,) = groups["photo"]["seen"]
    low, high = panel.get_ylim()
    assert low <= min(curve.low)
    assert high >= max(*curve.high, 0)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["SWAD"]


def test_curves_without_intervals_are_drawn_without_bands():
    nan = (math.nan,) * 3
    curves = [FlatCurve(name, RADII, (0.0, k, 4.0 * k), nan, nan) for k, name in enumerate(("ERM", "SWAD"), start=1)]
    (axes,) = flatness_figure({"photo": {"seen": curves}}, sides=("seen",)).axes
    low, high = axes.get_ylim()
    assert low <= 0
    assert high >= 8
    assert high < 9
    gone = FlatCurve("ERM", RADII, (0.0, math.inf, math.nan), nan, nan)
    training.theme_svg(flatness_figure({"photo": {"seen": [gone]}}, sides=("seen",)), "a", "b")


def test_a_radius_alone_is_marked():
    curves = [FlatCurve(name, (3.0,), (k,), (k - 0.5,), (k + 0.5,)) for k, name in enumerate(("ERM", "SWAD"))]
    (axes,) = flatness_figure({"photo": {"seen": curves}}, sides=("seen",)).axes
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    assert [line.get_label() for line in marks] == ["ERM", "SWAD"]
    assert axes.get_xticks().tolist() == [3.0]
    assert len({line.get_xdata()[0] for line in marks}) == 2  # beside each other
    low, high = axes.get_ylim()
    assert low <= -0.5
    assert high >= 1.5


def test_lines_that_lie_on_each_other_are_dashed():
    def curve(name: str, last: float) -> FlatCurve:
        return FlatCurve(name, RADII, (0.0, 1.0, last), (0.0,) * 3, (0.0,) * 3)

    panels = {"a": {"seen": [curve("ERM", 4), curve("SWA", 4), curve("SWAD", 4), curve("SAM", 2)]}}
    (axes,) = flatness_figure(panels, sides=("seen",)).axes
    lines = {line.get_label(): line for line in axes.lines}
    assert [lines[name].is_dashed() for name in ("ERM", "SWA", "SWAD", "SAM")] == [False, True, True, False]
    assert lines["SWA"]._unscaled_dash_pattern != lines["SWAD"]._unscaled_dash_pattern
    assert lines["ERM"].zorder < lines["SWA"].zorder < lines["SWAD"].zorder
    many = [curve(f"m{k}", k) for k in range(10)]  # more than there are colors
    (axes,) = flatness_figure({"a": {"seen": many}}, sides=("seen",)).axes
    drawn = {(line.get_color(), line.is_dashed()) for line in axes.lines if line.get_label().startswith("m")}
    assert len(drawn) == 10


def test_figures_drawn_together_share_their_colors():
    order = ranking({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 0.9, "b": 0.8, "c": 0.7})
    (axes,) = ranking_figure(order, colors={"a": 4, "b": 2, "c": 0}).axes
    assert [line.get_color() for line in axes.lines] == [training.PALETTE[place] for place in (4, 2, 0)]


def test_surfaces_of_several_algorithms_are_told_apart(tmp_path):
    runs = [write_run(tmp_path / name, algorithm=name) for name in ("erm", "sam")]
    figure = surface_figure([surfaces_of(run) for run in runs])
    panels = [axes for axes in figure.axes if axes.get_aspect() == 1.0]
    assert [axes.get_title(loc="left") for axes in panels[:2]] == ["target: photo, ERM", "target: photo, SAM"]
    one, two = (next(line for line in axes.lines if "SWAD" in line.get_label()) for axes in panels[:2])
    assert (one.get_label(), two.get_label()) == ("SWAD", "SAM + SWAD")
    assert one.get_marker() != two.get_marker()
    assert one.get_markerfacecolor() != two.get_markerfacecolor()
    text = build.build(runs)
    assert ">ERM: photo as target, trial 0<" in text
    assert ">SAM: photo as target, trial 0<" in text


def test_flat_planes_stand_close_together(tmp_path):
    surface = surfaces_of(write_run(tmp_path / "a"))
    flat = dataclasses.replace(surface, ys=tuple(0.1 * y for y in surface.ys))
    figure = surface_figure([flat, flat])
    figure.draw_without_rendering()
    upper, lower = (figure.axes[place].get_position(original=False) for place in (0, 2))
    height = figure.get_figheight()
    assert (upper.y0 - lower.y1) * height < 0.5  # inches
    found = boxes(figure)
    assert not [1 for place, a in enumerate(found) for b in found[:place] if a.overlaps(b)]


def test_the_papers_methods_keep_their_colors():
    every = colors_of(["ERM (best)", "SAM (best)", "SWA (cyclic)", "SWA", "SWAD"])
    assert every["SWAD"] == colors_of(["SWAD", "ERM (last)"])["SWAD"]
    assert len(set(every.values())) == 5
    many = colors_of([f"m{i}" for i in range(20)])
    assert len(many) == 20


def test_contours_with_triangles_and_a_cross(runs):
    surfaces = [surfaces_of(run) for run in runs]
    figure = surface_figure(surfaces)
    panels = [axes for axes in figure.axes if axes.get_aspect() == 1.0]
    assert len(panels) == 4
    lines = {line.get_label(): line for line in panels[0].lines}
    triangles = lines["three weights"]
    assert triangles.get_marker() == "^"
    assert list(zip(*triangles.get_data(), strict=True)) == [(0.0, 0.0), (1.0, 0.0), (0.5, 1.0)]
    assert lines["their mean"].get_marker() == "x"
    assert lines["their mean"].get_xydata().tolist() == [[0.5, 1 / 3]]
    assert lines["SWAD"].get_marker() == "*"
    grid = surfaces[0].grids
    assert grid["seen"][1][0] == pytest.approx(1.01)  # y = 0, x = -1
    assert grid["unseen"][0][3] == pytest.approx(4.0)


def boxes(figure):
    figure.draw_without_rendering()
    found = [
        text.get_window_extent()
        for axes in figure.axes
        for text in (axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts)
        if text.get_text()
    ]
    found += [text.get_window_extent() for legend in figure.legends for text in legend.get_texts()]
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            labels = [label for tick in ticks for label in (tick.label1, tick.label2)]
            found += [one.get_window_extent() for one in labels if one.get_visible() and one.get_text()]
    return found


def test_labels_do_not_overlap(runs):
    groups = by_target(one for run in runs if (one := flatness_of(run)) is not None)
    for figure in (
        flatness_figure({"mean over targets": over_targets(groups), **groups}),
        surface_figure([surfaces_of(run) for run in runs]),
        ranking_figure(ranking_of([flatness_of(run) for run in runs], "seen", 10.0)),
    ):
        found = boxes(figure)
        pairs = [(a, b) for place, a in enumerate(found) for b in found[:place]]
        assert not [pair for pair in pairs if pair[0].overlaps(pair[1])]


@pytest.mark.parametrize("kind", training.FORMATS)
def test_every_format_is_written_and_the_same_twice(runs, tmp_path, kind):
    groups = by_target(one for run in runs if (one := flatness_of(run)) is not None)
    for draw in (lambda: flatness_figure(groups), lambda: surface_figure([surfaces_of(run) for run in runs])):
        one, two = (training.save(draw(), tmp_path / f"{n}.{kind}").read_bytes() for n in (1, 2))
        assert one == two
        assert len(one) > 5000


def test_a_loss_that_is_not_finite_and_a_plane_without_slope_are_drawn(tmp_path):
    run = write_run(tmp_path / "a")
    path = run.path / SURFACE
    level = '"losses": {"art": 1.0, "cartoon": 1.0, "photo": 1.0}'
    path.write_text(re.sub(r'"losses": \{[^}]*\}', level, path.read_text()))
    training.save(surface_figure([surfaces_of(run)]), tmp_path / "flat.svg")
    path.write_text(path.read_text().replace('"art": 1.0', '"art": "inf"', 3))
    training.save(surface_figure([surfaces_of(run)]), tmp_path / "holes.svg")


def test_the_line_between_two_weights(tmp_path):
    run = write_run(tmp_path / "a")
    with RowFile(run.path, SURFACE) as file:
        content = {"corners": ["best", "swad"], "points": ["swa", "ema"], "seen": ["art"], "unseen": ["photo"]}
        key = file.add_settings({"shape": "line", **content})
        file.append({"key": key, "kind": "surface", "xs": [0.0, 0.5, 1.0], "ys": [0.0], "parameters": 9})
        named = (("1", 0.0), ("2", 1.0), ("mean", 0.5), ("swa", 0.8), ("ema", 3.0))
        for name, x in ((None, 0.0), (None, 0.5), (None, 1.0), *named):
            point = {"kind": "surface-point", "name": name, "x": x, "y": 0.0, "distance": 0.0}
            file.append({"key": key, **point, "losses": {"art": x, "photo": 2 + x}, "errors": {}})
        file.mark_shown(key)
    assert surfaces_of(run).settings["shape"] == "plane"
    (axes,) = line_figure([surfaces_of(run, "line")]).axes
    assert axes.lines[0].get_ydata().tolist() == [0.0, 0.5, 1.0]
    assert axes.lines[1].get_ydata().tolist() == [2.0, 2.5, 3.0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["ERM (best)", "", "SWAD"]
    spots = {(line.get_marker(), *line.get_xydata()[0]) for line in axes.lines if len(line.get_xdata()) == 1}
    assert spots == {("x", 0.5, 0.5), ("x", 0.5, 2.5), ("P", 0.8, 0.8), ("P", 0.8, 2.8)}  # EMA is beyond the end
    labels = [line.get_label() for line in axes.lines if not line.get_label().startswith("_")]
    assert labels == ["Seen domains", "Unseen domain", "mean of the two", "SWA"]
    assert '<div class="panels single">' in build.build([run])


def test_the_bounds_figure_says_that_it_diverges():
    settings = {"diameter": 10.0, "dimension": 100, "m": 1000, "vc_cover": 10}
    figure = bound_figure([bound(0.1, [0.5], gamma=gamma, **settings) for gamma in (0.01, 0.1, 1.0)])
    (axes,) = figure.axes
    title = axes.get_title(loc="left")
    assert "grows without end as γ → 0" in title
    assert "above 1" in title
    lines = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert lines["confidence, printed"][0] > lines["confidence, printed"][-1]
    assert not axes.collections  # numbers without an interval have no band
    apart = Divergence(0.5, 0.4, 0.8, 0.375)
    (axes,) = bound_figure([bound(0.1, [apart], gamma=gamma, **settings) for gamma in (0.1, 1.0)]).axes
    (band,) = axes.collections
    assert band.get_label() == "its interval"
    assert {0.2, 0.4} == {round(y, 6) for y in band.get_paths()[0].vertices[:, 1].tolist()}
    with pytest.raises(ValueError, match="one radius at least"):
        bound_figure([])


def test_rankings_draw_themselves():
    order = ranking({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 0.9, "b": 0.8, "c": 0.7})
    (axes,) = order.figure().axes
    assert [line.get_label() for line in axes.lines] == ["a", "b", "c"]
    assert "Kendall +1.00 (p = 0.33)" in axes.get_title(loc="left")


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_page_shows_what_was_measured(runs):
    pytest.importorskip("jinja2")
    text = build.build(runs)
    assert "Flatness on PACS" in text
    assert "mean over targets" in text
    assert text.count("minus ERM (best): below 0 is flatter") == 6  # the mean and two targets
    assert "Loss surfaces on PACS" in text
    assert "ERM after 50, 70, 90 steps" in text
    assert "SWAD, 0.5 off the plane" in text
    assert "Loss on the plane through step-000050, step-000070, step-000090, photo as target, trial 0, seen" in text
    assert "Kendall’s tau +1.00 (exact p = 0.33; 95 % +1.00 to +1.00, resampled over targets and trials)" in text
    assert build.build(runs) == text
    for svg in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL):
        ElementTree.fromstring(svg)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_a_groups_legend_lists_what_it_draws(tmp_path):
    one, two = write_run(tmp_path / "a"), write_run(tmp_path / "b", target="art")
    with RowFile(two.path, FLATNESS) as file:
        file.rewrite(lambda rows: [row for row in rows if row.get("weights") != "swa"])
    text = build.build([one, two])
    heads = {"mean over targets": 2, "art": 2, "photo": 3}
    for title, count in heads.items():
        legend = text.split(f"<h3>{title}</h3>")[1].split("</ul>")[0]
        assert legend.count("<li>") == count, title
    assert ">SWA<" not in re.sub(r"\s*", "", text.split("<h3>art</h3>")[1].split("</ul>")[0])


def test_the_page_shows_worst_case_and_curvature_of_every_domain(tmp_path):
    run = write_run(tmp_path / "a")
    with RowFile(run.path, FLATNESS) as file:
        key = file.add_settings({"worst_radii": [0.1]})
        row = {"key": key, "kind": "worst_case", "weights": "swad", "radius": 0.1, "loss": 0.25}
        file.append(*({**row, "measure": m, "lower_bound": 0.75} for m in ("loss", "error")))
        file.mark_shown(key)
        key = file.add_settings({"curvature": 2})
        row = {"key": key, "kind": "curvature", "weights": "swad", "trace": 9.5, "trace_error": 0.5}
        domains = ("art", "cartoon", "seen", "photo", "unseen")
        file.append(*({**row, "domain": domain, "eigenvalues": [4.25, 1.5]} for domain in domains))
        file.mark_shown(key)
    found = flatness_of(run)
    assert [row.name for row in worst_table([found]).rows] == [
        "photo, trial 0: SWAD, cross entropy", "photo, trial 0: SWAD, 0-1 error",
    ]  # fmt: skip
    names = [row.name.split(", ")[-1] for row in curvature_table([found]).rows]
    assert names == ["art", "cartoon", "seen", "photo"]  # one target is its own mean
    assert [row.name.split(", ")[-1] for row in curvature_table([found], ("unseen",)).rows] == ["unseen"]
    text = build.build([run])
    for words in ("Worst case on seen domains", "photo, trial 0: SWAD, 0-1 error", "photo, trial 0: SWAD, cartoon"):
        assert words in text
    assert "Curvature" not in build.build([write_run(tmp_path / "b")])


def test_runs_measured_in_other_ways_are_not_averaged(runs):
    pytest.importorskip("jinja2")
    with RowFile(runs[1].path, FLATNESS) as file:
        key = file.add_settings({"radii": list(RADII), "images": 10, "normalize": "filter"})
        rows = [row for row in file.rows if row["kind"] == "row"]
        file.append(*({**row, "key": key} for row in rows))
        file.mark_shown(key)
    text = build.build(runs)
    assert "mean over 2 targets" not in text
    assert text.count("Flatness on PACS") >= 2
    assert "directions normalized by filter" in text


def test_a_page_without_measurements_has_no_such_section(tmp_path):
    pytest.importorskip("jinja2")
    run = write_run(tmp_path / "a")
    (run.path / FLATNESS).unlink()
    (run.path / SURFACE).unlink()
    text = build.build([run])
    assert "Flatness on" not in text
    assert "Loss surfaces" not in text


def test_names_in_the_page_are_escaped(tmp_path):
    pytest.importorskip("jinja2")
    evil = "<img src=x onerror=alert(1)>"
    text = build.build([write_run(tmp_path / "a", target=evil, dataset=evil)])
    assert "<img" not in text
