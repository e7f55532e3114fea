"""Averages of windows of stored segments: of one window, or of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path

import torch
from torch import Tensor, nn

from swad.averaging.spans import Span
from swad.averaging.tracked import TrackedTensors
from swad.testbed.averages.segment_log import StoredSegment, copy_into, read_segment, require_same_model


def all_windows(segments: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the first and the last update of all windows of segments, those with the earliest start first.

    >>> all_windows([(1, 4), (5, 8)])
    [(1, 4), (1, 8), (5, 8)]
    """
    return [(first, last) for (first, _), (_, last) in combinations_with_replacement(segments, 2)]


class SegmentWindows:
    """The averages of windows of whole segments, copied into a model one after another.

    Every update weighs the same. Buffers are those of a window's last update. Sums are in float64, because float32
    loses digits over a whole run. On a GPU that has room for them, all segments are kept there.

    Args:
        segments: A `SegmentLog`, or the files that `load_segments` returns.
        model: A model with the tensors of the one that was trained. Its weights and buffers are overwritten.
        every: Merge this many segments into one; the last one may consist of fewer.
    """

    def __init__(self, segments: Sequence[StoredSegment | Path], model: nn.Module, every: int = 1) -> None:
        if not segments:
            raise ValueError("there are no segments to choose from: keep them with a SegmentLog during training")
        tracked = TrackedTensors(model, "copy", "*", None)
        self.model = tracked.model
        self._targets = {**tracked.averaged, **tracked.buffers}
        self._segments = segments
        stored = [read_segment(segment) for segment in segments]
        require_same_model(stored[0], self._targets)
        ends = [*range(every, len(stored), every), len(stored)]
        self._parts = [range(begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
        self.spans = [Span(stored[part[0]].first, stored[part[-1]].last) for part in self._parts]
        """The merged segments."""
        self._device = next(iter(tracked.averaged.values())).device
        self._keep = _fits(stored, self._device)
        self._kept: dict[int, StoredSegment] = {}

    def all(self) -> list[Span]:
        """Return all S (S + 1) / 2 windows, those with the earliest start first."""
        return [Span(*window) for window in all_windows([(span.first, span.last) for span in self.spans])]

    def averages(self, windows: Iterable[Span] | None = None) -> Iterator[Span]:
        """Copy the average of each window into the model and yield the window; by default of all windows."""
        wanted = set(self.all() if windows is None else windows)
        for begin, span in enumerate(self.spans):
            last = max((window.last for window in wanted if window.first == span.first), default=0)
            sums: dict[str, Tensor] = {}
            for part, end in zip(self._parts[begin:], self.spans[begin:], strict=True):
                if end.last > last:
                    break
                for k in part:
                    segment = self._segment(k)
                    for name, total in segment.sum.items():
                        wide = torch.promote_types(total.dtype, torch.float64)  # complex weights stay complex
                        sums[name] = sums[name].add_(total) if name in sums else total.to(wide, copy=True)
                window = Span(span.first, end.last)
                if window in wanted:
                    copy_into(self._targets, {name: total / len(window) for name, total in sums.items()})
                    copy_into(self._targets, segment.buffers)
                    yield window

    def copy_average(self, window: Span) -> None:
        """Copy the average of one window into the model."""
        for _ in self.averages([window]):
            pass

    def _segment(self, k: int) -> StoredSegment:
        if k in self._kept:
            return self._kept[k]
        segment = read_segment(self._segments[k])
        segment = replace(segment, sum={name: total.to(self._device) for name, total in segment.sum.items()})
        if self._keep:
            self._kept[k] = segment
        return segment


def _fits(segments: Sequence[StoredSegment], device: torch.device) -> bool:
    """Return whether the sums of all segments fit into half of a GPU's free memory; a CPU reads mapped files."""
    if device.type != "cuda":
        return False
    size = sum(total.nbytes for segment in segments for total in segment.sum.values())
    return size <= torch.cuda.mem_get_info(device)[0] // 2
