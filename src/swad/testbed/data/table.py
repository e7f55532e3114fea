"""Images that a table lists, with the path, domain and class of each: a CSV file of yours, or the metadata of WILDS.

The files stay where they are. They are listed as those in folders are, in the same order, so the same images have the
same split either way.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from swad.testbed.data.benchmark import Benchmark, Options
from swad.testbed.data.domains import Dataset
from swad.testbed.data.image_folder import Tree, read_tree, required_domains
from swad.util.images import DataError
from swad.util.names import counted, listed, one_line

if TYPE_CHECKING:
    import pandas

COLUMNS = ("path", "domain", "label")
MAX_LISTED = 20
"""Missing files that a message names; the others are counted."""


def read_csv(benchmark: Benchmark, root: Path | None, check_counts: bool, options: Options) -> Dataset:
    """Read the images that a CSV file lists. Its header is ``path,domain,label``; paths are relative to the file."""
    assert root is not None
    frame = read_columns(root, COLUMNS)
    if empty := (frame[list(COLUMNS)] == "").any(axis=1).to_numpy().nonzero()[0].tolist():
        raise DataError(
            f"every line of {root} must have {','.join(COLUMNS)}, but line {empty[0] + 2} has an empty cell"
        )
    return read_tree(benchmark, root, list_images(benchmark, root, frame, options), check_counts)


def find_table(benchmark: Benchmark, root: Path | None, name: str) -> Path:
    """Return the path of the table of a benchmark, in ``root`` or in the benchmark's folder there."""
    folders = [] if root is None else [root / benchmark.folder, root]
    for path in (folder / name for folder in folders):
        if path.is_file():
            return path
    where = f"is not in {root} or its folder {benchmark.folder}" if root else "needs a folder (--data)"
    raise DataError(
        f"{name} of {benchmark.name} {where}; run `swad datasets download {benchmark.name}`, or give the folder with it"
    )


def read_columns(file: Path, columns: tuple[str, ...]) -> pandas.DataFrame:
    """Read a CSV file as text; its header must name these columns."""
    import pandas

    try:
        frame = pandas.read_csv(file, dtype=str, keep_default_na=False, skipinitialspace=True, encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # pandas's errors are ValueErrors
        raise DataError(f"cannot read {file} ({one_line(error)}); it must be a CSV file in UTF-8") from None
    if lacking := [name for name in columns if name not in frame.columns]:
        raise DataError(
            f"the first line of {file} must name {','.join(columns)}, but it lacks {','.join(lacking)} and names "
            f"{','.join(map(str, frame.columns))}: correct it"
        )
    return frame


def require_files(file: Path, paths: Iterable[str]) -> None:
    """Raise an error that names all files at once which a table lists, relative to itself, and which do not exist."""
    root = file.parent
    if missing := [path for path in paths if not os.path.isfile(os.path.join(root, path))]:
        raise DataError(
            f"{counted(len(missing), 'file')} of {file} cannot be found from {root}: {listed(missing, MAX_LISTED)}; "
            "correct the paths or restore the files"
        )


def list_images(benchmark: Benchmark, file: Path, frame: pandas.DataFrame, options: Options) -> Tree:
    """Return the images of a table with the columns `COLUMNS`, whose paths are relative to `file`; all must exist."""
    root = file.parent
    if repeated := frame["path"][frame["path"].duplicated()].tolist():
        raise DataError(f"{file} must list an image once, but {listed(repeated)} is repeated: keep one of its lines")
    require_files(file, frame["path"])
    required = required_domains(benchmark, options)
    files: dict[str, dict[str, list[str]]] = {}
    for (domain, label), paths in frame.sort_values("path").groupby(["domain", "label"])["path"]:
        if not required or domain in required:
            files.setdefault(domain, {})[label] = paths.tolist()
    return Tree(root, required, {domain: domain for domain in files}, files)
