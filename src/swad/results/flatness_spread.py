"""How far a mean over runs may be off where they share directions and images, as runs of several targets do.

Every direction, and every image, draws a run's F to its side. What one of them draws in several runs is added up
before it is squared: a mean over four targets is no better known than one of them where all were drawn by the same.
What few of them say of their own spread is uncertain: each is widened by Student's factor for their number, as the
intervals of single runs are. No torch here.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from swad.results.flatness_rows import Row

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

Pulls = Mapping[Hashable, "Array"]
"""By what was drawn at random (directions, the images of a domain): items x radii, whose squares add to a variance."""

WIDTH = NormalDist().inv_cdf(0.975)
"""Standard deviations from the mean to an end of a 95 % interval, where they are known."""


def pulls_of(rows: Sequence[Row], weights: str, domains: Sequence[str], images: Mapping[str, Hashable]) -> Pulls | None:
    """What every direction and image does to F of some weights, averaged over `domains`; None without raw rows.

    `rows` are those of one setting, in order. `images` tells which images a domain's are: those of equal value in two
    runs are the same. Columns are radii from small to large.
    """
    import numpy as np

    mine = [row for row in rows if row.get("model") == weights]
    head = next((row for row in mine if row["kind"] == "flatness"), None)
    parts = [row for row in mine if row["kind"] == "flatness-part"]
    if head is None or not parts or not all(domain in head["loss"] for domain in domains):
        return None
    n, order = parts[-1]["stop"], np.argsort(head["radii"])
    settings = {key: value for key, value in head["settings"].items() if key != "norm"}
    with np.errstate(invalid="ignore", over="ignore"):  # far away losses need not be finite
        losses = [
            np.array([[float(v) for v in one] for part in parts for one in part["losses"][domain]])
            - float(head["loss"][domain])
            for domain in domains
        ]
        units = np.mean(losses, 0).reshape(-1, 2 if head["antithetic"] else 1, len(order)).mean(1)
        found: dict[Hashable, Array] = {("directions", head["antithetic"], str(settings)): _pull(units[:, order])}
        for domain in domains:
            if domain in parts[-1]["image_sums"]:
                sums = _unpacked(parts[-1]["image_sums"][domain]).reshape(len(order), -1)
                rise = sums / n - _unpacked(head["image_loss"][domain])
                found["images", domain, images[domain]] = _pull(rise.T[:, order]) / len(domains)
    return found


def difference(one: Pulls | None, other: Pulls | None) -> Pulls | None:
    """What each does to the difference of two F that were measured in the same directions and on the same images."""
    if one is None or other is None or {k: v.shape for k, v in one.items()} != {k: v.shape for k, v in other.items()}:
        return None
    return {name: one[name] - other[name] for name in one}


def mean(several: Sequence[Pulls]) -> Pulls:
    """What each does to the mean of several F; where fewer were drawn, the rest of them did nothing."""
    import numpy as np

    found: dict[Hashable, Array] = {}
    for name in dict.fromkeys(name for pulls in several for name in pulls):
        some = [pulls[name] for pulls in several if name in pulls]
        whole = np.zeros((max(map(len, some)), some[0].shape[1]))
        for one in some:
            whole[: len(one)] += one / len(several)
        found[name] = whole
    return found


def half_widths(pulls: Pulls) -> list[float]:
    """Half of the 95 % interval at every radius.

    >>> import numpy as np
    >>> one, two = ({"directions": np.array([[3.0], [4.0]])}, {"others": np.array([[3.0], [4.0]])})
    >>> [round(half_widths(mean(some))[0] / WIDTH, 4) for some in ([one], [one, one], [one, two])]
    [5.0, 5.0, 3.5355]
    """
    variances = [sum(columns) for columns in zip(*((one * one).sum(0).tolist() for one in pulls.values()), strict=True)]
    return [WIDTH * math.sqrt(variance) for variance in variances]


@lru_cache
def student(n: int) -> float:
    """How much wider the 95 % interval of a mean of n values is than if their standard deviation were known.

    Student's t is sqrt(n - 1) times the tangent of an angle whose density goes with the (n - 2)-th power of its cosine.

    >>> [round(student(n), 3) for n in (2, 5, 12, 50)]
    [6.483, 1.417, 1.123, 1.025]
    """
    import numpy as np

    angle = np.linspace(0, math.pi / 2, 100_001)
    density = np.cos(angle) ** (n - 2)
    below = np.cumsum(density) - (density + density[0]) / 2  # by trapezoids
    return math.sqrt(n - 1) * math.tan(np.interp(0.95, below / below[-1], angle)) / WIDTH


def _pull(values: Any) -> Array:
    n = len(values)
    centerd: Array = values - values.mean(0)
    return centerd * (student(n) / math.sqrt(n * (n - 1))) if n > 1 else centerd * math.nan


def _unpacked(text: str) -> Array:
    import numpy as np

    return np.frombuffer(base64.b64decode(text), dtype=np.float64)
