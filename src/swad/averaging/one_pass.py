"""One pass over the weights for everything that takes them at a step.

A feed collects here what its averages do with the weights: one adds them to a sum, others blend them into means. On a
GPU with Triton it is then done at once, each weight read once; elsewhere one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from swad.util.packages import has_triton

if TYPE_CHECKING:
    from swad.averaging._kernels import Table


class OnePass:
    """The work of a step, while it is collected."""

    def __init__(self) -> None:
        self._means: list[list[Tensor]] = []
        self._rates: list[float] = []
        # Kept for good: a captured graph reads them at every replay.
        self._tables: dict[tuple[float, ...], tuple[Table, Tensor] | None] = {}

    def blend(self, means: list[Tensor], rate: float) -> None:
        """Ask that `means` move towards the weights by `rate`."""
        self._means.append(means)
        self._rates.append(rate)

    def forget(self) -> None:
        """Drop what a step asked for that was never made."""
        self._means, self._rates = [], []

    def run(self, live: list[Tensor], sums: list[Tensor] | None) -> None:
        """Do what was asked for, and add the weights to `sums` where there are any."""
        means, rates = self._means, self._rates
        self.forget()
        if sums is not None and means and live[0].is_cuda and has_triton():
            held = self._table(live, sums, means, rates)
            if held is not None:
                from swad.averaging._kernels import add_and_blend

                with torch.cuda.device(live[0].device):
                    add_and_blend(*held)
                return
        if sums is not None:
            torch._foreach_add_(sums, live)
        for one, rate in zip(means, rates, strict=True):
            torch._foreach_lerp_(one, live, rate)

    def _table(
        self, live: list[Tensor], sums: list[Tensor], means: list[list[Tensor]], rates: list[float]
    ) -> tuple[Table, Tensor] | None:
        key = (*rates, *(tensor.data_ptr() for tensors in (live, sums, *means) for tensor in tensors))
        if key not in self._tables:
            if torch.cuda.is_current_stream_capturing():  # a table cannot be copied to the device now
                return None
            from swad.averaging._kernels import Table, fits, sent

            made = None
            if fits(live, sums, means):
                made = (Table(live, sums, means), sent(torch.tensor(rates), live[0].device))
            self._tables[key] = made
        return self._tables[key]
