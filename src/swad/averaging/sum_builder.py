"""Carrying out a `KeepPlan` on tensors: new sums out of the sums kept before, with as little memory as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from swad.averaging.semantics import LIVE, MEAN, OPEN, KeepPlan, Terms
from swad.averaging.sums import WeightSum
from swad.averaging.tensors import TrackedTensors


class SumBuilder:
    """Builds the sums of a plan.

    A sum that only one of the new sums needs is extended in place, and dropped sums give their memory to new ones. The
    constructor allocates all further memory before anything is changed, so that running out of it leaves the state
    intact.

    Args:
        plan: The sums to build.
        kept: The sums kept so far.
        opened: The sums that together are the open segment.
        step: The number of updates so far.
        offload: Whether new sums go to pinned host memory.
        also: Further combinations that will be built.
    """

    def __init__(
        self,
        plan: KeepPlan,
        kept: Mapping[str, WeightSum],
        opened: Sequence[WeightSum],
        tracked: TrackedTensors,
        step: int,
        offload: bool,
        also: Sequence[Terms] = (),
    ) -> None:
        self._kept, self._opened, self._tracked, self._step = kept, opened, tracked, step
        self._plan = plan
        self._uses = count_uses(plan)
        wanted = [*plan.sums.values(), *also]
        dropped = [total for name, total in kept.items() if not self._uses[name]]
        n_new = sum(self._extended(terms) is None for terms in wanted) - len(dropped)
        self._free = [WeightSum.zeros(tracked, offload) for _ in range(n_new)]
        self._free += [total.zeroed() for total in dropped]

    def build_all(self) -> dict[str, WeightSum]:
        """Return the plan's sums by name."""
        return {name: self.build(terms) for name, terms in self._plan.sums.items()}

    def build(self, terms: Terms) -> WeightSum:
        """Return one sum, in the memory of a kept sum where possible."""
        extended = self._extended(terms)
        total = self._free.pop(0) if extended is None else self._kept[extended]
        self.add_terms(total, {name: factor for name, factor in terms.items() if name != extended}, self._opened)
        return total

    def add_terms(self, total: WeightSum, terms: Terms, opened: Sequence[WeightSum]) -> None:
        """Add a combination to `total`; `opened` is the open segment in it."""
        for name, factor in terms.items():
            if name == LIVE:
                total.add_(WeightSum.of_live(self._tracked, self._step), factor, self._tracked)
            elif name in (OPEN, MEAN):
                divisor = sum(part.weight for part in opened) if name == MEAN else 1
                for part in opened:
                    total.add_(part, factor / divisor, self._tracked)
            else:
                total.add_(self._kept[name], factor, self._tracked)

    def _extended(self, terms: Terms) -> str | None:
        """Return the kept sum that can be extended in place: nothing else needs it, and its factor is 1."""
        return next((n for n, factor in terms.items() if n in self._kept and self._uses[n] == 1 and factor == 1), None)


def count_uses(plan: KeepPlan) -> Counter[str]:
    """Return in how many combinations of the plan each term is."""
    return Counter(name for terms in (*plan.sums.values(), plan.open) for name in terms)
