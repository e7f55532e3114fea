"""Images that a table lists, with the path, domain and class of each: a CSV file of yours, or the metadata of WILDS.

Image files stay where they are: a row becomes an entry of a `FileDomain`, so runs resume and images are cached as those
in folders are. Rows are sorted by class and path, as in a folder, so the same files have the same split either way.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from swad.testbed.data.benchmark import Benchmark, Options
from swad.testbed.data.domains import Dataset, FileDomain
from swad.testbed.data.image_folder import (
    class_gaps,
    class_problems,
    count_problems,
    require_no_problems,
    required_domains,
    unrelated_domains,
)
from swad.util.images import DataError
from swad.util.names import counted, data_name, listed, one_line

if TYPE_CHECKING:
    import pandas

COLUMNS = ("path", "domain", "label")
MAX_LISTED = 20
"""Missing files that a message names; the others are counted."""


def is_csv(root: Path | None) -> bool:
    """Return whether data is a CSV file and not a folder."""
    return root is not None and root.suffix.lower() == ".csv"


def read_csv(benchmark: Benchmark, root: Path | None, check_counts: bool, options: Options) -> Dataset:
    """Read the images that a CSV file lists. Its header is ``path,domain,label``; paths are relative to the file."""
    assert root is not None
    frame = read_frame(root, COLUMNS)
    return read_table(benchmark, root, root.parent, frame, check_counts, options)


def read_frame(file: Path, columns: tuple[str, ...]) -> pandas.DataFrame:
    """Read columns of a CSV file as text; every cell must have one."""
    import pandas

    try:
        frame = pandas.read_csv(file, dtype=str, keep_default_na=False, skipinitialspace=True, encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # pandas's errors are ValueErrors
        raise DataError(f"cannot read {file} ({one_line(error)}); it must be a CSV file in UTF-8") from None
    if lacking := [name for name in columns if name not in frame.columns]:
        raise DataError(
            f"the first line of {file} must name the columns {','.join(columns)}, but {', '.join(lacking)} is not in "
            f"{','.join(map(str, frame.columns))}: correct that line"
        )
    frame = frame[list(columns)]
    empty = (frame == "").any(axis=1).to_numpy().nonzero()[0]
    if len(empty):
        raise DataError(
            f"every line of {file} must have {', '.join(columns)}, but line {empty[0] + 2} has an empty cell"
        )
    return frame


def read_table(
    benchmark: Benchmark, table: Path, root: Path, frame: pandas.DataFrame, check_counts: bool, options: Options
) -> Dataset:
    """Return the images of a table.

    Args:
        benchmark: The dataset that they are.
        table: The file, for messages.
        root: Folder that the paths are relative to.
        frame: The columns `COLUMNS`, as text.
        check_counts: Require the published numbers of images.
        options: Options of the dataset.
    """
    required = required_domains(benchmark, options)
    present = set(frame["domain"])
    names = tuple(name for name in sorted(required or present) if name in present)
    notes = [f"ignored {name}, which is not one of the domains" for name in sorted(present - set(names))]
    frame = frame[frame["domain"].isin(names)]
    problems = [f"domain {name} is missing" for name in sorted(set(required) - present)]
    if not len(frame):
        problems.append("it lists no images")
    if repeated := list(frame["path"][frame["path"].duplicated()]):
        problems.append(f"{listed(repeated)} is listed twice; give every image one domain and one class")
    missing = [path for path in frame["path"] if not os.path.isfile(os.path.join(root, path))]
    if missing:
        problems.append(
            f"{counted(len(missing), 'file')} that it lists cannot be found from {root}: {listed(missing, MAX_LISTED)}"
        )
    found = set(frame["label"])
    classes = benchmark.classes or tuple(_in_order(found))
    problems += class_problems(benchmark, found)
    by_domain = {name: set(group) for name, group in frame.groupby("domain")["label"]}
    problems += unrelated_domains(by_domain)
    counts = frame["domain"].value_counts().to_dict()
    require_no_problems(benchmark, table, problems, count_problems(benchmark, counts) if check_counts else [])
    labels = frame["label"].map({name: label for label, name in enumerate(classes)})
    frame = frame.assign(label=labels.astype(np.int64)).sort_values(["label", "path"])
    domains = []
    for name in names:
        rows = frame[frame["domain"] == name]
        domains.append(FileDomain(name, rows["label"].to_numpy(), root, tuple(rows["path"])))
    name = benchmark.name if benchmark.domains else data_name(table)
    notes += class_gaps(by_domain)
    return Dataset(name, tuple(domains), classes, benchmark.image_spec, benchmark.defaults, tuple(notes))


def _in_order(labels: set[str]) -> list[str]:
    """Sort classes by name, and numbers by value.

    >>> _in_order({"10", "9"}), _in_order({"dog", "cat"})
    (['9', '10'], ['cat', 'dog'])
    """
    numbers = all(label.isdecimal() for label in labels)
    return sorted(labels, key=int) if numbers else sorted(labels)
