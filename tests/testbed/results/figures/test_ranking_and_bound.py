import pytest

pytest.importorskip("matplotlib")

from scipy import stats

from swad.flatness.theorems import Divergence, bound
from swad.testbed.results.figures.bound import bound_figure
from swad.testbed.results.figures.ranking import ranking_figure
from swad.testbed.results.rank_correlation import ranking


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
    drawn = stats.kendalltau(*zip(*points, strict=True)).statistic
    assert f"Kendall {drawn:+.2f}" in axes.get_title(loc="left")
    assert axes.get_xlabel().endswith("flatter to the right")


def test_a_ranking_is_drawn_with_its_correlation():
    order = ranking({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 0.9, "b": 0.8, "c": 0.7})
    (axes,) = ranking_figure(order).axes
    assert [line.get_label() for line in axes.lines] == ["a", "b", "c"]
    assert "Kendall +1.00 (p = 0.33)" in axes.get_title(loc="left")
