"""Curves with bands, on linear and logarithmic axes."""

import math

import pandas as pd
import pytest

pytest.importorskip("matplotlib")

from swad.testbed.results.figures.curves import curves_figure


def frames(values, lows=None):
    """Frames of one panel with two methods; the second one is half of the first."""
    rows = []
    for factor, method in ((1.0, "ERM (best)"), (0.5, "SWAD")):
        for number, (quantity, value) in enumerate(values.items()):
            low = math.nan if lows is None else factor * lows[number]
            mean = factor * value
            high = math.nan if lows is None else 2 * mean - low
            rows.append(("digits", quantity, method, mean, low, high))
    means = pd.DataFrame(rows, columns=["panel", "quantity", "method", "mean", "low", "high"])
    differences = means[means["method"] == "SWAD"].rename(columns={"mean": "difference"})
    return means, differences.assign(baseline="ERM (best)")


def drawn(values, lows=None, **options):
    return curves_figure(*frames(values, lows), title="F", axis="radius", **options)


def test_differences_have_a_row_of_their_own_where_they_have_intervals():
    assert len(drawn({1.0: 1.0, 2.0: 4.0}, [0.5, 3.0]).axes) == 2
    assert len(drawn({1.0: 1.0, 2.0: 4.0}).axes) == 1


def test_the_order_of_points_is_that_of_the_axis():
    (axes,) = drawn({10.0: 4.0, 2.0: 1.0}).axes
    assert list(axes.lines[0].get_xdata()) == [2.0, 10.0]


def band_ends(axes):
    """The lowest value of each band."""
    return [min(path.vertices[:, 1].min() for path in band.get_paths()) for band in axes.collections]


def test_on_a_log_axis_a_band_whose_lower_end_is_not_positive_ends_visibly():
    axes, _ = drawn({0.0: 0.0, 1.0: 1.0, 2.0: 4.0, 3.0: 9.0}, [0.0, -0.5, 3.0, 8.0], log=True).axes
    assert axes.get_yscale() == "log"
    assert list(axes.lines[0].get_xdata()) == [1.0, 2.0, 3.0]  # no radius 0, where F is 0
    assert band_ends(axes) == [3.0, 1.5]
    # At radius 1 the upper half of the interval is a line.
    assert [list(line.get_ydata()) for line in axes.lines if list(line.get_xdata()) == [1.0, 1.0]] == [
        [1.0, 2.5],
        [0.5, 1.25],
    ]
    assert axes.get_ylim()[0] > 0.1  # nothing dives


def test_a_single_point_has_a_bar():
    axes, _ = drawn({5.0: 1.0}, [0.5]).axes
    bars = [line for line in axes.lines if len(line.get_xdata()) == 2]
    assert [list(line.get_ydata()) for line in bars] == [[0.5, 1.5], [0.25, 0.75]]
