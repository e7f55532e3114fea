"""ER: learn features with the same conditional distribution of classes in every domain, by entropy regularization.

Zhao, Gong, Liu, Fu and Tao, "Domain Generalization via Entropy Regularization", NeurIPS 2020. Besides the network with
features f and head h there are a discriminator d of domains and, for each of n domains, two classifiers C_i and C'_i,
all MLPs with two hidden layers. Each step, with images x, labels y and domains e, has two parts:

    1. C_i minimizes   CE_w(C_i(f(x_i)), y_i)          on the images of its own domain, with f fixed
    2. the others minimize the sum of
         CE(h(f(x)), y)
       + CE_v(d(R(f(x), -λ_d)), e)                     domains must look alike
       + mean over i of CE_w(C_i(R(f(x_j≠i), λ_c)), y) other domains' images must suit C_i, which is fixed here
       + mean over i of CE_w(C'_i(R(f(x_i), -λ_cp)), y_i)       f must not help C'_i

R(f, λ) passes f on and multiplies its gradient by λ. So the three λ are not weights of losses: d and C'_i are trained
with the whole gradient. CE_w gives every class that occurs the same total weight, and CE_v weights a domain by the
inverse of its number of training images. λ_d = .1, λ_c = .05 and λ_cp = .001, the widths 1,024 and 256 of the MLPs, the
dropout of .5 before their last layer and their initialization are those of the published code, which trains C_i and
C'_i with a tenth of the learning rate (`lr_c`).

- Both parts use the same weights of f, so one pass serves both. The published code passes the images twice, which
  differs only for batch norms that are trained: they see every batch twice there.
- The published code was written for torch 1.1. There the optimizer step of part 1 also moved all other weights, by
  momentum and weight decay. Here, as with later versions of torch, it moves C_i alone.
- That code multiplies all losses by .01 in the first 10 of 100 epochs; `warm_up` does so, and is 0 by default, because
  to Adam a factor of the loss is not a factor of the step.
- `--recipe own` has the settings of that code. Its batch norms are trained: it freezes them once, and then puts them
  back into training mode. Its epochs are passes over the largest domain; here they are passes over as many images as
  there are, so training is shorter where domains have different sizes.

The predictor is f and h. The reported loss is that of part 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.testbed.algorithms import hyperparameters as hp
from swad.testbed.algorithms._helpers import apply_mask, dropout_mask, scale_gradient
from swad.testbed.algorithms.base import Algorithm, Batch, Noise, Recipe, RunInfo, StepContext
from swad.testbed.algorithms.hyperparameters import Constant, Hyperparameters, Power, hyper
from swad.testbed.models import networks

WARM_UP = 0.01


@dataclass(frozen=True)
class ERHyperparameters(Hyperparameters):
    """The common hyperparameters, the factors of three gradients, and settings of the classifiers."""

    lambda_d: float = hyper(0.1, Power(10, -2, 0), "factor of the discriminator's reversed gradient")
    lambda_c: float = hyper(0.05, Power(10, -2.5, -0.5), "factor of the gradient of other domains' classifiers")
    lambda_cp: float = hyper(0.001, Power(10, -4, -2), "factor of the reversed gradient of own classifiers")
    lr_c: float = hyper(0.1, Constant(0.1), "learning rate of the domains' classifiers, as a fraction of lr", above=0)
    mlp_width: int = hyper(
        256, Constant(256), "units of the MLPs' last hidden layer; the first has four times as many", low=1
    )
    mlp_dropout: float = hyper(0.5, Constant(0.5), "fraction of the MLPs' last hidden units dropped", below=1)
    warm_up: float = hyper(0.0, Constant(0), "share of training in which all losses are multiplied by .01", high=1)


class MLPs(nn.Module):
    """MLPs of the same shape, computed together: the k-th receives the k-th group of rows."""

    def __init__(self, n: int, n_inputs: int, width: int, n_outputs: int) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for n_in, n_out in pairwise((n_inputs, 4 * width, width, n_outputs)):
            bound = 0.1 * math.sqrt(6 / (n_in + n_out))  # Xavier's, with a gain of .1
            self.weights.append(nn.Parameter(torch.empty(n, n_in, n_out).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.zeros(n, 1, n_out)))

    def forward(self, rows: Tensor, dropout_mask: Tensor | None, *, fixed: bool = False) -> Tensor:
        """Return scores `[n, rows, outputs]` in full precision; `fixed` weights get no gradient."""
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if k:
                rows = rows.relu()
            if k == 2:
                rows = apply_mask(rows, dropout_mask)
            rows = torch.baddbmm(bias.detach(), rows, weight.detach()) if fixed else torch.baddbmm(bias, rows, weight)
        return rows.float()


class ER(Algorithm):
    """Cross entropy, against a discriminator of domains and classifiers of single domains."""

    paper = "Zhao, Gong, Liu, Fu and Tao: Domain Generalization via Entropy Regularization. NeurIPS, 2020."
    needs = ("own optimizers",)
    groups_by_domain = True
    Hyperparameters = ERHyperparameters
    hyperparameters: ERHyperparameters
    min_domains = 2
    own_recipe = Recipe(
        optimizer="sgd",
        momentum=0.9,
        lr_schedule="step:at=0.6,gamma=0.1",
        epochs=100,
        freeze_bn=False,
        augmentation={"crop": 0.8, "jitter": 0.4, "grayscale": 0},
        hyperparameters={"lr": 1e-3, "weight_decay": 5e-4, "batch_size": 64, "warm_up": 0.1},
    )

    def __init__(self, predictor: nn.Module, hyperparameters: hp.Hyperparameters, run_info: RunInfo) -> None:
        super().__init__(predictor, hyperparameters, run_info)
        head, width = networks.head(self.predictor), self.hyperparameters.mlp_width
        self.discriminator = MLPs(1, head.in_features, width, self.n_domains)
        self.classifiers = MLPs(self.n_domains, head.in_features, width, head.out_features)
        self.adversaries = MLPs(self.n_domains, head.in_features, width, head.out_features)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return one optimizer each for the predictor, the discriminator, the C_i and the C'_i."""
        lr_c = self.lr * self.hyperparameters.lr_c
        return {
            "main": self.optimizer(self.predictor.parameters()),
            "discriminator": self.optimizer(self.discriminator.parameters()),
            "classifiers": self.optimizer(self.classifiers.parameters(), lr=lr_c),
            "adversaries": self.optimizer(self.adversaries.parameters(), lr=lr_c),
        }

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Draw dropout masks for every use of the MLPs, and add the weight of the losses at this step."""
        noise, hparams, device = super().draw_randomness(generator, step), self.hyperparameters, generator.device
        if hparams.mlp_dropout:
            n, size = self.n_domains, hparams.batch_size
            rows = {"domain": (1, n * size), "own": (n, size), "other": (n, (n - 1) * size), "adversary": (n, size)}
            for name, shape in rows.items():
                noise[f"{name}_mask"] = dropout_mask(generator, hparams.mlp_dropout, *shape, hparams.mlp_width)
        weight = WARM_UP if step <= hparams.warm_up * self.run_info.total_steps else 1.0
        return {**noise, "weight": torch.full((), weight, device=device)}

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Part 2, with the C_i as they are."""
        return self._shared_loss(self.head_inputs(batch, noise), self.labels(batch), noise)

    def update(self, batch: Batch, noise: Noise, ctx: StepContext) -> Tensor:
        """Make the steps of both parts, with one pass over the images."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        labels = self.labels(batch)
        with ctx.autocast():
            features = self.head_inputs(batch, noise)
            own_loss = self._own_loss(features.detach(), labels, noise)
        own_loss.backward()  # type: ignore[no-untyped-call]
        self.step(ctx, "classifiers")
        with ctx.autocast():
            loss = self._shared_loss(features, labels, noise)
        loss.backward()  # type: ignore[no-untyped-call]
        self.step(ctx, "main", "discriminator", "adversaries")
        return loss.detach()

    def _own_loss(self, features: Tensor, labels: Tensor, noise: Noise) -> Tensor:
        """Part 1: the loss of every C_i on its own domain."""
        scores = self.classifiers(self.by_domain(features), noise.get("own_mask"))
        return noise["weight"] * balanced_cross_entropy(scores, self.by_domain(labels))

    def _shared_loss(self, features: Tensor, labels: Tensor, noise: Noise) -> Tensor:
        hparams = self.hyperparameters
        class_loss = functional.cross_entropy(self.head(features), labels)

        scores = self.discriminator(scale_gradient(features, -hparams.lambda_d)[None], noise.get("domain_mask"))[0]
        losses = functional.cross_entropy(scores, self.domain_labels(scores), reduction="none")
        domain_losses = self.by_domain(losses).mean(1)
        shares = [1 / size for size in self.run_info.domain_sizes]
        weighted = [share / sum(shares) * loss for share, loss in zip(shares, domain_losses, strict=True)]
        domain_loss = torch.stack(weighted).sum()

        inputs = self._other_domains(scale_gradient(features, hparams.lambda_c))
        scores = self.classifiers(inputs, noise.get("other_mask"), fixed=True)
        other_loss = balanced_cross_entropy(scores, self._other_domains(labels))

        inputs = self.by_domain(scale_gradient(features, -hparams.lambda_cp))
        scores = self.adversaries(inputs, noise.get("adversary_mask"))
        adversary_loss = balanced_cross_entropy(scores, self.by_domain(labels))
        return noise["weight"] * (class_loss + domain_loss + other_loss + adversary_loss)

    def _other_domains(self, rows: Tensor) -> Tensor:
        """Return for each domain the rows of all others: `[domains, images of the others, ...]`."""
        domains = self.by_domain(rows)
        return torch.stack([torch.cat([domains[:i], domains[i + 1 :]]).flatten(0, 1) for i in range(self.n_domains)])


def balanced_cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over groups of the cross entropy in which all classes of a group have the same total weight.

    Scores are `[groups, rows, classes]`, labels `[groups, rows]`.
    """
    counts = functional.one_hot(labels, scores.shape[-1]).sum(1)
    weight = 1 / counts.gather(1, labels)
    losses = functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
    return ((weight * losses).sum(1) / weight.sum(1)).mean()


ALGORITHM = ER
