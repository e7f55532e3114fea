from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import pytest
from PIL import Image

from helpers.mistaken_runs import write_images, write_runs

pytest.importorskip("jinja2")

from swad.testbed.results.page.build import write_page


def open_file(run, row):
    path = Path(row.path)
    return Image.open(path) if path.exists() else None


def page_of(folder: Path, **options: object) -> str:
    return write_page(folder, folder / "report.html", **options).read_text()


def test_mistakes_are_shown_with_their_pictures(tmp_path):
    write_images(write_runs(tmp_path), "clinic", "lab")
    text = page_of(tmp_path, find_picture=open_file)
    assert "What is wrong on scans" in text
    assert "&lt;b&gt;melanoma&lt;/b&gt; taken for" in text
    assert "<b>melanoma" not in text
    pictures = re.findall(r'<img src="data:image/jpeg;base64,([^"]+)"', text)
    assert text.count("<img") == len(pictures) > 10
    for picture in pictures:
        small = Image.open(io.BytesIO(base64.b64decode(picture)))
        assert max(small.size) == 128
        assert len(picture) < 5000
    assert set(re.findall(r"""(?:src|href|action)=["']([^"'#]{0,11})""", text)) == {"data:,", "data:image/"}
    assert "were not found" not in text


def test_images_that_are_gone_are_named(tmp_path):
    write_images(write_runs(tmp_path), "clinic")
    text = page_of(tmp_path, find_picture=open_file)
    n_gone, n = map(
        int, re.search(r"(\d+) of (\d+) images of mistakes were not found, and are only named", text).groups()
    )
    assert 0 < n_gone < n
    assert text.count("<img") == n - n_gone
    assert "images/lab/" in text


def test_by_default_no_image_is_read(tmp_path):
    write_images(write_runs(tmp_path), "clinic", "lab")
    text = page_of(tmp_path)
    assert "<img" not in text
    assert "were not found" not in text
    assert "images/lab/" in text


def test_small_images_are_not_compressed(tmp_path):
    write_runs(tmp_path)
    text = page_of(tmp_path, find_picture=lambda run, row: Image.new("RGB", (28, 28), (9, 9, 9)))
    assert "data:image/png" in text
    assert "data:image/jpeg" not in text


def test_a_file_whose_name_is_not_utf_8_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("helpers.mistaken_runs.FILE", "caf\udce9-{:02}.png")
    assert r"clinic/caf\udce9-" in page_of(write_runs(tmp_path))
