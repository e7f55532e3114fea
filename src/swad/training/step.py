"""How a step is computed: call by call, as the replay of a captured CUDA graph, or that with the network compiled.

A step of a convolutional network is a thousand small kernels, and starting each takes the host longer than many take
to run. A CUDA graph holds the whole step, from the bytes of the images to the sum of the averages, and starts it with
one call. What changes from step to step (which images, how each is augmented, random numbers) is copied into fixed
places before. An algorithm that changes its behavior on the way has one graph for each phase.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from swad.models.cuda_graph import end_failed_capture
from swad.util.packages import has_triton

EAGER, GRAPH, COMPILE = "eager", "graph", "compile"
COMPILE_PAYS = 1500
"""Steps from which `auto` compiles a network without frozen batch norms to fuse, or in fp32, where none are fused. With
fused ones a graph is as fast without the 26 to 45 s that compiling takes: ResNet-50 12.9 ms a step and compiled 13.5,
MobileNetV2 7.4 and 8.2 (H200, batch of 96)."""
_WARM_UP = 2  # real steps of a phase before it is captured: what is allocated once must exist by then

Inputs = Mapping[str, Tensor]
Body = Callable[[int, Inputs, Inputs], Tensor]
"""Number of the step, inputs, noise: makes the step and returns its loss."""


def choose(wanted: str, device: torch.device, steps: int, fused: bool, obstacle: str = "") -> tuple[str, str]:
    """The engine for a run, and why it is not the one asked for; "" where it is.

    `fused` says that a graph has kernels for the network, `obstacle` why the step cannot be captured, if it cannot.

    >>> choose("graph", torch.device("cpu"), 5000, True)
    ('eager', 'engine eager instead of graph: CUDA graphs need a GPU')
    """
    auto = wanted == "auto"
    if wanted == EAGER or (auto and device.type != "cuda"):
        return EAGER, ""
    best, reason = (COMPILE if steps >= COMPILE_PAYS and not fused else GRAPH) if auto else wanted, ""
    if device.type != "cuda":
        best, reason = EAGER, "CUDA graphs need a GPU"
    elif best == COMPILE and not has_triton():
        best, reason = GRAPH, "compiling for a GPU needs triton"
    if best != EAGER and obstacle:
        best, reason = EAGER, obstacle
    return best, f"engine {best} instead of {wanted}: {reason}" if reason else ""


class Engine:
    """Makes steps by calling `body`, or by replaying what a graph recorded of it."""

    def __init__(self, kind: str, body: Body, log: Callable[[str], None]) -> None:
        self.kind, self._body, self._say = kind, body, log
        self._phases: dict[str, _Phase] = {}
        if kind != EAGER:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: int, phase: str, inputs: Inputs, noise: Inputs) -> tuple[Tensor, bool]:
        """Make a step; returns its loss, still on the device, and whether it was a replay."""
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
            self._say(f"engine eager instead of {self.kind}: the step cannot be captured ({reason})")
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
