"""Images are found in folders, as files, and in CSV files."""

from __future__ import annotations

from pathlib import Path

import pytest

from swad.testbed.deploy.images import ImageFile, find_images
from swad.util.images import DataError

CLASSES = ("cat", "dog")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    names = ("east/cat/1.png", "east/dog/2.JPG", "west/deep/cat/3.png", "west/fox/4.png", "5.png")
    hidden = (".thumbs/6.png", "__MACOSX/7.png", "east/cat/.8.png", "east/cat/notes.txt")
    for name in (*names, *hidden):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_folders_give_domain_and_label(root):
    assert find_images([root], CLASSES) == [
        ImageFile(root / "5.png", root.name, ""),
        ImageFile(root / "east/cat/1.png", "east", "cat"),
        ImageFile(root / "east/dog/2.JPG", "east", "dog"),
        ImageFile(root / "west/deep/cat/3.png", "west/deep", "cat"),
        ImageFile(root / "west/fox/4.png", "west/fox", ""),
    ]
    assert find_images([root / "east"], CLASSES)[0] == ImageFile(root / "east/cat/1.png", "east", "cat")
    assert find_images([root / "east/cat"], CLASSES) == [ImageFile(root / "east/cat/1.png", "east", "cat")]
    assert find_images([root / "east/cat/1.png"], CLASSES) == [ImageFile(root / "east/cat/1.png", "east", "cat")]


def test_relative_folders(root, monkeypatch):
    monkeypatch.chdir(root / "east")
    assert find_images([Path("cat")], CLASSES) == [ImageFile(Path("cat/1.png"), "east", "cat")]
    assert [image.domain for image in find_images([Path()], CLASSES)] == ["east", "east"]


def test_a_csv_file_names_images(root):
    table = root / "list.csv"
    table.write_text("\ufeffpath,label,domain,note\neast/cat/1.png,cat,here,x\n5.png,,,\n", encoding="utf-8")
    assert find_images([table], CLASSES) == [
        ImageFile(root / "east/cat/1.png", "here", "cat"),
        ImageFile(root / "5.png", "", ""),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"file\n5.png\n", r"must name path, but it lacks path and names file: correct it$"),
        (b"", r"cannot read .*list\.csv \(No columns to parse from file\); it must be a CSV file in UTF-8$"),
        (b"path,label\n5.png,cow\n", r"labels in .* must be classes of the model, got cow: correct or empty them$"),
        (b"path\n\xff\n", r"cannot read .*list\.csv \(.*\); it must be a CSV file in UTF-8$"),
        (
            b"path\nno.png\n5.png\nnor.png\n",
            r"^2 files of .*list\.csv cannot be found from .*: no\.png, nor\.png; correct",
        ),
        (b"path\n", r"list\.csv holds no image \(\.jpg, \.png, \.\.\.\): name another"),
    ],
)
def test_a_csv_file_that_names_none(root, content, message):
    (root / "list.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        find_images([root / "list.csv"], CLASSES)


def test_nothing_to_predict(tmp_path):
    with pytest.raises(DataError, match=r"holds no image \(\.jpg, \.png, \.\.\.\): name another folder or files$"):
        find_images([tmp_path], CLASSES)
    with pytest.raises(DataError, match=r"there is no .*/none: name a folder, image files, or a CSV file"):
        find_images([tmp_path / "none"], CLASSES)
