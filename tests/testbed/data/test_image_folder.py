"""Reading <domain>/<class>/<image>: labels never shift, and everything that is ignored is reported."""

import dataclasses
import os
import shutil
import sys
import unicodedata

import pytest

from helpers.small_trees import make, make_tree, save_image
from swad.testbed.data import benchmarks
from swad.testbed.data.image_folder import locate
from swad.testbed.data.splits import hold_out
from swad.testbed.results.records import LOCK, RECORDS
from swad.util.images import DataError

FORMS = {"a": "NFC", "b": "NFD"}


def test_wrong_counts_are_named_when_read(tmp_path):
    root = make(benchmarks.get("PACS"), tmp_path)
    with pytest.raises(DataError, match=r"domain sketch has 21 images, expected 3929.*check_counts=False"):
        benchmarks.load("PACS", root)


def test_a_missing_class_does_not_shift_labels(tmp_path):
    make_tree(tmp_path, ["a"], ["cat", "dog", "eel"])
    make_tree(tmp_path, ["b"], ["cat", "eel"])
    (tmp_path / "b" / "dog").mkdir()  # an empty class folder is the same as none
    dataset = benchmarks.load("folder", tmp_path)
    assert dataset.classes == ("cat", "dog", "eel")
    assert set(dataset.domains[1].labels.tolist()) == {0, 2}
    assert dataset.notes == ("class dog has no images in b; the labels of other classes do not change",)


def test_stray_folders_do_not_become_domains(tmp_path):
    root = make(benchmarks.get("VLCS"), tmp_path)
    make_tree(tmp_path / "VLCS", ["extra", "__MACOSX", ".cache"], ["bird"])
    dataset = benchmarks.load("VLCS", root, check_counts=False)
    assert dataset.domain_names == benchmarks.get("VLCS").domains


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda root: (root / "notes").mkdir(), "folder notes contains no <class>/<image>"),
        (lambda root: (root / "a" / "cat" / "more").mkdir(), "folder a/cat/more is inside a class folder"),
        (lambda root: [(root / d / "fox").mkdir() for d in "ab"], "class fox has no images in any domain"),
        (lambda root: [shutil.rmtree(root / d / "dog") for d in "ab"], "cat is the only class; images must be at"),
        (lambda root: make_tree(root, ["a"], ["Cat"]), "classes Cat and cat differ only in case"),
        (
            lambda root: [make_tree(root, [d], [unicodedata.normalize(form, "Bär")]) for d, form in FORMS.items()],
            r"classes .* and .* differ only in how Unicode encodes their accents \(NFC, NFD\); use one name",
        ),
        pytest.param(
            lambda root: make_tree(root, [os.fsdecode(b"caf\xe9")], ["cat", "dog"]),
            r"the name of folder caf\? is not UTF-8; rename it",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such a name"),
        ),
        (lambda root: make_tree(root, ["a\nb"], ["cat", "dog"]), r"a name without control characters, .*got 'a\\nb'"),
        (lambda root: make_tree(root, ["\x1b[2J"], ["cat", "dog"]), r"a name without control .*got '\\x1b\[2J'"),
    ],
)
def test_broken_trees_are_refused_in_one_line(tmp_path, spoil, words):
    make_tree(tmp_path, ["a", "b"], ["cat", "dog"])
    spoil(tmp_path)
    with pytest.raises(DataError, match=words) as caught:
        benchmarks.load("folder", tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "marker",
    [f"runs/mine/erm/a-0/{LOCK}", "sweep/sweep.json", f"mine/erm/a-0/{LOCK}", f"copied/erm/a-0/{RECORDS}"],
)
@pytest.mark.parametrize("domains", [["a", "b"], ["."], ["train", "val"]])
def test_runs_in_the_folder_of_a_dataset_are_no_domain(tmp_path, marker, domains):
    """As after `cd DATA; swad train folder --data .`, whose output is DATA/runs."""
    make_tree(tmp_path, domains, ["cat", "dog"])
    before = benchmarks.load("folder", tmp_path)
    (tmp_path / marker).parent.mkdir(parents=True)
    (tmp_path / marker).touch()
    figures = (tmp_path / marker).parent / "figures"
    make_tree(figures.parent, ["."], ["figures"])
    after = benchmarks.load("folder", tmp_path)
    assert after.domain_names == before.domain_names
    assert after.classes == before.classes
    assert [len(domain) for domain in after.domains] == [len(domain) for domain in before.domains]
    assert f"ignored folder {marker.split('/')[0]}, which holds runs" in after.notes


def test_hidden_folders_and_those_of_macos_are_no_domains(tmp_path):
    make_tree(tmp_path, ["a", "b", "__MACOSX", ".cache"], ["cat", "dog"])
    dataset = benchmarks.load("folder", tmp_path)
    assert (dataset.domain_names, dataset.notes) == (("a", "b"), ())


