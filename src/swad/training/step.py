"""Execute a training step: eagerly, as one replayed CUDA graph, or as a graph with the network compiled.

A step of a convolutional network launches a thousand small kernels, and many take longer to launch than to run. A CUDA
graph holds the whole step, from image bytes to the sum of the averages, and launches it with one call. Everything that
changes between steps (image indices, augmentation parameters, random numbers) is copied into static buffers first.
An algorithm whose behavior changes during training has one graph for each phase.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from swad.models.cuda_graph import end_failed_capture
from swad.util.packages import has_triton

EAGER, GRAPH, COMPILE = "eager", "graph", "compile"
MIN_STEPS_TO_COMPILE = 1500
"""Steps from which `auto` compiles a network whose batch norms cannot be fused (not frozen, or in fp32).

Compiling takes 26 to 45 s. Where batch norms are fused, a plain graph is at least as fast: ResNet-50 takes 12.9 ms per
step and compiled 13.5, MobileNetV2 7.4 and 8.2 (H200, batch of 96).
"""
_WARM_UP = 2  # eager steps before a phase is captured, so that everything that is allocated once exists by then

Inputs = Mapping[str, Tensor]
StepFunction = Callable[[int, Inputs, Inputs], Tensor]
"""Makes a step from its number, its inputs and its random numbers, and returns the loss."""


def choose_engine(requested: str, device: torch.device, steps: int, fused: bool, obstacle: str = "") -> tuple[str, str]:
    """Return the engine for a run, and the reason if it is not the requested one ("" if it is).

    Args:
        requested: "auto", "eager", "graph" or "compile".
        device: Device of the run.
        steps: Steps of the run: compiling pays only in a long one.
        fused: Whether a graph has fused kernels for the network.
        obstacle: Why the step cannot be captured, if it cannot.

    >>> choose_engine("graph", torch.device("cpu"), 5000, True)
    ('eager', 'engine eager instead of graph: CUDA graphs need a GPU')
    """
    auto = requested == "auto"
    if requested == EAGER or (auto and device.type != "cuda"):
        return EAGER, ""
    engine, reason = requested, ""
    if auto:
        engine = COMPILE if steps >= MIN_STEPS_TO_COMPILE and not fused else GRAPH
    if device.type != "cuda":
        engine, reason = EAGER, "CUDA graphs need a GPU"
    elif engine == COMPILE and not has_triton():
        engine, reason = GRAPH, "compiling for a GPU needs triton"
    if engine != EAGER and obstacle:
        engine, reason = EAGER, obstacle
    return engine, f"engine {engine} instead of {requested}: {reason}" if reason else ""


class Engine:
    """Runs a step function eagerly, or captures it in CUDA graphs and replays them.

    `kind` is "eager", "graph" or "compile". It becomes "eager" if the step cannot be captured.
    """

    def __init__(self, kind: str, body: StepFunction, log: Callable[[str], None]) -> None:
        self.kind, self._body, self._log = kind, body, log
        self._phases: dict[str, _Phase] = {}
        if kind != EAGER:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: int, phase: str, inputs: Inputs, noise: Inputs) -> tuple[Tensor, bool]:
        """Make a step; return its loss, still on the device, and whether it was a replay."""
        if self.kind == EAGER:
            return self._body(step, inputs, noise), False
        held = self._phases.setdefault(phase, _Phase())
        if held.graph is None and held.made >= _WARM_UP:
            self._capture(held, step, inputs, noise)
        if held.graph is None:
            held.made += 1
            return self._aside(step, inputs, noise), False
        for places, values in ((held.inputs, inputs), (held.noise, noise)):
            for name, place in places.items():
                place.copy_(values[name], non_blocking=True)
        held.graph.replay()
        assert held.loss is not None
        return held.loss, True

    def _aside(self, step: int, inputs: Inputs, noise: Inputs) -> Tensor:
        """A step on the graph's own stream: a capture must find that everything was made there."""
        outside = torch.cuda.current_stream()
        self._stream.wait_stream(outside)
        with torch.cuda.stream(self._stream):
            loss = self._body(step, inputs, noise)
        outside.wait_stream(self._stream)
        return loss

    def _capture(self, held: _Phase, step: int, inputs: Inputs, noise: Inputs) -> None:
        held.inputs = {name: value.to("cuda", copy=True) for name, value in inputs.items()}
        held.noise = {name: value.to("cuda", copy=True) for name, value in noise.items()}
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads (those that pin memory for the readers) may go on calling CUDA meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                held.loss = self._body(step, held.inputs, held.noise)
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            self._log(f"engine eager instead of {self.kind}: the step cannot be captured ({reason})")
            self.kind = EAGER
            end_failed_capture()
            return
        held.graph = graph


@dataclass
class _Phase:
    """A phase's graph, and the fixed places it reads."""

    made: int = 0
    graph: torch.cuda.CUDAGraph | None = None
    inputs: dict[str, Tensor] = field(default_factory=dict)
    noise: dict[str, Tensor] = field(default_factory=dict)
    loss: Tensor | None = None
