"""The contract of every dataset, tested on small copies, and the rules for reading folders."""

import os
import re
import unicodedata

import numpy as np
import pytest

from helpers.small_trees import make, make_tree
from swad.data import benchmarks
from swad.data.benchmark import Benchmark
from swad.data.domains import DataError, FileDomain
from swad.data.splits import hold_out

FORMS = {"a": "NFC", "b": "NFD"}


@pytest.fixture(params=benchmarks.names())
def benchmark(request) -> Benchmark:
    return benchmarks.get(request.param)


def test_the_folder_is_the_registry():
    assert {"pacs", "vlcs", "office_home", "terra_incognita", "domain_net"} <= set(benchmarks.names())
    assert {"folder", "rotated_mnist", "colored_mnist", "digits"} <= set(benchmarks.names())
    for spelled in ("OfficeHome", "office-home", "OFFICE_HOME"):
        assert benchmarks.get(spelled).name == "OfficeHome"
    with pytest.raises(DataError, match=r"no dataset 'imagenet'; choose one of .*domain_net, folder, office_home"):
        benchmarks.get("imagenet")


def test_facts_are_stated(benchmark):
    assert benchmark.license
    assert benchmark.options.keys() <= {"domains", "duplicates"}
    if not benchmark.domains:
        return
    assert re.search(r"(19|20)\d\d", benchmark.citation)
    assert benchmark.homepage.startswith("http")
    assert set(benchmark.counts) == set(benchmark.domains)
    assert benchmark.n_classes
    if benchmark.classes is not None:
        assert list(benchmark.classes) == sorted(benchmark.classes)
        assert len(benchmark.classes) == benchmark.n_classes
    if benchmark.layout == "folders":
        assert list(benchmark.domains) == sorted(benchmark.domains)
    for item in benchmark.downloads:
        assert item.url.startswith("http")
        assert item.sha256 is None or re.fullmatch("[0-9a-f]{64}", item.sha256)


@pytest.mark.parametrize(
    ("name", "total", "classes", "steps", "every", "ratio"),
    [
        ("PACS", 9991, 7, 5000, 100, 0.3),
        ("VLCS", 10729, 5, 5000, 50, 0.2),
        ("OfficeHome", 15588, 65, 5000, 100, 0.3),
        ("TerraIncognita", 24788, 10, 5000, 100, 0.3),
        ("DomainNet", 586575, 345, 15000, 500, 0.3),
    ],
)
def test_the_papers_five(name, total, classes, steps, every, ratio):
    benchmark = benchmarks.get(name)
    defaults = benchmark.defaults
    assert (benchmark.total, benchmark.n_classes) == (total, classes)
    assert (defaults.steps, defaults.evaluate_every, defaults.tolerance_ratio) == (steps, every, ratio)
    assert (defaults.batch_size, defaults.lr, benchmark.image_spec.size) == (32, 5e-5, 224)
    assert not benchmark.image_spec.low_res


def test_reading(benchmark, tmp_path):
    root = make(benchmark, tmp_path)
    dataset = benchmarks.load(benchmark.name, root, check_counts=False)
    again = benchmarks.load(benchmark.name, root, check_counts=False)
    assert dataset.domain_names == (benchmark.domains or ("left", "right"))
    if benchmark.n_classes:
        assert len(dataset.classes) == benchmark.n_classes
    assert dataset.image_spec == benchmark.image_spec
    assert dataset.defaults == benchmark.defaults
    for domain, same in zip(dataset.domains, again.domains, strict=True):
        assert len(domain) == len(domain.labels) > 0
        assert domain.labels.dtype == np.int64
        for i in (0, len(domain) - 1):
            image = np.asarray(domain.image(i))
            assert image.dtype == np.uint8
            assert image.shape[-1] == dataset.image_spec.channels
            assert (image == np.asarray(same.image(i))).all()
        assert (domain.labels == same.labels).all()
        if isinstance(domain, FileDomain):
            # Sorted reading: classes in order, files in order, and the label is the folder's number.
            assert list(domain.files) == sorted(domain.files)
            assert (np.diff(domain.labels) >= 0).all()
            folders = [file.split("/")[1] for file in domain.files]
            assert [dataset.classes[label] for label in domain.labels] == folders
    if min(len(domain) for domain in dataset.domains) >= 5:
        assert hold_out(dataset, 0).target.names == dataset.domain_names[:1]


