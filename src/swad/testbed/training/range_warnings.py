"""Ranges of averages that should not be trusted, one sentence each: what is wrong, and what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping

from swad.testbed.training.resolved_config import ResolvedConfig
from swad.testbed.training.state import Training


def too_few_evaluations(config: ResolvedConfig, training: Training) -> list[str]:
    """Say before the first step which averages will not find their start, as in a short run on a large dataset."""
    steps = config.total_steps
    evaluations = sum(map(config.evaluates, range(1, steps + 1)))
    every = max(1, steps // 10)
    more_often = f" or evaluate more often (--evaluate-every {every})" if evaluations < steps else ""
    return [
        f"{name} needs {valley.n_converge} evaluations to find its start, but {steps} steps have {evaluations}: "
        f"train longer{more_often}"
        for name in training.averages
        if (valley := training.valley(name)) is not None and evaluations < valley.n_converge
    ]


def range_warnings(training: Training, losses: Mapping[int, float], n_classes: int) -> list[str]:
    """Say which averages never found their start, or start before the network has learned anything.

    Args:
        training: The finished training.
        losses: The validation loss at every evaluation, by step.
        n_classes: Number of classes, which decides the loss of chance.
    """
    texts = []
    for name in training.averages:
        valley = training.valley(name)
        if valley is not None and not valley.converged:
            texts.append(
                f"the validation loss never converged for {name}, so it averages only the "
                "end of training: train longer or evaluate more often"
            )
        elif valley is not None and valley.status.warning:
            texts.append(f"{name}: {valley.status.warning}")
        elif valley is not None:
            texts += _early_start(name, training.averages[name].status.start_step, losses, n_classes)
    return texts


def _early_start(name: str, start: int | None, losses: Mapping[int, float], n_classes: int) -> list[str]:
    after = [step for step in sorted(losses) if start is not None and step >= start]
    if not after:
        return []
    texts, chance = [], math.log(n_classes)
    lowest = min(losses, key=lambda step: losses[step])
    if after[0] == min(losses) == lowest:
        texts.append(
            f"{name} starts at the first evaluation (step {start}), because the validation loss never fell below it: "
            "train longer or evaluate more often"
        )
    elif after[0] == min(losses):
        texts.append(
            f"{name} starts at the first evaluation (step {start}), but the validation loss fell later, to "
            f"{losses[lowest]:.4g} at step {lowest}: raise n_converge or evaluate less often"
        )
    if losses[after[0]] > chance:
        texts.append(
            f"{name} starts at step {start} with a validation loss of {losses[after[0]]:.4g}, not below chance "
            f"({chance:.4g}), so it averages weights that have learned nothing: train longer or raise n_converge"
        )
    return texts
