import dataclasses

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from helpers.figures import text_boxes
from helpers.measured_runs import replace_rows, write_measured_run
from swad.testbed.results.figures.style import save_figure
from swad.testbed.results.figures.surfaces import line_figure, surface_figure
from swad.testbed.results.measurement_rows import SURFACE, RowFile
from swad.testbed.results.surfaces import read_surface


@pytest.mark.slow
def test_surfaces_of_several_algorithms_have_distinct_names(tmp_path):
    runs = [write_measured_run(tmp_path / name, algorithm=name) for name in ("erm", "sam")]
    figure = surface_figure([read_surface(run) for run in runs])
    panels = [axes for axes in figure.axes if axes.get_aspect() == 1.0]
    assert [axes.get_title(loc="left") for axes in panels[:2]] == [
        "target: photo, ERM\nSeen domains",
        "target: photo, SAM\nSeen domains",
    ]
    one, two = (next(line for line in axes.lines if "SWAD" in line.get_label()) for axes in panels[:2])
    assert (one.get_label(), two.get_label()) == ("SWAD", "SAM + SWAD")
    assert one.get_marker() != two.get_marker()
    assert one.get_markerfacecolor() != two.get_markerfacecolor()


def test_flat_planes_stand_close_together(tmp_path):
    surface = read_surface(write_measured_run(tmp_path / "a"))
    flat = dataclasses.replace(surface, ys=tuple(0.1 * y for y in surface.ys))
    figure = surface_figure([flat, flat])
    figure.draw_without_rendering()
    upper, lower = (figure.axes[place].get_position(original=False) for place in (0, 2))
    height = figure.get_figheight()
    assert (upper.y0 - lower.y1) * height < 0.5  # inches
    found = text_boxes(figure)
    assert not [1 for index, a in enumerate(found) for b in found[:index] if a.overlaps(b)]


def test_corners_are_numbered_and_axes_labeled(measured_runs):
    figure = surface_figure([read_surface(run) for run in measured_runs])
    panels = [axes for axes in figure.axes if axes.get_aspect() == 1.0]
    for axes in panels:
        numbers = {text.get_text(): text.xy for text in axes.texts}
        assert numbers == {"1": (0.0, 0.0), "2": (1.0, 0.0), "3": (0.5, 1.0)}
    assert [axes.get_ylabel() for axes in panels] == ["distance from line 1–2", ""] * 2
    assert [axes.get_xlabel() for axes in panels] == ["", "", *["distance from 1 toward 2"] * 2]
    bars = [axes.child_axes[0].get_ylabel() for axes in panels]
    assert bars == ["loss (log scale)", "loss (log scale)", "loss", "loss"]
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert legends == ["1, 2, 3: ERM after 50, 70, 90 steps", "mean of 1, 2, 3", "SWAD"]


def test_corners_that_differ_between_runs_are_explained_for_each(measured_runs):
    first, second = (read_surface(run) for run in measured_runs)
    second = dataclasses.replace(second, settings={**second.settings, "corners": ["best", "step-000070", "last"]})
    (legend,) = surface_figure([first, second]).legends
    assert [text.get_text() for text in legend.get_texts()][::3] == [
        "1, 2, 3: ERM after 50, 70, 90 steps, target photo",
        "1: ERM (best), 2: ERM (step 70), 3: ERM (last), target art",
    ]


def test_contours_with_triangles_and_a_cross(measured_runs):
    surfaces = [read_surface(run) for run in measured_runs]
    figure = surface_figure(surfaces)
    panels = [axes for axes in figure.axes if axes.get_aspect() == 1.0]
    assert len(panels) == 4
    lines = {line.get_label(): line for line in panels[0].lines}
    triangles = lines["1, 2, 3: ERM after 50, 70, 90 steps"]
    assert triangles.get_marker() == "^"
    assert list(zip(*triangles.get_data(), strict=True)) == [(0.0, 0.0), (1.0, 0.0), (0.5, 1.0)]
    assert lines["mean of 1, 2, 3"].get_marker() == "x"
    assert lines["mean of 1, 2, 3"].get_xydata().tolist() == [[0.5, 1 / 3]]
    assert lines["SWAD"].get_marker() == "*"
    grid = surfaces[0].grids
    assert grid["seen"][1][0] == pytest.approx(1.01)  # y = 0, x = -1
    assert grid["unseen"][0][3] == pytest.approx(4.0)


def test_a_loss_that_is_not_finite_and_a_plane_without_slope_are_drawn(tmp_path):
    run = write_measured_run(tmp_path / "a")
    level = {"art": 1.0, "cartoon": 1.0, "photo": 1.0}
    replace_rows(run.path, SURFACE, lambda row: {**row, "losses": level} if "losses" in row else row)
    save_figure(surface_figure([read_surface(run)]), tmp_path / "flat.svg")
    holes = {**level, "art": "inf"}
    replace_rows(run.path, SURFACE, lambda row: {**row, "losses": holes} if row.get("x") == -1.0 else row)
    save_figure(surface_figure([read_surface(run)]), tmp_path / "holes.svg")


def test_the_line_between_two_weights(tmp_path):
    run = write_measured_run(tmp_path / "a")
    with RowFile(run.path, SURFACE) as file:
        content = {"corners": ["best", "swad"], "points": ["swa", "ema"], "seen": ["art"], "unseen": ["photo"]}
        key = file.add_settings({"shape": "line", **content})
        file.append(
            {"key": key, "kind": "surface", "fingerprint": "1", "xs": [0.0, 0.5, 1.0], "ys": [0.0], "parameters": 9}
        )
        named = (("1", 0.0), ("2", 1.0), ("mean", 0.5), ("swa", 0.8), ("ema", 3.0))
        for name, x in ((None, 0.0), (None, 0.5), (None, 1.0), *named):
            point = {"kind": "surface-point", "name": name, "x": x, "y": 0.0, "distance": 0.0}
            file.append({"key": key, "fingerprint": "1", **point, "losses": {"art": x, "photo": 2 + x}, "errors": {}})
        file.mark_shown(key, fingerprints=["1"])
    assert read_surface(run).settings["shape"] == "plane"
    (axes,) = line_figure([read_surface(run, "line")]).axes
    assert axes.lines[0].get_ydata().tolist() == [0.0, 0.5, 1.0]
    assert axes.lines[1].get_ydata().tolist() == [2.0, 2.5, 3.0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["ERM (best)", "", "SWAD"]
    spots = {(line.get_marker(), *line.get_xydata()[0]) for line in axes.lines if len(line.get_xdata()) == 1}
    assert spots == {("x", 0.5, 0.5), ("x", 0.5, 2.5), ("P", 0.8, 0.8), ("P", 0.8, 2.8)}  # EMA is beyond the end
    assert axes.get_xlabel() == "position on the line through both weights"
    assert axes.get_ylim()[0] < 0  # a marker at 0 is whole
    labels = [line.get_label() for line in axes.lines if not line.get_label().startswith("_")]
    assert labels == ["Seen domains", "Unseen domain", "mean of the two", "SWA"]
