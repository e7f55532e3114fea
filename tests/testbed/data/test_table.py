"""A CSV file of path, domain and class is read like folders, and everything wrong with it is one line."""

import csv
from pathlib import Path

import numpy as np
import pytest

from helpers.small_trees import make_tree
from swad.testbed.data import benchmarks
from swad.testbed.data.splits import hold_out
from swad.testbed.data.verify import check
from swad.util.images import DataError

DOMAINS, CLASSES = ["north", "south"], ["cat", "dog"]


def rows_of(tree: Path) -> list[list[str]]:
    paths = sorted(str(path.relative_to(tree)) for path in tree.rglob("*.png"))
    return [[path, *path.split("/")[:2]] for path in paths]


def write(file: Path, rows: list[list[str]], header: str = "path,domain,label") -> Path:
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([header.split(","), *rows])
    return file


@pytest.fixture
def tree(tmp_path) -> Path:
    return make_tree(tmp_path / "shots", DOMAINS, CLASSES)


def test_a_csv_file_is_the_same_dataset_as_the_folders(tree):
    file = write(tree / "list.csv", rows_of(tree)[::-1])
    listed, folders = (benchmarks.load("folder", root) for root in (file, tree))
    assert (listed.name, listed.classes, listed.domain_names) == ("list", folders.classes, folders.domain_names)
    for one, other in zip(listed.domains, folders.domains, strict=True):
        assert one.files == other.files
        assert (one.labels == other.labels).all()
        assert one.labels.dtype == np.int64
    parts = [hold_out(dataset, "north", trial=1).sources.train[0] for dataset in (listed, folders)]
    assert (parts[0].labels == parts[1].labels).all()


def test_columns_paths_and_names_of_many_kinds(tree):
    rows = [
        [str(tree / path), f"site, {domain}", {"cat": "10", "dog": "9"}[name]] for path, domain, name in rows_of(tree)
    ]
    file = tree.parent / "other.CSV"
    text = "\ufeffweather, label, path, domain\n" + "".join(f'NA, {c}, {p}, "{d}"\n' for p, d, c in rows)
    file.write_text(text, encoding="utf-8")
    dataset = benchmarks.load("folder", file)
    assert dataset.domain_names == ("site, north", "site, south")
    assert dataset.classes == ("10", "9")  # in the order of folders
    dataset.domains[0].image(0)


def test_a_known_benchmark_is_read_from_a_csv_file(tmp_path):
    benchmark = benchmarks.get("PACS")
    tree = make_tree(tmp_path / "pacs", [*benchmark.domains, "extra"], list(benchmark.classes))
    file = write(tree / "list.csv", rows_of(tree))
    with pytest.raises(DataError, match="domain art_painting has 21 images, expected 2048"):
        benchmarks.load("PACS", file)
    dataset = benchmarks.load("PACS", file, check_counts=False)
    assert dataset.domain_names == benchmark.domains
    assert dataset.domains[0].files[0] == "art_painting/dog/000.png"
    rows = [row for row in rows_of(tree) if row[1] != "photo" and row[2] != "dog"]
    with pytest.raises(DataError, match="domain photo is missing; class dog is missing in every domain"):
        benchmarks.load("PACS", write(tree / "less.csv", rows), check_counts=False)


def test_a_csv_file_is_checked(tree):
    file = write(tree / "list.csv", rows_of(tree))
    result = check(file)
    assert result.ok
    assert (result.images, result.decoded, result.name) == (12, 12, "folder")
    (tree / "south" / "dog" / "001.png").write_bytes(b"no image")
    assert [bad.path.name for bad in check(file).bad] == ["001.png"]
    with pytest.raises(DataError, match="is not a folder; give the folder of the dataset, or a CSV file"):
        check(tree / "nowhere.csv")


def test_a_class_that_a_domain_lacks_is_a_note(tree):
    rows = [row for row in rows_of(tree) if row[1:] != ["south", "dog"]]
    dataset = benchmarks.load("folder", write(tree / "list.csv", rows))
    assert dataset.notes == ("class dog has no images in south; the labels of other classes do not change",)


def problem(file: Path) -> str:
    with pytest.raises(DataError) as caught:
        benchmarks.load("folder", file)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_missing_files_are_listed_at_once(tree):
    rows = rows_of(tree) + [[f"gone/{i:02}.png", "north", "cat"] for i in range(25)]
    message = problem(write(tree / "list.csv", rows))
    assert f"25 files of {tree}/list.csv cannot be found from {tree}: gone/00.png, gone/01.png" in message
    assert "gone/19.png and 5 more" in message
    assert "gone/20.png" not in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            "file,site,label\na.png,x,cat\n",
            "must name path,domain,label, but it lacks path,domain and names file,site",
        ),
        ("", "No columns to parse"),
        ("path,domain,label\n", "it contains no domains"),
        ("path,domain,label\na.png,,cat\n", "but line 2 has an empty cell"),
        ("path,domain,label\na.png,x,cat\nb.png,x\nc.png,x,dog,more\n", "Expected 3 fields in line 4, saw 4"),
        ("path,domain,label\na.png,x,cat\na.png,y,cat\n", "must list an image once, but a.png is repeated: keep one"),
        ("path,domain,label\na.png,x,cat\nb.png,y,Katze\n", "of which no other domain has one; name classes alike"),
        (b"path,domain,label\n\xe9.png,x,cat\n", "it must be a CSV file in UTF-8"),
        ("path,domain,label\na.png,../x,cat\nb.png,y,cat\n", "not outside of its folder, got '../x'"),
    ],
)
def test_a_bad_csv_file_is_one_line(tmp_path, content, words):
    file = tmp_path / "list.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    for name in "ab":
        make_tree(tmp_path, [], [])
        (tmp_path / f"{name}.png").write_bytes(b"")
    assert words in problem(file)
