"""EISNet: also solve jigsaw puzzles, and keep images of one class closer together than those of others.

Wang, Yu, Li, Fu and Heng, "Learning from Extrinsic and Intrinsic Supervisions for Domain Generalization", ECCV 2020.
Every crop has two views: the whole crop, and its 3 × 3 tiles in the order of one of 31 permutations. The first of them
changes nothing and has a probability of .9 + .1/31. With features f of the tiles, head h, labels y and permutations o:

    loss = CE(h(f), y) + jigsaw · CE(j(f), o) + triplet · T

- T pulls q = f's embedding towards k, the embedding of the whole crop by a network whose weights are an exponential
  moving average (EMA) of f's. Both are linear in the features, have 128 numbers and are normalized. A queue has the
  last 1,024 k with their labels; the k of the batch enter it first. A pair of images i, j of one class has the triplets
  with all k_n of the queue that have another label and are semi-hard: farther from q_i than k_j, by less than the
  margin of 2. T is the mean of ‖q_i - k_j‖² - ‖q_i - k_n‖² + margin.
- The published code draws 256 of a pair's triplets with replacement, or as many as there are if these are fewer. Here T
  is the expectation over these draws: with s triplets, a pair has the weight min(256, s) and the mean of all s. If
  there is no triplet at all, T = 0, where that code fails.
- That code takes each pair once, in the order of a shuffled batch. Here a batch is sorted by domain, so the order in
  which the two images of a pair are anchor and positive is drawn.

The constants are those of the published code: weights jigsaw = .7 and triplet = .5, EMA .999, and the permutations. It
differs in this:

- Its views have a size of 222 pixels. Here images keep their size: tiles have a third of it, rounded down, and a
  remaining border of one or two pixels stays where it is.
- It jitters colors before it cuts tiles, and each tile, and the whole crop, is gray with probability .1. So does this
  file (`grayscale`). The protocol's augmentation has also made some whole crops gray, for both views. Images without
  three channels stay as they are.
- Its jigsaw head has 1,000 outputs, of which 31 are used. Here it has 31.
- Its EMA covers parameters, not the statistics of batch norms; those of the EMA network are frozen after one batch of
  images has moved them. Here they are frozen from the start, also where the network's own are trained. As there, the
  average is taken after the optimizer's step.
- Its queue starts with the k of one batch. Here it starts empty, and unused places are not negatives.

`--recipe own` has its other settings. There the augmentation makes nothing gray, so that both views are as published.

The predictor is f and h, which see whole images in evaluation, and where the batch norms of averaged weights are
estimated (`--no-freeze-bn`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.testbed.algorithms import hyperparameters as hp
from swad.testbed.algorithms._helpers import apply_mask, random_order
from swad.testbed.algorithms.base import Algorithm, Batch, Noise, Recipe, RunInfo, StepContext
from swad.testbed.algorithms.hyperparameters import Constant, Hyperparameters, Power, hyper
from swad.testbed.models import networks
from swad.util.images import LUMINANCE

GRID = 3
N_EMBEDDING = 128
MAX_TRIPLETS = 256
PERMUTATIONS = (
    "012345678", "720156348", "012345687", "103264875", "231078456", "345680712", "456807123", "568712034",
    "687423501", "874531260", "012387564", "104625873", "235471086", "326514708", "458706231", "547168320",
    "860243157", "673850412", "781032645", "012437658", "103246785", "230154867", "321068574", "456783120",
    "548370216", "687501342", "765812403", "874625031", "012547836", "103258647", "230165478",
)  # fmt: skip
"""The tile at each of the nine places, row by row, for every order of the tiles."""


@dataclass(frozen=True)
class EISNetHyperparameters(Hyperparameters):
    """The common hyperparameters, the weights of both further losses, and how their inputs are made."""

    jigsaw: float = hyper(0.7, Power(10, -1, 0.5), "weight of the loss of the jigsaw puzzle")
    triplet: float = hyper(0.5, Power(10, -1, 0.5), "weight of the triplet loss")
    margin: float = hyper(2.0, Constant(2), "margin of the triplet loss, between squared distances")
    whole: float = hyper(0.9, Constant(0.9), "probability that tiles surely keep their order", high=1)
    grayscale: float = hyper(0.1, Constant(0.1), "probability that a tile, or the whole crop, is gray", high=1)
    ema: float = hyper(0.999, Constant(0.999), "decay of the network that embeds whole crops", high=1)
    queue_size: int = hyper(1024, Constant(1024), "embeddings in the queue", low=1)


class EISNet(Algorithm):
    """Cross entropy of shuffled tiles, plus the losses of the jigsaw puzzle and of triplets."""

    paper = (
        "Wang, Yu, Li, Fu and Heng: Learning from Extrinsic and Intrinsic Supervisions for Domain Generalization. "
        "ECCV, 2020."
    )
    needs = ("an EMA network",)
    Hyperparameters = EISNetHyperparameters
    hyperparameters: EISNetHyperparameters
    own_recipe = Recipe(
        optimizer="sgd",
        momentum=0.9,
        lr_schedule="step:at=0.6,gamma=0.1",
        epochs=100,
        freeze_bn=False,
        augmentation={"crop": 0.8, "jitter": 0.4, "grayscale": 0},
        batches="pooled",
        hyperparameters={"lr": 1e-3, "weight_decay": 2e-5, "batch_size": 64},
    )
    permutations: Tensor
    queue: Tensor
    queue_labels: Tensor

    def __init__(self, predictor: nn.Module, hyperparameters: hp.Hyperparameters, run_info: RunInfo) -> None:
        super().__init__(predictor, hyperparameters, run_info)
        n_features = networks.head(self.predictor).in_features
        self.jigsaw_head = nn.Linear(n_features, len(PERMUTATIONS))
        self.embedding = nn.Linear(n_features, N_EMBEDDING)
        self.key_network = networks.frozen_copy(self.predictor)
        self.key_embedding = networks.frozen_copy(self.embedding)
        permutations = torch.tensor([[int(tile) for tile in order] for order in PERMUTATIONS])
        self.register_buffer("permutations", permutations, persistent=False)
        self.register_buffer("queue", torch.zeros(self.hyperparameters.queue_size, N_EMBEDDING))
        self.register_buffer("queue_labels", torch.full((self.hyperparameters.queue_size,), -1))

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return one optimizer over the predictor, the jigsaw head and the embedding."""
        return {"main": self.optimizer(self.parameters())}

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """Draw the orders of tiles, which tiles and crops are gray, and an order of the images."""
        n, hparams, device = self.n_images, self.hyperparameters, generator.device
        keeps_order = torch.rand(n, generator=generator, device=device) < hparams.whole
        tile_order = torch.randint(len(PERMUTATIONS), (n,), generator=generator, device=device)
        return {
            **super().draw_randomness(generator, step),
            "tile_order": torch.where(keeps_order, 0, tile_order),
            "gray": torch.rand((n, 1 + GRID**2), generator=generator, device=device) < hparams.grayscale,
            "rank": random_order(generator, n),
        }

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """The three losses; the new queue becomes pending."""
        hparams, labels = self.hyperparameters, self.labels(batch)
        whole, tiles = self.make_views(batch.images, noise)
        features = self.gather(self.features(tiles))
        class_loss = functional.cross_entropy(self.head(apply_mask(features, noise.get("dropout_mask"))), labels)
        jigsaw_loss = functional.cross_entropy(self.jigsaw_head(features).float(), noise["tile_order"])

        queries = _embed(self.embedding, features)
        with torch.no_grad():
            keys = self.gather(_embed(self.key_embedding, self._features(self.key_network, whole)))
            # The newest come first, also within a batch, so that rows leave the queue in the order they entered it.
            queue = torch.cat([keys.flip(0), self.queue])[: hparams.queue_size]
            queue_labels = torch.cat([labels.flip(0), self.queue_labels])[: hparams.queue_size]
        self.pending_buffers |= {"queue": queue, "queue_labels": queue_labels}
        pairs = (labels[:, None] == labels) & (noise["rank"][:, None] < noise["rank"])
        negatives = (labels[:, None] != queue_labels) & (queue_labels >= 0)
        triplets = triplet_loss(queries, keys, pairs, queue, negatives, hparams.margin)
        return class_loss + hparams.jigsaw * jigsaw_loss + hparams.triplet * triplets

    @torch.no_grad()
    def step(self, ctx: StepContext, *names: str) -> None:
        """Step, and update the EMA."""
        super().step(ctx, *names)
        for network, copied in ((self.predictor, self.key_network), (self.embedding, self.key_embedding)):
            params = dict(network.named_parameters())
            averages = [copied.get_buffer(name) for name in params]
            torch._foreach_lerp_(averages, list(params.values()), 1 - self.hyperparameters.ema)

    def make_views(self, images: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Return both views of local images: the whole crops, and the crops with their tiles in another order."""
        n, channels, height, width = images.shape
        rows, columns = height // GRID, width // GRID
        gray_coin = self.local_shard(noise["gray"])[:, :, None, None, None]
        gray = self._grayscale(images)
        whole = torch.where(gray_coin[:, 0], gray, images)
        top, left = (height - GRID * rows) // 2, (width - GRID * columns) // 2
        inner = (..., slice(top, top + GRID * rows), slice(left, left + GRID * columns))

        def cut(images: Tensor) -> Tensor:
            grid = images[inner].reshape(n, channels, GRID, rows, GRID, columns)
            return grid.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)

        tiles = torch.where(gray_coin[:, 1:], cut(gray), cut(images))
        order = self.permutations[self.local_shard(noise["tile_order"])]
        tiles = tiles.gather(1, order[:, :, None, None, None].expand_as(tiles))
        grid = tiles.reshape(n, GRID, GRID, channels, rows, columns).permute(0, 3, 1, 4, 2, 5)
        puzzle = images.clone()
        puzzle[inner] = grid.reshape(n, channels, GRID * rows, GRID * columns)
        return whole, puzzle

    def _grayscale(self, images: Tensor) -> Tensor:
        """Return normalized images without color; as they are if they do not have three channels."""
        if images.shape[1] != len(LUMINANCE):
            return images
        # With numbers of Python, not tensors: a captured graph cannot copy them to the device.
        stats = list(zip(LUMINANCE, self.run_info.image_mean, self.run_info.image_std, strict=True))
        pixels = [share * (images[:, i] * std + mean) for i, (share, mean, std) in enumerate(stats)]
        level = pixels[0] + pixels[1] + pixels[2]
        return torch.stack([(level - mean) / std for _, mean, std in stats], 1)


def _embed(layer: nn.Module, features: Tensor) -> Tensor:
    """Return normalized embeddings in full precision."""
    with torch.autocast(features.device.type, enabled=False):
        return functional.normalize(layer(features.float()))


def triplet_loss(
    queries: Tensor, keys: Tensor, pairs: Tensor, queue: Tensor, negatives: Tensor, margin: float
) -> Tensor:
    """Return the mean over all semi-hard triplets, with at most `MAX_TRIPLETS` times the weight of one for any pair.

    Args:
        queries: Normalized embeddings of the anchors, `[n, numbers]`.
        keys: Those of the positives, `[n, numbers]`.
        pairs: Which anchor and positive form a pair, `[n, n]`.
        queue: Normalized embeddings of the negatives, `[m, numbers]`.
        negatives: Which negatives an anchor has, `[n, m]`.
        margin: The margin, in squared distances.
    """
    # In double precision, because the sum over a pair's negatives is a difference of two long sums.
    with torch.autocast(queries.device.type, enabled=False):
        queries, keys, queue = queries.double(), keys.double(), queue.double()
        to_positive, to_negative = 2 - 2 * queries @ keys.T, 2 - 2 * queries @ queue.T
        # Sorted, the semi-hard negatives of a pair are neighbors: no tensor has an entry for every triplet.
        distances = to_negative.masked_fill(~negatives, torch.inf).sort(1).values
        sums = functional.pad(distances.masked_fill(distances.isinf(), 0).cumsum(1), (1, 0))
        bounds, known = to_positive.detach(), distances.detach()
        first = torch.searchsorted(known, bounds, right=True)
        last = torch.searchsorted(known, bounds + margin).maximum(first)
        count = last - first
        mean = (sums.gather(1, last) - sums.gather(1, first)) / count.clamp(min=1)
        weight = count.clamp(max=MAX_TRIPLETS) * pairs
        return ((weight * (to_positive - mean + margin)).sum() / weight.sum().clamp(min=1)).float()


ALGORITHM = EISNet
