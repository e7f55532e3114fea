"""The mean of every segment, kept one by one, and averages chosen from them after training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from swad.averaging import tensors
from swad.averaging.base import Average
from swad.averaging.semantics import Phase, Terms
from swad.averaging.tensors import Buffers, Patterns, TrackedTensors
from swad.averaging.valley import Span, Status
from swad.util.files import atomic_write
from swad.util.progress import Progress

Score = Callable[[nn.Module], float]


@dataclass(frozen=True)
class StoredSegment:
    """The mean weights of the updates `first` to `last`, with the buffers and the validation loss of the last."""

    first: int
    last: int
    loss: float
    mean: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]

    def __len__(self) -> int:
        return self.last - self.first + 1


class SegmentLog(Average, Sequence[StoredSegment]):
    """Keep the mean of every segment, in memory or as one file each, for choices made after training.

    Make it a member of an `AverageGroup` next to other averages, or update it by itself. Files are written atomically
    by rank 0 and read with `weights_only=True`. Sharded models are not supported.

    Args:
        model: The model to follow.
        folder: Directory for the files. By default the segments stay in memory, and the log cannot be resumed.
        buffers: "copy" keeps the buffers of the last update; "average" averages floating-point buffers too.
        include: Name patterns of the tensors to average, also frozen ones. By default all trainable ones.
        exclude: Name patterns of tensors not to average.
    """

    writes_files = True

    def __init__(
        self,
        model: nn.Module,
        folder: str | os.PathLike[str] | None = None,
        buffers: Buffers = "copy",
        include: Patterns = None,
        exclude: Patterns = None,
    ) -> None:
        super().__init__(model, buffers=buffers, include=include, exclude=exclude)
        self._folder = None if folder is None else Path(folder)
        if any(tensors.is_sharded(tensor) for tensor in self.tracked.averaged.values()):
            raise ValueError("a segment log keeps whole models, got a sharded one: log under DDP or on one process")
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        self._in_memory: list[StoredSegment] = []
        self._spans: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if self._folder is None:
            return self._in_memory[index]
        return _read(self._file(self._spans[index][1]))

    def __iter__(self) -> Iterator[StoredSegment]:
        return (self[i] for i in range(len(self)))

    def _status_at(self, step: int) -> Status:
        """Return which updates are kept so far."""
        spans = (Span(self._spans[0][0], self._spans[-1][1]),) if self._spans else ()  # segments leave no gap
        return Status(Phase.AVERAGING, f"{len(self)} segments kept", None, spans)

    def _evaluated(self, loss: float, step: int) -> Status:
        first = self._spans[-1][1] + 1 if self._spans else 1
        live = zip(self.tracked.buffers, self.tracked.live_buffers(), strict=True)
        buffers = {name: tensor.detach().clone() for name, tensor in live}
        segment = StoredSegment(first, step, loss, self._open_mean(), buffers)
        if self._folder is None:
            self._in_memory.append(segment)
        else:
            if not self._spans:
                self._require_empty_folder()
            if not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0:
                _write(self._file(step), segment)
        self._spans.append((first, step))
        self._carryover = None
        if not self._shared:
            self._segment.clear()
        return self.status

    @torch.no_grad()
    def _open_mean(self) -> dict[str, Tensor]:
        sums = self._open_sums()
        weight = sum(part.weight for part in sums)
        return {
            name: sum((part.values[i] for part in sums[1:]), sums[0].values[i]).div(weight)
            for i, name in enumerate(self.tracked.averaged)
        }

    def close_segment(self) -> None:
        """Keep the group's segment until the next evaluation."""
        self._add_to_carryover()

    def _result(self) -> Terms:
        raise NotImplementedError("a segment log is no average: choose among its segments with fit_on_val")

    def _file(self, step: int) -> Path:
        assert self._folder is not None
        return self._folder / f"segment-{step:08d}.pt"

    def _require_empty_folder(self) -> None:
        """Raise if the folder has segments of another run, which would be read as part of this one."""
        assert self._folder is not None
        files = load_segments(self._folder)
        if files:
            raise FileExistsError(f"a segment log begins in an empty folder, found {files[0]}: choose another")

    _extra_state_names = ("spans",)

    def _extra_state(self) -> dict[str, Any]:
        if self._folder is None and self._in_memory:
            raise RuntimeError("segments in memory are lost with the process: give the log a folder to resume")
        return {"spans": self._spans}

    def _load_extra_state(self, header: Mapping[str, Any]) -> None:
        self._spans = [(int(first), int(last)) for first, last in header["spans"]]
        self._in_memory = []
        for file in load_segments(self._folder) if self._folder is not None else []:
            if int(file.stem.removeprefix("segment-")) > int(header["updates"]):
                file.unlink(missing_ok=True)  # written after the checkpoint, before the run was interrupted
        missing = [str(self._file(last)) for _, last in self._spans if not self._file(last).exists()]
        if missing:
            raise FileNotFoundError(
                f"a segment log resumes with all its files; {len(missing)} are missing, the first is {missing[0]}: "
                f"restore them, or start a new log in an empty folder"
            )


