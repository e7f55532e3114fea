import math
from dataclasses import replace

import pytest

pytest.importorskip("matplotlib")

from scipy import stats

from helpers.figures import text_boxes
from helpers.measured_runs import RADII
from swad.flatness.theorems import Divergence, bound
from swad.testbed.results.figures.flatness import bound_figure, flatness_figure, method_colors, ranking_figure
from swad.testbed.results.figures.style import PALETTE, themed_svg
from swad.testbed.results.figures.surfaces import surface_figure
from swad.testbed.results.flatness_runs import (
    curves_by_target,
    difference_curves,
    paired_differences,
    rank_methods,
    read_flatness,
)
from swad.testbed.results.flatness_stats import FlatnessCurve, mean_over_targets
from swad.testbed.results.rank_correlation import ranking
from swad.testbed.results.surfaces import read_surface


def test_the_figure_shows_curves_and_bands(measured_runs):
    groups = curves_by_target(one for run in measured_runs if (one := read_flatness(run)) is not None)
    figure = flatness_figure({"mean over targets": mean_over_targets(groups), **groups})
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


def test_the_paired_figure_shows_zero_and_whole_bands(measured_runs):
    reference, groups = difference_curves(paired_differences([read_flatness(run) for run in measured_runs]))
    figure = flatness_figure(groups, reference=reference)
    panel = figure.axes[1]  # seen, photo
    assert "minus that of ERM (best)" in figure.axes[0].get_ylabel()
    (curve,) = groups["photo"]["seen"]
    low, high = panel.get_ylim()
    assert low <= min(curve.low)
    assert high >= max(*curve.high, 0)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["SWAD"]


def test_bars_show_the_whole_measurement_beside_the_band_over_trials():
    curve = FlatnessCurve("SWAD", RADII, (0.0, 2.0, 4.0), (0.0, 1.5, 3.5), (0.0, 2.5, 4.5), measured=(0.0, 1.0, 9.0))
    (panel,) = flatness_figure({"photo": {"seen": [curve]}}).axes
    assert len(panel.lines) == 2, "a bound is not drawn: the line and zero"
    (panel,) = flatness_figure({"photo": {"seen": [replace(curve, contributions={})]}}).axes
    bars = [tuple(line.get_ydata()) for line in panel.lines if line.get_linewidth() == 0.9]
    assert bars == [(1.0, 3.0), (-5.0, 13.0)]
    low, high = panel.get_ylim()
    assert (low < -5, high > 13) == (True, True)


@pytest.mark.parametrize("reference", ["", "ERM"])
def test_wide_bands_are_not_cut_off(reference):
    ends = [(0.0, k - 6.0, k - 80.0) for k in (1, 2)], [(0.0, k + 6.0, k + 90.0) for k in (1, 2)]
    curves = [
        FlatnessCurve(name, RADII, (0.0, k, 4.0 * k), ends[0][k - 1], ends[1][k - 1])
        for k, name in enumerate(("SWA", "SWAD"), start=1)
    ]
    (axes,) = flatness_figure({"photo": {"seen": curves}}, sides=("seen",), reference=reference).axes
    low, high = axes.get_ylim()
    assert low < -79
    assert high > 92
    left, right = axes.get_xlim()
    assert left < RADII[0]
    assert right > RADII[-1]


def test_a_logarithmic_axis_shows_small_radii_next_to_large_ones():
    curve = FlatnessCurve("SWAD", (0.0, 20.0, 60.0), (1e-17, 0.1, 10.0), (0.0, -0.5, 8.0), (0.0, 0.7, 12.0))
    nothing = FlatnessCurve("SWAD", (0.0, 20.0), (0.0, -0.1), (0.0, -0.2), (0.0, 0.0))
    axes, empty = flatness_figure({"a": {"seen": [curve]}, "b": {"seen": [nothing]}}, sides=("seen",), log=True).axes
    assert axes.get_yscale() == empty.get_yscale() == "log"
    (line,) = axes.lines
    assert tuple(line.get_xdata()) == (20.0, 60.0), "F at radius 0 is zero, or would be without rounding"
    bottom, top = axes.get_ylim()
    assert bottom < 0.1 < 12.0 < top < 100.0
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert band.min() == pytest.approx(bottom), "a band that reaches zero goes down to the edge"
    assert band.max() == 12.0


@pytest.mark.parametrize("bare", [False, True])
def test_axes_are_labeled(measured_runs, bare):
    groups = curves_by_target([read_flatness(run) for run in measured_runs])
    seen, _, unseen, last = flatness_figure(groups, bare=bare).axes
    assert "rise of the loss" in seen.get_ylabel()
    assert "rise of the loss" in unseen.get_ylabel()
    assert unseen.get_xlabel() == last.get_xlabel() == "radius γ"


def test_curves_without_intervals_are_drawn_without_bands():
    nan = (math.nan,) * 3
    curves = [
        FlatnessCurve(name, RADII, (0.0, k, 4.0 * k), nan, nan) for k, name in enumerate(("ERM", "SWAD"), start=1)
    ]
    (axes,) = flatness_figure({"photo": {"seen": curves}}, sides=("seen",)).axes
    low, high = axes.get_ylim()
    assert low <= 0
    assert high >= 8
    assert high < 9
    gone = FlatnessCurve("ERM", RADII, (0.0, math.inf, math.nan), nan, nan)
    themed_svg(flatness_figure({"photo": {"seen": [gone]}}, sides=("seen",)), "a", "b")


