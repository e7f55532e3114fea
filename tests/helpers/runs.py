"""Short runs on the digits, callbacks that disturb them, and comparisons between two of them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from swad.averaging.valley import Status
from swad.testbed.results.records import read_records
from swad.testbed.training.callback import RunCallback
from swad.testbed.training.config import RunConfig
from swad.testbed.training.run_dir import RunResult

AVERAGES = ("swad:n_converge=2,n_tolerance=1,tolerance_ratio=0", "swa", "ema")


def short(output: Path, **changes: Any) -> RunConfig:
    """A run of 24 steps in a fraction of a second, with a learning rate that makes the validation loss rise again."""
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


def cached_config(images: Path, output: Path, **changes: Any) -> RunConfig:
    """A run of 8 steps on the folder `images` through an image cache next to it."""
    settings: dict[str, Any] = {
        "data_dir": images,
        "network": "test_resnet",
        "weights": "random",
        "freeze_bn": True,
        "input_pipeline": "gpu",
        "cache": images.parent / f"{images.name}-cache",
        "steps": 8,
        "evaluate_every": 2,
        "checkpoint_every": 1,
        "hyperparameters": {"batch_size": 4, "lr": 1e-3},
        "averages": ("swad", "ema"),
        "workers": 1,
    }
    return RunConfig.from_options(dataset="folder", target="a", output=output, **{**settings, **changes})


class RecordingCallback(RunCallback):
    """Records the events of a run, and can act after given steps."""

    def __init__(self, actions: Mapping[int, Callable[[], object]] | None = None) -> None:
        self.actions = dict(actions or {})
        self.events: list[str] = []
        self.steps: list[int] = []
        self.messages: list[str] = []

    def on_start(self, config: RunConfig, total: int, step: int) -> None:
        self.events.append(f"start {step}/{total}")

    def on_log(self, message: str) -> None:
        self.messages.append(message)

    def on_step(self, step: int, loss: Tensor) -> None:
        assert loss.ndim == 0
        self.steps.append(step)
        if step in self.actions:
            self.actions[step]()

    def on_evaluation(
        self,
        step: int,
        train_loss: float,
        losses: Mapping[str, float],
        accuracies: Mapping[str, float],
        statuses: Mapping[str, Status],
    ) -> None:
        self.events.append(f"evaluation {step}")

    def on_end(self, result: RunResult) -> None:
        self.events.append("end")


def interrupt_at(step: int, signum: int = signal.SIGINT) -> RecordingCallback:
    """Send a signal to this process after a step."""
    return RecordingCallback({step: lambda: signal.raise_signal(signum)})


def crash_at(step: int) -> RecordingCallback:
    """Raise an error after a step."""
    return RecordingCallback({step: lambda: 1 / 0})


def values(run_dir: Path) -> list[tuple[Any, ...]]:
    """Every record except the timings."""
    return [
        (r.run, r.step, r.domain, r.split, r.metric, r.value, r.average)
        for r in read_records(run_dir)
        if not r.metric.startswith("seconds")
    ]


def weights(run_dir: Path) -> dict[str, dict[str, Tensor]]:
    """Every saved model by name."""
    return {path.stem: load_file(path) for path in sorted((run_dir / "weights").glob("*.safetensors"))}


def require_same(one: Path, other: Path) -> None:
    """Require the same records and weights of two runs, bit by bit."""
    assert values(one) == values(other)
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name, tensors in first.items():
        assert tensors.keys() == second[name].keys()
        for key, tensor in tensors.items():
            assert tensor.equal(second[name][key]), f"{name}: {key} differs"
