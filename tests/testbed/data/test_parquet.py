"""Parquet files of images become the folders that their rows name, once, or one line says what is wrong with them."""

import sys
from pathlib import Path

import pyarrow
import pytest

from helpers.parquet_files import rows_of, write_parquet
from helpers.small_trees import class_names, make_tree
from swad.testbed.data import benchmarks
from swad.testbed.data.parquet import as_folder, unpack
from swad.testbed.data.verify import check
from swad.util.images import DataError

DOMAINS, CLASSES = ["north", "south"], ["cat", "dog", "eel"]
NAMES = {"label": CLASSES[::-1], "domain": DOMAINS}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SWAD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def shards(tmp_path) -> Path:
    rows = rows_of(DOMAINS, CLASSES)
    write_parquet(tmp_path / "shots" / "train-00000-of-00002.parquet", rows[:7])
    write_parquet(tmp_path / "shots" / "train-00001-of-00002.parquet", rows[7:])
    return tmp_path / "shots"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_parquet_files_are_the_same_dataset_as_folders(shards, tmp_path):
    tree = make_tree(tmp_path / "tree", DOMAINS, CLASSES)
    assert contents(as_folder(shards)) == contents(tree)
    dataset = benchmarks.load("folder", shards)
    assert (dataset.name, dataset.domain_names, dataset.classes) == ("shots", tuple(DOMAINS), tuple(CLASSES))
    assert dataset.domains[0].files == benchmarks.load("folder", tree).domains[0].files
    assert check(shards).ok


def test_they_are_unpacked_once_and_again_if_they_change(shards, cache):
    folder = as_folder(shards)
    assert cache in folder.parents
    (folder / "mark").touch()
    assert as_folder(shards) == folder
    assert (folder / "mark").exists()
    write_parquet(shards / "train-00001-of-00002.parquet", rows_of(["east"], CLASSES, 40))
    assert benchmarks.load("folder", shards).domain_names == ("east", "north")
    assert sorted(path.name for path in folder.parent.iterdir()) == ["lock", "shots"]


def test_a_parquet_file_beside_folders_of_images_is_ignored(shards, tmp_path):
    tree = make_tree(tmp_path / "tree", DOMAINS, CLASSES)
    (shards / "train-00000-of-00002.parquet").rename(tree / "embeddings.parquet")
    assert as_folder(tree) == tree


@pytest.mark.parametrize("place", [".", "data"])  # a clone of a repository has them in data
def test_classes_by_number(tmp_path, place):
    write_parquet(tmp_path / "clone" / place / "train.parquet", rows_of(DOMAINS, CLASSES), NAMES)
    dataset = benchmarks.load("folder", tmp_path / "clone")
    assert (dataset.domain_names, dataset.classes) == (tuple(DOMAINS), tuple(CLASSES))


def test_numbers_without_names_and_images_without_paths(tmp_path):
    rows = [
        {**row, "label": CLASSES.index(row["label"]), "image": row["image"]["bytes"]}
        for row in rows_of(DOMAINS, CLASSES)
    ]
    write_parquet(tmp_path / "a" / "x.parquet", rows, image=pyarrow.binary())
    dataset = benchmarks.load("folder", tmp_path / "a")
    assert dataset.classes == ("0", "1", "2")
    assert dataset.domains[0].files[0] == "north/0/0000001.png"
    dataset.domains[1].image(2)


def test_a_name_that_occurs_twice_in_a_class_loses_no_image(tmp_path):
    rows = rows_of(DOMAINS, CLASSES, 1)
    write_parquet(tmp_path / "a" / "x.parquet", [*rows, *rows])
    assert benchmarks.load("folder", tmp_path / "a").domains[0].files[:2] == (
        "north/cat/000.png",
        "north/cat/0000007-000.png",
    )


