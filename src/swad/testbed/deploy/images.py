"""Images to predict: of a folder, single files, or a CSV file that names them."""

from __future__ import annotations

import csv
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from swad.util.files import require_regular
from swad.util.images import DataError, is_image

SKIPPED_FOLDER = "__MACOSX"


class ImageFile(NamedTuple):
    """An image, and what its folders or its line say about it."""

    path: Path
    domain: str = ""
    label: str = ""
    """The name of its class; "" if it is unknown."""


def find_images(inputs: Sequence[Path], class_names: Collection[str]) -> list[ImageFile]:
    """Return the images of folders, files and CSV files, in order.

    A folder is searched recursively. If images lie in a folder that is named like a class, that is their label, and the
    folder above it their domain; else their folder is the domain.

    A CSV file has a column ``path``, relative to the file, and may have ``domain`` and ``label``.
    """
    images: list[ImageFile] = []
    for path in inputs:
        if path.is_dir():
            images += [_by_folder(file, path, class_names) for file in _files_below(path)]
        elif path.suffix.lower() == ".csv":
            images += _read_csv(path, class_names)
        elif not path.exists():
            raise DataError(f"there is no {path}: name a folder, image files, or a CSV file with a column path")
        else:
            images.append(_by_folder(path, path.parent, class_names))
    if not images:
        raise DataError(f"{', '.join(map(str, inputs))} holds no image (.jpg, .png, ...): name another folder or files")
    return images


def _files_below(folder: Path) -> Iterator[Path]:
    for current, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != SKIPPED_FOLDER)
        yield from (Path(current, name) for name in sorted(names) if is_image(name) and not name.startswith("."))


def _by_folder(file: Path, root: Path, class_names: Collection[str]) -> ImageFile:
    folder = file.absolute().parent
    label = folder.name if folder.name in class_names else ""
    of_domain = folder.parent if label else folder
    below = of_domain.is_relative_to(root.absolute()) and of_domain != root.absolute()
    domain = of_domain.relative_to(root.absolute()).as_posix() if below else of_domain.name
    return ImageFile(file, domain, label)


def _read_csv(path: Path, class_names: Collection[str]) -> Iterator[ImageFile]:
    require_regular(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            if "path" not in (rows.fieldnames or ()):
                got = ", ".join(rows.fieldnames or ()) or "no line"
                raise DataError(f"the first line of {path} must name a column path, got {got}: rename one")
            for row in rows:
                label = row.get("label") or ""
                if label and label not in class_names:
                    raise DataError(
                        f"{path}, line {rows.line_num}: a label must be a class of the model "
                        f"({', '.join(class_names)}), got {label!r}: correct it or leave it empty"
                    )
                yield ImageFile(path.parent / (row["path"] or ""), row.get("domain") or "", label)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8 ({error}): save it as one") from None
