"""The streamed mean against one that holds all checkpoints in memory in double precision."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.averages import Net
from swad.merging import weighted_mean as module
from swad.merging.checkpoints import CheckpointError
from swad.merging.weighted_mean import require_same_tensors, save, weighted_mean

safetensors = pytest.importorskip("safetensors.torch")


def states(n, dtype=torch.float32):
    torch.manual_seed(0)
    found = []
    for k in range(n):
        model = Net().to(dtype)
        model.body[1].num_batches_tracked.fill_(k)
        found.append(model.state_dict())
    return found


def twin(found, coefficients):
    """Slow twin: all in memory, in double precision."""
    total = sum(coefficients)
    last = next(state for state, share in reversed(list(zip(found, coefficients, strict=True))) if share)
    return {
        name: sum(share / total * state[name].double() for state, share in zip(found, coefficients, strict=True))
        if last[name].is_floating_point()
        else last[name]
        for name in last
    }


def require_close(means, expected, **tolerance):
    assert means.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(means[name].to(value.dtype), value, **tolerance)


@settings(max_examples=25)
@given(
    st.lists(st.sampled_from([0.0, 0.1, 1.0, 3.0]), min_size=1, max_size=6).filter(any),
    st.sampled_from([1, 40, 1 << 26]),
)
def test_any_coefficients_equal_the_slow_mean_whatever_the_groups(coefficients, group_bytes):
    found = states(len(coefficients))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "GROUP_BYTES", group_bytes)
        means = weighted_mean(found, coefficients)
    require_close(means, twin(found, coefficients), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_files_of_any_dtype_are_summed_in_float32_and_keep_their_dtype(tmp_path, dtype, suffix):
    found = states(30, dtype)
    paths = [tmp_path / f"{k}.{suffix}" for k in range(len(found))]
    for path, state in zip(paths, found, strict=True):
        torch.save(state, path) if suffix == "pt" else safetensors.save_file(state, path)
    means = weighted_mean(paths, [1.0] * len(paths))
    assert {name: tensor.dtype for name, tensor in means.items()} == {n: t.dtype for n, t in found[0].items()}
    eps = torch.finfo(dtype).eps if dtype != torch.float64 else 1e-15
    require_close(means, twin(found, [1.0] * len(found)), rtol=max(2 * eps, 1e-12), atol=4 * eps)
    means["head.bias"].fill_(1)  # the file is not written to
    require_close(weighted_mean(paths[:1], [1.0]), {n: t.double() for n, t in found[0].items()}, rtol=0, atol=0)


def test_tensors_that_are_the_same_in_all_stay_bit_equal():
    torch.manual_seed(0)
    frozen = torch.randn(1000)
    found = [{"frozen": frozen, "trained": torch.randn(3)} for _ in range(7)]
    assert weighted_mean(found, [0.3, 1, 2, 0.7, 5, 1, 1])["frozen"].equal(frozen)
    mask = torch.full((3, 3), -torch.inf).triu(1)
    assert weighted_mean([{"mask": mask}, {"mask": mask.clone()}], [1, 1])["mask"].equal(mask)


def test_what_is_tied_in_the_files_stays_tied_and_loads_strictly(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

    torch.manual_seed(0)
    models = [Tied() for _ in range(3)]
    paths = [tmp_path / f"{k}.pt" for k in range(3)]
    for model, path in zip(models, paths, strict=True):
        torch.save(model.state_dict(), path)
    means = weighted_mean(paths, [1, 1, 1])
    assert means["embed.weight"] is means["head.weight"]
    save(tmp_path / "merged.safetensors", means, paths, [1, 1, 1])
    fresh = Tied()
    fresh.load_state_dict(safetensors.load_file(tmp_path / "merged.safetensors"))
    expected = torch.stack([model.embed.weight for model in models]).mean(0)
    torch.testing.assert_close(fresh.head.weight, expected)
    untied = {"embed.weight": torch.ones(5, 3), "head.weight": torch.zeros(5, 3)}
    means = weighted_mean([untied, paths[-1]], [1, 1])
    assert means["embed.weight"] is not means["head.weight"], "in one of the checkpoints they differ"


def test_the_file_says_what_was_merged_and_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    found = states(3)
    for k, state in enumerate(found):
        safetensors.save_file(state, tmp_path / f"{k}.safetensors")
    paths = [tmp_path / f"{k}.safetensors" for k in range(3)]
    means = weighted_mean(paths, [1, 0, 3])
    means["head.weight"] = means["head.weight"].t().contiguous().t()  # safetensors refuses other strides
    save(tmp_path / "merged.safetensors", means, paths, [1, 0, 3])
    from safetensors import safe_open

    with safe_open(tmp_path / "merged.safetensors", framework="pt") as file:
        merged = json.loads(file.metadata()["swad_merge"])["merged"]
    assert merged == [
        {"checkpoint": str(paths[0]), "coefficient": 0.25},
        {"checkpoint": str(paths[2]), "coefficient": 0.75},
    ]
    before = (tmp_path / "merged.safetensors").read_bytes()
    monkeypatch.setattr(safetensors, "save_file", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save(tmp_path / "merged.safetensors", means, paths, [1, 0, 3])
    assert (tmp_path / "merged.safetensors").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [*(path.name for path in paths), "merged.safetensors"]


def refused(found, coefficients=None):
    with pytest.raises(CheckpointError) as caught:
        weighted_mean(found, coefficients or [1.0] * len(found))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_checkpoints_that_do_not_fit_are_refused_in_one_line():
    good = states(1)[0]
    renamed = {name.replace("head", "fc"): tensor for name, tensor in good.items()}
    text = refused([renamed, good])
    assert "must be of one architecture: a state dict does not fit" in text
    assert "missing head.weight, head.bias; unknown fc.weight, fc.bias" in text
    assert "of another shape body.0.weight (8, 3) instead of (4, 3)" in refused([Net(width=8).state_dict(), good])
    assert "integers in one and floating-point numbers in the other head.bias" in refused(
        [{**good, "head.bias": torch.ones(2, dtype=torch.int64)}, good]
    )
    packed = {"weight": torch.ones(2).to(torch.float8_e4m3fn)}
    assert "at least 16 bits, got fewer in weight" in refused([packed, packed])
    with pytest.raises(CheckpointError):
        require_same_tensors([renamed, good])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_weights_that_are_not_finite_are_refused_with_their_file(tmp_path, value, bad):
    found = states(3)
    found[bad]["head.bias"][1] = value
    paths = [tmp_path / f"{k}.pt" for k in range(3)]
    for path, state in zip(paths, found, strict=True):
        torch.save(state, path)
    text = refused(paths)
    assert text == f"merged weights must be finite, but head.bias in {paths[bad]} is not: leave {paths[bad]} out"
    others = [path for path in paths if path != paths[bad]]
    weighted_mean(others, [1, 1])
    assert weighted_mean(paths, [float(path != paths[bad]) for path in paths])["head.bias"].isfinite().all()
