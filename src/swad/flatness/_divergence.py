"""How far apart two domains are: Div(D, T) = 2 sup over events A of |P_D(A) - P_T(A)|, estimated by a classifier.

The supremum is over all events; a classifier of "source or target" finds one of them. Judged on images it was not
fitted on, with both domains weighing the same, an error of e gives 2 (1 - 2 e), the proxy A-distance: 2 when the
domains can be told apart every time, 0 when it is a coin toss. It is an estimate, and from below: a better
classifier, or better features, can only find more.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> found = divergence(rng.normal(0, 1, (60, 2)), rng.normal(9, 1, (40, 2)))
>>> found.value, found.error
(2.0, 0.0)
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Divergence:
    """An estimate of the divergence between two domains, with its interval."""

    value: float
    low: float
    high: float
    error: float
    """The classifier's error on images it was not fitted on, both domains weighing the same."""


def divergence(
    source: Any,
    target: Any,
    *,
    folds: int = 5,
    n_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Divergence:
    """Estimate the divergence from features, a row for each image, by logistic regression with cross-validation.

    The interval is of the images on which the classifier is judged, not of those it is fitted on: it tells how well the
    error is known, not how far the supremum is above it. Each domain's error is drawn from what k errors among n images
    leave open, Beta(k + 1/2, n - k + 1/2) (Jeffreys): no error among 40 images is not an error of 0.
    """
    import numpy as np

    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedKFold, cross_val_predict
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ImportError:
        raise ImportError("the divergence of domains needs scikit-learn: pip install 'swad[vision]'") from None

    sides = [np.asarray(side, dtype=float) for side in (source, target)]
    if any(side.ndim != 2 for side in sides) or sides[0].shape[1:] != sides[1].shape[1:]:
        shapes = " and ".join(str(side.shape) for side in sides)
        raise ValueError(f"features are a row for each image, as long in both domains; got shapes {shapes}")
    if min(map(len, sides)) < folds or folds < 2:
        raise ValueError(
            f"cross-validation needs 2 folds or more and as many images of each domain, got {folds} folds, "
            f"{len(sides[0])} and {len(sides[1])} images"
        )
    if not all(np.isfinite(side).all() for side in sides):
        raise ValueError("features must be finite numbers: some are not")
    if not 0 < level < 1 or n_resamples < 1:
        raise ValueError(f"level lies between 0 and 1 and n_resamples from 1 on, got {level} and {n_resamples}")
    labels = np.repeat([0, 1], [len(side) for side in sides])
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, class_weight="balanced"))
    cut = StratifiedKFold(folds, shuffle=True, random_state=seed)
    with warnings.catch_warnings():  # a classifier that could still be better is still a classifier
        warnings.simplefilter("ignore", ConvergenceWarning)
        wrong = cross_val_predict(classifier, np.concatenate(sides), labels, cv=cut) != labels
    misses = [int(wrong[labels == side].sum()) for side in (0, 1)]
    return _judged(misses, [len(side) for side in sides], n_resamples, level, seed)


def _judged(misses: Sequence[int], images: Sequence[int], n_resamples: int, level: float, seed: int) -> Divergence:
    """From the classifier's errors on each domain and the images it was judged on."""
    import numpy as np

    rng = np.random.default_rng(seed)
    drawn = [rng.beta(k + 0.5, n - k + 0.5, n_resamples) for k, n in zip(misses, images, strict=True)]
    tail = (1 - level) / 2
    low, high = np.quantile(_distance((drawn[0] + drawn[1]) / 2), [tail, 1 - tail])
    error = (misses[0] / images[0] + misses[1] / images[1]) / 2
    value = float(_distance(error))
    # Draws never reach the ends, 0 and 2; an estimate may, and belongs to its interval.
    return Divergence(value, min(value, float(low)), max(value, float(high)), error)


def _distance(error: Any) -> Any:
    """2 (1 - 2 e); a classifier worse than a coin has found no event, which is worth 0."""
    import numpy as np

    return np.maximum(0.0, 2 * (1 - 2 * np.asarray(error)))