def load_segments(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a segment log in the order of training, for `fit_on_val`."""
    return sorted(Path(folder).glob("segment-*.pt"))


@dataclass(frozen=True)
class Choice:
    """A window of segments, by its first and last update, and the score of its average."""

    first: int
    last: int
    score: float


def fit_on_val(
    segments: Sequence[StoredSegment | Path],
    model: nn.Module,
    score: Score,
    progress: Progress | None = None,
) -> Choice:
    """Choose the window whose average scores best on validation, and copy that average into `model`.

    The ablation "fit-on-val" of the paper's Table 5. All S (S + 1) / 2 windows of whole segments are tried. Every
    update weighs the same. Among equal scores the longest window wins, then the earliest.

    Args:
        segments: A `SegmentLog`, or the files that `load_segments` returns.
        model: The model to evaluate in. If `score` raises, it has its old weights afterwards.
        score: Returns the validation *accuracy* of a model.
        progress: Called after each evaluation with (description, done, total).
    """
    if not segments:
        raise ValueError("there are no segments to choose from: keep them with a SegmentLog during training")
    best: Choice | None = None
    best_state: dict[str, Tensor] = {}
    total = len(segments) * (len(segments) + 1) // 2
    done = 0
    tracked = TrackedTensors(model, "copy", "*", None)
    targets = {**tracked.averaged, **tracked.buffers}
    with tensors.restored(list(targets.values())):
        for begin in range(len(segments)):
            window = _WindowMean(targets)
            for segment in map(_read, segments[begin:]):
                window.add(segment)
                state = window.state()
                _copy(state, targets)
                value = float(score(tracked.model))
                choice = Choice(window.first, segment.last, value)
                if best is None or (value, choice.last - choice.first) > (best.score, best.last - best.first):
                    best, best_state = choice, state
                done += 1
                if progress is not None:
                    progress("fit-on-val", done, total)
    assert best is not None
    _copy(best_state, targets)
    return best


class _WindowMean:
    """The mean over segments that follow each other, in float64: float32 loses digits over a whole run."""

    def __init__(self, targets: Mapping[str, Tensor]) -> None:
        self._targets = targets
        self.first = 0
        self._weight = 0.0
        self._sums: dict[str, Tensor] = {}
        self._buffers: Mapping[str, Tensor] = {}

    def add(self, segment: StoredSegment) -> None:
        unknown = [name for name in (*segment.mean, *segment.buffers) if name not in self._targets]
        if unknown:
            raise ValueError(f"the segments must be of this model; it has no {', '.join(unknown[:3])}")
        weight = len(segment)
        self.first = self.first or segment.first
        self._weight += weight
        for name, mean in segment.mean.items():
            added = mean.to(torch.float64) * weight
            self._sums[name] = self._sums[name] + added if name in self._sums else added
        self._buffers = segment.buffers

    def state(self) -> dict[str, Tensor]:
        return {**{name: total / self._weight for name, total in self._sums.items()}, **self._buffers}


@torch.no_grad()
def _copy(state: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
    for name, value in state.items():
        targets[name].copy_(value)


def _write(path: Path, segment: StoredSegment) -> None:
    with atomic_write(path) as partial:
        torch.save({**vars(segment), "mean": dict(segment.mean), "buffers": dict(segment.buffers)}, partial)


def _read(stored: StoredSegment | Path) -> StoredSegment:
    if isinstance(stored, StoredSegment):
        return stored
    return StoredSegment(**torch.load(stored, map_location="cpu", weights_only=True))
