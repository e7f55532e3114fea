"""Algorithm 1 of the paper: where the average begins, and where it ends. Losses in, no tensors.

Cha et al., "SWAD: Domain Generalization by Seeking Flat Minima", NeurIPS 2021, appendix, in its own letters:

     1  t_s <- 0                                                            first averaged update
     2  t_e <- T                                                            last one
     3  l <- None                                                           threshold
     4  for i <- 1 to T do
     5      theta_i <- theta_{i-1} - alpha * gradient
     6      if l = None then
     7          if E_val(i - N_s + 1) = min(E_val(i - N_s + 1 .. i)) then
     8              t_s <- i - N_s + 1
     9              l <- r / N_s * sum(E_val(i - N_s + 1 .. i))
    10      else if l < min(E_val(i - N_e + 1 .. i)) then
    11          t_e <- i - N_e
    12          break
    13  theta_SWAD <- mean(theta_{t_s} .. theta_{t_e})

There i counts evaluations. Here update u[i] is the one before evaluation i, and every update from u[t_s] to u[t_e] is
averaged. Section 3.2 of the paper (`text`) describes lines 9 and 11 differently: l = r * E_val(t_s), and t_e is the
first of the N_e evaluations above l instead of the last one before them.
"""

from __future__ import annotations

import math
from typing import ClassVar

from swad.averaging.rule import Rule
from swad.averaging.spans import FOREVER, Phase, Span


