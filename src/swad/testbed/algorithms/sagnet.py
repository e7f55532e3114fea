"""SagNet: classify by content, and make the style of features useless.

Nam, Lee, Park, Yoon and Yoo, "Reducing Domain Gap by Reducing Style Bias", CVPR 2021. The style of an image is the mean
and the deviation of its features; its content are the features normalized by them. As in DomainBed, this is applied to
the pooled features z of any network, with μ and σ² over the features of one image, ε = 1e-5, and partner images k' from
a random permutation of the whole batch:

    1. content:    f and c minimize  CE(c(style-randomized z), y):   the content of z_k with  μ = α μ_k + (1 - α) μ_k',
                   σ² likewise, α ~ U(0, 1) for every image
    2. style:      s minimizes       CE(s(content-randomized z), y): the content of z_k', without gradient, in the
                   style of z_k
    3. adversary:  f minimizes       w_adv · mean over images and classes of -log softmax s(content-randomized z)

Here f is the network, c its head and s a second head, each with an Adam of its own; f steps twice. (In the paper, the
branches are the last stages of a ResNet and feature maps are randomized. DomainBed's branches are linear and work with
any network.) Parts 2 and 3 use the same weights of f, so one pass serves both: a step takes two passes, where public
code makes three. With dropout, each part has a mask of its own.

The predictor is f and c. The reported loss is that of part 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.testbed.algorithms import hyperparameters as hp
from swad.testbed.algorithms._helpers import apply_mask, random_order
from swad.testbed.algorithms.base import Algorithm, Batch, Noise, RunInfo, StepContext
from swad.testbed.algorithms.hyperparameters import Hyperparameters, Power, hyper
from swad.testbed.models import networks

EPS = 1e-5


@dataclass(frozen=True)
class SagNetHyperparameters(Hyperparameters):
    """The common hyperparameters and the weight of the adversary."""

    w_adv: float = hyper(0.1, Power(10, -2, 1), "weight of the adversary against style", domainbed="sag_w_adv")


class SagNet(Algorithm):
    """Cross entropy under randomized style, against a head that predicts from style."""

    paper = "Nam et al.: Reducing Domain Gap by Reducing Style Bias. CVPR, 2021."
    needs = ("two passes", "own optimizers")
    Hyperparameters = SagNetHyperparameters
    hyperparameters: SagNetHyperparameters
    dropout_masks = ("dropout_mask", "dropout_mask_style", "dropout_mask_adversary")

    def __init__(self, predictor: nn.Module, hyperparameters: hp.Hyperparameters, run_info: RunInfo) -> None:
        super().__init__(predictor, hyperparameters, run_info)
        head = networks.head(self.predictor)
        self.style = nn.Linear(head.in_features, head.out_features)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return one optimizer each for the network, its head and the style head."""
        content = list(networks.head(self.predictor).parameters())
        head_ids = {id(weight) for weight in content}
        return {
            "features": self.optimizer(weight for weight in self.predictor.parameters() if id(weight) not in head_ids),
            "content": self.optimizer(content),
            "style": self.optimizer(self.style.parameters()),
        }

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Add partners for the three parts, and how far part 1 mixes styles."""
        noise = super().draw_randomness(generator, step)
        order = random_order(generator, 3, self.n_images)
        mix = torch.rand((self.n_images, 1), generator=generator, device=generator.device)
        return {**noise, "partner": order, "mix": mix}

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Part 1: the cross entropy of the content under randomized style."""
        mixed = other_style(self.head_inputs(batch, noise).float(), noise["partner"][0], noise["mix"])
        return functional.cross_entropy(self.head(mixed), self.labels(batch))

    def update(self, batch: Batch, noise: Noise, ctx: StepContext) -> Tensor:
        """Make the steps of the three parts in order."""
        content_loss = self.backward(self.loss, batch, noise, ctx)
        self.step(ctx, "features", "content")

        labels = self.labels(batch)
        with ctx.autocast():
            features = self.gather(self.features(batch.images)).float()
            inputs = apply_mask(features.detach(), noise.get("dropout_mask_style"))
            scores = self.style(other_content(inputs, noise["partner"][1])).float()
            style_loss = functional.cross_entropy(scores, labels)
        style_loss.backward()  # type: ignore[no-untyped-call]
        self.step(ctx, "style")

        self.optimizers["features"].zero_grad()
        with ctx.autocast():
            inputs = apply_mask(features, noise.get("dropout_mask_adversary"))
            scores = self.style(other_content(inputs, noise["partner"][2])).float()
            adversarial_loss = self.hyperparameters.w_adv * -scores.log_softmax(1).mean()
        adversarial_loss.backward()
        self.step(ctx, "features")
        return content_loss


def other_style(rows: Tensor, partner: Tensor, mix: Tensor) -> Tensor:
    """Return the content of every row in a style between its own and its partner's."""
    content, mean, variance = _split(rows)
    mean = mix * mean + (1 - mix) * mean[partner]
    variance = mix * variance + (1 - mix) * variance[partner]
    return content * (variance + EPS).sqrt() + mean


def other_content(rows: Tensor, partner: Tensor) -> Tensor:
    """Return the content of every row's partner, without gradient, in the row's own style."""
    content, mean, variance = _split(rows)
    return content[partner].detach() * (variance + EPS).sqrt() + mean


def _split(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split every row into its content, and its style: mean and variance."""
    mean, variance = rows.mean(1, keepdim=True), rows.var(1, keepdim=True)
    return (rows - mean) / (variance + EPS).sqrt(), mean, variance


ALGORITHM = SagNet
