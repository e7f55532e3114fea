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

With the default hyperparameters, which are DomainBed's, the losses diverged in all four runs on PACS with ResNet-50
(`benchmarks/results/pacs-resnet50-dann`), as users of DomainBed report too (its issues 132 and 60). With `adversary` at
0.1, the loss of all twelve runs falls for 500 to 1,100 of 5,000 steps and rises later (`pacs-resnet50/PACS/dann`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.testbed.algorithms import hyperparameters as hp
from swad.testbed.algorithms._helpers import dropout_mask
from swad.testbed.algorithms.base import Algorithm, Batch, Noise, RunInfo, StepContext
from swad.testbed.algorithms.hyperparameters import Choice, Constant, Hyperparameters, Power, hyper
from swad.testbed.models import networks

DISCRIMINATOR, GENERATOR = "discriminator", "generator"
"""The names of the two phases and of their optimizers."""


@dataclass(frozen=True)
class DANNHyperparameters(Hyperparameters):
    """The common hyperparameters, learning rates of both sides, and the discriminator's architecture."""

    weight_decay: float = hyper(0.0, Constant(0), "must be 0: the two sides have wd_g and wd_d")
    lr_g: float = hyper(
        0.0, Power(10, -5, -3.5), "learning rate of the predictor; 0: same as lr", low_res=Power(10, -4.5, -2.5)
    )
    lr_d: float = hyper(
        0.0, Power(10, -5, -3.5), "learning rate of the discriminator; 0: same as lr", low_res=Power(10, -4.5, -2.5)
    )
    wd_g: float = hyper(
        0.0, Power(10, -6, -2), "L2 penalty of the predictor", low_res=Constant(0), domainbed="weight_decay_g"
    )
    wd_d: float = hyper(0.0, Power(10, -6, -2), "L2 penalty of the discriminator", domainbed="weight_decay_d")
    adversary: float = hyper(
        1.0, Power(10, -2, 2), "weight of the discriminator's loss in the predictor's, λ", domainbed="lambda"
    )
    d_steps: int = hyper(
        1,
        Power(2, 0, 3, integer=True),
        "discriminator steps for each predictor step",
        low=1,
        domainbed="d_steps_per_g_step",
    )
    grad_penalty: float = hyper(0.0, Power(10, -2, 1), "weight of the squared gradient at the discriminator's input")
    beta1: float = hyper(0.5, Choice((0, 0.5)), "first beta of Adam on both sides; the second is .9", below=1)
    mlp_width: int = hyper(256, Power(2, 6, 10, integer=True), "units of a hidden layer of the discriminator", low=1)
    mlp_depth: int = hyper(3, Choice((3, 4, 5)), "linear layers of the discriminator", low=2)
    mlp_dropout: float = hyper(
        0.0, Choice((0, 0.1, 0.5)), "fraction of the discriminator's hidden units dropped", below=1
    )

    def problems(self) -> list[str]:
        """Check also that weight decay is set for each side."""
        problems = super().problems()
        if not problems and self.weight_decay:
            problems.append(f"weight_decay must be 0, got {self.weight_decay}: set wd_g and wd_d, one for each side")
        return problems


class Discriminator(nn.Module):
    """Linear layers with dropout and ReLU between them, like DomainBed's MLP; the dropout masks are an input."""

    def __init__(self, n_inputs: int, n_outputs: int, width: int, depth: int) -> None:
        super().__init__()
        sizes = [n_inputs, *[width] * (depth - 1), n_outputs]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))

    def forward(self, features: Tensor, dropout_masks: Tensor | None = None) -> Tensor:
        """Return the scores of the domains; `dropout_masks[k]` multiplies the k-th hidden layer."""
        *hidden, last = self.layers
        rows = features
        for k, layer in enumerate(hidden):
            rows = layer(rows)
            rows = functional.relu(rows if dropout_masks is None else rows * dropout_masks[k])
        scores: Tensor = last(rows)
        return scores


