"""The outcome of a run, as `done.json` holds it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swad.averaging.valley import Status
from swad.training.config import RunConfig


@dataclass(frozen=True)
class RunResult:
    """What a finished run found: scores of every kind of weights, ranges averaged, and where the models lie."""

    folder: Path
    config: RunConfig
    steps: int
    """Updates made; fewer than asked for when everything was complete before."""
    scores: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]
    """Loss and accuracy by what was measured ("swad", "best", ...), domain and split."""
    ranges: Mapping[str, Mapping[str, Any]]
    """What every average took: start_step, end_step, n_averaged, threshold, reason."""
    weights: Mapping[str, str]
    """Model files by name, relative to the folder."""
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """How it was computed: engine, images, precision, and whatever had to be done otherwise than asked for."""

    def target_accuracy(self, label: str, split: str = "in") -> float:
        """Accuracy on the held-out domain, the mean over them if there are several."""
        found = [self.scores[label][name][split]["accuracy"] for name in self.config.targets]
        return sum(found) / len(found)

    def source_accuracy(self, label: str, split: str = "out") -> float:
        """Mean accuracy over the source domains."""
        rows = [splits for name, splits in self.scores[label].items() if name not in self.config.targets]
        return sum(row[split]["accuracy"] for row in rows) / len(rows)

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain values; folder and config lie beside it."""
        plain = dataclasses.asdict(self)
        del plain["folder"], plain["config"]
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any], config: RunConfig) -> RunResult:
        """Read an outcome back."""
        return cls(
            **{
                **plain,
                "folder": config.output,
                "config": config,
                **{n: tuple(plain.get(n, ())) for n in ("warnings", "notes")},
            }
        )


def range_of(status: Status) -> dict[str, Any]:
    """What an average took, as plain values."""
    spans = [str(span) for span in status.spans]
    shown = ", ".join(spans if len(spans) <= 6 else [*spans[:3], "...", *spans[-2:]])
    return {
        "start_step": status.start_step,
        "end_step": status.end_step,
        "n_averaged": status.n_averaged,
        "threshold": status.threshold,
        "phase": str(status.phase),
        "reason": status.reason,
        "spans": shown,
    }
