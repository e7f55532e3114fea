"""The sum of every segment, kept one by one, and averages chosen from them after training.

A segment is all updates since the previous evaluation. Any average of SWAD consists of whole segments, except that
`paper` and `text` begin with the weights of one update, the evaluation at which the valley starts. That evaluation has
the lowest validation loss so far, whatever N_s is: an earlier one with an equal or lower loss would stay the minimum
for as long, and would have been the start. So the log also keeps the live weights of every evaluation with a new lowest
loss, and `replay` computes from both what any `SWAD` would have averaged, with the same additions in the same order.
"""

from __future__ import annotations

import math
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.serialization import config as serialization

from swad.averaging.group import AverageGroup
from swad.averaging.sums import WeightSum, clones
from swad.averaging.swad import SWAD
from swad.averaging.tracked import Buffers, TrackedTensors
from swad.averaging.trajectory import Listener
from swad.tensors import shards
from swad.tensors.names import Patterns
from swad.util.files import atomic_write
from swad.util.names import one_line


@dataclass(frozen=True)
class StoredSegment:
    """The sum of the weights after the updates `first` to `last`, with buffers and validation loss of the last.

    `live` holds the weights after the last update if its validation loss was the lowest so far; else it is empty.
    """

    first: int
    last: int
    loss: float
    sum: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    live: Mapping[str, Tensor]

    def __len__(self) -> int:
        return self.last - self.first + 1


class SegmentLog(Listener, Sequence[StoredSegment]):
    """Keep the sum of every segment, in memory or as one file each, for choices made after training.

    It listens to a group: `AverageGroup(model, averages, {"log": SegmentLog(model)})`, also without averages. Files are
    written atomically by rank 0 and read with `weights_only=True`. Sharded models are not supported.

    A file holds one float32 copy of the averaged tensors, and the live weights as well where the validation loss is
    the lowest so far. ResNet-50 takes 94 MB for each copy: 4.7 GB for 50 evaluations, twice that at most.

    Args:
        model: The model to follow.
        folder: Directory for the files. By default the segments stay in memory, and the log cannot be resumed.
        buffers: "copy" keeps the buffers of the last update; "average" averages floating-point buffers too.
        include: Name patterns of the tensors to average, also frozen ones. By default all trainable ones.
        exclude: Name patterns of tensors not to average.
    """

    def __init__(
        self,
        model: nn.Module,
        folder: str | os.PathLike[str] | None = None,
        buffers: Buffers = "copy",
        include: Patterns = None,
        exclude: Patterns = None,
    ) -> None:
        self.tracked = TrackedTensors(model, buffers, include, exclude)
        self._folder = None if folder is None else Path(folder)
        if any(shards.is_sharded(tensor) for tensor in self.tracked.averaged.values()):
            raise ValueError("a segment log keeps whole models, got a sharded one: log under DDP or on one process")
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        self._in_memory: list[StoredSegment] = []
        self._spans: list[tuple[int, int]] = []
        self._lowest = math.inf  # validation loss so far
        self._part: WeightSum | None = None  # of a segment that ended where a window begins or ends

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if self._folder is None:
            return self._in_memory[index]
        return read_segment(self._file(self._spans[index][1]))

    def __repr__(self) -> str:
        return f"SegmentLog({len(self)} segments)"

    @torch.no_grad()
    def take(self, segment: WeightSum, step: int, loss: float | None) -> None:
        """Keep the segment that ends at an evaluation, and if its loss is the lowest so far, the live weights."""
        # Added to a copy, so that a file that cannot be written changes nothing.
        total = WeightSum.zeros(self.tracked, segment.first, step)
        for part in (self._part, segment):
            if part is not None:
                total.add_(part, self.tracked)
        if loss is None:
            self._part = total
            return
        first = self._spans[-1][1] + 1 if self._spans else 1
        lowest = loss < self._lowest
        stored = StoredSegment(
            first,
            step,
            loss,
            dict(zip(self.tracked.averaged, total.values, strict=True)),
            dict(zip(self.tracked.buffers, clones(self.tracked.live_buffers()), strict=True)),
            dict(zip(self.tracked.averaged, clones(self.tracked.live()), strict=True)) if lowest else {},
        )
        if self._folder is None:
            self._in_memory.append(stored)
        else:
            if not self._spans:
                self._require_empty_folder()
            if not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0:
                _write(self._file(step), stored)
        self._spans.append((first, step))
        self._lowest = loss if lowest else self._lowest  # nan is not lower
        self._part = None

    def _file(self, step: int) -> Path:
        assert self._folder is not None
        return self._folder / f"segment-{step:08d}.pt"

    def _require_empty_folder(self) -> None:
        """Raise if the folder has segments of another run, which would be read as part of this one."""
        assert self._folder is not None
        files = load_segments(self._folder)
        if files:
            raise FileExistsError(f"a segment log must start in an empty folder, found {files[0]}: choose another")

    def header(self) -> dict[str, Any]:
        """Return which segments were kept."""
        if self._folder is None and self._in_memory:
            raise RuntimeError("segments in memory are lost with the process: give the log a folder to resume")
        return {"spans": self._spans, "lowest": self._lowest}

    def sums(self) -> dict[str, WeightSum]:
        """Return the part of the segment that ended before its evaluation."""
        return {} if self._part is None else {"part": self._part}

    def check(self, header: Mapping[str, Any], owner: str) -> None:
        """Raise if files of the checkpoint are missing."""
        missing = [str(self._file(last)) for _, last in header["spans"] if not self._file(last).exists()]
        if missing:
            raise FileNotFoundError(
                f"a segment log needs all its files to resume, but {len(missing)} of {len(header['spans'])} are "
                f"missing, such as {missing[0]}: restore them, or start a new log in an empty folder"
            )

    def load(self, header: Mapping[str, Any], sums: Mapping[str, WeightSum], step: int) -> None:
        """Continue with the segments of a checkpoint."""
        self._spans = [(int(first), int(last)) for first, last in header["spans"]]
        self._lowest, self._part = float(header["lowest"]), sums.get("part")
        self._in_memory = []
        for file in load_segments(self._folder) if self._folder is not None else []:
            if last_update(file) > step:
                file.unlink(missing_ok=True)  # written after the checkpoint, before the run was interrupted