def test_a_radius_alone_is_marked():
    curves = [FlatnessCurve(name, (3.0,), (k,), (k - 0.5,), (k + 0.5,)) for k, name in enumerate(("ERM", "SWAD"))]
    (axes,) = flatness_figure({"photo": {"seen": curves}}, sides=("seen",)).axes
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    assert [line.get_label() for line in marks] == ["ERM", "SWAD"]
    assert axes.get_xticks().tolist() == [3.0]
    assert len({line.get_xdata()[0] for line in marks}) == 2  # the marks do not overlap
    low, high = axes.get_ylim()
    assert low <= -0.5
    assert high >= 1.5


def test_lines_that_lie_on_each_other_are_dashed():
    def curve(name: str, last: float) -> FlatnessCurve:
        return FlatnessCurve(name, RADII, (0.0, 1.0, last), (0.0,) * 3, (0.0,) * 3)

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
    assert [line.get_color() for line in axes.lines] == [PALETTE[place] for place in (4, 2, 0)]


def test_the_papers_methods_keep_their_colors():
    every = method_colors(["ERM (best)", "SAM (best)", "SWA (cyclic)", "SWA", "SWAD"])
    assert every["SWAD"] == method_colors(["SWAD", "ERM (last)"])["SWAD"]
    assert len(set(every.values())) == 5
    many = method_colors([f"m{i}" for i in range(20)])
    assert len(many) == 20


def test_labels_do_not_overlap(measured_runs):
    groups = curves_by_target(one for run in measured_runs if (one := read_flatness(run)) is not None)
    for figure in (
        flatness_figure({"mean over targets": mean_over_targets(groups), **groups}),
        surface_figure([read_surface(run) for run in measured_runs]),
        ranking_figure(rank_methods([read_flatness(run) for run in measured_runs], "seen", 10.0)),
    ):
        found = text_boxes(figure)
        pairs = [(a, b) for index, a in enumerate(found) for b in found[:index]]
        assert not [pair for pair in pairs if pair[0].overlaps(pair[1])]


def test_the_bounds_figure_says_that_it_diverges():
    settings = {"diameter": 10.0, "dimension": 100, "m": 1000, "vc_cover": 10}
    figure = bound_figure([bound(0.1, [0.5], gamma=gamma, **settings) for gamma in (0.01, 0.1, 1.0)])
    (axes,) = figure.axes
    title = axes.get_title(loc="left")
    assert "grows without limit as γ → 0" in title
    assert "Above 1" in title
    lines = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert lines["confidence, printed"][0] > lines["confidence, printed"][-1]
    assert not axes.collections  # numbers without an interval have no band
    apart = Divergence(0.5, 0.4, 0.8)
    (axes,) = bound_figure([bound(0.1, [apart], gamma=gamma, **settings) for gamma in (0.1, 1.0)]).axes
    (band,) = axes.collections
    assert band.get_label() == "its interval"
    assert axes.get_ylabel() == "error (log scale)"
    assert {0.2, 0.4} == {round(y, 6) for y in band.get_paths()[0].vertices[:, 1].tolist()}
    wide = Divergence(0.5, 0.001, 40.0)
    (axes,) = bound_figure([bound(0.1, [wide], gamma=gamma, **settings) for gamma in (0.1, 1.0)]).axes
    low, high = axes.get_ylim()
    assert low < 0.0005
    assert high > 20
    del settings["vc_cover"]  # then only Hoeffding's form has numbers
    (axes,) = bound_figure([bound(0.1, [0.5], gamma=gamma, **settings) for gamma in (0.1, 1.0)]).axes
    assert [line.get_label() for line in axes.lines if "confidence" in line.get_label()] == ["confidence, Hoeffding"]
    with pytest.raises(ValueError, match="one radius or more"):
        bound_figure([])


@pytest.mark.parametrize("accuracies", [(0.9, 0.8, 0.7, 0.6), (0.6, 0.7, 0.8, 0.9), (0.9, 0.7, 0.8, 0.6)])
def test_the_cloud_of_a_ranking_rises_where_its_correlation_is_positive(accuracies):
    names = "abcd"
    order = ranking(dict(zip(names, (1.0, 2.0, 3.0, 4.0), strict=True)), dict(zip(names, accuracies, strict=True)))
    (axes,) = ranking_figure(order).axes
    points = [axes.transData.transform((line.get_xdata()[0], line.get_ydata()[0])) for line in axes.lines]
    drawn = stats.spearmanr(*zip(*points, strict=True)).statistic
    assert f"Spearman {drawn:+.2f}" in axes.get_title(loc="left")
    assert axes.get_xlabel().endswith("flatter to the right")


def test_a_ranking_is_drawn_with_its_correlation():
    order = ranking({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 0.9, "b": 0.8, "c": 0.7})
    (axes,) = ranking_figure(order).axes
    assert [line.get_label() for line in axes.lines] == ["a", "b", "c"]
    assert "Kendall +1.00 (p = 0.33)" in axes.get_title(loc="left")
