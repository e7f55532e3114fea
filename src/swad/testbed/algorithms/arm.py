"""ARM: adapt to a domain by looking at several of its unlabeled images at once.

Zhang et al., "Adaptive Risk Minimization: Learning to Adapt to Domain Shift", NeurIPS 2021, in the variant with a
contextual meta-learner (ARM-CML), as in DomainBed. A context network c makes one map of every image x. The mean of the
maps over a group of B images of one domain is added to each of these images as one more channel. The loss is ERM's:

    f([x_k, 1/B Σ_l c(x_l)])

A group is the batch of a domain, 8 images, in training and in evaluation. Predictions depend on the grouping.

- The first convolution of the network gets one more input channel, which starts with the weights of the first channel,
  as in DomainBed; pretrained weights stay. In a ViT this convolution is the patch embedding.
- c is DomainBed's context network, three 5 × 5 convolutions of 64, 64 and 1 channels, but without batch norms. With
  running statistics, computing the loss would change the network, and the result would depend on which process computed
  which images. Norms of single images would remove brightness and contrast, which a context should convey. Kaiming
  initialization keeps the scale that batch norms would have kept.
- c is trained with the network (in DomainBed's version of 2020 no optimizer has it) and is part of the predictor, so it
  is averaged and saved.
- With several processes, each of them computes the context of all images, so that a step equals that of one process.

c works at the full resolution of the images: at 224 pixels it costs more than a ResNet-50. `context_width` makes it
smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from swad.testbed.algorithms import hyperparameters as hp
from swad.testbed.algorithms._wrapped import Grouped
from swad.testbed.algorithms.erm import ERM
from swad.testbed.algorithms.hyperparameters import Constant, Hyperparameters, Power, hyper
from swad.testbed.models import networks


@dataclass(frozen=True)
class ARMHyperparameters(Hyperparameters):
    """The common hyperparameters, with a small batch as the group, and the size of the context network."""

    batch_size: int = hyper(
        8,
        Constant(8),
        "images of every source domain in a step, and in a group",
        low=1,
        low_res=Power(2, 3, 9, integer=True),
    )
    context_width: int = hyper(64, Constant(64), "channels inside the context network", low=1)


class ContextPredictor(Grouped):
    """A network that receives the mean map of the images that are predicted together as one more channel."""

    network: nn.Module

    def __init__(self, network: nn.Module, group_size: int, width: int) -> None:
        super().__init__(network, group_size)
        channels = _add_input_channel(network)
        sizes = (channels, width, width, 1)
        convolutions = [nn.Conv2d(*pair, 5, padding=2) for pair in pairwise(sizes)]
        for convolution in convolutions:
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
        first, second, last = convolutions
        self.context = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the network's last feature map, with the mean of each group as the context."""
        return super().forward_features(append_channel(images, self.group_means(self.context(images))))


def append_channel(images: Tensor, context: Tensor) -> Tensor:
    """Return the images with the context as one more channel."""
    return torch.cat([images, context.to(images.dtype)], 1)


def _add_input_channel(network: nn.Module) -> int:
    """Give the convolution that receives the images one more channel, and return how many it had."""
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    first = convolutions[0] if convolutions else None
    channels = first.in_channels if first is not None else 0
    # Further convolutions with as few channels receive the images too (RepVGG, CrossViT). More than four channels mean
    # that the images were rearranged before (TResNet).
    alone = channels <= 4 and not any(conv.in_channels == channels and conv.groups == 1 for conv in convolutions[1:])
    if first is None or first.groups != 1 or not alone:
        raise networks.NetworkError(
            "ARM adds a channel to the convolution that receives the images and needs exactly one such convolution, "
            f"which {type(network).__name__} does not have: choose another network"
        )
    first.weight = nn.Parameter(torch.cat([first.weight, first.weight[:, :1]], 1).detach())
    first.in_channels = channels + 1
    return channels


class ARM(ERM):
    """Cross entropy of a network that receives the context of its domain."""

    paper = "Zhang et al.: Adaptive Risk Minimization: Learning to Adapt to Domain Shift. NeurIPS, 2021."
    needs = ("grouped evaluation",)
    groups_by_domain = True
    Hyperparameters = ARMHyperparameters
    predictor: ContextPredictor

    @classmethod
    def wrap_predictor(cls, network: nn.Module, hyperparameters: hp.Hyperparameters, n_domains: int) -> nn.Module:
        """Return the network with its context network."""
        assert isinstance(hyperparameters, ARMHyperparameters)
        return ContextPredictor(network, hyperparameters.batch_size, hyperparameters.context_width)

    @classmethod
    def eval_group_size(cls, hyperparameters: hp.Hyperparameters) -> int:
        """Return the number of images of a domain in training."""
        return hyperparameters.batch_size

    def features(self, images: Tensor) -> Tensor:
        """Return the features of local images, in the context of the whole batch."""
        return self._features(self.predictor.network, self._with_context(images))

    def predict(self, images: Tensor) -> Tensor:
        """Return the class scores of local images, in the context of the whole batch."""
        return self._predict(self.predictor.network, self._with_context(images)).float()

    def _with_context(self, images: Tensor) -> Tensor:
        maps = self.predictor.context(self.gather(images))
        contexts = self.by_domain(maps.float()).mean(1)
        return append_channel(images, contexts.repeat_interleave(len(images) // self.n_domains, 0))


ALGORITHM = ARM
