"""pAdaIN: train with feature maps that have the mean and deviation of another image.

Nuriel, Benaim and Wolf, "Permuted AdaIN: Reducing the Bias Towards Global Statistics in Image Classification", CVPR
2021. After every convolution and before its norm, with probability p, the map x of every image gets the statistics of
the image that a random permutation of the whole batch puts in its place, x':

    (x - μ(x)) / (σ(x) + 1e-5) · σ(x') + μ(x'),      σ² = variance with n - 1, plus 1e-5

where μ and σ are taken over the positions of a map, per image and channel. Those of x' carry no gradient, those of x
do. In every step each convolution has one draw for all images that decides whether it swaps, and a permutation of its
own. p = .01 is the value of the published code.

- The convolutions are those of stem and blocks, without those of shortcuts. Maps of one position have no deviation and
  are left unchanged. A ViT has one convolution, its patch embedding.
- Steps in which any convolution swaps are a phase of their own: 39 % of the steps of a ResNet-50, which has 49 of these
  convolutions. There every map is multiplied and shifted, by 1 and 0 after convolutions that do not swap, so that one
  captured graph serves all draws; and batch norms are not fused into convolutions, because the kernels that do so also
  apply the activation. All other steps are ERM's.
- Swapped statistics commute with a frozen batch norm, which scales and shifts whole channels: before or after it, the
  result is the same up to the two 1e-5.
- The published code cannot train PACS, so the optimizer, the epochs and the split of the paper's results there are
  unknown, and there is no `--recipe own`. On ImageNet it is SGD with a learning rate of .1 and a weight decay of 1e-4
  over 300 epochs.
- Only training is mixed. In evaluation, and in averages, the network is unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from swad.gpu.fused_norm import unfused
from swad.testbed.algorithms import hyperparameters as hp
from swad.testbed.algorithms._helpers import host_stream, random_order
from swad.testbed.algorithms._mixed_maps import MixedMaps, MixingState
from swad.testbed.algorithms.base import Batch, Noise, RunInfo
from swad.testbed.algorithms.erm import ERM
from swad.testbed.algorithms.hyperparameters import Constant, Hyperparameters, hyper
from swad.testbed.models import networks

EPS = 1e-5
PLAIN, SWAP = "plain", "swap"
"""The names of the two phases."""
SHORTCUTS = {"downsample", "shortcut"}
"""What the modules with the convolutions of shortcuts are called."""
_COINS = 5  # keeps this random stream apart from the others of a run, which start with 1 to 4


@dataclass(frozen=True)
class PAdaINHyperparameters(Hyperparameters):
    """The common hyperparameters and how often statistics are swapped."""

    p: float = hyper(0.01, Constant(0.01), "probability that a convolution's maps are swapped in a step", high=1)


class PAdaIN(MixedMaps):
    """Cross entropy of images whose maps have statistics of other images."""

    paper = (
        "Nuriel, Benaim and Wolf: Permuted AdaIN: Reducing the Bias Towards Global Statistics in Image Classification. "
        "CVPR, 2021."
    )
    needs = ("convolutions",)
    Hyperparameters = PAdaINHyperparameters
    hyperparameters: PAdaINHyperparameters

    def __init__(self, predictor: nn.Module, hyperparameters: hp.Hyperparameters, run_info: RunInfo) -> None:
        super().__init__(predictor, hyperparameters, run_info)
        layers = convolutions(self.predictor)
        if not layers:
            network = type(predictor).__name__
            raise networks.NetworkError(f"pAdaIN needs a network with convolutions, got {network}: choose another")
        self.n_layers = len(layers)
        # Registered before the network is compiled: the compiler does not see later hooks.
        for k, layer in enumerate(layers):
            layer.register_forward_hook(SwapStatistics(self._mixing, k))

    def draw_coins(self, step: int) -> list[bool]:
        """Draw on the host which convolutions swap in a step, from the seed of the run."""
        stream = host_stream(_COINS, self.run_info.seed, step)
        return [value < self.hyperparameters.p for value in stream.uniform(size=self.n_layers)]

    def phase(self, step: int) -> str:
        """Return whether any convolution swaps."""
        return SWAP if any(self.draw_coins(step)) else PLAIN

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Draw a permutation of the images for every convolution, and add which ones swap."""
        order = random_order(generator, self.n_layers, self.n_images)
        coin = torch.tensor(self.draw_coins(step)).to(generator.device, non_blocking=True)
        return {**super().draw_randomness(generator, step), "partner": order, "coin": coin}

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean cross entropy, with maps swapped by the hooks in steps that swap."""
        if self.phase(batch.step) == PLAIN:
            return ERM.loss(self, batch, noise)
        with unfused(self.predictor):
            return super().loss(batch, noise)


class SwapStatistics:
    """The forward hook of one convolution."""

    def __init__(self, mixing: MixingState, layer: int) -> None:
        self.mixing, self.layer = mixing, layer

    def __call__(self, module: nn.Module, inputs: object, maps: Tensor) -> Tensor:
        """Return the map after the convolution, with the partner's statistics if the current step says so."""
        if self.mixing.step is None or maps.shape[2:].numel() == 1:
            return maps
        noise, gather, local_shard = self.mixing.step
        coin, partner = noise["coin"][self.layer], noise["partner"][self.layer]
        with torch.autocast(maps.device.type, enabled=False):
            full = maps.float()
            variance, mean = torch.var_mean(full, (2, 3), keepdim=True)
            deviation = (variance + EPS).sqrt()
            own = torch.stack([deviation, mean], 1).detach()
            other_deviation, other_mean = local_shard(gather(own).index_select(0, partner)).unbind(1)
            scale = torch.where(coin, other_deviation / (deviation + EPS), 1)
            shift = torch.where(coin, other_mean - mean * scale, 0)
            return torch.addcmul(shift, full, scale).to(maps.dtype)


def convolutions(network: nn.Module) -> list[nn.Module]:
    """Return the convolutions of a network, without those of shortcuts."""
    return [
        module
        for name, module in network.named_modules()
        if isinstance(module, nn.Conv2d) and not SHORTCUTS & set(name.split("."))
    ]


ALGORITHM = PAdaIN
