"""A captured step against the same step call by call."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers.runs import short, weights
from swad.results.records import read_records
from swad.training.loop import train
from swad.training.step import Engine, choose_engine

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.mark.parametrize(
    ("wanted", "device", "steps", "fused", "obstacle", "engine", "reason"),
    [
        ("auto", CPU, 5000, True, "", "eager", ""),
        ("eager", CUDA, 5000, True, "", "eager", ""),
        ("graph", CPU, 5000, True, "", "eager", "need a GPU"),
        ("auto", CUDA, 5000, True, "", "graph", ""),
        ("auto", CUDA, 100, False, "", "graph", ""),
        ("graph", CUDA, 100, True, "it reads the loss", "eager", "it reads the loss"),
    ],
)
def test_the_engine_is_chosen_with_a_reason(wanted, device, steps, fused, obstacle, engine, reason):
    kind, why = choose_engine(wanted, device, steps, fused, obstacle)
    assert kind == engine
    assert reason in why
    assert bool(why) == bool(reason)


def test_eager_calls_the_body():
    seen: list[tuple[int, float]] = []

    def body(step: int, inputs: dict[str, Tensor], noise: dict[str, Tensor]) -> Tensor:
        seen.append((step, float(inputs["x"])))
        return inputs["x"] + noise["y"]

    engine = Engine("eager", body, print)
    loss, replayed = engine(3, "", {"x": torch.tensor(1.0)}, {"y": torch.tensor(2.0)})
    assert (float(loss), replayed, seen) == (3.0, False, [(3, 1.0)])


@gpu
@pytest.mark.parametrize("algorithm", ["erm", "dann", "irm", "group_dro", "coral+sam", "mixstyle", "mldg"])
def test_a_graph_gives_what_calls_give(algorithm, tmp_path):
    """Phases, averages that begin, stop and choose their steps, evaluations in between, and a resume."""
    own = {"anneal": 10} if algorithm == "irm" else {}
    base = dataclasses.replace(
        short(tmp_path / "eager"), algorithm=algorithm, device="cuda", precision="fp32", engine="eager",
        deterministic=True, hyperparameters={"batch_size": 8, "lr": 1e-3, **own},
    )  # fmt: skip
    train(base)
    graph = dataclasses.replace(base, output=tmp_path / "graph", engine="graph")
    assert train(graph).notes[0].startswith("engine graph")
    cut = dataclasses.replace(graph, output=tmp_path / "cut")
    with pytest.raises(ZeroDivisionError):
        train(cut, callback=Crash(at=14))
    train(cut)
    for kind in ("graph", "cut"):
        require_alike(tmp_path / "eager", tmp_path / kind)


@gpu
def test_a_compiled_run_gives_what_calls_give(tmp_path):
    base = dataclasses.replace(
        short(tmp_path / "eager"), device="cuda", precision="fp32", engine="eager",
        hyperparameters={"batch_size": 8, "lr": 1e-3},
    )  # fmt: skip
    train(base)
    result = train(dataclasses.replace(base, output=tmp_path / "compile", engine="compile"))
    assert result.notes[0].startswith("engine compile")
    require_alike(tmp_path / "eager", tmp_path / "compile")


class Crash:
    """Falls over after a step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step(self, step: int, loss: Tensor) -> None:
        if step == self.at:
            raise ZeroDivisionError

    def __getattr__(self, name: str) -> object:
        return lambda *arguments: None


def require_alike(one: Path, other: Path) -> None:
    """Weights and what was measured, up to rounding."""
    for name, tensors in weights(one).items():
        for key, tensor in weights(other)[name].items():
            torch.testing.assert_close(tensor, tensors[key], rtol=1e-3, atol=1e-4, msg=lambda t, n=name: f"{n}: {t}")
    first, second = ([r for r in read_records(folder) if not r.metric.startswith("seconds")] for folder in (one, other))
    assert [(r.step, r.domain, r.metric, r.average) for r in first] == [
        (r.step, r.domain, r.metric, r.average) for r in second
    ]
    losses = [[r.value for r in some if r.metric in ("loss", "valley_loss")] for some in (first, second)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


@gpu
def test_what_cannot_be_captured_goes_on_eagerly_and_says_so():
    notes: list[str] = []
    total = torch.zeros((), device="cuda")

    def body(step: int, inputs: dict[str, Tensor], noise: dict[str, Tensor]) -> Tensor:
        total.add_(float(inputs["x"]))  # reads the device
        return total.clone()

    engine = Engine("graph", body, notes.append)
    for step in range(1, 6):
        engine(step, "", {"x": torch.ones((), device="cuda")}, {})
    assert float(total) == 5
    assert engine.kind == "eager"
    assert len(notes) == 1
    assert "cannot be captured" in notes[0]
    assert torch.rand(2, device="cuda").isfinite().all()  # random numbers are drawn as before
