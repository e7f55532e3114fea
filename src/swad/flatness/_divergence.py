"""Divergence between two domains, Div(D, T) = 2 sup over events A of |P_D(A) - P_T(A)|, estimated by a classifier.

The supremum is over all events; a classifier of "source or target" gives one event. If its error on held-out images
is e, with both domains weighted equally, the estimate is 2 (1 - 2 e), the proxy A-distance: 2 if the domains are
separated perfectly, 0 for a coin toss. This is an estimate from below: a better classifier or better features can
only raise it.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> estimate = divergence(rng.normal(0, 1, (60, 2)), rng.normal(9, 1, (40, 2)))
>>> estimate.value, estimate.error
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
    """The classifier's error on held-out images, both domains weighted equally."""


def divergence(
    source: Any,
    target: Any,
    *,
    folds: int = 5,
    n_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Divergence:
    """Estimate the divergence from features by logistic regression with cross-validation.

    The interval covers the choice of held-out images: it tells how well the error is known, not how far the supremum
    is above the estimate. Each domain's error rate is drawn from its Jeffreys posterior Beta(k + 1/2, n - k + 1/2) for
    k errors among n images, so that no error among 40 images does not count as an error rate of 0.

    Args:
        source: Features of the source domain, one row per image.
        target: Features of the target domain, one row per image.
        folds: Number of cross-validation folds.
        n_resamples: Number of draws for the interval.
        level: Coverage of the interval.
        seed: Seed of the folds and of the draws.
    """
    try:
        import numpy as np
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedKFold, cross_val_predict
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ImportError:
        raise ImportError("divergence needs scikit-learn: pip install 'swad[flatness]'") from None

    sides = [np.asarray(side, dtype=float) for side in (source, target)]
    if any(side.ndim != 2 for side in sides) or sides[0].shape[1:] != sides[1].shape[1:]:
        shapes = " and ".join(str(side.shape) for side in sides)
        raise ValueError(f"features must have one row per image and the same columns in both domains; got {shapes}")
    if min(map(len, sides)) < folds or folds < 2:
        raise ValueError(
            f"cross-validation needs 2 folds or more, and at least as many images of each domain as folds; got {folds} "
            f"folds, {len(sides[0])} and {len(sides[1])} images"
        )
    if not all(np.isfinite(side).all() for side in sides):
        raise ValueError("features must be finite numbers, but some are not: leave those images out")
    if not 0 < level < 1 or n_resamples < 1:
        raise ValueError(f"level must be between 0 and 1 and n_resamples 1 or more, got {level} and {n_resamples}")
    labels = np.repeat([0, 1], [len(side) for side in sides])
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, class_weight="balanced"))
    cut = StratifiedKFold(folds, shuffle=True, random_state=seed)
    with warnings.catch_warnings():  # a classifier that has not converged still gives a valid estimate from below
        warnings.simplefilter("ignore", ConvergenceWarning)
        wrong = cross_val_predict(classifier, np.concatenate(sides), labels, cv=cut) != labels
    misses = [int(wrong[labels == side].sum()) for side in (0, 1)]
    return _estimate(misses, [len(side) for side in sides], n_resamples, level, seed)


def _estimate(misses: Sequence[int], images: Sequence[int], n_resamples: int, level: float, seed: int) -> Divergence:
    """Estimate the divergence from the numbers of errors and of held-out images of each domain."""
    import numpy as np

    rng = np.random.default_rng(seed)
    drawn = [rng.beta(k + 0.5, n - k + 0.5, n_resamples) for k, n in zip(misses, images, strict=True)]
    tail = (1 - level) / 2
    low, high = np.quantile(_distance((drawn[0] + drawn[1]) / 2), [tail, 1 - tail])
    error = (misses[0] / images[0] + misses[1] / images[1]) / 2
    value = float(_distance(error))
    # Draws never reach 0 or 2, but the estimate may; the interval must contain it.
    return Divergence(value, min(value, float(low)), max(value, float(high)), error)


def _distance(error: Any) -> Any:
    """Return 2 (1 - 2 e), or 0 for a classifier that is worse than a coin toss."""
    import numpy as np

    return np.maximum(0.0, 2 * (1 - 2 * np.asarray(error)))
