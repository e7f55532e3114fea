"""CDANN: learn features from which a discriminator that knows the class cannot tell the domain.

Li et al., "Deep Domain Generalization via Conditional Invariant Adversarial Networks", ECCV 2018. Like DANN (see
`dann.py` for the turns, the optimizers, the gradient penalty, and what to try where losses diverge), with two
differences. First, the discriminator knows the class: a learned vector v_y is added to the features, as in DomainBed
(the paper has one discriminator per class),

    d(z + v_y).

Second, every class has the same total weight in the discriminator's loss, whatever its share of the batch. An image of
class y has the weight 1 / (C n_y), with C classes in all and n_y images of class y in the batch. As in DomainBed, n_y
counts all domains; the paper normalizes within each domain. C is the true number of classes. Public code uses the
largest label of the batch instead, so that the weights change with the draw.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from swad.testbed.algorithms.dann import DANN


class CDANN(DANN):
    """Cross entropy against a discriminator of domains that knows the class."""

    paper = "Li et al.: Deep Domain Generalization via Conditional Invariant Adversarial Networks. ECCV, 2018."
    conditional = True

    def image_weights(self, labels: Tensor) -> Tensor:
        """Give every class the same total weight."""
        counts = functional.one_hot(labels, self.n_classes).sum(0)
        return 1 / (self.n_classes * counts[labels]).float()


ALGORITHM = CDANN
