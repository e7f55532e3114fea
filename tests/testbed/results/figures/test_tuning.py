from __future__ import annotations

import itertools

import pytest

pytest.importorskip("matplotlib")

from swad.testbed.results.figures.style import save_figure
from swad.testbed.results.figures.tuning import tuning_figure
from swad.testbed.results.tuning import TuneRow, ValleySetting

GRID = [ValleySetting(*values) for values in itertools.product((1, 3, 5), (3, 6), (0.2, 0.3), ("paper", "text"))]


def rows(accuracies):
    return [
        TuneRow("a", "PACS", "erm", "photo", 0, setting, "1-9", 1, 9, 9, 0.5, 0.65, accuracy, None, accuracy)
        for setting, accuracy in zip(GRID, accuracies, strict=True)
    ]


def test_a_panel_shows_each_r_and_definition_and_frames_the_choice(tmp_path):
    figure = tuning_figure(rows([k / 100 for k in range(24)]), ValleySetting(3, 6, 0.3, "text"))
    panels = [axes for axes in figure.axes if axes.get_title()]
    titles = ["r = 1.2, paper", "r = 1.3, paper", "r = 1.2, text", "r = 1.3, text"]
    assert [axes.get_title() for axes in panels] == titles
    assert [len(axes.patches) for axes in panels] == [0, 0, 0, 1]
    shown = {text.get_text() for axes in panels for text in axes.texts}
    assert shown == {f"{k:.1f}" for k in range(24)}
    assert save_figure(figure, tmp_path / "tuning.png").stat().st_size > 10_000


def test_equal_and_missing_accuracies_are_drawn(tmp_path):
    save_figure(tuning_figure(rows([0.5] * 24)), tmp_path / "equal.svg")
    save_figure(tuning_figure(rows([0.5] * 24)[:-1], None, "oracle"), tmp_path / "missing.svg")
    assert "nan" not in (tmp_path / "missing.svg").read_text()
