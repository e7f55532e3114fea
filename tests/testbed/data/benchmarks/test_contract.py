"""The contract of every dataset, tested on small copies."""

import re

import numpy as np
import pytest

from helpers.small_trees import make
from swad.testbed.data import benchmarks
from swad.testbed.data.benchmark import Benchmark, Download
from swad.testbed.data.domains import FileDomain
from swad.testbed.data.splits import hold_out
from swad.util.images import DataError


@pytest.fixture(params=benchmarks.names())
def benchmark(request) -> Benchmark:
    return benchmarks.get(request.param)


def files_of(benchmark: Benchmark) -> list[Download]:
    return [item for source in benchmark.sources if not isinstance(source, str) for item in source]


def test_the_facts_are_complete(benchmark):
    assert benchmark.license
    assert benchmark.options.keys() <= {"domains", "duplicates"}
    if not benchmark.domains:
        return
    assert re.search(r"(19|20)\d\d", benchmark.citation)
    assert benchmark.homepage.startswith("http")
    assert set(benchmark.counts) == (set() if benchmark.name == "FMoW" else set(benchmark.domains))
    assert benchmark.n_classes
    if benchmark.classes is not None:
        assert list(benchmark.classes) == sorted(benchmark.classes)
        assert len(benchmark.classes) == benchmark.n_classes
    if benchmark.layout == "folders":
        assert list(benchmark.domains) == sorted(benchmark.domains)
    for item in files_of(benchmark):
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
def test_the_five_benchmarks_of_the_paper(name, total, classes, steps, every, ratio):
    benchmark = benchmarks.get(name)
    defaults = benchmark.defaults
    assert (benchmark.total, benchmark.n_classes) == (total, classes)
    assert (defaults.steps, defaults.evaluate_every, defaults.tolerance_ratio) == (steps, every, ratio)
    assert (defaults.batch_size, defaults.lr, benchmark.image_spec.size) == (32, 5e-5, 224)
    assert not benchmark.image_spec.low_res
    assert [defaults.evaluate_every_in(n) for n in (3 * every, every // 2)] == [every, every // 2]  # as published


def test_a_small_copy_can_be_read(benchmark, tmp_path):
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
        if isinstance(domain, FileDomain) and benchmark.read is None:
            # Classes and files are sorted, and a label is the number of its class folder.
            assert list(domain.files) == sorted(domain.files)
            assert (np.diff(domain.labels) >= 0).all()
            folders = [file.split("/")[1] for file in domain.files]
            assert [dataset.classes[label] for label in domain.labels] == folders
    if min(len(domain) for domain in dataset.domains) >= 5:
        assert hold_out(dataset, dataset.domain_names[0]).target.names == dataset.domain_names[:1]


def test_a_missing_folder_is_a_one_line_error(benchmark, tmp_path):
    if benchmark.layout == "embedded":
        return
    for root in (None, tmp_path / "nowhere"):
        with pytest.raises(DataError) as caught:
            benchmarks.load(benchmark.name, root)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", benchmarks.names())
def test_downloads_are_encrypted_or_have_a_checksum(name):
    for item in files_of(benchmarks.get(name)):
        assert item.url.startswith("https:") or item.sha256, item.url


def test_most_datasets_have_several_sources():
    """Links die. Files of one name are copies of each other: what came from one source is resumed from the next."""
    several = {name for name in benchmarks.names() if len(benchmarks.get(name).sources) > 1}
    assert several >= {"pacs", "vlcs", "office_home", "terra_incognita", "domain_net", "office31", "rotated_mnist"}
    for name in several:
        hubs = [source for source in benchmarks.get(name).sources if isinstance(source, str)]
        assert all(re.fullmatch(r"hub:[\w-]+/[\w-]+", source) for source in hubs)
