"""DANN: learn features from which a discriminator cannot tell the domain.

Ganin et al., "Domain-Adversarial Training of Neural Networks", JMLR 2016. With features z, head h, discriminator d,
labels y and domains e:

    the discriminator minimizes   CE(d(z), e) + grad_penalty · mean of ‖∂CE(d(z), e)/∂z‖²  =: D
    the predictor minimizes       CE(h(z), y) - λ D

Ganin et al. do both in one pass, through a layer that reverses the gradient. Here, as in DomainBed, the two sides take
turns, each with an Adam of its own (β₂ = .9): `d_steps` steps of the discriminator after each step of the predictor.
With the default, only every other step updates the predictor. The reported loss is that of the side whose turn it is.

DomainBed's gradient penalty of 2020 sums the probabilities of all domains. That sum is constant, so its gradient is 0.
Later versions take each image's cross entropy, as does this file. The discriminator is the only part that is
differentiated twice. It computes in full precision, and its dropout masks come from the step's noise.
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
