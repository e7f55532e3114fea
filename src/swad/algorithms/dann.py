"""DANN: features by which a discriminator cannot tell the domains apart.

Ganin et al., "Domain-Adversarial Training of Neural Networks", JMLR 2016. With features z, head h, discriminator d,
labels y and domains e:

    the discriminator descends   CE(d(z), e) + grad_penalty · mean of ‖∂CE(d(z), e)/∂z‖²  =: D
    the predictor descends       CE(h(z), y) - λ D

Ganin et al. do both in one pass, through a layer that turns the gradient round. Here, as in DomainBed, they take
turns: `d_steps` of the discriminator after each one of the predictor, with the two optimizers Adam of their own
(β₂ = .9), so with the default only every other step moves the predictor. The loss that is reported is that of the side
whose turn it is.

DomainBed's gradient penalty of 2020 sums the probabilities of all domains, which is constant, so that its gradient
is 0; later it takes each image's cross entropy, as here. The discriminator, which alone is differentiated twice,
computes in full precision, and its dropout comes from the step's noise.
"""

from __future__ import annotations

from swad.algorithms._adversarial import Adversarial, AdversarialHyperparameters


class DANN(Adversarial):
    """Cross entropy against a discriminator of domains."""

    paper = "Ganin et al.: Domain-Adversarial Training of Neural Networks. JMLR, 2016."
    needs = ("domain labels", "own optimizers")
    Hyperparameters = AdversarialHyperparameters
    min_domains = 2


ALGORITHM = DANN
