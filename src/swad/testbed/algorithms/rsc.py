"""RSC: learn without the features that matter most.

Huang, Wang, Xing and Huang, "Self-Challenging Improves Cross-Domain Generalization", ECCV 2020. For every image, the
features z with the largest gradients of the score of its own class are muted:

    g = ∂ score_y / ∂z,      z' = z · [g < the (1 - feature_drop) percentile of g]

The muting is kept only for the fraction `batch_drop` of the images, those whose class probability it lowers the most.
The loss is the cross entropy of the resulting features.

As in DomainBed, the features are those before the linear head. Then g is the class's row of the head's weights, so no
backward pass is needed, and the network runs once. The percentile is an entry of the sorted row: NumPy's interpolated
percentile has the same values strictly below it. A drop of 0 still mutes the largest feature, which equals its
percentile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from swad.testbed.algorithms.base import Algorithm, Batch, Noise
from swad.testbed.algorithms.hyperparameters import Hyperparameters, Uniform, hyper
from swad.testbed.models import networks


@dataclass(frozen=True)
class RSCHyperparameters(Hyperparameters):
    """The common hyperparameters and how much is muted."""

    feature_drop: float = hyper(
        1 / 3, Uniform(0, 0.5), "fraction of an image's features that are muted", high=1, domainbed="rsc_f_drop_factor"
    )
    batch_drop: float = hyper(
        1 / 3, Uniform(0, 0.5), "fraction of the images whose features are muted", high=1, domainbed="rsc_b_drop_factor"
    )


class RSC(Algorithm):
    """Cross entropy with the most predictive features muted."""

    paper = "Huang, Wang, Xing and Huang: Self-Challenging Improves Cross-Domain Generalization. ECCV, 2020."
    needs = ("a linear head",)
    Hyperparameters = RSCHyperparameters
    hyperparameters: RSCHyperparameters

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean cross entropy of the muted features."""
        features, labels = self.head_inputs(batch, noise), self.labels(batch)
        with torch.no_grad():
            mask = self._feature_mask(features, labels)
        return functional.cross_entropy(self.head(features * mask), labels)

    def _feature_mask(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return a mask with 1 for the features that are kept and 0 for those that are muted."""
        hparams = self.hyperparameters
        kept_by_class = below(networks.head(self.predictor).weight, hparams.feature_drop)
        kept = kept_by_class[labels]
        column = labels[:, None]
        before, after = (self.head(rows).softmax(1).gather(1, column)[:, 0] for rows in (features, features * kept))
        harmless = below(before - after, hparams.batch_drop)
        return (kept | harmless[:, None]).to(features.dtype)


def below(values: Tensor, drop: float) -> Tensor:
    """Return which values are strictly below the (1 - drop) percentile of the last dimension."""
    position = (values.shape[-1] - 1) * (1 - drop)
    # Rounded down a little: where the position is an integer, rounding in the last bit must not decide.
    threshold = values.sort(-1).values[..., math.ceil(position - 1e-9), None]
    return values < threshold


ALGORITHM = RSC
