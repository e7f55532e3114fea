"""Execute a training step: eagerly, as one replayed CUDA graph, or as a graph with the network compiled.

A step of a convolutional network launches a thousand small kernels, and many take longer to launch than to run. A CUDA
graph holds the whole step, from image bytes to the sum of the averages, and launches it with one call. Everything that
changes between steps (image indices, augmentation parameters, random numbers) is copied into static buffers first.
An algorithm whose behavior changes during training has one graph for each phase.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from swad.gpu.cuda_graph import CapturedGraph, CaptureError, Inputs, run_on_stream
from swad.util.packages import has_triton

EAGER, GRAPH, COMPILE = "eager", "graph", "compile"
MIN_STEPS_TO_COMPILE = 1500
"""Steps from which `auto` compiles a network for which a graph has no fused kernels, or any network in fp32.

Compiling takes 26 to 45 s. With fused kernels a plain graph is faster: ResNet-50 takes 11.2 ms per step and compiled
13.5, MobileNetV2 7.4 and 8.2 (H200, batch of 96).
"""
_WARM_UP = 2  # eager steps before a phase is captured, so that everything that is allocated once exists by then

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
    """Makes training steps by calling `body` eagerly, or by replaying a captured CUDA graph of it.

    Every phase of an algorithm has a graph of its own. If a step cannot be captured, all further steps are eager.

    Args:
        kind: "eager", "graph" or "compile", as `choose_engine` returns it.
        body: Makes one step and returns its loss.
        log: Called with one line if a step cannot be captured.
    """

    def __init__(self, kind: str, body: StepFunction, log: Callable[[str], None]) -> None:
        self.kind, self._body, self._log = kind, body, log
        self._graphs: dict[str, CapturedGraph[Tensor]] = {}
        self._warm_ups: Counter[str] = Counter()
        if kind != EAGER:
            # All phases share one stream and one memory pool: a capture must find that everything was made there.
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: int, phase: str, inputs: Inputs, noise: Inputs) -> tuple[Tensor, bool]:
        """Make a step; return its loss, still on the device, and whether a graph was replayed."""
        if self.kind == EAGER:
            return self._body(step, inputs, noise), False
        if phase not in self._graphs and self._warm_ups[phase] >= _WARM_UP:
            self._capture(step, phase, inputs, noise)
        if phase in self._graphs:
            return self._graphs[phase].replay(inputs, noise), True
        self._warm_ups[phase] += 1
        return run_on_stream(self._stream, lambda: self._body(step, inputs, noise)), False

    def _capture(self, step: int, phase: str, inputs: Inputs, noise: Inputs) -> None:
        try:
            self._graphs[phase] = CapturedGraph(
                lambda *static: self._body(step, *static), inputs, noise, stream=self._stream, pool=self._pool
            )
        except CaptureError as error:
            self._log(f"engine eager instead of {self.kind}: the step cannot be captured ({error})")
            self.kind = EAGER
