"""The contribution of every random direction and image to F, from the raw rows of a measurement.

Runs of several targets share directions and training images, so their values of F are not independent.
`swad.util.statistics` says how contributions give the interval of a mean over such runs.
"""

from __future__ import annotations

import base64
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from swad.testbed.results.measurement_rows import Row
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

    raw_rows = [row for row in rows if row["kind"] == "flatness" and row["model"] == weights]
    if not raw_rows or not all(domain in raw_rows[-1]["loss"] for domain in domains):
        return None
    row = raw_rows[-1]  # the one with the most directions
    order = np.argsort(row["radii"])
    settings = {key: value for key, value in row["settings"].items() if key not in ("norm", "logit_scale")}
    with np.errstate(invalid="ignore", over="ignore"):  # losses far from the weights may not be finite
        rises = [
            np.array([[float(loss) for loss in losses] for losses in row["losses"][domain]])
            - float(row["loss"][domain])
            for domain in domains
        ]
        # The two directions of an antithetic pair are one draw.
        draws = np.mean(rises, 0).reshape(-1, 2 if row["antithetic"] else 1, len(order)).mean(1)
        by_source: dict[Hashable, NDArray[np.float64]] = {
            ("directions", row["antithetic"], str(settings)): contributions(draws[:, order])
        }
        for domain in domains:
            if domain in row["image_sums"]:
                sums = _unpack(row["image_sums"][domain]).reshape(len(order), -1)
                rise = sums / row["n_directions"] - _unpack(row["image_loss"][domain])
                by_source["images", domain, image_sets[domain]] = contributions(rise.T[:, order]) / len(domains)
    return by_source


def _unpack(text: str) -> NDArray[np.float64]:
    import numpy as np

    return np.frombuffer(base64.b64decode(text), dtype=np.float64)
