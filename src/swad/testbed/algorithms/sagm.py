"""SAGM: lower the loss, the loss at the worst point nearby, and the angle between their gradients.

Wang, Zhang, Lei and Zhang, "Sharpness-Aware Gradient Matching for Domain Generalization", CVPR 2023. With the gradient
g of the loss L at the weights w,

    minimize L(w) + L(w'),    w' = w + (rho / |g| - α) g,    with w' - w as a constant in the gradient.

The step is g + g', with the gradient g' at w'. Without α it is ERM's step plus SAM's. Since

    L(w') is about L(w + rho g / |g|) - α g · g_SAM,

lowering it also raises the scalar product of the gradient and of SAM's, so that both go down together.

- |g| is the norm of all gradients as one vector. The published code adds 1e-12 to it; here nothing is added, and where
  |g| = 0 there is no direction and w' = w.
- The published code steps with (g + g') / 2. Half of all gradients is the same to Adam, except for weight decay and
  Adam's epsilon: a weight decay of 1e-4 there is one of 2e-4 here. To SGD it is half the learning rate.
- Its published search range of α, .01 to .1, does not contain the values of its own commands, .001 and .0005. Those are
  the default and the range of `matching` here. Its rho is always .05, whatever the option says.
- Images, noise, dropout, processes, clipping and buffers are treated as in SAM. Clipping applies to the sum. With
  `--no-freeze-bn` batch norms update their running statistics in both passes, as in SAM; the published code sets their
  momentum to 0 in the second. Frozen statistics, the protocol here, do not change.

The reported loss is the one at w, so it can be compared with other algorithms. `NAME+sagm` minimizes the loss of NAME
in this way, and `sagm` alone ERM's. It takes twice as many passes.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from swad.testbed.algorithms.base import Recipe
from swad.testbed.algorithms.erm import ERM
from swad.testbed.algorithms.hyperparameters import Choice, hyper
from swad.testbed.algorithms.sam import SAMHyperparameters, SAMUpdate


@dataclass(frozen=True)
class SAGMHyperparameters(SAMHyperparameters):
    """The hyperparameters of SAM, and how far the ascent is pulled back along the gradient."""

    matching: float = hyper(0.001, Choice((0.0005, 0.001)), "α: multiple of the gradient that is taken off the ascent")


class SAGMUpdate(SAMUpdate):
    """The step with the sum of the gradients at the weights and at the perturbed weights, for any loss."""

    hyperparameters: SAGMHyperparameters
    adds_first_gradient = True

    def ascent(self, norm: Tensor) -> Tensor:
        """Return the ascent as a multiple of the gradient, whose norm is above 0."""
        return self.hyperparameters.rho / norm - self.hyperparameters.matching


def _on(lr: float, matching: float, weight_decay: float = 2e-4) -> Recipe:
    return Recipe(hyperparameters={"lr": lr, "matching": matching, "weight_decay": weight_decay})


class SAGM(SAGMUpdate, ERM):
    """Mean cross entropy at the weights and at the perturbed weights."""

    paper = "Wang et al.: Sharpness-Aware Gradient Matching for Domain Generalization. CVPR, 2023."
    needs = ("two passes",)
    Hyperparameters = SAGMHyperparameters
    own_recipe = Recipe(
        hyperparameters={"lr": 3e-5, "weight_decay": 2e-4, "dropout": 0.5},
        by_dataset={
            "VLCS": _on(1e-5, 0.001),
            "OfficeHome": _on(1e-5, 0.0005),
            "TerraIncognita": _on(1e-5, 0.001),
            "DomainNet": _on(3e-5, 0.0005, weight_decay=2e-6),
        },
    )


ALGORITHM = SAGM