class DANN(Algorithm):
    """Cross entropy against a discriminator of domains; each side has a phase, a loss and an optimizer."""

    paper = "Ganin et al.: Domain-Adversarial Training of Neural Networks. JMLR, 2016."
    needs = ("own optimizers",)
    groups_by_domain = True
    Hyperparameters = DANNHyperparameters
    hyperparameters: DANNHyperparameters
    min_domains = 2
    conditional = False
    """Whether the discriminator knows the class."""

    def __init__(self, predictor: nn.Module, hyperparameters: hp.Hyperparameters, run_info: RunInfo) -> None:
        super().__init__(predictor, hyperparameters, run_info)
        hparams, head = self.hyperparameters, networks.head(self.predictor)
        self.n_classes = head.out_features
        self.discriminator = Discriminator(head.in_features, self.n_domains, hparams.mlp_width, hparams.mlp_depth)
        self.class_embeddings = nn.Embedding(self.n_classes, head.in_features) if self.conditional else None

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return one optimizer for each side."""
        hparams, betas = self.hyperparameters, (self.hyperparameters.beta1, 0.9)
        discriminator = [*self.discriminator.parameters()]
        if self.class_embeddings is not None:
            discriminator += self.class_embeddings.parameters()
        lr_g, lr_d = hparams.lr_g or hparams.lr, hparams.lr_d or hparams.lr
        return {
            GENERATOR: self.optimizer(self.predictor.parameters(), betas=betas, lr=lr_g, weight_decay=hparams.wd_g),
            DISCRIMINATOR: self.optimizer(discriminator, betas=betas, lr=lr_d, weight_decay=hparams.wd_d),
        }

    def phase(self, step: int) -> str:
        """Return whose turn it is. As in DomainBed, the first turn of the discriminator is one step shorter."""
        d_steps = self.hyperparameters.d_steps
        return DISCRIMINATOR if step % (1 + d_steps) < d_steps else GENERATOR

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Add the dropout masks of the discriminator."""
        noise, hparams = super().draw_randomness(generator, step), self.hyperparameters
        if hparams.mlp_dropout:
            shape = (hparams.mlp_depth - 1, self.n_images, hparams.mlp_width)
            noise["hidden_dropout_mask"] = dropout_mask(generator, hparams.mlp_dropout, *shape)
        return noise

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """The loss of the side whose turn it is."""
        labels = self.labels(batch)
        if self.phase(batch.step) == DISCRIMINATOR:
            with torch.no_grad():  # the predictor is not trained in this phase
                features = self.head_inputs(batch, noise)
            return self.domain_loss(features, labels, noise)
        features = self.head_inputs(batch, noise)
        adversary = self.hyperparameters.adversary * self.domain_loss(features, labels, noise)
        return functional.cross_entropy(self.head(features), labels) - adversary

    def update(self, batch: Batch, noise: Noise, ctx: StepContext) -> Tensor:
        """Make one step of the side whose turn it is."""
        loss = self.backward(self.loss, batch, noise, ctx)
        self.step(ctx, self.phase(batch.step))
        return loss

    def domain_loss(self, features: Tensor, labels: Tensor, noise: Noise) -> Tensor:
        """Return the discriminator's loss over the whole batch, in full precision, with its gradient penalty."""
        penalty = self.hyperparameters.grad_penalty
        with torch.autocast(features.device.type, enabled=False):
            inputs = features.float()
            if self.class_embeddings is not None:
                inputs = inputs + self.class_embeddings(labels)
            if penalty and not inputs.requires_grad:
                inputs.requires_grad_()
            scores = self.discriminator(inputs, noise.get("hidden_dropout_mask"))
            losses = functional.cross_entropy(scores, self.domain_labels(scores), reduction="none")
            loss = (losses * self.image_weights(labels)).sum()
            if penalty:
                # The gradient is taken at the discriminator's input, so only the discriminator is differentiated twice.
                (gradient,) = torch.autograd.grad(losses.sum(), inputs, create_graph=True)
                loss = loss + penalty * gradient.square().sum(1).mean()
            return loss

    def image_weights(self, labels: Tensor) -> Tensor:
        """Return the weight of every image in the discriminator's loss: all equal."""
        return torch.full((len(labels),), 1 / len(labels), device=labels.device)


ALGORITHM = DANN
