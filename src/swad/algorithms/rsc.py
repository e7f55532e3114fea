"""RSC: learn without the features that count most.

Huang, Wang, Xing and Huang, "Self-Challenging Improves Cross-Domain Generalization", ECCV 2020. For every image, the
features z with the largest gradients of its own class's score are muted:

    g = ∂ score_y / ∂z,      z' = z · [g < its (1 - feature_drop) percentile]

and of the batch only the images stay muted whose probability of their class falls the most by it, a share of
`batch_drop`. The loss is the cross entropy of what is left.

As in DomainBed, features are those before the linear head, for which g is the class's row of the head's weights: no
pass back is needed, and the percentile is a place in that row, sorted (as NumPy's with interpolation: what is strictly
below it is the same). The network is passed once. A drop of 0 still mutes the largest one, which equals its
percentile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from swad.algorithms import hyperparameters as hp
from swad.algorithms.base import Algorithm, Noise
from swad.algorithms.hyperparameters import Uniform, hyper
from swad.data.loaders import Batch
from swad.models import networks


@dataclass(frozen=True)
class RSCHyperparameters(hp.Hyperparameters):
    """How much is muted."""

    feature_drop: float = hyper(1 / 3, Uniform(0, 0.5), "share of an image's features that are muted", high=1)
    batch_drop: float = hyper(1 / 3, Uniform(0, 0.5), "share of the images of which features are muted", high=1)


class RSC(Algorithm):
    """Cross entropy with the most telling features muted, where that tells most."""

    paper = "Huang, Wang, Xing and Huang: Self-Challenging Improves Cross-Domain Generalization. ECCV, 2020."
    needs = ("a linear head",)
    Hyperparameters = RSCHyperparameters
    hyperparameters: RSCHyperparameters

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean cross entropy of muted features."""
        features, labels = self.head_inputs(batch, noise), self.labels(batch)
        with torch.no_grad():
            kept = self._kept(features, labels)
        return functional.cross_entropy(self.head(features * kept), labels)

    def _kept(self, features: Tensor, labels: Tensor) -> Tensor:
        """Which features of which images stay, as ones and zeros."""
        ours = self.hyperparameters
        weights = networks.head(self.predictor).weight
        of_class = below(weights, ours.feature_drop)
        mask = of_class[labels]
        own = labels[:, None]
        before, after = (self.head(one).softmax(1).gather(1, own)[:, 0] for one in (features, features * mask))
        harmless = below(before - after, ours.batch_drop)
        return (mask | harmless[:, None]).to(features.dtype)


def below(values: Tensor, drop: float) -> Tensor:
    """Which values lie strictly below the (1 - drop) percentile of the last dimension."""
    place = (values.shape[-1] - 1) * (1 - drop)
    # Rounded down a little: where the place is whole, chance in the last bit must not decide.
    threshold = values.sort(-1).values[..., math.ceil(place - 1e-9), None]
    return values < threshold


ALGORITHM = RSC
