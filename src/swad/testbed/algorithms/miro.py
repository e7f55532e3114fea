"""MIRO: stay close to the features of the initial weights, channel by channel.

Cha, Lee, Park and Chun, "Domain Generalization by Mutual-Information Regularization with Pre-trained Models", ECCV
2022. With the maps z_l of layer l, and the maps z⁰_l of a frozen network with the initial weights, for the same images:

    CE + λ Σ_l mean over all elements of ½ [(z_l - z⁰_l)² / σ_l² + log σ_l²],    σ_l² = softplus(b_l) + 1e-5

The sum is, up to a constant, a bound on the mutual information between both networks' features: the negative log
likelihood of z⁰ under a Gaussian with mean z and a variance that is trained. A channel whose features must change gets
a large variance, and then costs little. A small variance has a negative logarithm, so the loss may be below 0. λ is
`penalty`.

- There is one b for every channel of a layer, with ten times the learning rate of the network and the same weight
  decay. It starts at a variance of .1.
- The layers are the stem and the stages. In a ResNet these are the max pooling and the four residual stages; in a ViT
  the convolution of the patches and the last block of each quarter, with all tokens. In other networks they are those
  of `networks.stem` and `networks.stages`. The small network has two, its convolutions.
- The mean of the Gaussian is the feature itself. This is the identity as the encoder, which the published code uses.
- λ is .1 by default. The paper selects .01 on PACS and VLCS, and .1 on the others, for ResNet-50 (`--recipe own`), and
  1 for CLIP's ViT. All else in its results with SWAD is the protocol's.
- The frozen network has frozen batch norms. Its weights are in checkpoints, so that a resumed run has the same; only
  the trained network is evaluated, averaged and saved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.testbed.algorithms import hyperparameters as hp
from swad.testbed.algorithms._stage_hook import StageHook
from swad.testbed.algorithms.base import Batch, Noise, Recipe, RunInfo
from swad.testbed.algorithms.erm import ERM
from swad.testbed.algorithms.hyperparameters import Choice, Hyperparameters, hyper
from swad.testbed.models import networks

EPS = 1e-5
START = 0.1
"""The variance of every channel at the start."""
LR_RATIO = 10
"""Learning rate of the variances, as a multiple of the network's."""


@dataclass(frozen=True)
class MIROHyperparameters(Hyperparameters):
    """The common hyperparameters and the weight of the regularization."""

    penalty: float = hyper(0.1, Choice((0.01, 0.1, 1)), "λ, the weight of the distance to the initial features")


class MIRO(ERM):
    """Cross entropy, and a Gaussian likelihood of the features of the initial weights."""

    paper = (
        "Cha et al.: Domain Generalization by Mutual-Information Regularization with Pre-trained Models. ECCV, 2022."
    )
    needs = ("a frozen network",)
    mean_over_images = False  # split batches were not compared with whole ones
    Hyperparameters = MIROHyperparameters
    hyperparameters: MIROHyperparameters
    own_recipe = Recipe(
        by_dataset={name: Recipe(hyperparameters={"penalty": 0.01}) for name in ("PACS", "VLCS")},
    )

    def __init__(self, predictor: nn.Module, hyperparameters: hp.Hyperparameters, run_info: RunInfo) -> None:
        super().__init__(predictor, hyperparameters, run_info)
        self.frozen = networks.frozen_copy(self.predictor)
        self._maps, self._frozen_maps = MapRecorder(self.predictor), MapRecorder(self.frozen)
        raw = math.log(math.expm1(START - EPS))
        self.raw_variances = nn.ParameterList(torch.full((count,), raw) for count in self._maps.channels)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return one optimizer over the predictor and, with a larger learning rate, the variances."""
        network: dict[str, Any] = {"params": self.predictor.parameters()}
        variances = {"params": self.raw_variances.parameters(), "lr": LR_RATIO * self.lr}
        return {"main": self.optimizer([network, variances])}

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean cross entropy and the regularization of all layers."""
        with self._maps.recording() as maps:
            loss = super().loss(batch, noise)
        with torch.no_grad(), self._frozen_maps.recording() as frozen_maps:
            self._features(self.frozen, batch.images)
        # The mean over this process's images. The processes have equally many, so the mean over them is that of all.
        terms = [
            gaussian_loss(trained, frozen, functional.softplus(raw) + EPS)
            for trained, frozen, raw in zip(maps, frozen_maps, self.raw_variances, strict=True)
        ]
        return loss + self.hyperparameters.penalty * torch.stack(terms).sum()


def gaussian_loss(maps: Tensor, frozen: Tensor, variances: Tensor) -> Tensor:
    """Return the mean over all elements of ½ [(z - z⁰)² / σ² + log σ²], for maps with the channels last.

    All channels have equally many elements, so their mean squared distances are enough.
    """
    distances = (maps.float() - frozen.float()).square().flatten(0, -2).mean(0)
    return (distances / variances + variances.log()).mean() / 2


class MapRecorder:
    """Records the maps after the stem and the stages of a network. It is copied together with the network."""

    def __init__(self, network: nn.Module) -> None:
        layers = networks.stem(network) + list(zip(networks.stages(network), networks.channels(network), strict=True))
        self.channels = [count for _, count in layers]
        self.maps: list[Tensor] | None = None  # those recorded so far; None outside of `recording`
        # Registered before the network is compiled: the compiler does not see later hooks.
        for k, (layer, count) in enumerate(layers):
            layer.register_forward_hook(RecordMap(self, network, k, count))

    @contextmanager
    def recording(self) -> Iterator[list[Tensor]]:
        """Record the maps of the passes in this block, with the channels last."""
        self.maps = []
        try:
            yield self.maps
        finally:
            self.maps = None


class RecordMap(StageHook):
    """The forward hook of one layer."""

    def __init__(self, recorder: MapRecorder, network: nn.Module, layer: int, channels: int) -> None:
        super().__init__("MIRO", network, layer, channels)
        self.recorder = recorder

    def __call__(self, module: nn.Module, inputs: object, maps: Tensor) -> None:
        """Record the map and leave it unchanged."""
        if self.recorder.maps is not None:
            self.recorder.maps.append(maps.movedim(self.channel_axis(maps), -1))


ALGORITHM = MIRO
