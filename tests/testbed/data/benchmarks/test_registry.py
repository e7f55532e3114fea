"""Datasets are found by name, also in folders of your own."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers import forked
from helpers.documents import example
from helpers.small_trees import make_tree
from swad.testbed.data import benchmarks
from swad.testbed.data.benchmark import Benchmark
from swad.testbed.data.domains import ArrayDomain, Dataset, ImageSpec
from swad.testbed.data.verify import check
from swad.util.images import DataError

EXAMPLE, ARRAY_EXAMPLE, EMBEDDED_EXAMPLE = (
    example("reference/writing-a-method.md", f'name="{each}"') for each in ("MyData", "MyArrays", "MyShapes")
)


def test_datasets_are_found_by_name():
    assert {"pacs", "vlcs", "office_home", "terra_incognita", "domain_net"} <= set(benchmarks.names())
    assert {"folder", "rotated_mnist", "colored_mnist", "digits"} <= set(benchmarks.names())
    for spelling in ("OfficeHome", "office-home", "OFFICE_HOME"):
        assert benchmarks.get(spelling).name == "OfficeHome"
    with pytest.raises(DataError, match=r"no dataset 'cifar'; choose one of .*folder, imagenet, office31, office_home"):
        benchmarks.get("cifar")
    with pytest.raises(DataError, match=r"^there is no dataset 'OficeHome': did you mean 'office_home'\?$"):
        benchmarks.get("OficeHome")


def test_unknown_options_are_refused(tmp_path):
    with pytest.raises(DataError, match="DomainNet has the options: duplicates; got domain"):
        benchmarks.load("DomainNet", tmp_path, domain="x")


def test_a_dataset_in_a_folder_of_your_own(tmp_path):
    """In processes of their own, because the variable is read at import."""
    folder = tmp_path / "datasets"
    folder.mkdir()
    (folder / "my_data.py").write_text(EXAMPLE)
    make_tree(tmp_path / "my_data", ["photo", "sketch"], ["cat", "dog"])

    def run(code: str, folder: object = folder) -> subprocess.CompletedProcess[str]:
        code = f"from swad.testbed.data import benchmarks; {code}"
        environment = os.environ | {"SWAD_DATASETS": str(folder)}
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)

    loaded = run(f"print(benchmarks.load('MyData', {str(tmp_path)!r}, check_counts=False).domain_names)")
    assert loaded.stdout == "('photo', 'sketch')\n", loaded.stderr
    assert run("print('pacs' in benchmarks.names())").stdout == "True\n"
    (folder / "pacs.py").write_text(EXAMPLE)
    assert "there are 2 files pacs.py: rename yours" in run("benchmarks.names()").stderr
    (folder / "pacs.py").rename(folder / "empty.py").write_text("")
    assert "empty.py does not: add the line" in run("benchmarks.get('empty')").stderr
    assert "must name existing folders" in run("benchmarks.names()", tmp_path / "nowhere").stderr
    (folder / "cats.py").write_text(EXAMPLE)
    assert "must be named like its file, got 'MyData' in cats.py" in run("benchmarks.get('cats')").stderr


def test_generated_images_need_no_directory():
    images = ArrayDomain("day", np.zeros(5, np.int64), np.zeros((5, 28, 28, 3), np.uint8))

    def read(benchmark, root, check_counts, options):
        return Dataset(benchmark.name, (images,), ("cat",), benchmark.image_spec)

    generated = Benchmark("Generated", "", ("day",), image_spec=ImageSpec(28, low_res=True), read=read)
    assert benchmarks.missing(generated, None).endswith('or set layout="embedded" in its file if read needs none')
    embedded = replace(generated, layout="embedded")
    assert benchmarks.missing(embedded, None) == ""
    assert benchmarks.read(embedded, None, True, {}).domains == (images,)
    assert "embedded" not in benchmarks.missing(benchmarks.get("PACS"), None)


@pytest.mark.parametrize(
    ("shape", "spec", "message"),
    [
        (None, {}, "read of the dataset MyData must return a swad.testbed.data.domains.Dataset, got NoneType"),
        ((32, 32, 1), {"low_res": True}, "domain day: images must have the channels of image_spec, 3, got 1: correct"),
        ((32, 30, 3), {"low_res": True}, "must have that of image_spec, 32 × 32, got 32 × 30: resize them"),
        ((40, 40, 4), {"channels": 4}, "resized and augmented must have 1 or 3 channels, got 4: set low_res=True"),
    ],
)
def test_images_that_differ_from_their_image_spec_are_refused(shape, spec, message, monkeypatch, tmp_path):
    image_spec = ImageSpec(size=32, **spec)

    def read(benchmark, root, check_counts, options):
        if shape is None:
            return None
        domain = ArrayDomain("day", np.zeros(5, np.int64), np.zeros((5, *shape), np.uint8))
        return Dataset("MyData", (domain,), ("cat",), image_spec)

    benchmark = Benchmark("MyData", "", ("day",), image_spec=image_spec, read=read)
    monkeypatch.setattr(benchmarks, "get", lambda name: benchmark)
    for use in (lambda: benchmarks.load("my_data"), lambda: check(tmp_path, benchmark)):
        with pytest.raises(DataError, match=message):
            use()


def test_image_files_have_three_channels(tmp_path):
    make_tree(tmp_path, ["photo", "sketch"], ["cat", "dog"])
    gray = Benchmark("MyData", "", ("photo", "sketch"), image_spec=ImageSpec(channels=1, mean=(0.5,), std=(0.2,)))
    with pytest.raises(DataError, match="domain photo: images must have the channels of image_spec, 1, got 3"):
        benchmarks.read(gray, tmp_path, False, {})


def swad(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"SWAD_DATASETS": str(folder), "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    return forked.run(["-m", "swad", *map(str, arguments)], env=environment)


QUICK = ["--steps", "2", "--evaluate-every", "1", "--set", "batch_size=2", "-a", "ema"]


@pytest.mark.slow
def test_the_command_trains_on_a_dataset_of_image_files(tmp_path):
    folder = tmp_path / "datasets"
    folder.mkdir()
    (folder / "my_data.py").write_text(EXAMPLE)
    make_tree(tmp_path / "data" / "my_data", ["photo", "sketch"], ["cat", "dog"], per_class=8)
    options = ["--network", "test_resnet", "--weights", "random", *QUICK]
    refused = swad(folder, "train", "my_data", "-d", tmp_path / "data", *options, "-o", tmp_path / "runs")
    assert "domain photo has 16 images, expected 1200" in refused.stderr
    options += ["--allow-count-mismatch", "-t", "sketch", "-o", tmp_path / "runs"]
    trained = swad(folder, "train", "my_data", "-d", tmp_path / "data", *options)
    assert trained.returncode == 0, trained.stderr
    assert (tmp_path / "runs" / "MyData" / "erm" / "sketch-0" / "weights" / "ema.safetensors").is_file()


@pytest.mark.slow
def test_the_command_trains_on_a_dataset_of_arrays(tmp_path):
    folder, data = tmp_path / "datasets", tmp_path / "data"
    folder.mkdir()
    data.mkdir()
    (folder / "my_arrays.py").write_text(ARRAY_EXAMPLE)
    random = np.random.RandomState(0)
    for name in ("day", "dusk", "night"):
        images = random.randint(0, 256, (20, 32, 32, 3)).astype(np.uint8)
        np.savez(data / f"{name}.npz", images=images, labels=np.arange(20) % 2)
    checked = swad(folder, "datasets", "check", data, "--name", "my_arrays")
    assert "60 images, 2 classes" in checked.stdout, checked.stderr
    trained = swad(folder, "train", "my_arrays", "-d", data, *QUICK, "-t", "day", "-o", tmp_path / "runs")
    assert trained.returncode == 0, trained.stderr
    assert (tmp_path / "runs" / "MyArrays" / "erm" / "day-0" / "weights" / "ema.safetensors").is_file()
    (data / "dusk.npz").unlink()
    missing = swad(folder, "train", "my_arrays", "-d", data, *QUICK, "-o", tmp_path / "others")
    assert missing.returncode == 1
    assert "dusk.npz" in missing.stderr


@pytest.mark.slow
def test_the_command_trains_on_images_that_code_makes_without_a_directory(tmp_path):
    folder = tmp_path / "datasets"
    folder.mkdir()
    (folder / "my_shapes.py").write_text(EMBEDDED_EXAMPLE)
    for _ in range(2):  # trained, then found finished
        trained = swad(folder, "train", "my_shapes", *QUICK, "-t", "dim", "-o", tmp_path / "runs")
        assert trained.returncode == 0, trained.stderr
    assert (tmp_path / "runs" / "MyShapes" / "erm" / "dim-0" / "weights" / "ema.safetensors").is_file()
    refused = swad(folder, "datasets", "download", "my_shapes")
    assert "there is nothing to download for MyShapes; it is made by code" in refused.stderr


@pytest.mark.slow
def test_a_broken_file_of_your_own_stops_only_its_own_dataset(tmp_path):
    folder = tmp_path / "datasets"
    folder.mkdir()
    (folder / "broken.py").write_text(
        "from swad.testbed.data.benchmark import Benchmark\nBENCHMARK = Benchmark(nmae='x')\n"
    )
    (folder / "other.py").write_text("BENCHMARK = 3\n")
    make_tree(tmp_path / "images", ["photo", "sketch"], ["cat", "dog"])

    listed = swad(folder, "datasets")
    assert listed.returncode == 0, listed.stderr
    assert "VLCS" in listed.stdout
    reason = f"cannot import {folder / 'broken.py'}, line 2: TypeError: Benchmark.__init__() got an unexpected keyword"
    assert f"broken: {reason}" in listed.stdout
    assert "other: BENCHMARK must be a swad.testbed.data.benchmark.Benchmark, got 3 in other.py" in listed.stdout
    assert swad(folder, "datasets", "check", tmp_path / "images").returncode == 0
    used = swad(folder, "train", "broken")
    assert used.returncode == 1
    assert used.stderr.startswith(f"error: {reason}")
    assert used.stderr.count("\n") == 1
