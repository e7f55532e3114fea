"""Every way to merge against its definition, written out."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import swad
from helpers.averages import Net
from swad.merging.merge import GreedyStep

safetensors = pytest.importorskip("safetensors.torch")


@pytest.fixture
def paths(tmp_path):
    torch.manual_seed(0)
    files = [tmp_path / f"{k}.safetensors" for k in range(5)]
    for file in files:
        safetensors.save_file(Net().state_dict(), file)
    return files


def stacked(paths):
    return torch.stack([safetensors.load_file(path)["head.weight"].double() for path in paths])


def require(merged, expected):
    torch.testing.assert_close(merged["head.weight"].double(), expected, rtol=1e-5, atol=1e-6)


def test_fixed_coefficients(paths):
    points = stacked(paths)
    require(swad.merge(paths), points.sum(0) / 5)
    require(
        swad.merge(paths, coefficients=[1, 2, 0, 3, 4]), torch.einsum("k,kij", points.new([1, 2, 0, 3, 4]), points) / 10
    )
    require(swad.merge(paths, last=2), (points[3] + points[4]) / 2)
    require(swad.merge(paths, last=2, coefficients=[3, 1]), (3 * points[3] + points[4]) / 4)


@pytest.mark.parametrize("decay", ["1-sqrt", "linear", "cosine"])
def test_a_decay_is_that_of_the_online_average(paths, decay):
    model, average = Net(), None
    average = swad.WSM(model, 3, decay, include="*")
    for path in paths:
        model.load_state_dict(safetensors.load_file(path))
        average.update_parameters(model)
        average.observe(1.0)
    require(swad.merge(paths, last=3, decay=decay), average.averaged_state()["head.weight"].double())
    points = stacked(paths)[-3:]
    factors = {"1-sqrt": [1 - (1 / 3) ** 0.5, 1 - (2 / 3) ** 0.5], "linear": [2 / 3, 1 / 3], "cosine": [0.75, 0.25]}
    first, second = factors[decay]
    require(
        swad.merge(paths, last=3, decay=decay),
        points[0] + first * (points[1] - points[0]) + second * (points[2] - points[1]),
    )


@pytest.mark.parametrize("alpha", [0, 0.25, 0.5, 1])
def test_interpolation_with_the_initial_weights(paths, alpha):
    points = stacked(paths)
    merged = swad.merge(paths[1:3], initial=paths[0], alpha=alpha)
    require(merged, (1 - alpha) * points[0] + alpha * (points[1] + points[2]) / 2)
    if alpha == 0:
        assert merged["head.weight"].equal(safetensors.load_file(paths[0])["head.weight"])
    initial = safetensors.load_file(paths[0])
    require(swad.merge(paths[1:3], initial=initial, alpha=alpha), merged["head.weight"].double())


def greedy_twin(points, score):
    """Slow twin: Recipe 1 of the paper on plain numbers."""
    order = sorted(range(len(points)), key=lambda k: score(points[k]), reverse=True)
    soup = []
    for k in order:
        if not soup or score(sum(points[j] for j in [*soup, k]) / (len(soup) + 1)) >= score(
            sum(points[j] for j in soup) / len(soup)
        ):
            soup.append(k)
    return sorted(soup)


@settings(max_examples=40)
@given(st.lists(st.integers(-20, 20).map(float), min_size=1, max_size=7))
def test_greedy_takes_what_the_papers_recipe_takes(points):
    def score(point):
        return -abs(round(float(point), 3) - 3.25)

    steps: list[GreedyStep] = []
    checkpoints = [{"w": torch.tensor([point])} for point in points]
    merged = swad.merge(checkpoints, score=lambda state: score(state["w"]), on_step=steps.append)
    soup = [points[k] for k in greedy_twin(points, score)]
    assert merged["w"].item() == pytest.approx(sum(soup) / len(soup), abs=1e-4)
    assert [step.taken for step in steps].count(True) == len(soup)
    assert [step.number for step in steps] == list(range(1, len(points) + 1))


def test_greedy_reports_its_steps_and_progress(paths):
    values = dict(zip([0, 1, 2, 3], [0.5, 0.75, 0.7, 0.8], strict=True))
    calls = iter(values.values())
    steps, done = [], []
    swad.merge(
        paths[:2], score=lambda state: next(calls), on_step=lambda step: steps.append(str(step)),
        progress=lambda text, k, n: done.append((text, k, n)),
    )  # fmt: skip
    assert steps == [
        f"1 of 2: {paths[1]}: 0.7500, taken",
        f"2 of 2: {paths[0]}: 0.7000, left out, below 0.7500",
    ]
    assert done == [("scoring", 1, 3), ("scoring", 2, 3), ("scoring", 3, 3), ("merging", 1, 1)]


def test_the_output_is_what_is_returned_and_batch_norms_can_be_estimated_again(paths, tmp_path):
    torch.manual_seed(1)
    output = tmp_path / "new" / "merged.safetensors"
    merged = swad.merge(paths, output)
    stored = safetensors.load_file(output)
    assert stored.keys() == merged.keys()
    assert all(stored[name].equal(merged[name]) for name in merged)
    model, images = Net(), torch.randn(64, 3)
    model.load_state_dict(merged)
    swad.update_bn([images], model)
    torch.testing.assert_close(model.body[1].running_mean, model.body[0](images).mean(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coefficients": [1, 2]}, "every checkpoint needs one coefficient, got 2 for 5 checkpoints"),
        ({"coefficients": [1, 1, 1, 1, -1]}, "coefficients must be at least 0, and not all of them 0"),
        ({"coefficients": [0] * 5}, "not all of them 0"),
        ({"coefficients": [1, 1, 1, 1, float("nan")]}, "coefficients must be at least 0"),
        ({"coefficients": [1] * 5, "decay": "linear"}, "give one of them"),
        ({"score": len, "decay": "linear"}, "give one of them"),
        ({"decay": "sqrt"}, "decay must be one of 1-sqrt, linear, cosine, got 'sqrt'"),
        ({"last": 6}, "last must be a number of checkpoints from 1 to 5, got 6"),
        ({"last": 0}, "from 1 to 5, got 0"),
        ({"initial": {}, "alpha": 1.5}, "alpha must be from 0 (the initial weights) to 1"),
        ({"initial": {"w": torch.ones(1)}}, "must be of one architecture: a state dict does not fit"),
        ({"score": lambda state: float("nan")}, "a score must be a finite number, got nan"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_and_nothing_is_written(paths, tmp_path, options, message):
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError) as caught:
        swad.merge(paths, tmp_path / "out.safetensors", **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


def test_other_mistakes(paths, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="a merge needs at least one checkpoint, got none"):
        swad.merge([])
    for one in (paths[0], str(paths[0]), nn.Linear(1, 1).state_dict()):
        with pytest.raises(TypeError, match=r"checkpoints must be a list, got a \w+: pass \[checkpoint\]"):
            swad.merge(one)
    with pytest.raises(ValueError, match="the output must not replace a merged checkpoint"):
        swad.merge(paths, paths[0].parent / "." / paths[0].name)
    with pytest.raises(ValueError, match=r"written as safetensors, got .*out\.pt: choose a name with \.safetensors"):
        swad.merge(paths, tmp_path / "out.pt")
    before = paths[0].read_bytes()
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ImportError, match="needs safetensors: pip install safetensors"):
        swad.merge(paths)
    with pytest.raises(ImportError, match="needs safetensors: pip install safetensors"):
        swad.merge([{"w": torch.ones(1)}], tmp_path / "out.safetensors")
    assert paths[0].read_bytes() == before
    assert swad.merge([{"w": torch.ones(1)}])["w"].item() == 1, "torch alone is enough for what it wrote"
