"""MixStyle: train on feature maps with styles between those of two domains.

Zhou, Yang, Qiao and Xiang, "Domain Generalization with MixStyle", ICLR 2021. After each of a network's first three
stages, the map x of every image gets statistics between its own and those of an image x' of another domain:

    (x - μ(x)) / σ(x) · (λ σ(x) + (1 - λ) σ(x')) + λ μ(x) + (1 - λ) μ(x'),      λ ~ Beta(α, α) for every image

where μ and σ are taken over the positions of a map, per image and channel, with σ² = mean of (x - μ)² + 1e-6. The
statistics carry no gradient. For every step and stage it is drawn with probability p whether maps are mixed at all.
α = .1 and p = .5 after stages 1 to 3, with domain labels, are the settings of the SWAD paper.

- The domains form a ring in random order, and the partner of an image is a random image of the next domain. Every image
  is partner once, and never in its own domain. The published SWAD code passes two half batches of neighboring domains
  at a time, in a fixed ring, and lets them exchange styles in both directions. This file passes all domains at once.
- One draw for each stage decides whether all images of a step are mixed. The published code draws again for every pair
  of domains that it passes, so a step can mix some pairs and leave others. In both, an image is mixed with probability
  p after each stage.
- The paper's code divides by n - 1 in σ², the paper by n. This file divides by n, which is defined for one position.
- Stages are those of `networks.stages`: the residual stages of a ResNet, the parts with one resolution in other
  networks, and quarters of the blocks in a ViT. In a ViT, positions are the tokens of patches. Class and register
  tokens have no position and are not mixed.
- Only training is mixed. In evaluation, and in averages, the network is unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from swad.testbed.algorithms import hyperparameters as hp
from swad.testbed.algorithms._helpers import as_tensor, draw_beta, host_stream, random_order, ring_partners
from swad.testbed.algorithms._mixed_maps import MixedMaps, MixingState
from swad.testbed.algorithms._stage_hook import StageHook
from swad.testbed.algorithms.base import RunInfo
from swad.testbed.algorithms.hyperparameters import Constant, Hyperparameters, hyper
from swad.testbed.models import networks

EPS = 1e-6
N_STAGES = 3
"""The number of stages that are mixed, from the first on: the last ones carry the class."""


@dataclass(frozen=True)
class MixStyleHyperparameters(Hyperparameters):
    """The common hyperparameters, how far styles are mixed, and how often."""

    alpha: float = hyper(0.1, Constant(0.1), "α of Beta(α, α), the weight of an image's own style; 0: no mixing")
    p: float = hyper(0.5, Constant(0.5), "probability that a stage is mixed in a step", high=1)


class MixStyle(MixedMaps):
    """Cross entropy of images with mixed styles."""

    paper = "Zhou, Yang, Qiao and Xiang: Domain Generalization with MixStyle. ICLR, 2021."
    groups_by_domain = True
    Hyperparameters = MixStyleHyperparameters
    hyperparameters: MixStyleHyperparameters
    min_domains = 2

    def __init__(self, predictor: nn.Module, hyperparameters: hp.Hyperparameters, run_info: RunInfo) -> None:
        super().__init__(predictor, hyperparameters, run_info)
        stages, channels = networks.stages(self.predictor)[:N_STAGES], networks.channels(self.predictor)
        self.n_stages = len(stages)
        # Registered before the network is compiled: the compiler does not see later hooks.
        for k, stage in enumerate(stages):
            stage.register_forward_hook(MixStageOutput(self._mixing, k, self.predictor, channels[k]))

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Draw for every stage whether it is mixed, and for every image its partner and the weight of its own style."""
        device, size = generator.device, self.hyperparameters.batch_size
        stream = host_stream(generator.initial_seed(), step)
        shares = draw_beta(stream, self.hyperparameters.alpha, self.n_stages * self.n_images)
        domain = ring_partners(generator, self.n_stages, self.n_domains)
        return {
            **super().draw_randomness(generator, step),
            "coin": torch.rand(self.n_stages, generator=generator, device=device) < self.hyperparameters.p,
            "share": as_tensor(shares, device).view(self.n_stages, -1),
            "partner": (domain[..., None] * size + random_order(generator, *domain.shape, size)).flatten(1),
        }


class MixStageOutput(StageHook):
    """The forward hook of one stage."""

    def __init__(self, mixing: MixingState, stage: int, network: nn.Module, channels: int) -> None:
        super().__init__("MixStyle", network, stage, channels)
        self.mixing = mixing
        self.prefix: int = getattr(network, "num_prefix_tokens", 0)

    def __call__(self, module: nn.Module, inputs: object, maps: Tensor) -> Tensor:
        """Return the map after the stage, mixed if the current step says so."""
        if self.mixing.step is None:
            return maps
        channel_axis = self.channel_axis(maps)
        axes = tuple(axis for axis in range(1, maps.ndim) if axis != channel_axis)
        if maps.ndim == 3 and self.prefix:
            return torch.cat([maps[:, : self.prefix], self._mix(maps[:, self.prefix :], axes)], 1)
        return self._mix(maps, axes)

    def _mix(self, maps: Tensor, axes: tuple[int, ...]) -> Tensor:
        assert self.mixing.step is not None
        noise, gather, local_shard = self.mixing.step
        with torch.autocast(maps.device.type, enabled=False):
            full = maps.float()
            with torch.no_grad():
                variance, mean = torch.var_mean(full, axes, correction=0, keepdim=True)
                own = torch.stack([(variance + EPS).sqrt(), mean], 1)
                share = local_shard(noise["share"][self.stage]).view(-1, *[1] * (own.ndim - 1))
                other = local_shard(gather(own).index_select(0, noise["partner"][self.stage]))
                deviation, center = (share * own + (1 - share) * other).unbind(1)
                # One multiplication and one addition over the map. If the stage is not mixed, times 1 and plus 0.
                coin, scale = noise["coin"][self.stage], deviation / own[:, 0]
                shift = torch.where(coin, center - mean * scale, 0)
                scale = torch.where(coin, scale, 1)
            return torch.addcmul(shift, full, scale).to(maps.dtype)


ALGORITHM = MixStyle
