"""CDANN: features by which a discriminator that knows the class cannot tell the domains apart.

Li et al., "Deep Domain Generalization via Conditional Invariant Adversarial Networks", ECCV 2018. As DANN (see its
file: turns, optimizers, gradient penalty), with two differences. The discriminator is told the class, by a learned
vector added to the features as in DomainBed (the paper has a discriminator for each class),

    d(z + v_y),

and every class weighs the same in its loss whatever its share of the batch: an image of class y has the weight
1 / (C n_y), with C classes in all and n_y images of that class in the batch (over all domains, as in DomainBed; the
paper normalizes within each domain). C is the number of classes there are; public code takes the largest label of the
batch for it, so that the weights change with the draw.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from swad.algorithms._adversarial import Adversarial, AdversarialHyperparameters


class CDANN(Adversarial):
    """Cross entropy against a discriminator of domains that knows the class."""

    paper = "Li et al.: Deep Domain Generalization via Conditional Invariant Adversarial Networks. ECCV, 2018."
    needs = ("domain labels", "own optimizers")
    Hyperparameters = AdversarialHyperparameters
    min_domains = 2
    conditional = True

    def weights(self, labels: Tensor) -> Tensor:
        """Every class the same."""
        counts = functional.one_hot(labels, self.n_classes).sum(0)
        return 1 / (self.n_classes * counts[labels]).float()


ALGORITHM = CDANN
