"""Which checkpoints are merged, and how much each counts."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from swad.averaging.checks import is_whole
from swad.averaging.latest import DecayCurve, wsm_coefficients
from swad.merging.checkpoints import Checkpoint, name_of
from swad.merging.weighted_mean import Progress, require_safetensors, require_same_tensors, save, weighted_mean

Score = Callable[[dict[str, Tensor]], float]


def merge(
    checkpoints: Sequence[Checkpoint],
    output: str | os.PathLike[str] | None = None,
    *,
    coefficients: Sequence[float] | None = None,
    last: int | None = None,
    decay: DecayCurve | None = None,
    score: Score | None = None,
    initial: Checkpoint | None = None,
    alpha: float = 0.5,
    on_step: Callable[[GreedyStep], object] | None = None,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """Merge checkpoints of one architecture into one, and return it as a state dict.

    Every way to merge is a weighted mean, sum c_j theta_j:

        merge(paths)                                     c_j = 1 / n, a uniform soup
        merge(paths, coefficients=[1, 1, 2])             your own, divided by their sum
        merge(paths, last=5)                             the mean of the last five (LAWA, Kaddour, 2022)
        merge(paths, decay="1-sqrt")                     as if the learning rate had decayed (`swad.WSM`)
        merge(paths, score=accuracy)                     only those that help (greedy soup, Wortsman et al., ICML 2022)
        merge([path], initial=pretrained, alpha=0.5)     (1 - alpha) theta_0 + alpha theta (WiSE-FT, CVPR 2022)

    `last`, one of the three that give coefficients, and `initial` may be combined. Means are computed in float32, and
    tensors keep their dtypes. It takes less memory than two copies of a large model, for any number of checkpoints.

    Batch norms get the mean of their statistics, which does not belong to the merged weights. Estimate them again:

        model.load_state_dict(swad.merge(paths))
        swad.update_bn(train_loader, model)

    >>> import torch
    >>> merge([{"weight": torch.tensor([1.0])}, {"weight": torch.tensor([3.0])}])
    {'weight': tensor([2.])}

    Args:
        checkpoints: Files of safetensors or `torch.save` (also of Lightning), folders that `save_pretrained` wrote, or
            state dicts; the oldest first.
        output: A .safetensors file to write too. Its metadata says what was merged.
        coefficients: How much each checkpoint counts.
        last: Merge only the last ones.
        decay: Emulate a decay of the learning rate: "1-sqrt", "linear" or "cosine".
        score: Called with a state dict, returns a number of which more is better, e.g. the accuracy on validation
            images. Checkpoints are taken from the best one down, each only if the mean with it scores at least as high.
        initial: The weights before fine-tuning.
        alpha: The share of the merged checkpoints next to `initial`, from 0 to 1.
        on_step: Called with each `GreedyStep`, e.g. `print`.
        progress: Called with a description, what is done, and the total.
    """
    if output is not None:
        require_new_file(output, [*checkpoints, *([] if initial is None else [initial])])
    chosen, shares = choose(checkpoints, coefficients, last, decay, score, initial, alpha, on_step, progress)
    means = weighted_mean(chosen, shares, progress)
    if output is not None:
        save(output, means, chosen, shares)
    return means


def choose(
    checkpoints: Sequence[Checkpoint],
    coefficients: Sequence[float] | None = None,
    last: int | None = None,
    decay: DecayCurve | None = None,
    score: Score | None = None,
    initial: Checkpoint | None = None,
    alpha: float = 0.5,
    on_step: Callable[[GreedyStep], object] | None = None,
    progress: Progress | None = None,
) -> tuple[list[Checkpoint], list[float]]:
    """Return which checkpoints `merge` would average with these arguments, and how much each counts."""
    if isinstance(checkpoints, str | os.PathLike | Mapping):
        raise TypeError(f"checkpoints must be a list, got a {type(checkpoints).__name__}: pass [checkpoint]")
    chosen = list(checkpoints)
    if not chosen:
        raise ValueError("a merge needs at least one checkpoint, got none: check the paths")
    if sum(given is not None for given in (coefficients, decay, score)) > 1:
        raise ValueError("coefficients, decay and a score all say how much each checkpoint counts: give one of them")
    if last is not None and (not is_whole(last, 1) or last > len(chosen)):
        raise ValueError(f"last must be a number of checkpoints from 1 to {len(chosen)}, got {last!r}")
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be from 0 (the initial weights) to 1 (the merged ones), got {alpha}")
    chosen = chosen[-(last or 0) :]
    shares = [1.0] * len(chosen) if coefficients is None else [float(share) for share in coefficients]
    if len(shares) != len(chosen):
        raise ValueError(f"every checkpoint needs one coefficient, got {len(shares)} for {len(chosen)} checkpoints")
    if not all(0 <= share < math.inf for share in shares) or not any(shares):
        raise ValueError(f"coefficients must be at least 0, and not all of them 0, got {shares}")
    if decay is not None:
        shares = list(wsm_coefficients(len(chosen), decay))
    if score is not None:
        chosen = take_greedily(chosen, score, on_step, progress)
        shares = [1.0] * len(chosen)
    if initial is not None:
        total = math.fsum(shares)
        return [initial, *chosen], [1 - alpha, *(alpha * share / total for share in shares)]
    return chosen, shares


class GreedyStep(NamedTuple):
    """One step of a greedy merge."""

    number: int
    """The step, from 1."""
    n: int
    """How many steps there are."""
    checkpoint: str
    score: float
    """The score of the mean of this checkpoint and those taken before it."""
    best: float
    """The best score so far."""
    taken: bool

    def __str__(self) -> str:
        verdict = "taken" if self.taken else f"left out, below {self.best:.4f}"
        return f"{self.number} of {self.n}: {self.checkpoint}: {self.score:.4f}, {verdict}"


def take_greedily(
    checkpoints: Sequence[Checkpoint],
    score: Score,
    on_step: Callable[[GreedyStep], object] | None = None,
    progress: Progress | None = None,
) -> list[Checkpoint]:
    """Return the checkpoints that a greedy soup takes, in the given order.

    Wortsman et al., "Model soups", ICML 2022, Recipe 1: sort the checkpoints by their own scores, begin with the best
    one, and add each of the others if the mean with it scores at least as high as the mean without it.
    """
    require_same_tensors(checkpoints)
    n = len(checkpoints)
    taken: list[int] = []
    best = -math.inf

    def scored(indices: Sequence[int], done: int) -> float:
        chosen = [checkpoints[index] for index in sorted(indices)]
        value = float(score(weighted_mean(chosen, [1.0] * len(chosen))))
        if not math.isfinite(value):
            raise ValueError(f"a score must be a finite number, got {value} with {name_of(checkpoints[indices[-1]])}")
        if progress is not None:
            progress("scoring", done, 2 * n - 1)
        return value

    alone = [scored([index], index + 1) for index in range(n)]
    for number, index in enumerate(sorted(range(n), key=lambda index: -alone[index]), start=1):
        value = scored([*taken, index], n + number - 1) if taken else alone[index]
        step = GreedyStep(number, n, name_of(checkpoints[index]), value, best, value >= best)
        if step.taken:
            taken, best = [*taken, index], value
        if on_step is not None:
            on_step(step)
    return [checkpoints[index] for index in sorted(taken)]


def require_new_file(output: str | os.PathLike[str], checkpoints: Sequence[Checkpoint]) -> None:
    """Raise if merged weights cannot be written to a path, or would replace one of the checkpoints."""
    require_safetensors()
    path = Path(output)
    read = [Path(checkpoint) for checkpoint in checkpoints if not isinstance(checkpoint, Mapping)]
    if path.suffix != ".safetensors":
        raise ValueError(f"merged weights are written as safetensors, got {path}: choose a name with .safetensors")
    if path.resolve() in {file.resolve() for each in read for file in (each, each / "model.safetensors")}:
        raise ValueError(f"the output must not replace a merged checkpoint, got {path}: choose another file")
