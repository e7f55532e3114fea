"""Choose the weights of a run that are used: those with the lowest loss on the validation images of its sources.

The held-out domain stays unseen. The loss decides, not the accuracy, in which many weights are nearly equal.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from swad.testbed.measure.saved_run import open_run
from swad.testbed.training.run_dir import RunError, read_done


class Candidate(NamedTuple):
    """Weights of a run, with their means over the validation images of the source domains."""

    name: str
    loss: float
    accuracy: float
    file: Path


def find_weights(path: Path, name: str | None = None) -> tuple[Path, list[Candidate]]:
    """Return a weights file, and the candidates that it was chosen from, the lowest validation loss first.

    Args:
        path: The directory of a finished run, or a weights file, which leaves no choice.
        name: The weights to take. Default: those with the lowest validation loss.
    """
    if path.suffix == ".safetensors":
        if name is not None:
            raise ValueError(f"--weights chooses among those of a run, but {path} is one file: leave it out")
        return path, []
    if name is not None:
        return open_run(path).file(name), []
    scores = validation_scores(path)
    candidates = [candidate for candidate in scores if candidate.file.is_file()]
    if not candidates:
        raise RunError(f"no weights of {path} are left: restore {scores[0].file} or another, or train the run again")
    return candidates[0].file, candidates


def validation_scores(path: Path) -> list[Candidate]:
    """Return the weights that a finished run reports, the lowest validation loss first."""
    run, done = open_run(path), read_done(path) or {}
    candidates = []
    for name in run.reported:
        sources = [splits["out"] for domain, splits in done["scores"][name].items() if domain not in run.config.targets]
        loss, accuracy = (fmean(scores[metric] for scores in sources) for metric in ("loss", "accuracy"))
        candidates.append(Candidate(name, loss, accuracy, path / run.weights[name]))
    return sorted(candidates, key=lambda candidate: math.inf if math.isnan(candidate.loss) else candidate.loss)
