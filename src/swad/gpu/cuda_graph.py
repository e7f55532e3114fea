"""CUDA graph capture: record a function's kernels once, then replay them with one call from the host.

A training step of a convolutional network is a thousand small kernels, and the host takes longer to launch many of them
than they take to run. A replay launches all of them at once. It runs the recorded kernels on the recorded addresses, so
the function must follow the rules of `torch.cuda.graph`:

- It does not wait for the device: no `.item()`, no `if` on a tensor, no shape that depends on values.
- Everything that changes between calls is an input, which a replay copies into the recorded input tensors, or a tensor
  that is modified in place, such as weights.
- It has run a few times before, on a side stream (`run_on_stream`): libraries choose their kernels and allocate their
  workspaces in the first calls, which a graph must not record. How often is up to the caller.

A replay writes its result to the same tensors every time: clone what must outlive the next replay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from swad.util.names import one_line

Inputs = Mapping[str, Tensor]
"""Tensors by name, from which a step is made; their shapes are the same at every step."""
T = TypeVar("T")


class CaptureError(RuntimeError):
    """A function could not be captured, and the message says why; call it eagerly instead."""


class CapturedGraph(Generic[T]):
    """The captured kernels of a function, together with its static inputs and its output.

    Capturing runs the Python code of `function` once, but none of its kernels. If it fails, the device is made usable
    again before `CaptureError` is raised.

    Args:
        function: Called with one mapping of static tensors for each mapping in `inputs`.
        inputs: Tensors by name, with the shapes, dtypes and meaning of every later call. They are copied.
        stream: The stream to capture on; None for torch's own capture stream.
        pool: The memory pool, for graphs that share one; None for a pool of its own.
        error_mode: What other threads may do during the capture; see `torch.cuda.graph`. "thread_local" lets the
            threads of data loaders pin memory.
    """

    def __init__(
        self,
        function: Callable[..., T],
        *inputs: Inputs,
        stream: torch.cuda.Stream | None = None,
        pool: Any = None,
        error_mode: str = "thread_local",
    ) -> None:
        if not torch.cuda.is_available():
            raise CaptureError("CUDA graphs need a GPU")
        self._inputs = [{name: value.to("cuda", copy=True) for name, value in group.items()} for group in inputs]
        self._graph = torch.cuda.CUDAGraph()
        # Under an autocast of the caller, casts of the weights are cached. A capture that found casts of the warm-up
        # would never read the weights, and casts made by the capture live in the graph's memory, which others must
        # not read.
        torch.clear_autocast_cache()
        try:
            with torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode=error_mode):
                self.output = function(*self._inputs)
        except Exception as error:
            _recover_from_failed_capture()
            raise CaptureError(one_line(error, 200)) from error
        finally:
            torch.clear_autocast_cache()

    def replay(self, *inputs: Inputs) -> T:
        """Copy new values into the static inputs, run the kernels, and return the output."""
        for static, values in zip(self._inputs, inputs, strict=True):
            for name, tensor in static.items():
                tensor.copy_(values[name], non_blocking=True)
        self._graph.replay()
        return self.output


def to_device(inputs: Inputs, device: torch.device) -> Inputs:
    """Copy inputs to a device."""
    return {name: value.to(device, non_blocking=True) for name, value in inputs.items()}


def run_on_stream(stream: torch.cuda.Stream, function: Callable[[], T]) -> T:
    """Call `function` on a side stream, ordered after the work so far and before the work to come."""
    current = torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        result = function()
    current.wait_stream(stream)
    return result


def _recover_from_failed_capture() -> None:
    # A failed capture leaves the CUDA generator bound to the dead graph; give it a cloned state so that dropout works
    # again.
    torch.cuda.synchronize()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())
