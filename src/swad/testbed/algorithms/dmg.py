"""DMG: one mask of channels for every source domain, so that domains share some features and own others.

Chattopadhyay, Balaji and Hoffman, "Learning to Balance Specificity and Invariance for In and Out of Domain
Generalization", ECCV 2020. Domain d has one logit for each channel at three places in the network, and
p_d = sigmoid(logit). In training a mask is drawn for every image and channel, with the gradient of p_d:

    x <- m x,      m ~ Bernoulli(p_d),      dm/dp_d = 1

    loss = CE + overlap · Σ over places of the mean over pairs of domains of IoU(p_i, p_j)
    IoU(p, q) = (Σ p q + 1e-6) / (Σ (p + q - p q) + 1e-6),      sums over channels

A prediction passes the image through the network once for every d, with x <- p_d x, and takes the mean of the scores.
The part before the first mask is computed once. Everything here was compared with the authors' code.

- The places are those of the authors' ResNets: the inputs of the third and fourth stage and of the head. In any network
  they are the outputs of the second and third of `networks.stages`, and the features. The small network has two stages,
  its convolutions, and both are masked.
- Logits start uniformly in [0, 1), so p_d starts in [.5, .73). Predictions with p_d are as in the authors' code for the
  target; for source validation it takes the mask of the image's domain with 1 where p_d > .5. Here all images are
  predicted as the target's, so that a prediction needs no domain label and the valley of SWAD sees what is reported.
- Logits have an optimizer of their own, as in the authors' code, where both learning rates are 1e-4 and both weight
  decays 1e-5. Here `lr` is the protocol's, `mask_lr` the authors', and the weight decay is shared.
- `--recipe own` has the settings of the authors' code, in which the learning rate of masks follows no schedule. On
  DomainNet both rates fall as (1 + 1e-4 step)^-.75 there, and are constant here; and there images are crops of 224 of
  256 pixels without color jitter, here crops of at least that share of the area, 77 %.
- With `--no-freeze-bn`, as in that recipe, batch norms learn the statistics of drawn masks. For averaged weights they
  are estimated as predictions are made, with all p_d.
- The authors' code has a sparsity term with weight 0, and an option to predict with the mean of all masks in one pass.
  Both are left out.

Masks are part of the predictor: averages average the logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from swad.testbed.algorithms import hyperparameters as hp
from swad.testbed.algorithms._stage_hook import StageHook
from swad.testbed.algorithms._wrapped import Branched, BranchedERM
from swad.testbed.algorithms.base import Batch, Noise, Recipe
from swad.testbed.algorithms.hyperparameters import Constant, Hyperparameters, Power, hyper
from swad.testbed.models import networks

SMOOTH = 1e-6


@dataclass(frozen=True)
class DMGHyperparameters(Hyperparameters):
    """The common hyperparameters, how much masks may overlap, and how fast they are learned."""

    overlap: float = hyper(0.1, Power(10, -2, 0), "weight of the overlap between the masks of two domains")
    mask_lr: float = hyper(1e-4, Constant(1e-4), "Adam's learning rate for the logits of masks")


class Masks(nn.Module):
    """The logits of masks `[domains, channels]` at every place.

    Attributes:
        domains: The domain of every row. None: rows are sorted by domain, with as many rows for each.
        uniform: Random numbers in [0, 1) by place, `[rows, channels]`: masks are drawn. None: rows are multiplied by p.
        repeats: Whether the rows at the first place are those of one branch, to be passed through all of them.
    """

    def __init__(self, n_domains: int, channels: list[int]) -> None:
        super().__init__()
        self.logits = nn.ParameterList(torch.rand(n_domains, count) for count in channels)
        self.domains: Tensor | None = None
        self.uniform: list[Tensor] | None = None
        self.repeats = False

    def forward(self, place: int, rows: Tensor, channel_axis: int = 1) -> Tensor:
        """Multiply the channels of every row by the mask of its domain."""
        p = cast(Tensor, self.logits[place]).sigmoid()
        if self.repeats and place == 0:
            rows = torch.cat([rows] * len(p))
        mask = p.repeat_interleave(len(rows) // len(p), 0) if self.domains is None else p[self.domains]
        if self.uniform is not None:
            mask = (self.uniform[place] < mask) + (mask - mask.detach())  # 0 or 1 exactly, with the gradient of p
        shape = [len(rows)] + [1] * (rows.ndim - 1)
        shape[channel_axis] = -1
        return rows * mask.to(rows.dtype).view(shape)

    def overlap(self) -> Tensor:
        """Return the sum over places of the mean IoU of two domains."""
        return torch.stack([_mean_iou(logits.sigmoid()) for logits in self.logits]).sum()


def _mean_iou(p: Tensor) -> Tensor:
    both = (p[:, None] * p).sum(-1)
    either = (p[:, None] + p).sum(-1) - both
    pairs = len(p) * (len(p) - 1) / 2
    return ((both + SMOOTH) / (either + SMOOTH)).triu(1).sum() / pairs


class MaskStageOutput(StageHook):
    """The forward hook of one stage."""

    def __init__(self, masks: Masks, place: int, network: nn.Module, stage: int, channels: int) -> None:
        super().__init__("DMG", network, stage, channels)
        self.masks, self.place = masks, place

    def __call__(self, module: nn.Module, inputs: object, maps: Tensor) -> Tensor:
        """Return the map after the stage with its channels masked."""
        masked: Tensor = self.masks(self.place, maps, self.channel_axis(maps))
        return masked


class MaskedPredictor(Branched):
    """A network with masks: a branch is the network with the masks of one domain."""

    def __init__(self, network: nn.Module, n_domains: int) -> None:
        super().__init__(network, n_domains)
        stages, channels = networks.stages(network), networks.channels(network)
        masked = range(len(stages))[:3][-2:]
        self.masks = Masks(n_domains, [*(channels[k] for k in masked), self.get_classifier().in_features])
        for place, k in enumerate(masked):
            stages[k].register_forward_hook(MaskStageOutput(self.masks, place, network, k, channels[k]))

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the last feature map of every image in every branch; branches start at the first mask."""
        self.masks.repeats = True
        try:
            return super(Branched, self).forward_features(images)
        finally:
            self.masks.repeats = False

    def branch_features(self, maps: Tensor) -> Tensor:
        """Return the masked features of every row of these maps."""
        return self.mask_features(super().branch_features(maps))

    def mask_features(self, features: Tensor) -> Tensor:
        """Mask the features before the head."""
        masked: Tensor = self.masks(len(self.masks.logits) - 1, features)
        return masked


