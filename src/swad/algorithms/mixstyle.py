"""MixStyle: feature maps in styles between those of two domains.

Zhou, Yang, Qiao and Xiang, "Domain Generalization with MixStyle", ICLR 2021. After each of a network's first three
stages, the map x of every image is given statistics between its own and those of an image x' of another domain:

    (x - μ(x)) / σ(x) · (λ σ(x) + (1 - λ) σ(x')) + λ μ(x) + (1 - λ) μ(x'),      λ ~ Beta(α, α) for every image

with μ and σ over the places of a map, per image and channel, σ² = mean of (x - μ)² + 1e-6. The statistics carry no
gradient. A coin thrown for every step and stage says whether it is done at all (p). α = .1 and p = .5 after stages 1 to
3, with domain labels: what SWAD's paper trained.

- The partner of an image lies in the next domain on a ring through all domains in random order, at a random place:
  every image is partner once, and never in its own domain. The paper's code passes two domains at a time; mixing is
  within an image, so one pass over all gives the same.
- The paper's code divides by n - 1 in σ², the paper by n; here it is n, which is defined for a map of one place.
- Stages are `networks.stages`: a ResNet's residual stages, what has the same resolution in other networks, and in a
  ViT quarters of the blocks. There the places are the tokens of patches; class and register tokens stand for no place,
  and stay as they are.
- Only training is mixed: in evaluation, and in averages, the network is as it is without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from swad.algorithms import hyperparameters as hp
from swad.algorithms._helpers import draw_beta, host_stream, to_device
from swad.algorithms.base import Noise
from swad.algorithms.erm import ERM
from swad.algorithms.hyperparameters import Constant, hyper
from swad.data.loaders import Batch
from swad.models import networks

EPS = 1e-6
STAGES = 3
"""So many stages are mixed, from the first: the last ones carry the class."""


@dataclass(frozen=True)
class MixStyleHyperparameters(hp.Hyperparameters):
    """The common ones, how far styles are mixed, and how often."""

    alpha: float = hyper(0.1, Constant(0.1), "of Beta(α, α), the share of an image's own style; 0: nothing is mixed")
    p: float = hyper(0.5, Constant(0.5), "how likely a stage is mixed in a step", high=1)


class MixStyle(ERM):
    """Cross entropy of images in mixed styles."""

    paper = "Zhou, Yang, Qiao and Xiang: Domain Generalization with MixStyle. ICLR, 2021."
    needs = ("domain labels",)
    Hyperparameters = MixStyleHyperparameters
    hyperparameters: MixStyleHyperparameters
    min_domains = 2

    def __init__(self, predictor: nn.Module, hyperparameters: hp.Hyperparameters, n_domains: int) -> None:
        super().__init__(predictor, hyperparameters, n_domains)
        self._now = Now()
        stages, channels = networks.stages(self.predictor)[:STAGES], networks.channels(self.predictor)
        self.n_stages = len(stages)
        # Before anyone compiles the network: hooks that come later are not seen.
        for k, stage in enumerate(stages):
            stage.register_forward_hook(Mix(self._now, k, self.predictor, channels[k]))

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """For every stage: whether, and for every image with whom and how far."""
        device, size = generator.device, self.hyperparameters.batch_size
        shares = draw_beta(host_stream(generator, step), self.hyperparameters.alpha, self.n_stages * self.n_images)

        def orders(*shape: int) -> Tensor:
            return torch.rand((self.n_stages, *shape), generator=generator, device=device).argsort(-1)

        ring = orders(self.n_domains)
        domain = torch.empty_like(ring).scatter_(1, ring, ring.roll(-1, 1))
        return {
            **super().draw_randomness(generator, step),
            "coin": torch.rand(self.n_stages, generator=generator, device=device) < self.hyperparameters.p,
            "share": to_device(shares, device).view(self.n_stages, -1),
            "partner": (domain[:, :, None] * size + orders(self.n_domains, size)).flatten(1),
        }

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean cross entropy, mixed on the way."""
        if self.training:
            self._now.begin(noise, self.gather, self.local_shard)
        try:
            return super().loss(batch, noise)
        finally:
            self._now.end()


class Now:
    """The step under way, for the hooks; nothing between steps. Copied with the network, it stays its own."""

    def __init__(self) -> None:
        self.end()

    def begin(self, noise: Noise, gather: Callable[[Tensor], Tensor], local_shard: Callable[[Tensor], Tensor]) -> None:
        """From here on, maps are mixed."""
        self.noise: Noise | None = noise
        self.gather: Callable[[Tensor], Tensor] | None = gather
        self.local_shard: Callable[[Tensor], Tensor] | None = local_shard

    def end(self) -> None:
        """From here on, they are not."""
        self.noise = self.gather = self.local_shard = None


class Mix:
    """The hook after one stage."""

    def __init__(self, now: Now, stage: int, network: nn.Module, channels: int) -> None:
        self.now, self.stage, self.channels = now, stage, channels
        self.prefix: int = getattr(network, "num_prefix_tokens", 0)
        self.network, self.layout = type(network).__name__, getattr(network, "output_fmt", "NCHW")

    def __call__(self, module: nn.Module, inputs: object, maps: Tensor) -> Tensor:
        """The map after the stage, mixed where the step under way says so."""
        if self.now.noise is None:
            return maps
        places = self._places(maps)
        if maps.ndim == 3 and self.prefix:
            return torch.cat([maps[:, : self.prefix], self._mixed(maps[:, self.prefix :], places)], 1)
        return self._mixed(maps, places)

    def _places(self, maps: object) -> tuple[int, ...]:
        """The axes of a map that are places: all but images and channels, which networks put first or last."""
        if isinstance(maps, Tensor) and maps.ndim == 3 and maps.shape[-1] == self.channels:
            return (1,)
        if isinstance(maps, Tensor) and maps.ndim == 4:
            first, last = maps.shape[1] == self.channels, maps.shape[-1] == self.channels
            if first and last:  # as many columns as channels: what timm says of the network decides
                first = self.layout == "NCHW"
            if first or last:
                return (2, 3) if first else (1, 2)
        what = f"shape {tuple(maps.shape)}" if isinstance(maps, Tensor) else f"a {type(maps).__name__}"
        raise networks.NetworkError(
            f"MixStyle needs maps with {self.channels} channels first or last after stage {self.stage + 1} of "
            f"{self.network}, got {what}: choose another network"
        )

    def _mixed(self, maps: Tensor, places: tuple[int, ...]) -> Tensor:
        noise, gather, local_shard = self.now.noise, self.now.gather, self.now.local_shard
        assert noise is not None
        assert gather is not None
        assert local_shard is not None
        with torch.autocast(maps.device.type, enabled=False):
            full = maps.float()
            with torch.no_grad():
                variance, mean = torch.var_mean(full, places, correction=0, keepdim=True)
                own = torch.stack([(variance + EPS).sqrt(), mean], 1)
                share = local_shard(noise["share"][self.stage]).view(-1, *[1] * (own.ndim - 1))
                other = local_shard(gather(own).index_select(0, noise["partner"][self.stage]))
                deviation, center = (share * own + (1 - share) * other).unbind(1)
                # As one product and one sum over the map, which with the coin against it are times 1 and plus 0.
                coin, scale = noise["coin"][self.stage], deviation / own[:, 0]
                shift = torch.where(coin, center - mean * scale, 0)
                scale = torch.where(coin, scale, 1)
            return torch.addcmul(shift, full, scale).to(maps.dtype)


ALGORITHM = MixStyle
