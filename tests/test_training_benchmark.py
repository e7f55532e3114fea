"""benchmarks/training.py compares with the best loop that a user can write, measured in the same run."""

import pytest
import torch

import training


@pytest.mark.parametrize("fastest", [None, "default", "reduce-overhead"])
def test_plain_loops_are_measured_in_every_mode_and_the_best_is_named(monkeypatch, fastest):
    def plain(network, device, steps, mode):
        return {"step_ms": 14.2 if mode == fastest else 24.3}

    monkeypatch.setattr(training, "plain", plain)
    rows = training.plain_rows("resnet50", "cuda", 40)
    assert list(rows) == ["plain PyTorch: bf16, eager", *(f"plain PyTorch: bf16, {m}" for m in training.MODES[1:])]
    assert training.best_plain(rows) == (f"plain PyTorch: bf16, {fastest or 'eager'}", 14.2)


def test_a_plain_loop_is_compiled_in_the_mode_that_its_row_names(monkeypatch):
    compiled = []

    def compile(model, mode):
        compiled.append(mode)
        return model

    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(
        training.networks, "build", lambda *_: torch.nn.Sequential(torch.nn.Conv2d(3, 7, 224), torch.nn.Flatten())
    )
    for mode in training.MODES:
        assert training.plain("any", "cpu", 1, mode, batch_size=1)["step_ms"] > 0
    assert compiled == [mode for mode in training.MODES if mode is not None]
