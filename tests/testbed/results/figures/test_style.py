import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")

from swad.testbed.results.figures import style
from swad.testbed.results.figures.style import FORMATS, save_figure, themed_svg
from swad.testbed.results.figures.training import valley_figure
from swad.testbed.results.run_data import RunData


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_written_and_the_same_twice(runs: list[RunData], tmp_path: Path, kind: str) -> None:
    files = [save_figure(valley_figure([runs[0]]), tmp_path / f"{n}.{kind}").read_bytes() for n in (1, 2)]
    assert files[0] == files[1]
    assert len(files[0]) > 5000


def test_an_unknown_format_is_refused(runs: list[RunData], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"svg, pdf, png; got 'a\.jpg'"):
        save_figure(valley_figure([runs[0]]), tmp_path / "a.jpg")


def test_a_figure_of_the_page_takes_its_colors_from_the_page(runs: list[RunData]) -> None:
    svg = themed_svg(valley_figure([runs[0]]), "p1", 'a "label" <b>')
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


def test_characters_without_a_font_are_named_once(tmp_path: Path, monkeypatch, recwarn) -> None:
    from matplotlib.figure import Figure

    monkeypatch.setattr(style, "_installed_fallbacks", lambda: ())
    style._warn_missing.cache_clear()
    figure = Figure()
    figure.text(0.5, 0.5, "\u65e5\u672c \u00c9t\u00e9")
    for suffix in ("png", "pdf"):
        with style.figure_style():
            save_figure(figure, tmp_path / f"a.{suffix}")
    (warning,) = recwarn.list
    assert "no installed font has (\u65e5\u672c): install Noto Sans CJK" in str(warning.message)
