"""CUDA graph capture: replays read new inputs and new weights, and a failed capture leaves the device usable."""

import contextlib

import pytest
import torch
from torch import Tensor

from swad.gpu import cuda_graph
from swad.gpu.cuda_graph import CapturedGraph, CaptureError, run_on_stream

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_the_error_says_why():
    with pytest.raises(CaptureError, match="CUDA graphs need a GPU"):
        CapturedGraph(lambda inputs: inputs["x"], {"x": torch.ones(2)})


@pytest.mark.parametrize(
    ("message", "reason"), [("not permitted\n while  capturing", "not permitted while capturing"), ("", "KeyError")]
)
def test_a_failed_capture_recovers_the_device_and_says_why(message, reason, monkeypatch):
    """With the calls of torch.cuda replaced, so that it runs without a GPU."""
    recovered = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", lambda *arguments, **options: contextlib.nullcontext())
    monkeypatch.setattr(cuda_graph, "_recover_from_failed_capture", lambda: recovered.append(True))

    def fails() -> None:
        raise RuntimeError(message) if message else KeyError

    with pytest.raises(CaptureError) as caught:
        CapturedGraph(fails)
    assert str(caught.value) == reason
    assert recovered == [True]


@pytest.mark.gpu
@needs_gpu
def test_a_replay_reads_new_inputs_and_weights():
    weight = torch.ones(3, device="cuda")

    def product(images: dict[str, Tensor], noise: dict[str, Tensor]) -> Tensor:
        return images["x"] * weight + noise["x"]

    first = {"x": torch.ones(3, device="cuda")}, {"x": torch.zeros(3, device="cuda")}
    run_on_stream(torch.cuda.Stream(), lambda: product(*first))
    graph = CapturedGraph(product, *first)
    weight.mul_(2)
    second = {"x": torch.full((3,), 5.0)}, {"x": torch.full((3,), 0.5, device="cuda")}
    assert graph.replay(*second).tolist() == [10.5] * 3
    assert graph.replay(*first).tolist() == [2.0] * 3
    assert first[0]["x"].tolist() == [1.0] * 3


@pytest.mark.gpu
@needs_gpu
def test_random_numbers_work_after_a_failed_capture():
    total = torch.zeros((), device="cuda")

    def reads_the_device() -> Tensor:
        noise = torch.rand(2, device="cuda")
        return noise * float(total)

    with pytest.raises(CaptureError):
        CapturedGraph(reads_the_device)
    assert torch.rand(2, device="cuda").isfinite().all()
    assert torch.nn.functional.dropout(torch.ones(8, device="cuda")).isfinite().all()


@pytest.mark.gpu
@needs_gpu
def test_an_autocast_of_the_caller_does_not_freeze_the_weights():
    layer = torch.nn.Linear(4, 4, bias=False).cuda()
    images = {"x": torch.ones(1, 4, device="cuda")}

    def forward(inputs: dict[str, Tensor]) -> Tensor:
        return layer(inputs["x"])

    with torch.autocast("cuda", torch.bfloat16):
        run_on_stream(torch.cuda.Stream(), lambda: forward(images))
        graph = CapturedGraph(forward, images)
        before = graph.replay(images).clone()
        with torch.no_grad():
            layer.weight.zero_()
        assert not graph.replay(images).any()
    assert before.any()
