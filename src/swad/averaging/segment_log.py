"""Segment means kept one by one, and averages chosen from them after training."""

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
from swad.averaging.semantics import Mix, Phase
from swad.averaging.sums import WeightSum
from swad.averaging.tensors import Buffers, Patterns, TrackedTensors
from swad.averaging.valley import Span, Status

Score = Callable[[nn.Module], float]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class StoredSegment:
    """The mean weights of the updates `first` to `last`, with the buffers and the loss of the last."""

    first: int
    last: int
    loss: float
    mean: Mapping[str, Tensor]
    carried: Mapping[str, Tensor]

    def __len__(self) -> int:
        return self.last - self.first + 1


class SegmentLog(Average, Sequence[StoredSegment]):
    """Keep the mean of every segment, in memory or as one file each in `folder`, for choices made later.

    Ride it on a `AverageGroup` beside other averages, or update it by itself. Files are written whole or not at all,
    by the first process only, and read with `weights_only=True`. Not for sharded models.
    """

    writes = True

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
        if any(tensors.is_sharded(tensor) for tensor in self._tracked.averaged.values()):
            raise ValueError("a segment log keeps whole models, got a sharded one: log under DDP or on one process")
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        self._kept: list[StoredSegment] = []
        self._spans: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if self._folder is None:
            return self._kept[index]
        return _read(self._file(self._spans[index][1]))

    def __iter__(self) -> Iterator[StoredSegment]:
        return (self[i] for i in range(len(self)))

    @property
    def status(self) -> Status:
        """Which updates are kept so far."""
        spans = tuple(Span(first, last) for first, last in self._spans)
        return Status(Phase.AVERAGING, f"{len(self)} segments kept", None, spans)

    def _evaluated(self, loss: float, step: int) -> Status:
        weight = self._segment.weight + (self._held.weight if self._held else 0)
        sources = [s for s in (self._held, self._segment) if s is not None and s.weight]
        with torch.no_grad():
            mean = {
                name: sum((s.sums[i] for s in sources[1:]), sources[0].sums[i]).div(weight)
                for i, name in enumerate(self._tracked.averaged)
            }
        first = self._spans[-1][1] + 1 if self._spans else 1
        live = zip(self._tracked.carried, self._tracked.live_carried(), strict=True)
        carried = {name: tensor.detach().clone() for name, tensor in live}
        segment = StoredSegment(first, step, loss, mean, carried)
        if self._folder is None:
            self._kept.append(segment)
        else:
            if not self._spans:
                self._require_no_others()
            if not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0:
                _write(self._file(step), segment)
        self._spans.append((first, step))
        self._held = None
        if not self._shared:
            self._segment.clear()
        return self.status

    def _boundary(self, step: int) -> None:
        if self._segment.weight:
            self._held = self._held or WeightSum.zeros(self._tracked)
            self._held.absorb(self._segment, 1.0, self._tracked)

    def _result(self) -> Mix:
        raise NotImplementedError("a segment log holds segments: choose among them with fit_on_val")

    def _file(self, step: int) -> Path:
        assert self._folder is not None
        return self._folder / f"segment-{step:08d}.pt"

    def _require_no_others(self) -> None:
        """Segments of another run in the folder would be taken for this one's."""
        assert self._folder is not None
        found = load_segments(self._folder)
        if found:
            raise FileExistsError(f"a segment log begins in an empty folder, found {found[0]}: choose another")

    def _extra_state(self) -> dict[str, Any]:
        if self._folder is None and self._kept:
            raise RuntimeError("segments kept in memory are lost with the process: give the log a folder to resume")
        return {"spans": self._spans}

    def _load_extra_state(self, header: Mapping[str, Any]) -> None:
        self._spans = [(int(first), int(last)) for first, last in header["spans"]]
        self._kept = []
        for file in load_segments(self._folder) if self._folder is not None else []:
            if int(file.stem.removeprefix("segment-")) > int(header["updates"]):
                file.unlink(missing_ok=True)  # of the time between the checkpoint and the end of the process
        missing = [str(self._file(last)) for _, last in self._spans if not self._file(last).exists()]
        if missing:
            raise FileNotFoundError(
                f"{len(missing)} stored segments are gone, {missing[0]} first: cannot resume the log"
            )


