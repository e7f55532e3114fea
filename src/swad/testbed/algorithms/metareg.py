"""MetaReg: learn a regularizer of the head that helps a head trained on one domain in another; then train with it.

Balaji, Sankaranarayanan and Chellappa, "MetaReg: Towards Domain Generalization using Meta-Regularization", NeurIPS
2018. The regularizer of a head β is R_φ(β) = Σ_j φ_j |β_j|, over weights and biases, with φ of either sign.

1. The preparation learns φ, with one shared network of features f and a head θ_d for every domain d. Every step trains
   f and all θ_d on the cross entropies of their own domains. It also draws two domains a ≠ b and follows a head on a:

       β_1 = θ_a,    β_k = β_{k-1} - inner_lr * ∇_β [CE_a(β_{k-1}) + R_φ(β_{k-1})],   k = 2 ... unroll

   φ takes a step on CE_b(β_unroll), differentiated through all these steps, with sign(β) as the derivative of |β|.
2. The training starts from the network before the preparation, with its own head, and minimizes CE + R_φ over all
   domains, with φ fixed. Only this part has numbered steps, evaluations, averages and model selection. The loss may
   be below 0, since R_φ falls without bound where φ < 0 and |β| grows.

The features in the inner steps are detached: only the linear head is differentiated twice, and inner steps are cheap.

This is a reading of the paper. The formulas above are those that public summaries repeat; they agree with each other.
The authors published no code, and in the two public re-implementations the regularizer gets no gradient through the
inner steps. These details are not known to us, so they are choices of this project:

- The length of the preparation, `preparation` times the steps of the training, its optimizer (Adam as in the
  training, one step for all domains where the paper makes one step for each), and φ = 0 at the start.
- φ is trained by an Adam of its own with the learning rate `meta_lr`, also with `--optimizer sgd`. In the paper it has
  plain gradient steps with the inner learning rate; gradients by φ are inner_lr times smaller than those by β, so such
  a φ stays tiny.
- `unroll` 20 and `inner_lr` .001 are a re-implementation's. The inner steps all use the domain's images of this step,
  and features of before its update; the paper draws new images for every inner step.
- Only the last layer is regularized, the head of the network. In AlexNet the paper may have regularized more.

The paper's own settings of images, epochs and batches are unknown too, so there is no recipe for `--recipe own`. Under
the protocol here its accuracies are other numbers. A step costs about as much as ERM's, and the preparation adds its
share to the training.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.testbed.algorithms import hyperparameters as hp
from swad.testbed.algorithms._helpers import random_order
from swad.testbed.algorithms.base import Algorithm, Batch, Noise, RunInfo
from swad.testbed.algorithms.hyperparameters import Constant, Hyperparameters, Power, hyper
from swad.testbed.models import networks

PREPARATION = "preparation"


@dataclass(frozen=True)
class MetaRegHyperparameters(Hyperparameters):
    """The common hyperparameters, and how the regularizer is learned."""

    preparation: float = hyper(0.2, Constant(0.2), "updates of the preparation, as a share of the steps")
    unroll: int = hyper(20, Constant(20), "heads β_1 to β_unroll through which the regularizer is learned", low=2)
    inner_lr: float = hyper(1e-3, Power(10, -4, -1), "learning rate of the inner steps on the head")
    meta_lr: float = hyper(1e-5, Power(10, -6, -4), "Adam's learning rate for the regularizer")


class MetaReg(Algorithm):
    """Cross entropy plus a weighted L1 norm of the head, whose weights are learned in a preparation."""

    paper = "Balaji et al.: MetaReg: Towards Domain Generalization using Meta-Regularization. NeurIPS, 2018."
    needs = ("own optimizers", "a preparation")
    groups_by_domain = True
    Hyperparameters = MetaRegHyperparameters
    hyperparameters: MetaRegHyperparameters
    start: Tensor
    min_domains = 2

    def __init__(self, predictor: nn.Module, hyperparameters: hp.Hyperparameters, run_info: RunInfo) -> None:
        super().__init__(predictor, hyperparameters, run_info)
        head = networks.head(self.predictor)
        self.n_classes = head.out_features
        self.heads = nn.Linear(head.in_features, self.n_domains * self.n_classes)
        self.phi = nn.Parameter(torch.zeros(self.n_classes, head.in_features + 1))
        self.register_buffer("start", torch.cat([value.flatten() for value in self._initial_values()]))

    @classmethod
    def preparation_steps(cls, hyperparameters: hp.Hyperparameters, steps: int) -> int:
        """Return the length of the preparation."""
        assert isinstance(hyperparameters, MetaRegHyperparameters)
        return round(hyperparameters.preparation * steps)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return one optimizer for the network and the heads of the domains, and one for the regularizer."""
        return {
            "main": self.optimizer([*self.predictor.parameters(), *self.heads.parameters()]),
            "regularizer": self.optimizer([self.phi], "adam", lr=self.hyperparameters.meta_lr, weight_decay=0),
        }

    def phase(self, step: int) -> str:
        """Return whether a step belongs to the preparation."""
        return PREPARATION if step <= self.run_info.n_preparation else "training"

    @torch.no_grad()
    def on_phase_start(self, phase: str) -> None:
        """Start the training: restore the network as it was before the preparation, and reset the optimizers."""
        values = self._initial_values()
        starts = torch.split(self.start, [value.numel() for value in values])
        for value, start in zip(values, starts, strict=True):
            value.copy_(start.view_as(value))
        self.reset_optimizers()

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Draw two different domains, on whose images heads are trained and tested."""
        noise = super().draw_randomness(generator, step)
        return {**noise, "pair": random_order(generator, self.n_domains)[:2]}

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """The regularized cross entropy, or in the preparation the sum of all losses: no two share a gradient."""
        features, labels = self.head_inputs(batch, noise), self.labels(batch)
        if self.phase(batch.step) != PREPARATION:
            head = networks.head(self.predictor)
            theta = torch.cat([head.weight, head.bias[:, None]], 1)
            return functional.cross_entropy(self.head(features), labels) + (self.phi.detach() * theta.abs()).sum()
        with torch.autocast(features.device.type, enabled=False):
            inputs = self.by_domain(functional.pad(features.float(), (0, 1), value=1.0))  # the last column is the bias
            labels = self.by_domain(labels)
            theta = torch.cat([self.heads.weight, self.heads.bias[:, None]], 1).view(self.n_domains, self.n_classes, -1)
            scores = torch.einsum("dif,dcf->dic", inputs, theta)
            task_loss = functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
            return task_loss + self.meta_loss(inputs.detach(), labels, theta.detach(), noise["pair"])

    def meta_loss(self, inputs: Tensor, labels: Tensor, theta: Tensor, pair: Tensor) -> Tensor:
        """Train the head of one domain on its images with the regularizer, and return its cross entropy in another."""
        # With a tensor as index, so that a captured graph reads the domains from the noise.
        (train_inputs, test_inputs), (train_labels, test_labels), (beta, _) = (
            rows.index_select(0, pair) for rows in (inputs, labels, theta)
        )
        # Written out, the gradient of the cross entropy is differentiated as any other expression.
        targets = functional.one_hot(train_labels, self.n_classes).to(inputs.dtype)
        for _ in range(self.hyperparameters.unroll - 1):
            gradient = ((train_inputs @ beta.T).softmax(1) - targets).T @ train_inputs / len(targets)
            beta = beta - self.hyperparameters.inner_lr * (gradient + self.phi * beta.sign())
        return functional.cross_entropy(test_inputs @ beta.T, test_labels)

    def _initial_values(self) -> list[Tensor]:
        """The tensors of the network that a training changes, with the statistics of batch norms."""
        return [value.detach() for value in self.predictor.state_dict().values() if value.is_floating_point()]


ALGORITHM = MetaReg
