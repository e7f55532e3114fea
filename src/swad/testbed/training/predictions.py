"""Collect the predictions of all weights that a run reports, for `swad.testbed.results.predictions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from swad.testbed.data.domains import FileDomain
from swad.testbed.data.splits import DomainSplit, Sources, Target
from swad.testbed.results.predictions import MAX_CLASSES, Array, Part
from swad.testbed.training.evaluation import Score


class Predictions:
    """The images of the final evaluation, and what each of the reported weights predicts for them."""

    def __init__(self, sources: Sources, target: Target) -> None:
        self.parts: Sequence[Part] = [
            _part(split, part)
            for split, parts in (
                ("in", target.train),
                ("out", (*target.val, *sources.val)),
                ("test", (*target.test, *sources.test)),
            )
            for part in parts
        ]
        self.outputs: dict[str, tuple[Array, Array]] = {}

    def add(self, weights: str, scores: Mapping[str, Mapping[str, Score]]) -> None:
        """Keep the outputs in the scores of weights."""
        kept = [outputs for part in self.parts if (outputs := scores[part.domain][part.split].outputs) is not None]
        predictions, probabilities = (torch.cat(each) for each in list(zip(*kept, strict=True))[1:])
        if probabilities.shape[1] > MAX_CLASSES:
            probabilities = probabilities.amax(1)
        self.outputs[weights] = predictions.cpu().numpy(), probabilities.cpu().numpy()


def _part(split: str, part: DomainSplit) -> Part:
    domain, labels = part.domain, part.labels
    if not isinstance(domain, FileDomain):
        return Part(part.name, split, part.keys, labels)
    return Part(part.name, split, part.keys, labels, [domain.files[i] for i in part.keys], str(domain.root.resolve()))
