"""MTL: classify from an image together with the mean features of its domain.

Blanchard, Deshmukh, Dogan, Lee and Scott, "Domain Generalization by Marginal Transfer Learning", JMLR 2021, as a
network in DomainBed's form. The head receives the features z of an image and the embedding m_e of its domain:

    head([z, m_e]),      in training  m_e <- ema · mean of the batch's z of domain e + (1 - ema) · m_e,  from m_e = 0.

As in DomainBed, `ema` is the weight of the batch, so 1 means no memory. Gradients flow through the batch's mean but not
through the remembered part.

The loss is the mean over the n domains, while DomainBed takes the sum. Adam's steps do not depend on the scale of the
loss, apart from Adam's ε, but weight decay and clipping do. A weight decay w here acts like n w in DomainBed, and
`--clip c` here like a clip at n c there.

An unknown domain has no memory. In evaluation, m is the mean over the images that are evaluated together: `batch_size`
images of one domain, as in training. Predictions therefore depend on the grouping. Public code overwrites the embedding
with random numbers before the head receives it; this file uses the embedding.

The embeddings are not part of the predictor, which does not need them. Checkpoints contain them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.testbed.algorithms import hyperparameters as hp
from swad.testbed.algorithms._wrapped import Grouped
from swad.testbed.algorithms.base import Algorithm, Batch, Noise, RunInfo
from swad.testbed.algorithms.hyperparameters import Choice, Hyperparameters, hyper
from swad.testbed.models import networks


@dataclass(frozen=True)
class MTLHyperparameters(Hyperparameters):
    """The common hyperparameters and how fast a domain's embedding moves."""

    ema: float = hyper(
        0.99,
        Choice((0.5, 0.9, 0.99, 1)),
        "weight of the batch in its domain's embedding; 1: no memory",
        high=1,
        domainbed="mtl_ema",
    )


class EmbeddingPredictor(Grouped):
    """A network whose head also receives the mean features of the images that are predicted together."""

    def __init__(self, network: nn.Module, group_size: int) -> None:
        super().__init__(network, group_size)
        head = networks.head(network)
        head_name = next(name for name, module in network.named_modules() if module is head)
        network.set_submodule(head_name, nn.Linear(2 * head.in_features, head.out_features))

    def forward_head(self, maps: Tensor, pre_logits: bool = False) -> Tensor:
        """Return class scores, with the mean of each group as the embedding."""
        features = super().forward_head(maps, pre_logits=True)
        if pre_logits:
            return features
        return cast(Tensor, self.get_classifier()(torch.cat([features, self.group_means(features)], 1)))


class MTL(Algorithm):
    """Cross entropy of a head that receives the image and its domain."""

    paper = "Blanchard et al.: Domain Generalization by Marginal Transfer Learning. JMLR, 2021."
    needs = ("grouped evaluation",)
    groups_by_domain = True
    Hyperparameters = MTLHyperparameters
    hyperparameters: MTLHyperparameters
    embeddings: Tensor

    def __init__(self, predictor: nn.Module, hyperparameters: hp.Hyperparameters, run_info: RunInfo) -> None:
        super().__init__(predictor, hyperparameters, run_info)
        self.n_features = networks.head(self.predictor).in_features // 2
        self.register_buffer("embeddings", torch.zeros(self.n_domains, self.n_features))

    @classmethod
    def wrap_predictor(cls, network: nn.Module, hyperparameters: hp.Hyperparameters, n_domains: int) -> nn.Module:
        """Return the network with a head that is twice as wide."""
        return EmbeddingPredictor(network, hyperparameters.batch_size)

    @classmethod
    def eval_group_size(cls, hyperparameters: hp.Hyperparameters) -> int:
        """Return the number of images of a domain in training."""
        return hyperparameters.batch_size

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Cut the dropout mask to the features, from which the embedding is made."""
        noise = super().draw_randomness(generator, step)
        return {name: rows[:, : self.n_features] for name, rows in noise.items()}

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean cross entropy, with the embedding of every image's domain."""
        features = self.head_inputs(batch, noise).float()
        ema = self.hyperparameters.ema
        embeddings = ema * self.by_domain(features).mean(1) + (1 - ema) * self.embeddings
        self.pending_buffers["embeddings"] = embeddings.detach()
        image_embeddings = embeddings.repeat_interleave(self.hyperparameters.batch_size, 0)
        return functional.cross_entropy(self.head(torch.cat([features, image_embeddings], 1)), self.labels(batch))


ALGORITHM = MTL
