"""Loss curves and settings for tests of the valley."""

from __future__ import annotations

import math
import random

from helpers.twins import averaged
from swad.averaging.valley import LossValley


def losses_of(rng: random.Random) -> list[float]:
    n = rng.randint(1, 25)
    shape = rng.randrange(4)
    if shape == 0:  # ties
        return [float(rng.randint(0, 6)) for _ in range(n)]
    if shape == 1:
        return [rng.random() * 4 for _ in range(n)]
    if shape == 2:  # a walk with jumps
        level, walk = 5.0, []
        for _ in range(n):
            level = max(0.0, level + rng.choice([-1, -0.5, 0, 0, 0.5, 1, 3]))
            walk.append(level)
        return walk
    lowest = rng.randint(0, n)  # a valley, then jumps inside the confirmation window and beyond
    jumps = [1 + 2 * rng.choice([0.1, 0.4, 1, 2, 5, 9]) * rng.random() for _ in range(n)]
    return [10 - k * 9 / max(lowest, 1) if k <= lowest else jumps[k] for k in range(n)]


def settings_of(rng: random.Random) -> dict:
    semantics = rng.choice(["paper", "text", "reference"])
    reference = semantics == "reference"
    return {
        "n_converge": rng.randint(1, 6),
        "n_tolerance": rng.choice([1, 2, 3, 4, 5, 6, 7] + ([] if reference else [math.inf])),
        "tolerance_ratio": rng.choice([0, 0.2, 0.3, 0.3, 1, 2]),
        "semantics": semantics,
    }


def expected(losses, steps, total, options):
    return averaged(
        losses,
        steps,
        total,
        options["semantics"],
        options["n_converge"],
        options["n_tolerance"],
        1 + options["tolerance_ratio"],
    )


def observe_all(losses, steps=None, **options):
    valley = LossValley(**options)
    for k, loss in enumerate(losses):
        status = valley.observe(loss, None if steps is None else steps[k])
        if status.should_stop:
            break
    return valley, status