def test_a_folder_that_is_not_there(benchmark, tmp_path):
    if benchmark.layout == "embedded":
        return
    for root in (None, tmp_path / "nowhere"):
        with pytest.raises(DataError) as caught:
            benchmarks.load(benchmark.name, root)
        assert "\n" not in str(caught.value)


def test_wrong_counts_are_named_when_read(tmp_path):
    root = make(benchmarks.get("PACS"), tmp_path)
    with pytest.raises(DataError, match=r"domain sketch has 21 images, expected 3929.*check_counts=False"):
        benchmarks.load("PACS", root)


def test_unknown_options_are_refused(tmp_path):
    with pytest.raises(DataError, match="DomainNet has the options: duplicates; got domain"):
        benchmarks.load("DomainNet", tmp_path, domain="x")


# --- the policy on trees that are not as they should be -------------------------------------------------------


def test_a_missing_class_does_not_shift_labels(tmp_path):
    make_tree(tmp_path, ["a"], ["cat", "dog", "eel"])
    make_tree(tmp_path, ["b"], ["cat", "eel"])
    (tmp_path / "b" / "dog").mkdir()  # an empty class folder is the same as none
    dataset = benchmarks.load("folder", tmp_path)
    assert dataset.classes == ("cat", "dog", "eel")
    assert set(dataset.domains[1].labels.tolist()) == {0, 2}


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
        (lambda root: make_tree(root, ["a"], ["Cat"]), "classes Cat and cat differ only in case"),
        (
            lambda root: [make_tree(root, [d], [unicodedata.normalize(form, "Bär")]) for d, form in FORMS.items()],
            r"classes .* and .* differ only in how Unicode encodes their accents \(NFC, NFD\); use one name",
        ),
    ],
)
def test_broken_trees_are_refused_in_one_line(tmp_path, spoil, words):
    make_tree(tmp_path, ["a", "b"], ["cat", "dog"])
    spoil(tmp_path)
    with pytest.raises(DataError, match=words) as caught:
        benchmarks.load("folder", tmp_path)
    assert "\n" not in str(caught.value)


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
    make_tree(tmp_path, ["a", "b", "c"], ["cat", "dog"])
    assert benchmarks.load("folder", tmp_path, domains=["c", "a"]).domain_names == ("a", "c")
    with pytest.raises(DataError, match="domain z is missing"):
        benchmarks.load("folder", tmp_path, domains=["a", "z"])


def test_a_missing_domain_and_a_strange_class(tmp_path):
    make_tree(tmp_path / "PACS", ["photo", "sketch"], ["dog", "zebra"])
    with pytest.raises(DataError) as caught:
        benchmarks.load("PACS", tmp_path, check_counts=False)
    for words in ("domain cartoon is missing", "class zebra does not belong to PACS", "class house is missing"):
        assert words in str(caught.value)


def test_office_homes_folder_of_another_name(tmp_path):
    benchmark = benchmarks.get("OfficeHome")
    root = make(benchmark, tmp_path)
    (tmp_path / "office_home" / "Real").rename(tmp_path / "office_home" / "Real World")
    dataset = benchmarks.load("OfficeHome", root, check_counts=False)
    assert dataset.domain_names == benchmark.domains
    dataset.domains[3].image(0)


def test_domain_nets_duplicates_are_left_out(tmp_path):
    root = make(benchmarks.get("DomainNet"), tmp_path)
    name = "domain_net_duplicates.txt"
    for file in (root / "domain_net" / name, root / name, root / "given.txt"):
        file.write_text("clipart/class_003/000.png\nreal/class_344/000.png\n../../outside.png\n\n")
        options = {"duplicates": file} if file.name != name else {}
        dataset = benchmarks.load("DomainNet", root, check_counts=False, **options)
        assert [len(domain) for domain in dataset.domains] == [344, 345, 345, 345, 344, 345]
        # The class stays, though its only image here is gone.
        assert len(dataset.classes) == 345
        assert 3 not in dataset.domains[0].labels
        file.unlink()
    with pytest.raises(DataError, match="is not a file"):
        benchmarks.load("DomainNet", root, duplicates=root / "none.txt")
