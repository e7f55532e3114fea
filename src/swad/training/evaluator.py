"""What a run measures, of which weights, on which images; the target only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from swad.data.cache import ImageCache
from swad.data.loaders import EvalLoader
from swad.data.splits import DomainSplit, Sources, Target
from swad.results.records import Record
from swad.training.config import RunConfig
from swad.training.distributed import Dist
from swad.training.evaluation import Score, evaluate_all
from swad.training.resident_evaluation import ResidentEvaluation
from swad.training.state import Training
from swad.training.step import EAGER

KEEP_AT_MOST = 2 * 2**30
"""Bytes of decoded images that a run holds in host memory for later passes, all together: those of validation, so that
only the first evaluation decodes them, and from the image cache the others'. On a GPU it may be a quarter of what is
free there."""

Scores = dict[str, dict[str, Score]]
"""By domain, then by split."""


class Evaluator:
    """Evaluates weights on the sources' validation images, and at the end on everything held out."""

    def __init__(
        self,
        config: RunConfig,
        sources: Sources,
        dist: Dist,
        training: Training,
        cache: ImageCache | None = None,
        log: Callable[[str], None] = print,
    ) -> None:
        self._say = log
        self._config, self._dist, self._autocast, self._cache = config, dist, training.autocast, cache
        self._sources, self._live = sources, training.predictor
        self._group = type(training.algorithm).eval_group_size(training.algorithm.hyperparameters)
        self._room = _room(dist.device)
        n = config.validation_subsample
        kept = self._keeps(sources.val, n)
        self.validation = self._batches(sources.val, kept, n, config.augment_validation)
        self.full = self.validation
        if n:
            keep = self._keeps(sources.val)
            self.full = self._batches(sources.val, keep, augmented=config.augment_validation)
        # In a graph only where steps are: a graph pays where starting kernels takes longer than running them.
        self._captured = training.engine.kind != EAGER and kept and self._group is None
        self._resident: ResidentEvaluation | None = None
        self._target: dict[str, dict[str, EvalLoader]] | None = None
        self._tests: dict[str, EvalLoader] | None = None

    def sources(self, model: nn.Module, full: bool = False) -> dict[str, Score]:
        """Scores of every source's validation images: the stated subsample, or all of them."""
        if model is self._live and self._captured and not full:
            if self._resident is None:
                self._resident = ResidentEvaluation(model, self.validation, self._dist, self._autocast, self._say)
            return self._resident()
        return evaluate_all(model, self.full if full else self.validation, self._dist, self._autocast)

    def target(self, model: nn.Module, target: Target) -> Scores:
        """Scores of every held-out domain by split: in, out, test where there is one, and all of them as full."""
        if self._target is None:  # not before: until then not one image of the target is read
            parts = {"in": target.train, "out": target.val, "test": target.test}
            self._target = {name: {} for name in target.names}
            for split, some in parts.items():
                for name, batches in self._batches(some, self._keeps(some)).items():
                    self._target[name][split] = batches
        scores: Scores = {}
        for name, splits in self._target.items():
            found = evaluate_all(model, splits, self._dist, self._autocast)
            first, *rest = found.values()
            scores[name] = {**found, "full": sum(rest, first)}
        return scores

    def everything(self, model: nn.Module, target: Target) -> Scores:
        """Scores of weights that are to be reported: sources' validation and test images, and the target."""
        scores: Scores = {name: {"out": score} for name, score in self.sources(model, full=True).items()}
        if self._tests is None:
            self._tests = self._batches(self._sources.test, self._keeps(self._sources.test))
        tests = evaluate_all(model, self._tests, self._dist, self._autocast)
        for name, score in tests.items():
            scores[name]["test"] = score
        return {**scores, **self.target(model, target)}

    def _keeps(self, parts: Sequence[DomainSplit], n: int | None = None) -> bool:
        """Whether to hold the images of these parts for later passes; if so, there is less room for others."""
        if self._cache is None and any(part.split != "val" for part in parts):
            return False
        image_spec = self._sources.image_spec
        images = sum(len(part) if n is None else min(n, len(part)) for part in parts)
        need = images * image_spec.channels * image_spec.size**2
        self._room = min(self._room, _room(self._dist.device))  # what is free on a GPU changes
        if need > self._room:
            return False
        self._room -= need
        return True

    def _batches(
        self, parts: Sequence[DomainSplit], keep: bool, n: int | None = None, augmented: bool = False
    ) -> dict[str, EvalLoader]:
        config, dist = self._config, self._dist
        assert config.seed is not None
        # On a CPU large activations cost more in page faults than small batches in calls.
        usual = 16 if dist.device.type == "cpu" and not self._sources.image_spec.low_res else 256
        return {
            part.name: EvalLoader(
                part,
                self._sources.image_spec,
                usual if self._group is None else self._group * max(1, usual // self._group),
                n=n,
                seed=config.seed,
                rank=dist.rank,
                world=dist.world_size,
                whole=self._group is not None,
                augment=config.seed if augmented else None,
                cache=self._cache,
                keep=keep,
                workers=config.workers,
                device=dist.device,
            )
            for part in parts
        }


def _room(device: torch.device) -> int:
    return KEEP_AT_MOST if device.type != "cuda" else torch.cuda.mem_get_info(device)[0] // 4


def records(run: str, step: int, scores: Mapping[str, Mapping[str, Score]], average: str | None = None) -> list[Record]:
    """Scores as records."""
    return [
        Record(run, step, domain, split, metric, value, average)
        for domain, splits in scores.items()
        for split, score in splits.items()
        for metric, value in (("loss", score.loss), ("accuracy", score.accuracy))
    ]
