"""Following a run from Python."""

from __future__ import annotations

import pytest

import swad
from swad.testbed.training.callback import RunCallback, combine

OPTIONS = {
    "dataset": "digits",
    "target": "paper",
    "steps": 8,
    "evaluate_every": 4,
    "hyperparameters": {"batch_size": 8},
}


class Partial:
    """Has one of the methods of a callback."""

    def __init__(self) -> None:
        self.accuracies: list[dict[str, float]] = []

    def on_evaluation(self, step, train_loss, losses, accuracies, statuses) -> None:
        assert accuracies.keys() == losses.keys()
        self.accuracies.append(dict(accuracies))


def test_plain_options_and_a_partial_callback(tmp_path, capfd):
    callback = Partial()
    options = {**OPTIONS, "output": str(tmp_path / "run"), "averages": "swad:n_converge=2,ema", "device": "auto"}
    result = swad.train(options, callback=callback, progress=True)
    assert result.config.averages == ("swad:n_converge=2", "ema")
    assert result.config.device in ("cpu", "cuda")
    assert [sorted(accuracies) for accuracies in callback.accuracies] == [["board", "clutter", "outline"]] * 2
    assert all(0 <= accuracy <= 1 for accuracies in callback.accuracies for accuracy in accuracies.values())
    out, _ = capfd.readouterr()
    assert "paper-0: 8 steps" in out
    assert "paper-0: finished" in out


def test_the_work_after_the_last_step_is_reported(tmp_path):
    stages = []

    class Stages(RunCallback):
        def on_stage(self, description: str) -> None:
            stages.append(description)

    swad.train({**OPTIONS, "output": tmp_path / "run", "averages": "ema"}, callback=Stages())
    assert [stage for stage in stages if "ema" in stage] == ["evaluating ema", "saving ema"]


def test_an_object_without_any_event_is_refused():
    with pytest.raises(TypeError, match="a callback needs at least one of the methods on_start"):
        combine([print])
