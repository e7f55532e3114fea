"""The examples of trainers run as their first lines say, without a network, and tell what they averaged.

The others are executed by `make docs` only.
"""

import ast
import importlib.metadata
import importlib.util
import re
import runpy
import sys
import warnings
from pathlib import Path

import pytest

from helpers import forked

ROOT = Path(__file__).parents[1]
GALLERY = sorted((ROOT / "examples" / "gallery").glob("*.py"))
NEEDS = {
    "quickstart": "matplotlib",
    "lightning_trainer": "lightning",
    "huggingface_trainer": "transformers",
    "timm_loop": "timm",
}
TRAINERS = [example for example in GALLERY if example.stem in NEEDS]


def test_the_gallery_has_an_order():
    module = runpy.run_path(str(ROOT / "docs" / "_ext" / "gallery_order.py"))
    assert sorted(module["ORDER"]) == [example.stem for example in GALLERY]
    assert set(NEEDS) <= set(module["ORDER"])
    named = {
        re.findall(r"thumbnail_path = .gallery/tiles/(\w+)", example.read_text())[0]: example.stem
        for example in GALLERY
        if "thumbnail_path" in example.read_text()
    }
    assert named == {name: name for name in module["TILES"]}


@pytest.mark.parametrize("example", GALLERY, ids=lambda path: path.stem)
def test_an_example_has_a_title_and_says_how_to_run_it(example):
    text = example.read_text()
    docstring = ast.get_docstring(compile(text, example, "exec", ast.PyCF_ONLY_AST))
    title, line, *_ = docstring.splitlines()
    assert line == "=" * len(title)
    assert docstring.endswith(f"Run it with ``python examples/gallery/{example.name}``.")
    assert "plt.show()" in text or "print(" in text


def test_no_example_hides_a_package():
    """A script imports from its own folder first, so a folder `datasets` replaces that of Hugging Face."""
    packages = set(importlib.metadata.packages_distributions()) | sys.stdlib_module_names
    for trainer in filter(importlib.util.find_spec, NEEDS.values()):
        requirements = importlib.metadata.requires(trainer) or []  # with those of its extras
        packages |= {re.match(r"[\w-]+", requirement).group().replace("-", "_") for requirement in requirements}
    assert {
        path.stem for folder in ("", "gallery") for path in (ROOT / "examples" / folder).iterdir()
    } & packages == set()


@pytest.mark.slow
@pytest.mark.parametrize("example", TRAINERS, ids=lambda path: path.stem)
def test_example_runs(example, tmp_path, monkeypatch, capfd):
    for package in ("sklearn", NEEDS[example.stem]):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.setenv("MPLBACKEND", "agg")
    if example.stem == "quickstart":
        done = forked.run([example], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        out, errors = done.stdout, done.stderr
    else:  # the trainers take seconds to import, so these examples run where that has been done
        monkeypatch.chdir(tmp_path)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            runpy.run_path(str(example), run_name="__main__")
        out, errors = capfd.readouterr()
        errors += "".join(f"Warning: {item.message}" for item in warned if "the average" in str(item.message))
    first, last, n = map(int, re.search(r"averaged steps (\d+) to (\d+), (\d+) of them", out).groups())
    assert 0 < first < last
    assert n == last - first + 1
    live, averaged = map(float, re.search(r"live ([\d.]+)%, averaged ([\d.]+)%", out).groups())
    assert averaged > 60
    assert averaged >= live - 1
    assert "Warning" not in errors  # neither a false start nor an average that never began
    assert not list(tmp_path.iterdir())  # nothing is left behind


@pytest.mark.slow
def test_only_the_adapters_of_a_large_model_are_averaged(tmp_path, monkeypatch, capfd):
    for package in ("peft", "transformers", "sklearn"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(ROOT / "examples" / "gallery" / "large_models.py"), run_name="__main__")
    out, _ = capfd.readouterr()
    assert "averaged 7% of the parameters; wrote adapter_config.json, adapter_model.safetensors" in out
    averaged, loaded = re.search(r"test accuracy ([\d.]+), loaded again ([\d.]+)", out).groups()
    assert averaged == loaded
    assert float(averaged) > 0.6
    lora = dict(names["again"].named_parameters())
    frozen = dict(names["tiny_vit"]().named_parameters())
    plain = {name.removeprefix("base_model.model.").replace(".base_layer", ""): value for name, value in lora.items()}
    kept = [name for name in frozen if "classifier" not in name]
    assert all(plain[name].equal(frozen[name]) for name in kept)
    assert not list(tmp_path.iterdir())


def test_the_datasets_of_the_examples_are_the_digits_with_few_images_and_with_noisy_labels():
    pytest.importorskip("sklearn")
    from swad.testbed.data.benchmarks import digits
    from swad.testbed.data.splits import hold_out

    whole = digits.render()
    for name in ("few_digits", "noisy_digits"):
        benchmark = runpy.run_path(str(ROOT / "examples" / "custom_datasets" / f"{name}.py"))["BENCHMARK"]
        dataset = benchmark.read(benchmark, None, True, {})
        assert dataset.name == benchmark.name == name
        split = hold_out(dataset, "paper").sources.train[0]
        assert len(split) == (120 if name == "few_digits" else 360)
        assert all((domain.images == plain.images).all() for domain, plain in zip(dataset.domains, whole, strict=True))
        wrong = [(domain.labels != plain.labels).mean() for domain, plain in zip(dataset.domains, whole, strict=True)]
        assert all(0.2 < share < 0.33 if name == "noisy_digits" else share == 0 for share in wrong)
