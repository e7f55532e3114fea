from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from swad.testbed.results.figures.robust_lines import RobustLine, robust_figure
from swad.testbed.results.run_data import RunData


def line(target: str) -> RobustLine:
    run = RunData(Path(target), {"dataset": "PACS", "target": target, "algorithm": "erm"}, (), True)
    worst = {0.1: (3.0, 2.0, 4.0), 0.2: (9.0, 8.0, 7.0)}
    return RobustLine(run, ("last", "swad"), 2.0, (0.0, 0.5, 1.0), (0.1, 0.2, 0.3), worst)


def test_every_curve_has_its_lowest_point_marked():
    figure = robust_figure([line("photo"), line("sketch")])
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "target: photo\nγ = 0.1, 0.2",
        "target: sketch\nγ = 0.1, 0.2",
    ]
    dots = [drawn for drawn in figure.axes[0].lines if drawn.get_marker() == "o" and len(drawn.get_xdata())]
    assert [(dot.get_xdata()[0], dot.get_ydata()[0]) for dot in dots] == [(0.0, 0.1), (0.5, 2.0), (1.0, 7.0)]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["loss", "worst within γ = 5 % of distance", "worst within γ = 10 % of distance", "lowest point"]
