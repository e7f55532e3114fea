"""The result of a finished run, as `done.json` stores it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swad.averaging.spans import Status
from swad.testbed.training.resolved_config import ResolvedConfig


@dataclass(frozen=True)
class RunResult:
    """The scores of every set of weights, the steps that each average took, and the files of the models."""

    run_dir: Path
    config: ResolvedConfig
    steps: int
    """Optimizer steps made: fewer than configured if every requested average was complete earlier."""
    scores: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]
    """Loss and accuracy by weights ("swad", "best", ...), domain and split."""
    ranges: Mapping[str, Mapping[str, Any]]
    """The steps that each average took: start_step, end_step, n_averaged, threshold, reason."""
    weights: Mapping[str, str]
    """Model files by name, relative to the run directory."""
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """How the run was computed: engine, input pipeline, precision, and every fallback with its reason."""

    def target_accuracy(self, label: str, split: str = "in") -> float:
        """Mean accuracy over the held-out domains."""
        if not self.config.targets:
            raise ValueError(f"the run {self.run_dir} has no target: use source_accuracy")
        scores = self._scores(label)
        accuracies = [scores[name][split]["accuracy"] for name in self.config.targets]
        return sum(accuracies) / len(accuracies)

    def source_accuracy(self, label: str, split: str = "out") -> float:
        """Mean accuracy over the source domains."""
        sources = [splits for name, splits in self._scores(label).items() if name not in self.config.targets]
        return sum(splits[split]["accuracy"] for splits in sources) / len(sources)

    def _scores(self, label: str) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
        if label not in self.scores:
            raise ValueError(f"the run {self.run_dir} has the weights {', '.join(self.scores)}; got {label!r}")
        return self.scores[label]

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values, without the directory and the config, which has its own file."""
        content = dataclasses.asdict(self)
        del content["run_dir"], content["config"]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any], config: ResolvedConfig) -> RunResult:
        """Read a result back, from the content of a `done.json` whose checksum is right."""
        stored = {name: value for name, value in content.items() if name != "checksums"}
        tuples = {name: tuple(content.get(name, ())) for name in ("warnings", "notes")}
        return cls(**{**stored, **tuples, "run_dir": config.output, "config": config})


def averaged_range(status: Status) -> dict[str, Any]:
    """Return the steps that an average took as plain values."""
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
