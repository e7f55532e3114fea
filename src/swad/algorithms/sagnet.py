"""SagNet: classes told apart by content, with the style of features made useless.

Nam, Lee, Park, Yoon and Yoo, "Reducing Domain Gap by Reducing Style Bias", CVPR 2021. The style of an image is the
mean and the deviation of its features, the content what is left when they are taken off. As in DomainBed, on the
pooled features z of any network, with μ and σ² over the features of one image, ε = 1e-5 and partner images k' by a
random permutation of the whole batch:

    1. content:    f and c descend  CE(c(style-randomized z), y):   the content of z_k with  μ = α μ_k + (1 - α) μ_k',
                   σ² likewise, α ~ U(0, 1) for every image
    2. style:      s descends       CE(s(content-randomized z), y): the content of z_k', without gradient, in the
                   style of z_k
    3. adversary:  f descends       w_adv · mean over images and classes of -log softmax s(content-randomized z)

with f the network, c its head and s a second head, each with an Adam of its own; f steps twice. (In the paper the
branches are the last stages of a ResNet, randomized in its maps; DomainBed's are linear, for any network.) Parts 2 and
3 see the same weights of f, so one pass serves both: a step is two passes, where public code makes three. With
dropout, each part has its mask.

The predictor is f and c. The loss that is reported is that of the content.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.algorithms import hyperparameters as hp
from swad.algorithms.base import Algorithm, Noise, StepContext
from swad.algorithms.hyperparameters import Power, hyper
from swad.data.loaders import Batch
from swad.models import networks

EPS = 1e-5


@dataclass(frozen=True)
class SagNetHyperparameters(hp.Hyperparameters):
    """The common ones, and the adversary's weight."""

    w_adv: float = hyper(0.1, Power(10, -2, 1), "weight of the adversary against style")


class SagNet(Algorithm):
    """Cross entropy on randomized style, against a head that sees style."""

    paper = "Nam et al.: Reducing Domain Gap by Reducing Style Bias. CVPR, 2021."
    needs = ("two passes", "own optimizers")
    Hyperparameters = SagNetHyperparameters
    hyperparameters: SagNetHyperparameters

    def __init__(self, predictor: nn.Module, hyperparameters: hp.Hyperparameters, n_domains: int) -> None:
        super().__init__(predictor, hyperparameters, n_domains)
        head = networks.head(self.predictor)
        self.style = nn.Linear(head.in_features, head.out_features)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """An Adam each for the network, its head, and the head that sees style."""
        content = list(networks.head(self.predictor).parameters())
        own = {id(weight) for weight in content}
        return {
            "features": self.adam(weight for weight in self.predictor.parameters() if id(weight) not in own),
            "content": self.adam(content),
            "style": self.adam(self.style.parameters()),
        }

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """The three parts' partners and dropout, and how far the first mixes styles."""
        drawn = {
            f"{name}{part}": rows
            for part in ("", "_style", "_adversary")
            for name, rows in super(SagNet, self).draw_randomness(generator, step).items()
        }
        order = torch.rand((3, self.n_images), generator=generator, device=generator.device).argsort(1)
        mix = torch.rand((self.n_images, 1), generator=generator, device=generator.device)
        return {**drawn, "partner": order, "mix": mix}

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """The cross entropy of the content, with the style randomized."""
        mixed = other_style(self.head_inputs(batch, noise).float(), noise["partner"][0], noise["mix"])
        return functional.cross_entropy(self.head(mixed), self.labels(batch))

    def update(self, batch: Batch, noise: Noise, ctx: StepContext) -> Tensor:
        """The three parts, one after the other."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        with ctx.autocast():
            content = self.loss(batch, noise)
        content.backward()  # type: ignore[no-untyped-call]
        self.step(ctx, "features", "content")

        labels = self.labels(batch)
        with ctx.autocast():
            features = self.gather(self.features(batch.images)).float()
            seen = _dropped(features.detach(), noise.get("dropout_mask_style"))
            style = functional.cross_entropy(self.style(other_content(seen, noise["partner"][1])).float(), labels)
        style.backward()  # type: ignore[no-untyped-call]
        self.step(ctx, "style")

        self.optimizers["features"].zero_grad()
        with ctx.autocast():
            seen = _dropped(features, noise.get("dropout_mask_adversary"))
            scores = self.style(other_content(seen, noise["partner"][2])).float()
            adversary = self.hyperparameters.w_adv * -scores.log_softmax(1).mean()
        adversary.backward()
        self.step(ctx, "features")
        return content.detach()


def other_style(rows: Tensor, partner: Tensor, mix: Tensor) -> Tensor:
    """The content of every row in a style between its own and its partner's."""
    content, mean, variance = _taken_apart(rows)
    mean = mix * mean + (1 - mix) * mean[partner]
    variance = mix * variance + (1 - mix) * variance[partner]
    return content * (variance + EPS).sqrt() + mean


def other_content(rows: Tensor, partner: Tensor) -> Tensor:
    """The content of every row's partner, without gradient, in the row's own style."""
    content, mean, variance = _taken_apart(rows)
    return content[partner].detach() * (variance + EPS).sqrt() + mean


def _taken_apart(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mean, variance = rows.mean(1, keepdim=True), rows.var(1, keepdim=True)
    return (rows - mean) / (variance + EPS).sqrt(), mean, variance


def _dropped(rows: Tensor, keep: Tensor | None) -> Tensor:
    return rows if keep is None else rows * keep


ALGORITHM = SagNet
