"""Sections of the page on what is wrong, with pictures of the mistakes that were made with most confidence."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swad.testbed.results.mistakes import class_table, confusion_table, shown_predictions
from swad.testbed.results.page.section import Mistake, Section
from swad.testbed.results.run_data import RunData
from swad.testbed.results.selection import DatasetResults

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_MISTAKES = 60
THUMBNAIL = 128
"""Largest height and width of a picture in pixels: with 60 of them, a page is about 300 kB larger."""
LOSSLESS = 64
"""Largest height and width of images in which JPEG would show."""

FindPicture = Callable[[RunData, Any], "Image | None"]
"""Returns the image of a run and a row of `read_predictions`; None if it cannot be found any more."""


def mistake_sections(results: Iterable[DatasetResults], find_picture: FindPicture | None) -> list[Section]:
    """Build a section for each dataset whose runs kept their predictions."""
    sections = []
    for number, of_dataset in enumerate(results):
        if (shown := shown_predictions(of_dataset)) is None:
            continue
        rows = list(shown.mistakes(MAX_MISTAKES).itertuples())
        pictures = [find_picture and find_picture(of_dataset.runs[row.run], row) for row in rows]
        mistakes = tuple(
            Mistake(
                "/".join(Path(row.path).parts[-3:]) or f"image {row.image}",
                f"{row.label} taken for {row.prediction}",
                f"{row.domain}, {100 * row.probability:.1f} %",
                "" if picture is None else _embed(picture),
            )
            for row, picture in zip(rows, pictures, strict=True)
        )
        lead = shown.lead
        if find_picture and (n_missing := pictures.count(None)):
            lead += f" {n_missing} of {len(rows)} images of mistakes were not found, and are only named."
        tables = class_table(shown), confusion_table(shown)
        title = f"What is wrong on {shown.dataset}"
        sections.append(Section(f"mistakes-{number}", title, lead, mistakes=mistakes, tables=tables))
    return sections


def _embed(picture: Image) -> str:
    """Return a small copy of an image as a data URL, without the metadata of its file."""
    small = picture.convert("RGB")
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    kind = "png" if max(small.size) <= LOSSLESS else "jpeg"
    buffer = io.BytesIO()
    small.save(buffer, kind)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
