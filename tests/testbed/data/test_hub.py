"""Datasets at the Hugging Face Hub, from a local server that the Hub's own client takes for the Hub."""

import dataclasses
import sys

import huggingface_hub.constants
import pytest

from helpers.parquet_files import COMMIT, rows_of, write_parquet
from swad.testbed.data import benchmarks
from swad.testbed.data.benchmark import Benchmark, Download
from swad.testbed.data.download import download_dataset
from swad.testbed.data.verify import check
from swad.util.images import DataError

DOMAINS, CLASSES = ["north", "south"], ["cat", "dog"]


@pytest.fixture
def shots(hub):
    """The dataset in two files, besides others."""
    rows = rows_of(DOMAINS, CLASSES)
    write_parquet(hub.folder / "data" / "train-0.parquet", rows[:6], {"label": CLASSES})
    write_parquet(hub.folder / "data" / "test-0.parquet", rows[6:], {"label": CLASSES})
    (hub.folder / "README.md").write_text("A card")
    return hub


def test_a_dataset_at_the_hub_is_read_and_asked_for_once(shots):
    dataset = benchmarks.load("folder", "hub:owner/shots")
    assert (dataset.name, dataset.domain_names, dataset.classes) == ("shots", tuple(DOMAINS), tuple(CLASSES))
    assert not any("README" in path for path in shots.requests)
    shots.http.shutdown()
    shots.http.server_close()
    assert check("hub:owner/shots").ok  # without a connection
    assert benchmarks.missing(benchmarks.get("folder"), "hub:owner/shots") == ""


def test_a_revision(shots):
    assert benchmarks.load("folder", "hub:owner/shots@v1").name == "shots@v1"
    assert "api/datasets/owner/shots/revision/v1" in shots.requests


@pytest.fixture
def toy(shots) -> Benchmark:
    facts = {"domains": tuple(DOMAINS), "counts": dict.fromkeys(DOMAINS, 6), "n_classes": 2}
    return Benchmark("toy", "toy", **facts, sources=((Download(shots.url + "no.zip", "no.zip"),), "hub:owner/shots"))


def test_a_source_of_a_benchmark(toy, tmp_path):
    result = download_dataset(toy, tmp_path / "root", retries=0)
    assert result.check.ok
    assert [file.url for file in result.files] == [
        "hub:owner/shots/data/test-0.parquet",
        "hub:owner/shots/data/train-0.parquet",
    ]
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == ["toy", "toy.fetched.json"]
    assert sorted(path.name for path in result.path.iterdir()) == DOMAINS


def test_a_source_with_other_counts_fails(toy, tmp_path):
    with pytest.raises(DataError, match=r"hub:owner/shots: domain north has 6 images, expected 7") as caught:
        download_dataset(dataclasses.replace(toy, counts={"north": 7, "south": 6}), tmp_path / "root", retries=0)
    assert "no.zip: cannot fetch no.zip (" in str(caught.value)
    assert not (tmp_path / "root" / "toy").exists()


def message(address: str) -> str:
    with pytest.raises(DataError) as caught:
        benchmarks.load("folder", address)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_not_at_the_hub_is_one_line(shots, monkeypatch):
    assert "cannot download hub:owner/shot from the Hugging Face Hub (" in message("hub:owner/shot")
    assert "check the name and the connection" in message("hub:a b")
    for file in (shots.folder / "data").iterdir():
        file.unlink()
    assert "has none; the Hub may have converted its files: try hub:owner/shots@refs/convert/parquet" in message(
        "hub:owner/shots"
    )
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "cannot download hub:owner/shots from the Hugging Face Hub (" in message("hub:owner/shots")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "needs huggingface-hub and pyarrow: pip install 'swad[hub]'" in message("hub:owner/shots")


def test_the_commit_is_fixed_before_files_are_fetched(shots):
    benchmarks.load("folder", "hub:owner/shots")
    fetched = [path for path in shots.requests if "/resolve/" in path]
    assert fetched
    assert all(f"/resolve/{COMMIT}/" in path for path in fetched)
