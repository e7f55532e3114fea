"""ERM: minimize the mean loss over all images, whatever domain they come from.

Vapnik, "Statistical Learning Theory", 1998. Every domain contributes the same number of images, so this is also the
mean of the domains' losses. Gulrajani and Lopez-Paz, "In Search of Lost Domain Generalization", ICLR 2021, found it
hard to beat. SWAD is ERM with averaged weights.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from swad.testbed.algorithms.base import Algorithm, Batch, Noise


class ERM(Algorithm):
    """Cross entropy, averaged over the batch."""

    paper = "Vapnik: Statistical Learning Theory. Wiley, 1998."
    mean_over_images = True

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean cross entropy."""
        return functional.cross_entropy(self.scores(batch, noise), self.labels(batch))


ALGORITHM = ERM
