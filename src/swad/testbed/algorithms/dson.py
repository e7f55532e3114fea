"""DSON: every source domain has its own mixture of batch and instance norm, with its own scale and shift.

Seo, Suh, Kim, Kim, Han and Han, "Learning to Optimize Domain Specific Normalization for Domain Generalization", ECCV
2020. Every batch norm gets one branch per domain d. An image n of domain d is normalized by

    μ = w_d μ_d + (1 - w_d) μ_n,      σ² = w_d σ_d² + (1 - w_d) σ_n²,      y = γ_d (x - μ) / √(σ² + ε) + β_d

with the statistics μ_d, σ_d² of the domain's batch norm and μ_n, σ_n² over the positions of the image's own map. All
parameters but w_d, γ_d, β_d and the statistics are shared. A prediction is the mean of the scores of all D branches.

**This is a reading.** No public code was found, and this was written from the abstracts of the paper's versions, which
differ. ECCV's: affine parameters are separate per domain, and activations are normalized by a weighted average of
statistics (`mix=statistics`). An earlier one: the weight is shared across all layers (`share=network`). The first: the
weight is found for each domain and normalization layer (`share=layer`), and domains are augmented, which is left out
here. `mix=outputs` mixes the normalized maps instead: w_d (x - μ_d) / σ_d + (1 - w_d) (x - μ_n) / σ_n.

Not stated in the abstracts, and chosen here:

- w_d = sigmoid(a_d), and starts at `start`. A pretrained network needs a start near 1: for MobileNetV2 with frozen
  statistics, the cosine similarity of centered features with and without instance norm is .98 at w = .999, and .02 at
  .9. The small network starts from random weights and has nothing to lose: on low-resolution images the start is .5.
- a_d has an optimizer of its own with the learning rate `mixture_lr` and without weight decay: with the learning rate
  of the network it could not leave its start within a run.
- The branches' scores are averaged, not their probabilities.
- All batch norms over maps are replaced, and γ_d, β_d, μ_d, σ_d² start as those of the network.
- With frozen statistics, the protocol, μ_d and σ_d² are the same in all domains: branches differ in w_d, γ_d and β_d.
  With `--no-freeze-bn` each domain's images move its own running statistics, as in the paper. For averaged weights,
  they are estimated again on training images, in each branch on those of its domain.
- The small network has no batch norms. Each of its two convolutions gets one whose statistics stay 0 and 1, so that
  w_d = 1 is the network itself. Other networks without batch norms (ViT) are an error.
- The paper's optimizer, epochs and augmentation are not known here: `--recipe own` only trains the statistics of batch
  norms. Results of the paper on PACS: 86.6 (ResNet-50), 85.1 (ResNet-18).

Replaced batch norms are not fused into convolutions on a GPU: a map's own statistics are known only after it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from swad.testbed.algorithms import hyperparameters as hp
from swad.testbed.algorithms._wrapped import Branched, BranchedERM
from swad.testbed.algorithms.base import Recipe
from swad.testbed.algorithms.hyperparameters import Constant, Hyperparameters, hyper
from swad.testbed.models import networks
from swad.testbed.models.small_cnn import SmallNet


@dataclass(frozen=True)
class DSONHyperparameters(Hyperparameters):
    """The common hyperparameters, what is mixed, and how the weight of a mixture is learned."""

    mix: str = hyper(
        "statistics",
        Constant("statistics"),
        "what w mixes: means and variances (statistics), or normalized maps (outputs)",
        options=("statistics", "outputs"),
    )
    share: str = hyper(
        "network",
        Constant("network"),
        "one w of a domain for all layers (network) or for each (layer)",
        options=("network", "layer"),
    )
    start: float = hyper(
        0.999,
        Constant(0.999),
        "w at the start: the weight of batch statistics",
        low=1e-4,
        high=0.9999,
        low_res=Constant(0.5),
    )
    mixture_lr: float = hyper(1e-3, Constant(1e-3), "Adam's learning rate for the logits of w")


class Mixture(nn.Module):
    """The weight of batch statistics in every domain."""

    def __init__(self, n_domains: int, start: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.full((n_domains,), math.log(start / (1 - start))))

    def forward(self) -> Tensor:
        """Return w for every domain."""
        return self.logits.sigmoid()


class DomainNorm(nn.Module):
    """A batch norm with one branch for every domain, each mixed with instance norm. Rows are sorted by domain.

    Args:
        norm: The batch norm to replace; all branches start with its parameters and statistics.
        mixture: The weights of batch statistics, which may be those of several norms.
        n_domains: Number of branches.
        mixes_outputs: Mix normalized maps instead of statistics.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: nn.BatchNorm2d, mixture: Mixture, n_domains: int, mixes_outputs: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(norm.weight.detach().repeat(n_domains, 1))
        self.bias = nn.Parameter(norm.bias.detach().repeat(n_domains, 1))
        for name in ("running_mean", "running_var"):
            self.register_buffer(name, getattr(norm, name).repeat(n_domains, 1))
        self.eps, self.momentum, self.frozen = norm.eps, norm.momentum or 0.1, networks.is_frozen(norm)
        self.mixes_outputs = mixes_outputs
        # In a tuple, torch does not register the module, which belongs to the predictor: it is saved once.
        self._mixture = (mixture,)
        # timm puts these into some batch norms.
        self.drop, self.act = getattr(norm, "drop", nn.Identity()), getattr(norm, "act", nn.Identity())

    def forward(self, maps: Tensor) -> Tensor:
        """Normalize the maps of every domain in its branch, in full precision."""
        with torch.autocast(maps.device.type, enabled=False):
            variances, means = torch.var_mean(maps.float(), (2, 3), correction=0)
            means, variances = (rows.view(len(self.weight), -1, rows.shape[1]) for rows in (means, variances))
            scale, offset = self._mix(means, variances, *self._batch_statistics(maps, means, variances))
            # Either way to mix is one scale and one shift for every image and channel.
            scale, shift = self.weight[:, None] * scale, self.bias[:, None] - self.weight[:, None] * offset
            scale, shift = (rows.flatten(0, 1)[..., None, None] for rows in (scale, shift))
            normalized = torch.addcmul(shift, maps, scale).to(maps.dtype)
        return cast(Tensor, self.act(self.drop(normalized)))

    def _mix(self, means: Tensor, variances: Tensor, batch_mean: Tensor, batch_var: Tensor) -> tuple[Tensor, Tensor]:
        """Return 1/σ and μ/σ of the mixture, `[domains, images, channels]`."""
        w = self._mixture[0]()[:, None, None]
        if not self.mixes_outputs:
            scale = torch.rsqrt(w * batch_var + (1 - w) * variances + self.eps)
            return scale, scale * (w * batch_mean + (1 - w) * means)
        batch_scale = w * torch.rsqrt(batch_var + self.eps)
        scales = (1 - w) * torch.rsqrt(variances + self.eps)
        return batch_scale + scales, batch_scale * batch_mean + scales * means

    def _batch_statistics(self, maps: Tensor, means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of every domain's batch norm, `[domains, 1, channels]`; see `nn.BatchNorm2d`."""
        if self.frozen or not self.training:
            return self.running_mean[:, None], self.running_var[:, None]
        # The variance of a domain is the mean variance of its maps plus the variance of their means.
        mean = means.mean(1, keepdim=True)
        variance = variances.mean(1, keepdim=True) + means.var(1, correction=0, keepdim=True)
        count = means.shape[1] * maps.shape[2] * maps.shape[3]
        with torch.no_grad():
            self.running_mean.lerp_(mean.squeeze(1), self.momentum)
            self.running_var.lerp_(variance.squeeze(1) * (count / max(count - 1, 1)), self.momentum)
        return mean, variance


class NormalizedPredictor(Branched):
    """A network whose batch norms have one branch for every domain."""

    def __init__(self, network: nn.Module, n_domains: int, hyperparameters: DSONHyperparameters) -> None:
        super().__init__(network, n_domains)
        if isinstance(network, SmallNet):
            _add_batch_norms(network)
        norms = {name: module for name, module in network.named_modules() if isinstance(module, nn.BatchNorm2d)}
        if not norms:
            raise networks.NetworkError(
                f"DSON replaces batch norms over feature maps, but {type(network).__name__} has none: choose a network "
                "with batch norms, such as resnet50"
            )
        count = 1 if hyperparameters.share == "network" else len(norms)
        self.mixtures = nn.ModuleList(Mixture(n_domains, hyperparameters.start) for _ in range(count))
        for k, (name, norm) in enumerate(norms.items()):
            mixture = cast(Mixture, self.mixtures[k % count])
            network.set_submodule(name, DomainNorm(norm, mixture, n_domains, hyperparameters.mix == "outputs"))


def _add_batch_norms(network: SmallNet) -> None:
    """Add frozen batch norms after the convolutions: with statistics 0 and 1 they change nothing."""
    for stage in (network.stem, network.body):
        stage.insert(1, nn.BatchNorm2d(cast(nn.Conv2d, stage[0]).out_channels))
    networks.freeze_statistics(network)


class DSON(BranchedERM):
    """Cross entropy of images, each normalized in the branch of its domain."""

    paper = "Seo et al.: Learning to Optimize Domain Specific Normalization for Domain Generalization. ECCV, 2020."
    needs = ("own optimizers", "one branch per domain")
    groups_by_domain = True
    Hyperparameters = DSONHyperparameters
    hyperparameters: DSONHyperparameters
    own_recipe = Recipe(freeze_bn=False)
    predictor: NormalizedPredictor

    @classmethod
    def wrap_predictor(cls, network: nn.Module, hyperparameters: hp.Hyperparameters, n_domains: int) -> nn.Module:
        """Return the network with a branch for every domain in its batch norms."""
        assert isinstance(hyperparameters, DSONHyperparameters)
        return NormalizedPredictor(network, n_domains, hyperparameters)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return one optimizer for the network and one for the weights of mixtures."""
        mixtures = self.optimizer(
            self.predictor.mixtures.parameters(), "adam", lr=self.hyperparameters.mixture_lr, weight_decay=0
        )
        return {"main": self.optimizer(self.predictor.network.parameters()), "mixtures": mixtures}

    @classmethod
    @torch.no_grad()
    def estimate_statistics(cls, predictor: nn.Module, batches: Iterable[Tensor]) -> bool:
        """Estimate the statistics of every domain on its own images; the predictor is in evaluation mode afterwards."""
        assert isinstance(predictor, NormalizedPredictor)
        norms = [norm for norm in predictor.modules() if isinstance(norm, DomainNorm) and not norm.frozen]
        if not norms:
            return False
        momenta = [norm.momentum for norm in norms]
        predictor.eval()
        for number, images in enumerate(batches, start=1):
            for norm in norms:
                norm.training, norm.momentum = True, 1 / number  # batches have one size: this is the mean over them
            predictor.network(images)
        predictor.eval()
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        return True


ALGORITHM = DSON
