"""What only a GPU can show: no host synchronization, capture in a graph, pinned offload."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from swad import EMA, SMA, SWA, SWAD, AverageGroup

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.filterwarnings("ignore::swad.averaging.swad.NeverConvergedWarning"),
]


def net():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    return model.cuda().to(memory_format=torch.channels_last)


KINDS = {
    "swad": SWAD,
    "sparse": lambda m: SWAD(m, interval=2),
    "window": lambda m: SWA(m, start=3, end=50),
    "swa": lambda m: SWA(m, start=3, end=50, interval=2),
    "ema": EMA,
    "feed": lambda m: AverageGroup(m, {"a": SWAD(m), "b": SMA(m, start=5), "c": EMA(m)}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_never_waits_for_the_device(kind):
    model = net()
    average = KINDS[kind](model)
    average.update_parameters(model)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            average.update_parameters(model)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kind", ["swad", "sparse", "window", "swa", "ema"])
def test_nor_does_one_that_a_scaler_may_have_skipped(kind):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    average = KINDS[kind](model)
    average.attach(optimizer)
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    x = torch.randn(4, 3, 8, 8, device="cuda")
    real = 0
    for step in range(1, 31):
        before = model[0].weight.detach().clone()
        factor = torch.tensor(float("inf") if step in (4, 9, 21) else 1.0, device="cuda")
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = model(x).float().square().mean() * factor
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        real += not torch.equal(before, model[0].weight)
    assert real == 27
    assert average.step == 27


@pytest.mark.parametrize("kind", ["swad", "ema", "feed"])
def test_captured_in_a_graph_with_the_training_step(kind):
    """One graph for forward, backward, step and average; evaluations, restarts and the stop never recapture."""

    def train(use_graph):
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3, capturable=True)
        average = KINDS[kind](model)
        x = torch.zeros(4, 3, 8, 8, device="cuda")

        def step():
            optimizer.zero_grad(set_to_none=True)
            model(x).square().mean().backward()
            optimizer.step()
            average.update_parameters(model)

        def data(k):
            x.copy_(torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(k)))

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # three real steps warm up what a capture needs
            for k in (1, 2, 3):
                data(k)
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = None
        if use_graph:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
        for k in range(4, 91):
            data(k)
            if graph is None:
                step()
            else:
                graph.replay()
                average.count_replays(1)
            if k % 5 == 0:
                average.observe(1 + abs(k - 25) / 60)
        return average

    eager, graphed = train(False), train(True)
    pairs = [(eager, graphed)] if kind != "feed" else [(eager[n], graphed[n]) for n in eager]
    for one, two in pairs:
        assert one.status == two.status
        for name, value in one.averaged_state().items():
            torch.testing.assert_close(value, two.averaged_state()[name], rtol=1e-4, atol=1e-5)


def test_a_capture_without_buffers_is_refused():
    model = net()
    with (
        pytest.raises(RuntimeError, match="make one update before capturing"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        SWAD(model).update_parameters(model)


def test_offloaded_pieces_are_pinned_and_equal():
    states = []
    for offload in (False, True):
        model = net()
        averager = SWAD(model, offload=offload)
        for step in range(1, 41):
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(0.01 * torch.randn(p.shape, generator=torch.Generator().manual_seed(step)).cuda())
            averager.update_parameters(model)
            if step % 5 == 0:
                averager.observe(1.0)
        states.append(averager.averaged_state())
        if offload:
            assert all(s.is_pinned() for s in averager._sums["start"].values)
            assert averager._segment.values[0].is_cuda
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=1e-6, atol=1e-7)
