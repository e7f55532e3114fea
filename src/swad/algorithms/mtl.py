"""MTL: a classifier that sees, beside an image, what the images of its domain are like on the whole.

Blanchard, Deshmukh, Dogan, Lee and Scott, "Domain Generalization by Marginal Transfer Learning", JMLR 2021, as
DomainBed made it a network: the head sees the features z of an image and its domain's embedding,

    head([z, m_e]),      in training  m_e <- ema · mean of the batch's z of domain e + (1 - ema) · m_e,  from m_e = 0.

`ema` is the share of the batch, as in DomainBed, so that 1 keeps no memory. The gradient goes through the batch's mean
and not through what is remembered. The loss is the mean over the domains (DomainBed: the sum, which to Adam is the
same).

An unknown domain has no memory: in evaluation m is the mean of the images that are evaluated together, `batch_size` of
one domain as in training, so predictions depend on that grouping. In public code the embedding is overwritten with
random numbers before the head sees it; here it is the embedding.

The embeddings are no part of the predictor, which needs none of them; they are in the checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.algorithms import hyperparameters as hp
from swad.algorithms._grouped import Grouped
from swad.algorithms.base import Algorithm, Noise
from swad.algorithms.hyperparameters import Choice, hyper
from swad.data.loaders import Batch
from swad.models import networks


@dataclass(frozen=True)
class MTLHyperparameters(hp.Hyperparameters):
    """The common ones, and how fast a domain's embedding moves."""

    ema: float = hyper(
        0.99, Choice((0.5, 0.9, 0.99, 1)), "share of the batch in its domain's embedding; 1: no memory", high=1
    )


class Embedding(Grouped):
    """A network whose head also sees the mean features of the images that are predicted together."""

    def __init__(self, network: nn.Module, group: int) -> None:
        super().__init__(network, group)
        head = networks.head(network)
        where = next(name for name, module in network.named_modules() if module is head)
        network.set_submodule(where, nn.Linear(2 * head.in_features, head.out_features))

    def forward_head(self, maps: Tensor, pre_logits: bool = False) -> Tensor:
        """Class scores, the embedding being the mean of each group."""
        features = super().forward_head(maps, pre_logits=True)
        if pre_logits:
            return features
        return cast(Tensor, self.get_classifier()(torch.cat([features, self.means(features)], 1)))


class MTL(Algorithm):
    """Cross entropy of a head that sees the image and its domain."""

    paper = "Blanchard et al.: Domain Generalization by Marginal Transfer Learning. JMLR, 2021."
    needs = ("domain labels", "grouped evaluation")
    Hyperparameters = MTLHyperparameters
    hyperparameters: MTLHyperparameters
    embeddings: Tensor

    def __init__(self, predictor: nn.Module, hyperparameters: hp.Hyperparameters, n_domains: int) -> None:
        super().__init__(predictor, hyperparameters, n_domains)
        self.n_features = networks.head(self.predictor).in_features // 2
        self.register_buffer("embeddings", torch.zeros(n_domains, self.n_features))

    @classmethod
    def wrap_predictor(cls, network: nn.Module, hyperparameters: hp.Hyperparameters) -> nn.Module:
        """The network with the wider head."""
        return Embedding(network, hyperparameters.batch_size)

    @classmethod
    def eval_group_size(cls, hyperparameters: hp.Hyperparameters) -> int:
        """As many as of a domain in training."""
        return hyperparameters.batch_size

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Dropout is for the features, from which the embedding is made."""
        return {name: rows[:, : self.n_features] for name, rows in super().draw_randomness(generator, step).items()}

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean cross entropy, every domain with its embedding."""
        features = self.head_inputs(batch, noise).float()
        ema = self.hyperparameters.ema
        embeddings = ema * self.by_domain(features).mean(1) + (1 - ema) * self.embeddings
        self.pending_buffers["embeddings"] = embeddings.detach()
        beside = embeddings.repeat_interleave(self.hyperparameters.batch_size, 0)
        return functional.cross_entropy(self.head(torch.cat([features, beside], 1)), self.labels(batch))


ALGORITHM = MTL
