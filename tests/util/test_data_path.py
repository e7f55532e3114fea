"""Names of data: a path, or an address at the Hub, with columns of other names after a colon."""

import os
from pathlib import Path

import pytest

from swad.util.data_path import absolute, data_name, split_columns


@pytest.mark.parametrize(
    ("data", "path", "columns"),
    [
        ("shots", "shots", {}),
        ("a:b=c", "a:b=c", {}),  # a directory may be called so
        ("a:domain=site", "a", {"domain": "site"}),
        ("hub:o/n:image=img,domain=site,label=y", "hub:o/n", {"image": "img", "domain": "site", "label": "y"}),
        ("hub:o/n@refs/convert/parquet", "hub:o/n@refs/convert/parquet", {}),
        ("a\nb", "a\nb", {}),
    ],
)
def test_columns_follow_a_colon(data, path, columns):
    assert split_columns(data) == split_columns(Path(data)) == (path, columns)


def test_names_and_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute("shots") == Path(os.getcwd()) / "shots"
    assert str(absolute("hub:o/n@v1")) == "hub:o/n@v1"
    assert data_name(".") == tmp_path.name
    assert [data_name(each) for each in ("a/b.csv", "hub:o/n:domain=site", "hub:o/n@v1")] == ["b", "n", "n@v1"]
