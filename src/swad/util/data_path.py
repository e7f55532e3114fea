"""What names data in commands and settings: a directory, a CSV file, or ``hub:owner/name`` at the Hugging Face Hub.

Parquet files may have columns of other names than image, domain and label; they are given after a colon:
``hub:owner/name:domain=site,label=species``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePath

HUB = "hub:"
_COLUMN = r"(?:image|domain|label)=[^=,:]+"
_COLUMNS = re.compile(f":({_COLUMN}(?:,{_COLUMN})*)$")


def is_hub(data: str | os.PathLike[str]) -> bool:
    """Return whether data is at the Hugging Face Hub."""
    return str(data).startswith(HUB)


def is_csv(data: Path | None) -> bool:
    """Return whether data is a CSV file and not a folder."""
    return data is not None and data.suffix.lower() == ".csv"


def absolute(data: str | os.PathLike[str]) -> Path:
    """Return the same name of data for every working directory."""
    return Path(data if is_hub(data) else os.path.abspath(data))


def data_name(data: str | os.PathLike[str]) -> str:
    """Return the name of data of your own: that of its directory, CSV file or repository.

    >>> data_name("shots/office"), data_name("shots/list.csv"), data_name("hub:owner/shots:domain=site")
    ('office', 'list', 'shots')
    """
    return PurePath(os.path.abspath(split_columns(data)[0])).name.removesuffix(".csv")


def split_columns(data: str | os.PathLike[str]) -> tuple[str, dict[str, str]]:
    """Split the names of columns from the name of data.

    >>> split_columns("hub:owner/shots@v1:domain=site,label=species")
    ('hub:owner/shots@v1', {'domain': 'site', 'label': 'species'})
    """
    text = str(data)
    if not (match := _COLUMNS.search(text)):
        return text, {}
    return text[: match.start()], dict(part.split("=") for part in match[1].split(","))