def test_columns_of_other_names(tmp_path):
    rows = [
        {"img": row["image"]["bytes"], "site": row["domain"], "label": row["label"]}
        for row in rows_of(DOMAINS, CLASSES)
    ]
    write_parquet(tmp_path / "a" / "x.parquet", rows)
    with pytest.raises(DataError) as caught:
        benchmarks.load("folder", tmp_path / "a")
    assert str(caught.value) == (
        "x.parquet must have the columns image, domain, label, but image, domain is not in img, site, label: name "
        "them, as in --data DATA:domain=site,label=species"
    )
    dataset = benchmarks.load("folder", f"{tmp_path}/a:image=img,domain=site")
    assert (dataset.name, dataset.domain_names) == ("a", tuple(DOMAINS))


def test_a_known_benchmark_whose_domain_has_another_name(tmp_path):
    benchmark = benchmarks.get("OfficeHome")
    rows = rows_of(["Art", "Clipart", "Product", "Real World"], class_names(benchmark), 1)
    write_parquet(tmp_path / "hub" / "data" / "train-0.parquet", rows)
    with pytest.raises(DataError, match="domain Real has 65 images, expected 4357"):
        benchmarks.load("OfficeHome", tmp_path / "hub")
    assert benchmarks.load("OfficeHome", tmp_path / "hub", check_counts=False).domain_names == benchmark.domains


def test_a_damaged_image_is_named_by_the_check(tmp_path):
    rows = rows_of(DOMAINS, CLASSES)
    rows[3]["image"] = {"bytes": b"no image", "path": "note.gif"}
    write_parquet(tmp_path / "a" / "x.parquet", rows)
    (bad,) = check(tmp_path / "a").bad
    assert bad.path.name == "0000004.jpg"


def changed(**cells):
    return [{**row, **cells} if i == 4 else row for i, row in enumerate(rows_of(DOMAINS, CLASSES))]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            changed(image={"bytes": None, "path": "a.png"}),
            "its bytes in the parquet file, but row 5 of a/x.parquet has none",
        ),
        (changed(domain="../up"), "row 5 of a/x.parquet has '../up': rename it or leave it out"),
        (changed(domain=None), "row 5 of a/x.parquet has None"),
        (changed(label=".hidden"), "has '.hidden'"),
        ([{**row, "label": -1} for row in rows_of(DOMAINS, CLASSES)], "row 1 of a/x.parquet has -1"),
        (rows_of(["north"], ["cat", "dog"]) + rows_of(["south"], ["Katze"]), "of which no other domain has one"),
    ],
)
def test_bad_rows_are_one_line_and_leave_nothing(tmp_path, cache, rows, words):
    write_parquet(tmp_path / "a" / "x.parquet", rows)
    with pytest.raises(DataError) as caught:
        benchmarks.load("folder", tmp_path / "a")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(cache.rglob("partial"))


def test_damaged_files_and_files_without_rows(tmp_path, shards):
    whole = (shards / "train-00000-of-00002.parquet").read_bytes()
    for i, content in enumerate((b"", b"<html>", whole[: len(whole) // 2], whole[:200] + bytes(100) + whole[300:])):
        file = tmp_path / str(i) / "x.parquet"
        file.parent.mkdir()
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"cannot read .*x\.parquet") as caught:
            as_folder(file.parent)
        assert "\n" not in str(caught.value)
    empty = pyarrow.table({"image": [], "domain": [], "label": []})
    pyarrow.parquet.write_table(empty, tmp_path / "0" / "x.parquet")
    with pytest.raises(DataError, match=r"x\.parquet must have rows, but has none"):
        as_folder(tmp_path / "0")


def test_a_cache_that_cannot_be_written(shards, cache):
    cache.write_text("")
    with pytest.raises(DataError, match=r"cannot unpack .*shots .*; free disk space or set SWAD_CACHE"):
        as_folder(shards)


def test_without_pyarrow_the_error_says_what_to_install(shards, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"parquet files need pyarrow: pip install 'swad\[hub\]'"):
        unpack(sorted(shards.iterdir()), tmp_path / "out")
