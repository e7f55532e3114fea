import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")

from swad.results.figures import training
from swad.results.records import Record
from swad.results.runs import RunData
from swad.results.summary import mean_curve, source_curves, valley


def test_the_panel_shows_curves_threshold_and_range(runs: list[RunData]) -> None:
    run = runs[0]
    loss, accuracy = training.valley_figure(run).axes
    curves = source_curves(run, "loss")
    drawn = {line.get_label(): line for line in loss.lines}
    for domain, (steps, values) in curves.items():
        assert list(drawn[domain].get_xdata()) == steps
        assert list(drawn[domain].get_ydata()) == values
    assert list(drawn["mean"].get_ydata()) == mean_curve(curves.values())[1]
    state = valley(run, "swad")
    assert state is not None
    assert set(drawn["threshold"].get_ydata()) == {state.threshold}
    for panel in (loss, accuracy):
        upright = {line.get_xdata()[0] for line in panel.lines if len(set(line.get_xdata())) == 1}
        assert upright == {state.start, state.end}
    assert run.targets[0] not in drawn
    assert max(accuracy.lines[2].get_ydata()) > 1  # percent


@pytest.mark.parametrize("kind", training.FORMATS)
def test_every_format_is_written_and_the_same_twice(runs: list[RunData], tmp_path: Path, kind: str) -> None:
    files = [training.save(training.valley_figure(runs[0]), tmp_path / f"{n}.{kind}").read_bytes() for n in (1, 2)]
    assert files[0] == files[1]
    assert len(files[0]) > 5000


def test_an_unknown_format_is_refused(runs: list[RunData], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"svg, pdf, png, got 'a\.jpg'"):
        training.save(training.valley_figure(runs[0]), tmp_path / "a.jpg")


def test_a_figure_for_each_trial_with_the_targets_side_by_side(runs: list[RunData], tmp_path: Path) -> None:
    paths = training.save_all(runs, tmp_path, formats=("svg",))
    assert [path.name for path in paths] == ["valley-PACS-erm-trial0.svg", "valley-PACS-erm-trial1.svg"]
    text = paths[0].read_text()
    assert all(f"target: {target}" in text for target in ("art_painting", "sketch"))


def test_labels_do_not_overlap(runs: list[RunData]) -> None:
    figure = training.valleys_figure([run for run in runs if run.trial == 0])
    figure.draw_without_rendering()
    boxes = [
        text.get_window_extent()
        for axes in figure.axes
        for text in (axes.title, axes.xaxis.label, axes.yaxis.label, axes._left_title, *axes.texts)
        if text.get_text()
    ]
    boxes += [text.get_window_extent() for text in figure.legends[0].get_texts()]
    pairs = [(a, b) for place, a in enumerate(boxes) for b in boxes[:place]]
    assert not [pair for pair in pairs if pair[0].overlaps(pair[1])]


@pytest.mark.parametrize("records", [(), (Record("r", 1, "art", "out", "loss", float("nan")),)])
def test_a_run_that_has_hardly_begun_is_drawn(records: tuple[Record, ...], tmp_path: Path) -> None:
    run = RunData(tmp_path, {"target": "photo", "steps": 100}, records, finished=False)
    training.save(training.valley_figure(run), tmp_path / "early.svg")


def test_the_pages_drawing_leaves_colors_to_the_page(runs: list[RunData]) -> None:
    svg = training.theme_svg(training.valley_figure(runs[0], bare=True), "p1", 'a "label" <b>')
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == 'a "label" <b>'
    assert "var(--series-1)" in svg
    assert "var(--ink)" in svg
    assert re.findall(r"#[0-9a-f]{6}\b", svg) == []
    assert "<style" not in svg
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert all(str(name).startswith("p1-") for name in ids)
    for name in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg):
        assert (name[0] or name[1]) in ids