class DMG(BranchedERM):
    """Cross entropy of masked images, plus the overlap of masks."""

    paper = (
        "Chattopadhyay, Balaji and Hoffman: Learning to Balance Specificity and Invariance for In and Out of Domain "
        "Generalization. ECCV, 2020."
    )
    needs = ("domain labels", "own optimizers", "one branch per domain")
    Hyperparameters = DMGHyperparameters
    hyperparameters: DMGHyperparameters
    min_domains = 2
    own_recipe = Recipe(
        lr_schedule="exponential:gamma=0.99",
        epochs=150,
        freeze_bn=False,
        augmentation={"crop": 0.8, "jitter": 0.4, "grayscale": 0},
        batches="pooled",
        hyperparameters={"lr": 1e-4, "weight_decay": 1e-5, "batch_size": 64},
        by_dataset={
            "DomainNet": Recipe(
                lr_schedule="constant",
                epochs=50,
                augmentation={"crop": 0.77, "jitter": 0},
                hyperparameters={"weight_decay": 0.0},
            )
        },
    )
    constant_lr = ("masks",)
    predictor: MaskedPredictor

    @classmethod
    def wrap_predictor(cls, network: nn.Module, hyperparameters: hp.Hyperparameters, n_domains: int) -> nn.Module:
        """Return the network with masks."""
        return MaskedPredictor(network, n_domains)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return one optimizer for the network and one for the masks."""
        masks = self.optimizer(self.predictor.masks.parameters(), "adam", lr=self.hyperparameters.mask_lr)
        return {"main": self.optimizer(self.predictor.network.parameters()), "masks": masks}

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Draw a uniform number for every image and masked channel."""
        noise = super().draw_randomness(generator, step)
        for place, logits in enumerate(self.predictor.masks.logits):
            shape = (self.n_images, logits.shape[1])
            noise[f"mask_{place}"] = torch.rand(shape, generator=generator, device=generator.device)
        return noise

    def features(self, images: Tensor) -> Tensor:
        """Return the masked features of local images."""
        return self.predictor.mask_features(super().features(images))

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """Mean cross entropy with drawn masks, plus their overlap."""
        masks = self.predictor.masks
        masks.domains = batch.domains
        if self.training:
            masks.uniform = [self.local_shard(noise[f"mask_{place}"]) for place in range(len(masks.logits))]
        try:
            return super().loss(batch, noise) + self.hyperparameters.overlap * masks.overlap()
        finally:
            masks.domains = masks.uniform = None


ALGORITHM = DMG
