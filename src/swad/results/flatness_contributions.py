"""The contribution of every random direction and image to F, from the raw rows of a measurement.

Runs of several targets share directions and training images, so their values of F are not independent.
`swad.util.statistics` says how contributions give the interval of a mean over such runs.
"""

from __future__ import annotations

import base64
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from swad.results.flatness_rows import Row
from swad.util.statistics import Contributions, contributions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def read_contributions(
    rows: Sequence[Row], weights: str, domains: Sequence[str], image_sets: Mapping[str, Hashable]
) -> Contributions | None:
    """Return the contributions to F of some weights, averaged over `domains`; None without raw rows.

    Args:
        rows: The rows of one measurement, in order.
        weights: The name of the weights.
        domains: The domains that F is averaged over.
        image_sets: An identifier of each domain's images. Images of two runs with the same identifier are the same.

    Columns are radii in increasing order.
    """
    import numpy as np

    rows = [row for row in rows if row.get("model") == weights]
    head = next((row for row in rows if row["kind"] == "flatness"), None)
    if head is None or not all(domain in head["loss"] for domain in domains):
        return None
    parts = [head] if "losses" in head else [row for row in rows if row["kind"] == "flatness-part"]
    if not parts:
        return None
    n_directions = head["n_directions"] if "losses" in head else parts[-1]["stop"]
    order = np.argsort(head["radii"])
    settings = {key: value for key, value in head["settings"].items() if key != "norm"}
    with np.errstate(invalid="ignore", over="ignore"):  # losses far from the weights may not be finite
        rises = [
            np.array([[float(loss) for loss in losses] for part in parts for losses in part["losses"][domain]])
            - float(head["loss"][domain])
            for domain in domains
        ]
        # The two directions of an antithetic pair are one draw.
        draws = np.mean(rises, 0).reshape(-1, 2 if head["antithetic"] else 1, len(order)).mean(1)
        by_source: dict[Hashable, NDArray[np.float64]] = {
            ("directions", head["antithetic"], str(settings)): contributions(draws[:, order])
        }
        for domain in domains:
            if domain in parts[-1]["image_sums"]:
                sums = _unpack(parts[-1]["image_sums"][domain]).reshape(len(order), -1)
                rise = sums / n_directions - _unpack(head["image_loss"][domain])
                by_source["images", domain, image_sets[domain]] = contributions(rise.T[:, order]) / len(domains)
    return by_source


def _unpack(text: str) -> NDArray[np.float64]:
    import numpy as np

    return np.frombuffer(base64.b64decode(text), dtype=np.float64)
