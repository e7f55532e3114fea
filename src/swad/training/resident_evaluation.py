"""Evaluate the live weights on validation images that stay on the GPU, with a captured CUDA graph.

The domains are concatenated and batches may span two of them, so only the last batch needs padding. The weights change
in place, so a graph that is captured once stays valid for the whole training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.data.loaders import EvalLoader
from swad.data.transforms import Normalize
from swad.models.cuda_graph import CapturedGraph, CaptureError
from swad.training.distributed import Dist
from swad.training.evaluation import Autocast, Score, eval_mode, per_image, read_scores


class ResidentEvaluation:
    """Evaluates one model repeatedly on images that stay on the device."""

    def __init__(
        self,
        model: nn.Module,
        parts: Mapping[str, EvalLoader],
        dist: Dist,
        autocast: Autocast,
        log: Callable[[str], None] = print,
    ) -> None:
        self._say = log
        self._model, self._dist, self._autocast, self._names = model, dist, autocast, tuple(parts)
        some = next(iter(parts.values()))
        self._normalize: Callable[[Tensor], Tensor] = Normalize(some.image_spec, dist.device)
        sizes = torch.tensor([len(batches) for batches in parts.values()])
        n = int(sizes.sum())
        self.batch_size = _batch_size(n)
        padding = -n % self.batch_size
        held = [batches.bytes() for batches in parts.values()]
        spare = held[0].new_zeros(padding, *held[0].shape[1:])
        self._images = torch.cat([*held, spare])
        labels = torch.cat([batches.labels() for batches in parts.values()])
        self._labels = functional.pad(labels, (0, padding), value=-1)
        owner = functional.pad(torch.repeat_interleave(sizes), (0, padding))
        self._owner = functional.one_hot(owner, len(parts)).double().to(dist.device)
        self._sums = torch.zeros(len(parts), 3, dtype=torch.float64, device=dist.device)
        self._graph: CapturedGraph[None] | None = None
        self._warm = False
        self.reason = ""
        """Why the evaluation is eager, if it could not be captured."""

    @torch.no_grad()
    def __call__(self) -> dict[str, Score]:
        """Scores of the model as it is now, by domain."""
        self._sums.zero_()
        with eval_mode(self._model):
            if self._warm and self._graph is None and not self.reason:
                self._capture()
            for start in range(0, len(self._images), self.batch_size):
                batch = self._batch(start)
                if self._graph is None:
                    self._add(batch)
                else:
                    self._graph.replay(batch)
        self._warm = True
        return read_scores(self._sums.clone(), self._names, self._dist)

    def _batch(self, start: int) -> dict[str, Tensor]:
        rows = slice(start, start + self.batch_size)
        return {"images": self._images[rows], "labels": self._labels[rows], "owner": self._owner[rows]}

    def _add(self, batch: Mapping[str, Tensor]) -> None:
        images, labels = self._normalize(batch["images"]), batch["labels"]
        self._sums += batch["owner"].T @ per_image(self._model, images, labels, self._autocast)

    def _capture(self) -> None:
        try:
            self._graph = CapturedGraph(self._add, self._batch(0))
        except CaptureError as error:
            self.reason = str(error)
            self._say(f"evaluating eagerly: the evaluation cannot be captured ({self.reason})")


def _batch_size(n: int) -> int:
    """Choose a batch size that fills a GPU and needs the least padding.

    >>> _batch_size(1587), _batch_size(40)
    (320, 64)
    """
    if n < 256:
        return -(-n // 32) * 32
    return min(range(512, 255, -32), key=lambda size: -n % size)
