"""What a run measures, of which weights, on which images; the target only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager

from torch import nn

from swad.batches import EvalBatches
from swad.config import RunConfig
from swad.domains import Part, Sources, Target
from swad.evaluate import Score, evaluate
from swad.processes import Team
from swad.records import Record

KEEP_AT_MOST = 2 * 2**30
"""Bytes of decoded validation images that a run holds, so that only the first evaluation decodes them."""

Scores = dict[str, dict[str, Score]]
"""By domain, then by split."""


class Measurer:
    """Evaluates weights on the sources' validation images, and at the end on everything held out."""

    def __init__(
        self,
        config: RunConfig,
        sources: Sources,
        team: Team,
        autocast: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._config, self._team, self._autocast = config, team, autocast
        self._sources = sources
        pixels = sources.pixels
        size = sum(map(len, sources.validation)) * pixels.channels * pixels.size**2
        self._keep = size <= KEEP_AT_MOST
        self.full = self._batches(sources.validation, augmented=config.augment_validation)
        n = config.validation_subsample
        self.validation = self._batches(sources.validation, n, config.augment_validation) if n else self.full
        self.checks = bool(n) and config.subsample_check
        self._target: dict[str, dict[str, EvalBatches]] | None = None

    def sources(self, model: nn.Module, full: bool = False) -> dict[str, Score]:
        """Scores of every source's validation images: the stated subsample, or all of them."""
        return {name: self._score(model, one) for name, one in (self.full if full else self.validation).items()}

    def target(self, model: nn.Module, target: Target) -> Scores:
        """Scores of every held-out domain by split: in, out, test where there is one, and all of them as full."""
        if self._target is None:  # not before: until then not one image of the target is read
            parts = {"in": target.inside, "out": target.outside, "test": target.test}
            self._target = {name: {} for name in target.names}
            for split, some in parts.items():
                for name, batches in self._batches(some).items():
                    self._target[name][split] = batches
        scores: Scores = {}
        for name, splits in self._target.items():
            found = {split: self._score(model, batches) for split, batches in splits.items()}
            first, *rest = found.values()
            scores[name] = {**found, "full": sum(rest, first)}
        return scores

    def everything(self, model: nn.Module, target: Target) -> Scores:
        """Scores of weights that are to be reported: sources' validation and test images, and the target."""
        scores: Scores = {name: {"out": score} for name, score in self.sources(model, full=True).items()}
        for name, batches in self._batches(self._sources.test).items():
            scores[name]["test"] = self._score(model, batches)
        return {**scores, **self.target(model, target)}

    def _score(self, model: nn.Module, batches: EvalBatches) -> Score:
        return evaluate(model, batches, self._team, self._autocast)

    def _batches(self, parts: Iterable[Part], n: int | None = None, augmented: bool = False) -> dict[str, EvalBatches]:
        config, team = self._config, self._team
        assert config.seed is not None
        return {
            part.name: EvalBatches(
                part,
                self._sources.pixels,
                # On a CPU large activations cost more in page faults than small batches in calls.
                16 if team.device.type == "cpu" and not self._sources.pixels.small else 256,
                n=n,
                seed=config.seed,
                rank=team.rank,
                world=team.world,
                augment=config.seed if augmented else None,
                keep=self._keep and part.split == "validation",
                workers=config.workers,
                device=team.device,
            )
            for part in parts
        }


def records(run: str, step: int, scores: Mapping[str, Mapping[str, Score]], average: str | None = None) -> list[Record]:
    """Scores as records."""
    return [
        Record(run, step, domain, split, metric, value, average)
        for domain, splits in scores.items()
        for split, score in splits.items()
        for metric, value in (("loss", score.loss), ("accuracy", score.accuracy))
    ]
