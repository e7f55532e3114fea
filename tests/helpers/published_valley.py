"""The published detector and average, slowly: every segment is kept, and which of them are averaged is a list."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from helpers.valleys import losses_of


class Walk(nn.Module):
    """A random walk of a few weights. The buffer is the number of the last update."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(2, 1)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("updates", torch.tensor(0))

    @torch.no_grad()
    def step(self) -> None:
        for param in self.parameters():
            param += torch.randn_like(param)
        self.updates += 1

    def flat(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.parameters()).detach().double()

    def predict(self, x):
        return self.network(x) * self.scale


@dataclass
class Kept:
    weights: Tensor  # the mean over its updates
    buffer: int  # before its first update
    start: int
    end: int
    loss: float


class SlowValley:
    """Decides after each segment which ones are averaged; a segment may be in the list several times."""

    def __init__(self, N_s: int, N_e: int, ratio: float) -> None:
        self.N_s, self.N_e, self.ratio = N_s, N_e, ratio
        self.segments: list[Kept] = []
        self.averaged: list[int] = []
        self.lowest: int | None = None
        self.threshold: float | None = None
        self.dead = False

    def evaluate(self, segment: Kept) -> None:
        if self.dead:
            return
        self.segments.append(segment)
        losses = [each.loss for each in self.segments]
        if self.lowest is None:
            self._converge(losses)
        elif self._front >= self.lowest:
            if min(losses[self._front :]) > self.threshold:
                self.dead = True
            else:
                self.averaged.append(self._front)

    @property
    def _front(self) -> int:
        """The first segment of the queue of N_e."""
        return max(0, len(self.segments) - self.N_e)

    def _converge(self, losses: list[float]) -> None:
        window = losses[-self.N_s :]
        if len(window) < self.N_s or min(window) < window[0]:
            return
        self.lowest = len(losses) - self.N_s
        self.threshold = max(sum(window) / self.N_s * (1 + self.ratio), window[0])
        if self.N_e < self.N_s:
            self.averaged += range(self.lowest + 1, self.lowest + 1 + self.N_s - self.N_e)
        if self.N_e > self.N_s:
            back = range(self._front, min(self._front + self.N_e - self.N_s + 1, len(losses)))
            above = [k for k in back if losses[k] > self.threshold]
            first = above[-1] + 1 if above else self._front
            self.averaged += [k for k in back if k > first]  # not the first one

    def final(self) -> tuple[list[Kept], Kept]:
        """The segments to average, and the one that the buffers are from."""
        if self.lowest is None:
            return [self.segments[-1]], self.segments[-1]
        averaged = list(self.averaged)
        losses = [each.loss for each in self.segments]
        k = self._front + 1
        while not self.dead and k < len(losses) and min(losses[k:]) <= self.threshold:
            averaged.append(k)
            k += 1
        lowest = self.segments[self.lowest]
        return [self.segments[k] for k in averaged] or [lowest], lowest


def curve(seed: int) -> tuple[list[float], list[int], tuple[int, int, float]]:
    """Losses with ties and jumps, the length of each segment, and N_s, N_e and the ratio."""
    rng = random.Random(seed)
    losses = losses_of(rng) + (losses_of(rng) if rng.random() < 0.5 else [])
    lengths = [rng.choice([1, 1, 2, 3, 7]) for _ in losses]
    return losses, lengths, (rng.randint(1, 8), rng.randint(1, 8), rng.choice([0.05, 0.1, 0.3, 0.3, 1.0]))
