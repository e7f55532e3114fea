"""What DANN and CDANN share: a discriminator that tells domains apart by the features, and its turns."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.algorithms import hyperparameters as hp
from swad.algorithms.base import Algorithm, Noise, StepContext
from swad.algorithms.hyperparameters import Choice, Constant, Power, hyper
from swad.data.loaders import Batch
from swad.models import networks

DISCRIMINATOR, GENERATOR = "discriminator", "generator"


@dataclass(frozen=True)
class AdversarialHyperparameters(hp.Hyperparameters):
    """The two sides' own rates, the discriminator's shape, and how they play."""

    weight_decay: float = hyper(0.0, Constant(0), "stays 0: the two sides have wd_g and wd_d")
    lr_g: float = hyper(
        0.0, Power(10, -5, -3.5), "the predictor's learning rate; 0: as lr", small=Power(10, -4.5, -2.5)
    )
    lr_d: float = hyper(
        0.0, Power(10, -5, -3.5), "the discriminator's learning rate; 0: as lr", small=Power(10, -4.5, -2.5)
    )
    wd_g: float = hyper(0.0, Power(10, -6, -2), "the predictor's L2 penalty", small=Constant(0))
    wd_d: float = hyper(0.0, Power(10, -6, -2), "the discriminator's L2 penalty")
    adversary: float = hyper(1.0, Power(10, -2, 2), "weight of the discriminator's loss in the predictor's, λ")
    d_steps: int = hyper(1, Power(2, 0, 3, whole=True), "steps of the discriminator for one of the predictor", low=1)
    grad_penalty: float = hyper(0.0, Power(10, -2, 1), "weight of the squared gradient at the discriminator's input")
    beta1: float = hyper(0.5, Choice((0, 0.5)), "Adam's first beta, on both sides; the second is .9")
    mlp_width: int = hyper(256, Power(2, 6, 10, whole=True), "units of a hidden layer of the discriminator", low=1)
    mlp_depth: int = hyper(3, Choice((3, 4, 5)), "linear layers of the discriminator", low=2)
    mlp_dropout: float = hyper(0.0, Choice((0, 0.1, 0.5)), "share of the discriminator's hidden units dropped")

    def problems(self) -> list[str]:
        """Shares and betas are below 1, and a penalty is said to be whose it is."""
        found = super().problems()
        if not found:
            if self.weight_decay:
                found.append(f"weight_decay must be 0, got {self.weight_decay}: set wd_g and wd_d, one for each side")
            for name in ("beta1", "mlp_dropout"):
                if getattr(self, name) >= 1:
                    found.append(f"{name} must be below 1, got {getattr(self, name)}")
        return found


class Discriminator(nn.Module):
    """Linear layers with dropout and ReLU between them, as DomainBed's MLP; masks come from outside."""

    def __init__(self, n_inputs: int, n_outputs: int, width: int, depth: int) -> None:
        super().__init__()
        sizes = [n_inputs, *[width] * (depth - 1), n_outputs]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))

    def forward(self, rows: Tensor, keep: Tensor | None = None) -> Tensor:
        """Scores of the domains; `keep[k]` multiplies the k-th hidden layer."""
        *hidden, last = self.layers
        for k, layer in enumerate(hidden):
            rows = layer(rows)
            rows = functional.relu(rows if keep is None else rows * keep[k])
        scores: Tensor = last(rows)
        return scores


class Adversarial(Algorithm):
    """Discriminator and predictor in turns; each phase has its loss, and its optimizer is named after it."""

    hyperparameters: AdversarialHyperparameters
    domains: Tensor
    conditional = False

    def __init__(self, predictor: nn.Module, hyperparameters: hp.Hyperparameters, n_domains: int) -> None:
        super().__init__(predictor, hyperparameters, n_domains)
        chosen, head = self.hyperparameters, networks.head(self.predictor)
        self.n_classes = head.out_features
        self.discriminator = Discriminator(head.in_features, n_domains, chosen.mlp_width, chosen.mlp_depth)
        self.class_embeddings = nn.Embedding(self.n_classes, head.in_features) if self.conditional else None
        domains = torch.arange(n_domains).repeat_interleave(chosen.batch_size)
        self.register_buffer("domains", domains, persistent=False)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """One Adam for each side."""
        chosen, betas = self.hyperparameters, (self.hyperparameters.beta1, 0.9)
        against = [*self.discriminator.parameters()]
        if self.class_embeddings is not None:
            against += self.class_embeddings.parameters()
        lr_g, lr_d = chosen.lr_g or chosen.lr, chosen.lr_d or chosen.lr
        return {
            GENERATOR: self.adam(self.predictor.parameters(), betas=betas, lr=lr_g, weight_decay=chosen.wd_g),
            DISCRIMINATOR: self.adam(against, betas=betas, lr=lr_d, weight_decay=chosen.wd_d),
        }

    def phase(self, step: int) -> str:
        """Whose turn it is: as in DomainBed, the first d_steps - 1 and then d_steps after each step of the other."""
        d_steps = self.hyperparameters.d_steps
        return DISCRIMINATOR if step % (1 + d_steps) < d_steps else GENERATOR

    def draw_randomness(self, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        """The discriminator's dropout comes along."""
        drawn, chosen = super().draw_randomness(generator, step), self.hyperparameters
        if chosen.mlp_dropout:
            shape = (chosen.mlp_depth - 1, self.n_images, chosen.mlp_width)
            kept = torch.rand(shape, generator=generator, device=generator.device) >= chosen.mlp_dropout
            drawn["hidden_dropout_mask"] = kept.float() / (1 - chosen.mlp_dropout)
        return drawn

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        """What the side whose turn it is descends."""
        labels = self.labels(batch)
        if self.phase(batch.step) == DISCRIMINATOR:
            with torch.no_grad():  # nothing of the predictor moves
                seen = self.head_inputs(batch, noise)
            return self.domain_loss(seen, labels, noise)
        seen = self.head_inputs(batch, noise)
        fooled = self.hyperparameters.adversary * self.domain_loss(seen, labels, noise)
        return functional.cross_entropy(self.head(seen), labels) - fooled

    def update(self, batch: Batch, noise: Noise, ctx: StepContext) -> Tensor:
        """One step of the side whose turn it is."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        with ctx.autocast():
            loss = self.loss(batch, noise)
        loss.backward()  # type: ignore[no-untyped-call]
        self.step(ctx, self.phase(batch.step))
        return loss.detach()

    def domain_loss(self, seen: Tensor, labels: Tensor, noise: Noise) -> Tensor:
        """The discriminator's loss over the whole batch, in full precision, with its gradient penalty."""
        weight = self.hyperparameters.grad_penalty
        with torch.autocast(seen.device.type, enabled=False):
            inputs = seen.float()
            if self.class_embeddings is not None:
                inputs = inputs + self.class_embeddings(labels)
            if weight and not inputs.requires_grad:
                inputs.requires_grad_()
            each = functional.cross_entropy(
                self.discriminator(inputs, noise.get("hidden_dropout_mask")), self.domains, reduction="none"
            )
            loss = (each * self.weights(labels)).sum()
            if weight:
                # Only the discriminator is differentiated twice: its input is where this gradient ends.
                (slopes,) = torch.autograd.grad(each.sum(), inputs, create_graph=True)
                loss = loss + weight * slopes.square().sum(1).mean()
            return loss

    def weights(self, labels: Tensor) -> Tensor:
        """How much every image counts in the discriminator's loss."""
        return torch.full((len(labels),), 1 / len(labels), device=labels.device)
