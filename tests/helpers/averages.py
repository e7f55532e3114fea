"""Small networks and training loops for tests of averages."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from torch import nn

from helpers import HELPERS
from helpers.forked import run_ranks
from helpers.torch_versions import require_testbed


class OneHot(nn.Module):
    """After update i its weights are the unit vector e_i, so an average of them *is* the updates' weights."""

    def __init__(self, size: int = 100) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.go_to(0)

    @torch.no_grad()
    def go_to(self, step: int) -> None:
        self.weight.zero_()
        self.weight[step] = 1
        self.seen.fill_(step)
        self.count.fill_(step)


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.ReLU())
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.body(x))


def train(model, optimizer, steps, seed=0, after=lambda step: None):
    generator = torch.Generator().manual_seed(seed)
    for step in range(1, steps + 1):
        x = torch.randn(8, 3, generator=generator)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        after(step)


def scaled_steps(model, averager, steps, overflows=()):
    """Train a linear model with a GradScaler and a fused optimizer that `averager` follows; yield after each step."""
    optimizer = torch.optim.Adam(model.parameters(), 0.05, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    averager.attach(optimizer)
    for step in range(1, steps + 1):
        loss = model(torch.randn(4, 3)).square().mean() * (float("inf") if step in overflows else 1)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        yield step


class Counting(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 2)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


def small_conv() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    return model.to(memory_format=torch.channels_last)


def weights_of(average) -> dict[int, float]:
    values = average.averaged_state()["weight"]
    return {i: v for i, v in enumerate(values.tolist()) if v}


def uniform(steps) -> dict[int, float]:
    steps = list(steps)
    return dict.fromkeys(steps, pytest.approx(1 / len(steps), rel=1e-5))


def drive(average, losses, per_segment=10):
    model = average.trajectory.tracked.model
    for step in range(1, per_segment * len(losses) + 1):
        model.go_to(step)
        average.update_parameters(model)
        if step % per_segment == 0:
            average.observe(losses[step // per_segment - 1])


def segment_log(*args):
    """Build a log of segments, or skip the test where torch is too old for the testbed."""
    require_testbed()
    from swad.testbed import SegmentLog

    return SegmentLog(*args)


def reload(average, fresh):
    """Through a file and `weights_only=True`, as a checkpoint would go."""
    file = io.BytesIO()
    torch.save(average.state_dict(), file)
    file.seek(0)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return fresh


def train_captured(build, use_graph):
    """Train on the GPU with or without a graph that captures the whole step, and return what `build` built."""
    model = small_conv().cuda()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, capturable=True)
    average = build(model)
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


def run_scenario(scenario: str, folder: Path, world: int = 2) -> None:
    """Run a scenario of `distributed_worker.py` in `world` gloo processes."""
    outputs = run_ranks([HELPERS / "distributed_worker.py", scenario, folder], world)
    assert all("done" in output for output in outputs), outputs


def n_buffers(averager):
    """The weight-sized buffers that an average or a group has allocated now."""
    trajectory = averager.trajectory
    return sum(len(part.sums()) for part in (trajectory, *trajectory.members.values()))
