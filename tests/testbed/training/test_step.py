"""A captured step gives the numbers of the same step run eagerly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.runs import cached_config, crash_at, short, weights
from swad.testbed.results.records import read_records
from swad.testbed.training.loop import train
from swad.testbed.training.step import Engine, choose_engine

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def needs_gpu(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs a CUDA device, and skip it where there is none."""
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")(test))


@pytest.mark.parametrize(
    ("requested", "device", "steps", "fused", "obstacle", "engine", "reason"),
    [
        ("auto", CPU, 5000, True, "", "eager", ""),
        ("eager", CUDA, 5000, True, "", "eager", ""),
        ("graph", CPU, 5000, True, "", "eager", "need a GPU"),
        ("auto", CUDA, 5000, True, "", "graph", ""),
        ("auto", CUDA, 100, False, "", "graph", ""),
        ("graph", CUDA, 100, True, "it reads the loss", "eager", "it reads the loss"),
    ],
)
def test_the_engine_is_chosen_and_a_fallback_has_a_reason(requested, device, steps, fused, obstacle, engine, reason):
    chosen, why = choose_engine(requested, device, steps, fused, obstacle)
    assert chosen == engine
    assert reason in why
    assert bool(why) == bool(reason)


def test_the_eager_engine_calls_the_step_function():
    seen: list[tuple[int, float]] = []

    def body(step: int, inputs: dict[str, Tensor], noise: dict[str, Tensor]) -> Tensor:
        seen.append((step, float(inputs["x"])))
        return inputs["x"] + noise["y"]

    engine = Engine("eager", body, print)
    loss, replayed = engine(3, "", {"x": torch.tensor(1.0)}, {"y": torch.tensor(2.0)})
    assert (float(loss), replayed, seen) == (3.0, False, [(3, 1.0)])


@needs_gpu
@pytest.mark.parametrize("algorithm", ["erm", "dann", "irm", "group_dro", "coral+sam", "mixstyle", "mldg"])
def test_a_graph_gives_the_numbers_of_eager_steps(algorithm, tmp_path):
    """Covers phases, averages that start, stop and skip steps, evaluations in between, and a resumed run."""
    own = {"anneal": 10} if algorithm == "irm" else {}
    base = short(tmp_path / "eager", algorithm=algorithm, device="cuda", precision="fp32", engine="eager")
    base = base.replace(deterministic=True, hyperparameters={"batch_size": 8, "lr": 1e-3, **own})
    train(base)
    graph = base.replace(output=tmp_path / "graph", engine="graph")
    assert train(graph).notes[0].startswith("engine graph")
    cut = graph.replace(output=tmp_path / "cut")
    with pytest.raises(ZeroDivisionError):
        train(cut, callback=crash_at(14))
    train(cut)
    for name in ("graph", "cut"):
        require_alike(tmp_path / "eager", tmp_path / name)


@needs_gpu
def test_a_compiled_run_gives_the_numbers_of_eager_steps(tmp_path):
    base = short(tmp_path / "eager", device="cuda", precision="fp32", engine="eager")
    base = base.replace(hyperparameters={"batch_size": 8, "lr": 1e-3})
    train(base)
    result = train(base.replace(output=tmp_path / "compile", engine="compile"))
    assert result.notes[0].startswith("engine compile")
    require_alike(tmp_path / "eager", tmp_path / "compile")


def require_alike(one: Path, other: Path) -> None:
    """Require equal weights and records, up to rounding."""
    for name, tensors in weights(one).items():
        for key, tensor in weights(other)[name].items():
            torch.testing.assert_close(tensor, tensors[key], rtol=1e-3, atol=1e-4, msg=lambda t, n=name: f"{n}: {t}")
    first, second = ([r for r in read_records(folder) if not r.metric.startswith("seconds")] for folder in (one, other))
    assert [(r.step, r.domain, r.metric, r.average) for r in first] == [
        (r.step, r.domain, r.metric, r.average) for r in second
    ]
    losses = [[r.value for r in records if r.metric in ("loss", "valley_loss")] for records in (first, second)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


@needs_gpu
def test_a_step_that_cannot_be_captured_continues_eagerly_and_logs_why():
    messages: list[str] = []
    total = torch.zeros((), device="cuda")

    def body(step: int, inputs: dict[str, Tensor], noise: dict[str, Tensor]) -> Tensor:
        total.add_(float(inputs["x"]))  # waits for the device, which a capture forbids
        return total.clone()

    engine = Engine("graph", body, messages.append)
    for step in range(1, 6):
        engine(step, "", {"x": torch.ones((), device="cuda")}, {})
    assert float(total) == 5
    assert engine.kind == "eager"
    assert len(messages) == 1
    assert "cannot be captured" in messages[0]
    assert torch.rand(2, device="cuda").isfinite().all()  # the generator still works


@needs_gpu
@pytest.mark.parametrize("network", ["test_resnet", "mobilenetv2_035", "resnet18"])
def test_a_graph_with_fused_batch_norms_learns_like_the_eager_network(network, noise_folder, tmp_path):
    """With the same images and initial weights, bf16 in a graph deviates from fp32 about as much as eager bf16 does.

    The deviation differs much between trainings (MobileNetV2: 0.02, 0.07, 0.69), so the test takes two.
    """
    base = cached_config(noise_folder, tmp_path / "eager", network=network, steps=24, evaluate_every=4, device="cuda")

    def losses(engine: str, precision: str, seed: int) -> np.ndarray:
        run_dir = tmp_path / f"{engine}-{precision}-{seed}"
        train(base.replace(output=run_dir, engine=engine, precision=precision, seed=seed))
        return np.array([r.value for r in read_records(run_dir) if r.metric == "train_loss"])

    deviations: dict[str, list[float]] = {"eager": [], "graph": []}
    for seed in (7, 8):
        exact = losses("eager", "fp32", seed)
        for engine, maxima in deviations.items():
            maxima.append(np.abs(losses(engine, "bf16", seed) - exact).max())
    assert max(deviations["graph"]) <= 3 * max(deviations["eager"]) + 0.05
