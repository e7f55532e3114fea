"""Images to predict: of a folder, single files, or a CSV file that names them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from swad.testbed.data.table import read_columns, require_files
from swad.util.images import DataError, is_image
from swad.util.names import listed


class ImageFile(NamedTuple):
    """An image, its domain, and the name of its class; "" for what is unknown."""

    path: Path
    domain: str = ""
    label: str = ""


def find_images(inputs: Sequence[Path], class_names: Collection[str]) -> list[ImageFile]:
    """Return the images of folders (recursively), files and CSV files, in order.

    A folder with the name of a class gives the label, and the folder above it the domain; any other is the domain.
    A CSV file has a column ``path``, relative to the file, and may have ``domain`` and ``label``.
    """
    images: list[ImageFile] = []
    for path in inputs:
        if path.is_dir():
            images += [_by_folder(file, path, class_names) for file in _files_below(path)]
        elif not path.exists():
            raise DataError(f"there is no {path}: name a folder, image files, or a CSV file with a column path")
        elif path.suffix.lower() == ".csv":
            images += _read_csv(path, class_names)
        else:
            images.append(_by_folder(path, path.parent, class_names))
    if not images:
        raise DataError(f"{', '.join(map(str, inputs))} holds no image (.jpg, .png, ...): name another folder or files")
    return images


def _files_below(folder: Path) -> Iterator[Path]:
    for current, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__MACOSX")
        yield from (Path(current, name) for name in sorted(names) if is_image(name) and not name.startswith("."))


def _by_folder(file: Path, root: Path, class_names: Collection[str]) -> ImageFile:
    folder, root = file.absolute().parent, root.absolute()
    label = folder.name if folder.name in class_names else ""
    place = folder.parent if label else folder
    return ImageFile(file, place.relative_to(root).as_posix() if root in place.parents else place.name, label)


def _read_csv(path: Path, class_names: Collection[str]) -> Iterator[ImageFile]:
    rows = read_columns(path, ("path",))
    require_files(path, rows["path"])
    if unknown := sorted(set(rows.get("label", ())) - {*class_names, ""}):
        raise DataError(f"labels in {path} must be classes of the model, got {listed(unknown)}: correct or empty them")
    for row in rows.to_dict("records"):
        yield ImageFile(path.parent / row["path"], row.get("domain", ""), row.get("label", ""))
