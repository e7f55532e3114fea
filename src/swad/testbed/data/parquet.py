"""Parquet files of images, as datasets at the Hugging Face Hub: one row has an image, its domain and its label.

They are unpacked once into folders ``<domain>/<class>/<image>``. A row cannot be read without the rows around it, and
training reads images in random order; and everything that reads, checks and caches folders works as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from swad.testbed.data import hub
from swad.testbed.data.cache import default_folder
from swad.util.data_path import data_name, is_hub, split_columns
from swad.util.files import FileLock
from swad.util.images import DataError, entries, is_image
from swad.util.names import is_name, listed, one_line
from swad.util.progress import Progress

COLUMNS = ("image", "domain", "label")


def as_folder(data: Path) -> Path:
    """Return the folder of image files of data; parquet files are unpacked into the cache directory first, once."""
    text, columns = split_columns(data)
    files = [] if is_hub(text) else parquet_files(Path(text))
    if not files and not is_hub(text):
        return data
    try:
        states = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        key = json.dumps([text if is_hub(text) else states, columns])
        place = default_folder() / "unpacked" / hashlib.sha256(key.encode()).hexdigest()[:12]
        folder = place / data_name(text)
        if folder.is_dir():
            return folder
        place.mkdir(parents=True, exist_ok=True)
        with FileLock(place / "lock", on_wait=lambda: None):
            if not folder.is_dir():  # another process may have unpacked it
                partial = place / "partial"
                try:
                    shutil.rmtree(partial, ignore_errors=True)
                    unpack(files or hub.fetch(text, place / "download"), partial, columns)
                    os.rename(partial, folder)
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
                shutil.rmtree(place / "download", ignore_errors=True)
    except OSError as error:
        raise DataError(f"cannot unpack {text} ({error}); free disk space or set SWAD_CACHE") from None
    return folder


def parquet_files(folder: Path) -> list[Path]:
    """Return the parquet files in a folder, or in its folder ``data``, where the Hub has them.

    A folder with others is one of images, which may have a parquet file beside them.
    """
    if not folder.is_dir():
        return []
    if any(e.is_dir() and not e.name.startswith(".") and e.name not in ("data", "runs") for e in entries(folder)):
        return []
    return sorted(folder.glob("*.parquet")) or sorted(folder.glob("data/*.parquet"))


def unpack(
    files: Sequence[Path], into: Path, columns: Mapping[str, str] | None = None, progress: Progress | None = None
) -> None:
    """Write the images of parquet files to ``<domain>/<class>/<image>``, under the names that the files give them.

    Args:
        files: The parquet files.
        into: A new folder.
        columns: Names of the columns image, domain and label, where they have others.
        progress: Progress callback.
    """
    try:
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"parquet files need pyarrow: {hub.INSTALL}") from None
    names = {**dict(zip(COLUMNS, COLUMNS, strict=True)), **(columns or {})}
    try:
        opened = [parquet.ParquetFile(file) for file in files]
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {listed(files)} ({one_line(error)}); download them again") from None
    for path, file in zip(files, opened, strict=True):
        found = file.schema_arrow.names
        if lacking := [name for name in names.values() if name not in found]:
            raise DataError(
                f"{path.name} must have the columns {', '.join(names.values())}, but {', '.join(lacking)} is not in "
                f"{', '.join(found)}: name them, as in --data DATA:domain=site,label=species"
            )
    total, row = sum(file.metadata.num_rows for file in opened), 0
    for path, file in zip(files, opened, strict=True):
        for image, domain, label in _rows(path, file, list(names.values())):
            row += 1
            place = f"row {row} of {path.parent.name}/{path.name}"
            content = image.get("bytes") if isinstance(image, dict) else image
            if not isinstance(content, bytes) or not content:
                raise DataError(f"an image must have its bytes in the parquet file, but {place} has none: write them")
            folder = into / _folder(domain, place) / _folder(label, place)
            folder.mkdir(parents=True, exist_ok=True)
            name = _file_name(image, content, row)
            target = folder / name
            (target if not target.exists() else folder / f"{row:07d}-{name}").write_bytes(content)
            if progress and (row % 200 == 0 or row == total):
                progress("unpacking images", row, total)
    if not row:
        raise DataError(f"{listed(file.name for file in files)} must have rows, but has none")


def _rows(path: Path, file: Any, columns: list[str]) -> Iterator[list[Any]]:
    """Yield the cells of every row, with the names of classes in the place of their numbers."""
    described = json.loads((file.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
    features = described.get("info", {}).get("features", {})
    classes = [features.get(name, {}).get("names") for name in columns]
    try:
        for batch in file.iter_batches(batch_size=64, columns=columns):
            for record in batch.to_pylist():
                cells = [record[name] for name in columns]
                yield [
                    names[cell] if names and isinstance(cell, int) and 0 <= cell < len(names) else cell
                    for cell, names in zip(cells, classes, strict=True)
                ]
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path} ({one_line(error)}); download it again") from None


def _folder(cell: object, place: str) -> str:
    name = str(cell) if isinstance(cell, str | int) and cell != -1 else ""  # the Hub's label of unlabeled images is -1
    if not is_name(name) or "/" in name or name.startswith("."):
        raise DataError(
            f"domains and classes must be numbers from 0, or names without / that can be folders, but {place} has "
            f"{cell!r}: rename it or leave it out"
        )
    return name


def _file_name(image: object, content: bytes, row: int) -> str:
    name = PurePosixPath(str(image.get("path") or "")).name if isinstance(image, dict) else ""
    if is_image(name) and is_name(name) and not name.startswith("."):
        return name
    return f"{row:07d}.png" if content.startswith(b"\x89PNG") else f"{row:07d}.jpg"  # images are read by their content
