import pytest

pytest.importorskip("matplotlib")

from scipy import stats

from swad.testbed.results.figures.ranking import ranking_figure
from swad.testbed.results.rank_correlation import ranking


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