def stored_bytes(model_bytes: int, evaluations: int) -> tuple[int, int]:
    """Return the least and the most bytes that a log takes on disk, for an estimate before training.

    Args:
        model_bytes: Size of the averaged tensors in float32.
        evaluations: Number of evaluations.

    >>> [round(size / 1e9, 1) for size in stored_bytes(94_000_000, 50)]
    [4.8, 9.4]
    """
    # Live weights are kept at every new lowest loss: at least at the first evaluation, at most at all of them.
    return model_bytes * (evaluations + 1), model_bytes * 2 * evaluations


def load_segments(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a segment log in the order of training, for `replay` and `SegmentWindows`."""
    return sorted(file for file in Path(folder).glob("segment-*.pt") if re.fullmatch(r"segment-\d+", file.stem))


def last_update(file: Path) -> int:
    """Return the last update of a stored segment, from its name.

    >>> last_update(Path("segments/segment-00000200.pt"))
    200
    """
    return int(file.stem.removeprefix("segment-"))


def replay(segments: Sequence[StoredSegment | Path], model: nn.Module, averages: Mapping[str, SWAD]) -> AverageGroup:
    """Compute averages from stored segments, as if they had been members of the training's group.

    The result is bit-equal to that of the training on the same kind of device, as long as no fixed window of another
    member of its group began or ended between two evaluations, which changes the order of additions.

    >>> import torch, swad
    >>> model = torch.nn.Linear(1, 1)
    >>> log, live = swad.testbed.SegmentLog(model), swad.SWAD(model, n_converge=2)
    >>> group = AverageGroup(model, {"swad": live}, {"log": log})
    >>> for step, loss in enumerate((3.0, 1.0, 2.0, 2.0), start=1):
    ...     _ = model.weight.data.fill_(step)
    ...     group.update_parameters(model)
    ...     _ = group.observe(loss)
    >>> replay(log, model, {"swad": swad.SWAD(model, n_converge=2)})["swad"].averaged_state()["weight"].item()
    3.0

    Args:
        segments: A `SegmentLog`, or the files that `load_segments` returns.
        model: A model with the tensors of the one that was trained. Its weights and buffers are overwritten.
        averages: The averages by name, without updates so far.
    """
    group = AverageGroup(model, averages)
    tracked = next(iter(averages.values())).tracked
    targets = {**tracked.averaged, **tracked.buffers}
    for segment in map(read_segment, segments):
        require_same_model(segment, targets)
        copy_into(targets, {**segment.live, **segment.buffers})
        group.trajectory.take_segment(segment.sum, len(segment))
        group.observe(segment.loss)
        if group.should_stop:
            break
    return group


@torch.no_grad()
def copy_into(targets: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Copy tensors into others, by name."""
    for name, value in state.items():
        targets[name].copy_(value)


def _write(path: Path, segment: StoredSegment) -> None:
    # With checksums, also where a program turned them off for its own files.
    with atomic_write(path) as partial, serialization.patch({"save.compute_crc32": True}):  # type: ignore[attr-defined]
        torch.save({name: dict(v) if isinstance(v, Mapping) else v for name, v in vars(segment).items()}, partial)


def read_segment(stored: StoredSegment | Path) -> StoredSegment:
    """Read one stored segment, whose checksums are verified; one that is in memory is returned unchanged."""
    if isinstance(stored, StoredSegment):
        return stored
    try:
        state = stored.stat()
        _verify(stored, state.st_ino, state.st_size, state.st_mtime_ns)
        # Mapped, so that only the tensors that are used are read.
        segment = StoredSegment(**torch.load(stored, map_location="cpu", mmap=True, weights_only=True))
        if segment.last != last_update(stored):
            raise ValueError(f"it holds the updates {segment.first} to {segment.last}")
        return segment
    except Exception as error:  # torch raises several classes for a file that it did not write
        raise ValueError(
            f"{stored} is damaged or not a segment file of this version of swad ({type(error).__name__}: "
            f"{one_line(error, 100)}): restore it, or train the run again"
        ) from None


@lru_cache(1024)  # windows read a file many times
def _verify(path: Path, *_state: int) -> None:
    """Raise if the content of a file does not have the checksums that torch writes, and does not verify itself."""
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"wrong checksum of {damaged}")


def require_same_model(segment: StoredSegment, targets: Mapping[str, Tensor]) -> None:
    """Raise if a model lacks a tensor of a segment."""
    unknown = [name for name in (*segment.sum, *segment.buffers) if name not in targets]
    if unknown:
        raise ValueError(f"the segments must be of this model, which has no {', '.join(unknown[:3])}")
