"""Evaluate the weights of a run: on source validation during training, on everything held out at the end.

The evaluator decides how: which images stay in memory for later passes, and whether a CUDA graph is used. The target is
not read before `target_scores` is called.
"""

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
from swad.training.evaluation import Score, evaluate_splits
from swad.training.resident_evaluation import ResidentEvaluation
from swad.training.state import Training
from swad.training.step import EAGER

MAX_KEPT_BYTES = 2 * 2**30
"""Most bytes of decoded images that a run keeps in host memory for later evaluations; on a GPU, a quarter of the free
memory is the limit. Validation images are kept first, so that only the first evaluation decodes them."""

Scores = dict[str, dict[str, Score]]
"""Scores by domain, then by split."""


class Evaluator:
    """Evaluates the weights of one run.

    Args:
        config: Settings of the run.
        sources: The source domains.
        dist: This process. Several processes share the images.
        training: The training whose live weights are evaluated.
        cache: Decoded images; without it images are read from their files.
        log: Called with a message if an evaluation cannot be captured in a CUDA graph.
    """

    def __init__(
        self,
        config: RunConfig,
        sources: Sources,
        dist: Dist,
        training: Training,
        cache: ImageCache | None = None,
        log: Callable[[str], None] = print,
    ) -> None:
        self._log = log
        self._config, self._dist, self._autocast, self._cache = config, dist, training.autocast, cache
        self._sources, self._live = sources, training.predictor
        self._group = type(training.algorithm).eval_group_size(training.algorithm.hyperparameters)
        self._free_bytes = _max_kept_bytes(dist.device)
        subsample, augment = config.evaluation.validation_subsample, config.evaluation.augment_validation
        keep = self._reserve_memory(sources.val, subsample)
        self.validation = self._loaders(sources.val, keep, subsample, augment)
        self.full_validation = self.validation
        if subsample:
            self.full_validation = self._loaders(sources.val, self._reserve_memory(sources.val), augment=augment)
        # Capture evaluations only if steps are captured: a graph pays where kernels take longer to launch than to run.
        self._captures = training.engine.kind != EAGER and keep and self._group is None
        self._resident: ResidentEvaluation | None = None
        self._source_test: dict[str, EvalLoader] | None = None
        self._target: dict[str, dict[str, EvalLoader]] | None = None

    def validation_scores(self, model: nn.Module) -> dict[str, Score]:
        """Evaluate the model on every source's validation images, or on the configured subsample of them."""
        if model is self._live and self._captures:
            if self._resident is None:
                self._resident = ResidentEvaluation(model, self.validation, self._dist, self._autocast, self._log)
            return self._resident()
        return evaluate_splits(model, self.validation, self._dist, self._autocast)

    def target_scores(self, model: nn.Module, target: Target) -> Scores:
        """Evaluate the model on every held-out domain: in, out, test if there is one, and all of them as full."""
        if self._target is None:  # build the loaders only now, so that no image of the target is read before
            self._target = {name: {} for name in target.names}
            for split, parts in {"in": target.train, "out": target.val, "test": target.test}.items():
                for name, loader in self._loaders(parts, self._reserve_memory(parts)).items():
                    self._target[name][split] = loader
        scores: Scores = {}
        for name, loaders in self._target.items():
            by_split = evaluate_splits(model, loaders, self._dist, self._autocast)
            first, *rest = by_split.values()
            scores[name] = {**by_split, "full": sum(rest, first)}
        return scores

    def final_scores(self, model: nn.Module, target: Target) -> Scores:
        """Evaluate weights that are reported: on all validation and test images of the sources, and on the target."""
        validation = evaluate_splits(model, self.full_validation, self._dist, self._autocast)
        scores: Scores = {name: {"out": score} for name, score in validation.items()}
        if self._source_test is None:
            parts = self._sources.test
            self._source_test = self._loaders(parts, self._reserve_memory(parts))
        for name, score in evaluate_splits(model, self._source_test, self._dist, self._autocast).items():
            scores[name]["test"] = score
        return {**scores, **self.target_scores(model, target)}

    def _reserve_memory(self, parts: Sequence[DomainSplit], subsample: int | None = None) -> bool:
        """Reserve memory to keep the decoded images of these splits, if there is enough."""
        if self._cache is None and any(part.split != "val" for part in parts):
            return False
        image_spec = self._sources.image_spec
        n_images = sum(len(part) if subsample is None else min(subsample, len(part)) for part in parts)
        n_bytes = n_images * image_spec.channels * image_spec.size**2
        self._free_bytes = min(self._free_bytes, _max_kept_bytes(self._dist.device))  # free GPU memory changes
        if n_bytes > self._free_bytes:
            return False
        self._free_bytes -= n_bytes
        return True

    def _loaders(
        self, parts: Sequence[DomainSplit], keep: bool, subsample: int | None = None, augment: bool = False
    ) -> dict[str, EvalLoader]:
        config, dist = self._config, self._dist
        assert config.training.seed is not None
        # Use small batches on a CPU: large activations cost more in page faults than small batches cost in calls.
        batch_size = 16 if dist.device.type == "cpu" and not self._sources.image_spec.low_res else 256
        if self._group is not None:
            batch_size = self._group * max(1, batch_size // self._group)
        return {
            part.name: EvalLoader(
                part,
                self._sources.image_spec,
                batch_size,
                n=subsample,
                seed=config.training.seed,
                rank=dist.rank,
                world_size=dist.world_size,
                whole_batches=self._group is not None,
                augment_seed=config.training.seed if augment else None,
                cache=self._cache,
                keep=keep,
                workers=config.machine.workers,
                device=dist.device,
            )
            for part in parts
        }


def _max_kept_bytes(device: torch.device) -> int:
    return MAX_KEPT_BYTES if device.type != "cuda" else torch.cuda.mem_get_info(device)[0] // 4


def score_records(
    run: str, step: int, scores: Mapping[str, Mapping[str, Score]], average: str | None = None
) -> list[Record]:
    """Return scores as records."""
    return [
        Record(run, step, domain, split, metric, value, average)
        for domain, splits in scores.items()
        for split, score in splits.items()
        for metric, value in (("loss", score.loss), ("accuracy", score.accuracy))
    ]