class Algorithm1(Rule):
    """The paper's loop, one evaluation at a time (`observe`), and what it may still ask for (`ends`).

    Args:
        N_s: Evaluations for which a loss must stay the lowest.
        N_e: Evaluations in a row above l that end the average; may be infinite.
        r: The threshold l as a multiple of the loss at the start.
        text: Follow section 3.2 instead of the printed algorithm.
        plus: Added to that multiple, for an absolute tolerance; 0 in the paper.
    """

    settings = ("N_s", "N_e", "r", "text", "plus")
    state_defaults: ClassVar = {"plus": 0}

    def __init__(self, N_s: int, N_e: float, r: float, text: bool, plus: float = 0) -> None:
        self.N_s, self.r, self.text, self.plus = N_s, r, text, plus
        self.N_e = FOREVER if N_e == math.inf else int(N_e)  # more evaluations than there are
        self.L: list[float] = []  # E_val, as far as the loop still reads it
        self.u: list[int] = []  # the update before each of these evaluations
        self.t_s: int | None = None
        self.t_e: int | None = None
        self.l: float | None = None

    def observe(self, loss: float, step: int) -> None:
        """Take the loss after update `step`: lines 6 to 12."""
        N_s, N_e, L, u = self.N_s, self.N_e, self.L, self.u
        L.append(loss)
        u.append(step)
        if self.l is None:
            if len(L) >= N_s and L[-N_s] == min(L[-N_s:]):
                self.t_s = u[-N_s]
                self.l = self._threshold(L[-N_s:])
        elif len(L) > N_e and self.l < min(L[-N_e:]):  # fewer losses include that of t_s, or N_e is infinite
            self.t_e = u[-N_e] if self.text else u[-N_e - 1]
        self._forget()

    def _threshold(self, window: list[float]) -> float:
        """Line 9. Rounding of the mean must not put the lowest loss itself above l."""
        return max(self.r * (window[0] if self.text else sum(window) / self.N_s) + self.plus, window[0])

    def _forget(self) -> None:
        """Drop the losses that no later line reads, so that memory and cost do not grow with the evaluations."""
        if self.l is None:
            # Of two losses the later one is the lowest of N_s in a row only if it is lower. So the lowest so far, at a
            # tie the earliest, is the only candidate for t_s, and what came before it is out.
            first = self.L.index(min(self.L))
        else:
            first = max(len(self.L) - self.N_e, 0) if self.N_e < FOREVER else len(self.L) - 1
        del self.L[:first], self.u[:first]

    @property
    def start(self) -> int | None:
        """Update t_s; until it is confirmed, the candidate for it."""
        return self.t_s or next(iter(self.u), None)

    @property
    def threshold(self) -> float | None:
        """The loss l above which evaluations count toward the end; None until the start is confirmed."""
        return self.l

    @property
    def phase(self) -> Phase:
        """How far the loop is."""
        if self.l is None:
            return Phase.SEARCHING
        return Phase.AVERAGING if self.t_e is None else Phase.STOPPED

    @property
    def n_above(self) -> int:
        """Losses in a row above l up to the last one, as far as they count toward the end."""
        return 0 if self.l is None else len(self.L) - 1 - self._last_inside(self.l)

    def _last_inside(self, l: float) -> int:  # noqa: E741 - the paper's letter
        """Return the last loss that is not above l, or the one at which line 11 ends the average at the earliest."""
        # Line 10 is reached after the window of line 7 only, and reads N_e losses, of which one is still to come.
        earliest = self.N_s - self.N_e if self.l is None else len(self.L) - self.N_e
        inside = [k for k, loss in enumerate(self.L) if loss <= l]
        return min(max([*inside, earliest, 0]), len(self.L) - 1)

    def ends(self) -> list[int]:
        """Return the updates at which line 11 may still end the average, given the losses so far.

        Sums of weights before and after one of them must be kept apart, since the later ones may be dropped; all others
        can be added up.

        - Once l is known, all losses above l follow on the last one that is not: only there the average can end.
          `text` adds the first loss above l. It knows l with the candidate for t_s.
        - Before, any evaluation since the candidate may turn out to be the last one before N_e losses above l, unless
          `_may_end_at` excludes it.
        """
        if not self.L:
            return []
        if self.l is None and not self.text:
            return [update for j, update in enumerate(self.u) if self._may_end_at(j)]
        inside = self._last_inside(self._threshold(self.L) if self.l is None else self.l)
        # If the last loss is inside, `text` cannot end there. It is listed so that a sum is closed at every evaluation.
        return [self.u[min(inside + 1, len(self.u) - 1) if self.text else inside]]

    def _may_end_at(self, j: int) -> bool:
        """Whether the printed algorithm could end the average at evaluation j of the window, given its losses so far.

        All losses after j must then be above l, to the end of the window. With S the sum of the losses so far and m
        to come, all above l = r / N_s * (S + their sum), it follows that l > r S / (N_s - r m); `plus` adds N_s times
        itself to r S. A loss at or below this bound shows that the average goes on after it. At the paper's settings,
        the bound excludes all evaluations but the last, unless the loss after the candidate is above 3.25 times the
        candidate's.
        """
        if j < self.N_s - self.N_e or self.N_e == FOREVER:
            return False
        room = self.N_s - self.r * (self.N_s - len(self.L))
        # Where a loss meets the bound but for rounding, the slack keeps one sum too many rather than one too few.
        if room <= 0:
            return False
        bound = (self.r * sum(self.L) + self.N_s * self.plus) / room
        return min(self.L[j + 1 :], default=math.inf) > bound - 1e-9 * abs(bound)

    def spans(self, step: int) -> tuple[Span, ...]:
        """Return line 13: the updates from t_s to t_e, or to `step`. Without a loss so far, all."""
        first, last = self.start or 1, step if self.t_e is None else self.t_e
        return (Span(first, last),) if first <= last else ()

    def needed(self) -> tuple[Span, ...]:
        """Return the updates from t_s on, cut where the average may still end."""
        first = self.start or 1
        if self.t_e is not None:
            return (Span(first, self.t_e),)
        ends = self.ends()
        firsts, lasts = [first, *(end + 1 for end in ends)], [*ends, FOREVER]
        return tuple(Span(*bounds) for bounds in zip(firsts, lasts, strict=True))

    @property
    def has_losses(self) -> bool:
        """Whether a loss was observed."""
        return bool(self.L)

    @property
    def lowest(self) -> tuple[int, float]:
        """For how many evaluations the lowest loss has been the lowest, and that loss."""
        return len(self.L), self.L[0]