def load_segments(folder: str | os.PathLike[str]) -> list[Path]:
    """The files of a segment log in the order of training, for `fit_on_val`."""
    return sorted(Path(folder).glob("segment-*.pt"))


@dataclass(frozen=True)
class Choice:
    """A window of segments and the score its average had. The average itself is left in the model."""

    first: int
    last: int
    score: float


def fit_on_val(
    segments: Sequence[StoredSegment | Path],
    model: nn.Module,
    score: Score,
    progress: Progress | None = None,
) -> Choice:
    """Choose the window whose average scores best on validation, and write that average into `model`.

    The ablation "fit-on-val" of the paper's Table 5. `score(model)` is the validation *accuracy*, so the
    choice is made offline, over all S (S + 1) / 2 windows of whole segments. Every update weighs the same.
    Among equal scores the longest window wins, then the earliest. `progress(done, total)` is called after
    each evaluation.
    """
    if not segments:
        raise ValueError("there are no segments to choose from: keep them with a SegmentLog during training")
    best: Choice | None = None
    total = len(segments) * (len(segments) + 1) // 2
    done = 0
    with _Writer(model) as writer:
        for begin in range(len(segments)):
            writer.clear()
            for segment in map(_read, segments[begin:]):
                writer.add(segment, len(segment))
                value = writer.score(score)
                choice = Choice(writer.first, segment.last, value)
                if best is None or (value, choice.last - choice.first) > (best.score, best.last - best.first):
                    best = choice
                    writer.remember()
                done += 1
                if progress is not None:
                    progress(done, total)
    assert best is not None
    return best


class _Writer:
    """Builds averages of segments in a model; leaves the remembered one there, or what was there on an error."""

    def __init__(self, model: nn.Module) -> None:
        self._tracked = TrackedTensors(model, "copy", "*", None)
        self._all = {**self._tracked.averaged, **self._tracked.carried}
        self._saved = {name: tensor.detach().clone() for name, tensor in self._all.items()}
        self._best: dict[str, Tensor] = {}
        self.clear()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        self._write(self._saved if failed else self._best)

    def clear(self) -> None:
        self.first = 0
        self._weight = 0.0
        self._sums: dict[str, Tensor] = {}
        self._carried: Mapping[str, Tensor] = {}

    def add(self, segment: StoredSegment, weight: float) -> None:
        unknown = [name for name in (*segment.mean, *segment.carried) if name not in self._all]
        if unknown:
            raise ValueError(f"the segments must be of this model; it has no {', '.join(unknown[:3])}")
        self.first = self.first or segment.first
        self._weight += weight
        for name, mean in segment.mean.items():
            part = mean.to(torch.float64) * weight  # a sum over a whole run: fp32 would lose digits here
            self._sums[name] = self._sums[name] + part if name in self._sums else part
        self._carried = segment.carried

    def score(self, score: Score) -> float:
        self._write(self._current())
        return float(score(self._tracked.model))

    def remember(self) -> None:
        self._best = {name: tensor.clone() for name, tensor in self._current().items()}

    def _current(self) -> dict[str, Tensor]:
        return {**{n: s / self._weight for n, s in self._sums.items()}, **self._carried}

    @torch.no_grad()
    def _write(self, state: Mapping[str, Tensor]) -> None:
        for name, value in state.items():
            self._all[name].copy_(value)


def _write(path: Path, segment: StoredSegment) -> None:
    temporary = path.with_suffix(".partial")
    torch.save({**vars(segment), "mean": dict(segment.mean), "carried": dict(segment.carried)}, temporary)
    os.replace(temporary, path)


def _read(stored: StoredSegment | Path) -> StoredSegment:
    if isinstance(stored, StoredSegment):
        return stored
    return StoredSegment(**torch.load(stored, map_location="cpu", weights_only=True))
