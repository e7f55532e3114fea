"""ARM: a network that adapts to a domain by looking at several of its unlabeled images at once.

Zhang et al., "Adaptive Risk Minimization: Learning to Adapt to Domain Shift", NeurIPS 2021: the variant with a
contextual meta-learner (ARM-CML), as in DomainBed. A context network c makes one map of every image x, the mean over a
group of B images of one domain is laid beside each of them as one more channel, and the loss is ERM's:

    f([x_k, 1/B Σ_l c(x_l)])

A group is the batch of a domain, 8 images, in training as in evaluation, so predictions depend on the grouping.

- The first convolution of the network is widened by a channel that begins with the weights of the first channel, as in
  DomainBed; pretrained weights stay. It is a ViT's patch embedding as well.
- c is DomainBed's, three 5 × 5 convolutions of 64, 64 and 1 channels, without its batch norms. Trained statistics
  would make a loss that changes the network when it is computed, and that depends on who computed which images; norms
  of one image would take brightness and contrast from it, which is what a context has to tell. Kaiming's
  initialization keeps the scale that they would have kept.
- c is trained with the network (in DomainBed's version of 2020 it is in no optimizer) and is a part of the predictor:
  averaged with it and saved with it.
- Several processes compute the context of all images each, so that a step is that of one process.

c works at the images' full resolution: at 224 pixels it costs more than a ResNet-50. `context_width` makes it smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from swad.algorithms import hyperparameters as hp
from swad.algorithms._grouped import Grouped
from swad.algorithms.erm import ERM
from swad.algorithms.hyperparameters import Constant, Power, hyper
from swad.models import networks


@dataclass(frozen=True)
class ARMHyperparameters(hp.Hyperparameters):
    """The common ones, with a small group, and the size of the context network."""

    batch_size: int = hyper(
        8, Constant(8), "images of every source domain in a step, and in a group", low=1, small=Power(2, 3, 9, True)
    )
    context_width: int = hyper(64, Constant(64), "channels inside the context network", low=1)


class Context(Grouped):
    """A network that sees the mean map of the images that are predicted together as one more channel."""

    network: nn.Module

    def __init__(self, network: nn.Module, group: int, width: int) -> None:
        super().__init__(network, group)
        channels = _widen(network)
        sizes = (channels, width, width, 1)
        convolutions = [nn.Conv2d(*pair, 5, padding=2) for pair in pairwise(sizes)]
        for one in convolutions:
            nn.init.kaiming_normal_(one.weight, nonlinearity="relu")
        first, second, last = convolutions
        self.context = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)

    def forward_features(self, images: Tensor) -> Tensor:
        """The network's last map of features, the context being the mean of each group."""
        return super().forward_features(beside(images, self.means(self.context(images))))


def beside(images: Tensor, context: Tensor) -> Tensor:
    """Images with one more channel."""
    return torch.cat([images, context.to(images.dtype)], 1)


def _widen(network: nn.Module) -> int:
    """Give the convolution that sees the images one more channel, and say how many it had."""
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    first = convolutions[0] if convolutions else None
    channels = first.in_channels if first is not None else 0
    # Others with so few channels see the images too (RepVGG, CrossViT), and more were made of them (TResNet).
    alone = channels <= 4 and not any(one.in_channels == channels and one.groups == 1 for one in convolutions[1:])
    if first is None or first.groups != 1 or not alone:
        raise networks.NetworkError(
            f"ARM widens the one convolution that sees the images, and {type(network).__name__} has no such: choose "
            "another network"
        )
    first.weight = nn.Parameter(torch.cat([first.weight, first.weight[:, :1]], 1).detach())
    first.in_channels = channels + 1
    return channels


class ARM(ERM):
    """Cross entropy of a network that sees its domain's context."""

    paper = "Zhang et al.: Adaptive Risk Minimization: Learning to Adapt to Domain Shift. NeurIPS, 2021."
    needs = ("domain labels", "grouped evaluation")
    Hyperparameters = ARMHyperparameters
    predictor: Context

    @classmethod
    def wrap_predictor(cls, network: nn.Module, hyperparameters: hp.Hyperparameters) -> nn.Module:
        """The network with its context."""
        assert isinstance(hyperparameters, ARMHyperparameters)
        return Context(network, hyperparameters.batch_size, hyperparameters.context_width)

    @classmethod
    def eval_group_size(cls, hyperparameters: hp.Hyperparameters) -> int:
        """As many as of a domain in training."""
        return hyperparameters.batch_size

    def features(self, images: Tensor) -> Tensor:
        """What the head sees of every image of this process, in the context of everyone's."""
        return self._features(self.predictor.network, self._informed(images))

    def predict(self, images: Tensor) -> Tensor:
        """Class scores of this process's images, in the context of everyone's."""
        return self._predict(self.predictor.network, self._informed(images)).float()

    def _informed(self, images: Tensor) -> Tensor:
        maps = self.predictor.context(self.gather(images))
        contexts = self.by_domain(maps.float()).mean(1)
        return beside(images, contexts.repeat_interleave(len(images) // self.n_domains, 0))


ALGORITHM = ARM
