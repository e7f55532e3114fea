"""Short runs on the digits for the tests of the loop, and what to compare of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from swad.results.records import read_records
from swad.training.loop import RunConfig

AVERAGES = ("swad:n_converge=2,n_tolerance=1,tolerance_ratio=0", "swa", "ema")


def short(output: Path, **changes: Any) -> RunConfig:
    """24 steps of 3 × 8 images, evaluated every 4, at a rate that makes the loss turn: a fraction of a second."""
    settings: dict[str, Any] = {
        "dataset": "digits",
        "target": "paper",
        "steps": 24,
        "evaluate_every": 4,
        "checkpoint_every": 4,
        "hyperparameters": {"batch_size": 8, "lr": 0.08},
        "averages": AVERAGES,
    }
    return RunConfig.from_options(output=output, **{**settings, **changes})


def values(folder: Path) -> list[tuple[Any, ...]]:
    """Every record but the timings."""
    return [
        (r.run, r.step, r.domain, r.split, r.metric, r.value, r.average)
        for r in read_records(folder)
        if not r.metric.startswith("seconds")
    ]


def weights(folder: Path) -> dict[str, dict[str, Tensor]]:
    return {path.stem: load_file(path) for path in sorted((folder / "weights").glob("*.safetensors"))}


def require_same(one: Path, other: Path) -> None:
    assert values(one) == values(other)
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name, tensors in first.items():
        assert tensors.keys() == second[name].keys()
        for key, tensor in tensors.items():
            assert tensor.equal(second[name][key]), f"{name}: {key} differs"