def test_a_folder_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    make_tree(tmp_path, ["a", "b"], ["cat", "dog"])
    scan = os.scandir

    def closed(path):
        if path == tmp_path / "b" / "dog":
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(DataError, match=r"no permission to read the folder .*/b/dog; change"):
        benchmarks.load("folder", tmp_path)


def test_files_of_no_known_kind_are_counted(tmp_path):
    make_tree(tmp_path, ["a", "b"], ["cat", "dog"])
    assert not benchmarks.load("folder", tmp_path).notes
    for name in ("x.gif", "y.gif", ".hidden"):
        (tmp_path / "a" / "cat" / name).touch()
    (note,) = benchmarks.load("folder", tmp_path).notes
    assert note == "ignored 2 files without an image extension, e.g. a/cat/x.gif"


def test_chosen_domains_of_a_folder(tmp_path):
    make_tree(tmp_path, ["a", "b", "photo"], ["cat", "dog"])
    assert benchmarks.load("folder", tmp_path, domains=["photo", "a"]).domain_names == ("a", "photo")
    assert benchmarks.load("folder", tmp_path, domains="photo").domain_names == ("photo",)
    with pytest.raises(DataError, match="the option domains of folder must be a list of names, got 5"):
        benchmarks.load("folder", tmp_path, domains=5)
    with pytest.raises(DataError, match="domain z is missing"):
        benchmarks.load("folder", tmp_path, domains=["a", "z"])


def test_a_missing_domain_and_a_strange_class(tmp_path):
    make_tree(tmp_path / "PACS", ["photo", "sketch"], ["dog", "zebra"])
    with pytest.raises(DataError) as caught:
        benchmarks.load("PACS", tmp_path, check_counts=False)
    for words in ("domain cartoon is missing", "class zebra does not belong to PACS", "class house is missing"):
        assert words in str(caught.value)


# --- folders without domains ----------------------------------------------------------------------------------------


def test_a_folder_of_classes_is_one_domain(tmp_path):
    make_tree(tmp_path / "pets", ["a cat", "dog"], ["."])
    save_image(tmp_path / "pets" / "stray.png", 1)
    (tmp_path / "pets" / "dog" / "notes.txt").touch()
    dataset = benchmarks.load("folder", tmp_path / "pets")
    (domain,) = dataset.domains
    assert (dataset.name, dataset.classes, domain.name) == ("pets", ("a cat", "dog"), "images")
    assert domain.files == tuple(f"{name}/{i:03}.png" for name in ("a cat", "dog") for i in range(3))
    assert domain.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert all(domain.path(i).is_file() for i in range(len(domain)))
    assert dataset.notes == (
        "ignored 1 file without an image extension, e.g. dog/notes.txt",
        "ignored 1 image outside of class folders, e.g. stray.png",
    )
    (tmp_path / "pets" / "eel").mkdir()
    assert "class eel has no images in any domain" in one_line_error(tmp_path / "pets")


@pytest.mark.parametrize(
    ("folders", "note"),
    [
        (["train"], "without a folder val, validation images are drawn at random from train"),
        (
            ["test", "train"],
            "without a folder val, train and test are domains, and validation images are drawn at random from each: if "
            "they are splits, add val",
        ),
        (["train", "sketch"], None),
        (["train", "val"], "one domain, whose splits are its folders train, val"),
    ],
)
@pytest.mark.parametrize("name", ["folder", "imagenet"])
def test_training_images_without_validation_images_get_a_note(tmp_path, name, folders, note):
    make_tree(tmp_path, folders, ["cat", "dog"])
    if name == "imagenet" and note is None:
        note = (
            "the folders sketch, train are trained as one pool: if one of them is the validation split, rename it val"
        )
    assert benchmarks.load(name, tmp_path).notes == (() if note is None else (note,))


@pytest.mark.parametrize("folders", [("train", "val"), ("train", "validation", "test"), ("train", "valid", "test")])
def test_folders_of_splits_are_the_split_of_one_domain(tmp_path, folders):
    sizes = (5, 3, 2)[: len(folders)]
    for folder, size in zip(folders, sizes, strict=True):
        make_tree(tmp_path, [folder], ["cat", "dog"], size)
    dataset = benchmarks.load("folder", tmp_path)
    for trial in (0, 1):
        sources, target = hold_out(dataset, None, trial=trial)
        assert target.names == ()
        parts = (sources.train, sources.val, sources.test)[: len(folders)]
        for folder, size, (part,) in zip(folders, sizes, parts, strict=True):
            expected = [f"{folder}/{name}/{i:03}.png" for name in ("cat", "dog") for i in range(size)]
            assert [part.domain.files[key] for key in part.keys] == expected
            assert part.labels.tolist() == [0] * size + [1] * size
        assert len(sources.test) == len(folders) - 2
    with pytest.raises(DataError, match="has its own split into folders, got 60/20/20"):
        hold_out(dataset, None, three_way=True)
    # The option says that they are domains after all; a further folder does so too.
    assert benchmarks.load("folder", tmp_path, domains=folders).domain_names == tuple(sorted(folders))
    make_tree(tmp_path, ["web"], ["cat", "dog"])
    assert benchmarks.load("folder", tmp_path).domain_names == tuple(sorted((*folders, "web")))


