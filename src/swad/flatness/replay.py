"""A loss function replayed as a CUDA graph, without kernel launches from Python.

Perturbations write the weights in place, so the captured kernels read the new weights at every replay.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from swad.flatness.losses import LossFn, LossFunction, Returned, as_loss_function
from swad.gpu.cuda_graph import CapturedGraph, run_on_stream
from swad.tensors.names import unwrap

WARM_UP = 3
"""Calls before the capture, in which libraries choose kernels and allocate memory."""


class Captured(LossFunction):
    """A loss function whose evaluation of `model` is captured on a GPU at the first call and then replayed.

    If no graph can be captured, calls are passed through and `reason` says why.

    Args:
        loss_fn: Must read only the model and tensors that stay in place, as `image_losses` does, and must not
            synchronize with the device.
        model: The model. Other models, and evaluations that need gradients, call `loss_fn` directly.
    """

    def __init__(self, loss_fn: LossFn, model: nn.Module) -> None:
        self.loss_fn = as_loss_function(loss_fn)
        self.precision = self.loss_fn.precision
        self._model = unwrap(model)
        self.reason: str | None = None
        """Why no graph can be captured; None if there is one, or if none was needed yet."""
        if not all(tensor.is_cuda for tensor in _tensors(self._model)):
            self.reason = "the model is not on a GPU"
        self._graph: CapturedGraph[Returned] | None = None
        self._key: list[object] = []

    def __call__(self, model: nn.Module) -> Returned:
        """Replay the graph, and capture it first if needed."""
        if self.reason is not None or torch.is_grad_enabled() or unwrap(model) is not self._model:
            return self.loss_fn(model)
        key = self._state()
        if self._graph is None or key != self._key:
            self._graph, self._key = None, key  # frees the old graph's memory before the next capture
            try:
                with torch.cuda.device(next(_tensors(self._model)).device):
                    self._graph = _capture(self.loss_fn, model)
            except RuntimeError as error:
                self.reason = f"capture failed: {str(error).strip().splitlines()[0]}"
                return self.loss_fn(model)
        returned = self._graph.replay()
        # The next replay writes to the same tensors.
        if isinstance(returned, Mapping):
            return {domain: tensor.clone() for domain, tensor in returned.items()}
        return returned.clone() if isinstance(returned, Tensor) else returned

    def parts(self, model: nn.Module) -> Iterator[dict[str, Tensor]]:
        """Yield the loss function's own parts: gradients are not captured."""
        return self.loss_fn.parts(model)

    def fit(self, model: nn.Module) -> float | None:
        """Fit the loss function to a model's weights."""
        return self.loss_fn.fit(model)

    def _state(self) -> list[object]:
        """Return what a capture depends on: tensor addresses, module modes, and the caller's autocast."""
        return [
            torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
            *(tensor.data_ptr() for tensor in _tensors(self._model)),
            *(module.training for module in self._model.modules()),
        ]


captured = Captured


def _capture(loss_fn: LossFunction, model: nn.Module) -> CapturedGraph[Returned]:
    def warm_up() -> None:
        for _ in range(WARM_UP):
            loss_fn(model)
        # A wait for the device during a capture leaves torch's allocator in a bad state, so it is looked for before.
        mode = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():  # torch warns that this mode is a prototype
            warnings.filterwarnings("ignore", message="Synchronization debug mode")
            torch.cuda.set_sync_debug_mode("error")
            try:
                loss_fn(model)
            finally:
                torch.cuda.set_sync_debug_mode(mode)

    with loss_fn.fused(unwrap(model)):
        run_on_stream(torch.cuda.Stream(), warm_up)  # type: ignore[no-untyped-call]
        graph = CapturedGraph(lambda: loss_fn(model), error_mode="global")
    if not isinstance(graph.output, Tensor | Mapping):
        raise RuntimeError("loss_fn returned a Python number, which a replay cannot update")
    return graph


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()