def test_a_class_without_training_images_is_refused(tmp_path):
    make_tree(tmp_path, ["train", "val"], ["cat", "dog"])
    make_tree(tmp_path, ["val"], ["eel"])
    assert "class eel has images in val, but not in train; add some" in one_line_error(tmp_path)


# --- images at the wrong level --------------------------------------------------------------------------------------


def one_line_error(path, name="folder"):
    with pytest.raises(DataError) as caught:
        benchmarks.load(name, path, check_counts=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_of_images_lacks_classes(tmp_path):
    save_image(tmp_path / "x.png", 1)
    error = one_line_error(tmp_path)
    assert "x.png is in no folder of a class: move it to <class>/x.png" in error


def test_a_folder_above_the_dataset_is_one_level_too_high(tmp_path):
    make_tree(tmp_path / "data" / "mine", ["a", "b"], ["cat", "dog"])
    error = one_line_error(tmp_path / "data")
    assert f"mine/a/cat/000.png is one level deeper: give the folder {tmp_path / 'data' / 'mine'}" in error


def test_one_domain_without_class_folders_is_named(tmp_path):
    make_tree(tmp_path, ["a", "b"], ["cat", "dog"])
    save_image(tmp_path / "c" / "x.png", 1)
    rule = "is not in a class folder; move the images of"
    assert f"image c/x.png {rule} c to c/<class>/<image>" in one_line_error(tmp_path)
    make_tree(tmp_path / "PACS", ["photo"], ["."])
    assert f"image photo/000.png {rule} photo to photo/<class>/<image>" in one_line_error(tmp_path / "PACS", "PACS")


def test_single_images_at_the_wrong_level_are_noted(tmp_path):
    make_tree(tmp_path, ["a", "b"], ["cat", "dog"])
    for name in ("top.png", "a/stray.jpg", ".hidden.png"):
        save_image(tmp_path / name, 1)
    (note,) = benchmarks.load("folder", tmp_path).notes
    assert note == "ignored 2 images outside of class folders, e.g. top.png"


def test_a_note_names_classes_that_some_domains_lack(tmp_path):
    make_tree(tmp_path, ["a", "c"], ["cat", "dog", "eel"])
    make_tree(tmp_path, ["b"], ["cat"])
    (note,) = benchmarks.load("folder", tmp_path).notes
    assert (
        note == "class dog has no images in b, class eel has no images in b; the labels of other classes do not change"
    )


def test_only_a_dataset_that_can_be_downloaded_says_so(tmp_path):
    vlcs = benchmarks.get("vlcs")
    with pytest.raises(DataError, match="run `swad datasets download VLCS` or give the folder"):
        locate(vlcs, tmp_path)
    with pytest.raises(DataError, match="; give the folder that contains them"):
        locate(dataclasses.replace(vlcs, sources=()), tmp_path)


def test_classes_in_a_folder_images(tmp_path):
    """As in Office-31, whose benchmark accepts both."""
    benchmark = benchmarks.get("Office31")
    root = make(benchmark, tmp_path)
    plain = benchmarks.load("Office31", root, check_counts=False)
    for domain in ("amazon", "dslr"):
        classes = root / "office31" / domain
        classes.rename(root / "moved")
        classes.mkdir()
        (root / "moved").rename(classes / "images")
    nested = benchmarks.load("Office31", root, check_counts=False)
    assert nested.classes == plain.classes
    assert nested.domains[0].files[0] == "amazon/images/class_000/000.png"
    assert nested.domains[2].files[0] == "webcam/class_000/000.png"
    assert all((a.labels == b.labels).all() for a, b in zip(nested.domains, plain.domains, strict=True))


def test_a_class_may_be_called_images(tmp_path):
    make_tree(tmp_path, ["left", "right"], ["images", "masks"])
    assert benchmarks.load("folder", tmp_path).classes == ("images", "masks")
    shutil.rmtree(tmp_path / "left" / "masks")
    assert benchmarks.load("folder", tmp_path).classes == ("images", "masks")
