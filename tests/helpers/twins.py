"""Slow, obvious twins: keep everything, then average by the definition."""

from __future__ import annotations

from collections import Counter, deque
from fractions import Fraction


def averaged(
    losses: list[float],
    steps: list[int],
    total: int,
    semantics: str,
    n_converge: int,
    n_tolerance: float,
    r: float,
) -> dict[int, Fraction]:
    """Weight of every update in the average, summing to one, by the definitions of the three semantics.

    `steps[k]` is the update after which `losses[k]` was measured, `total` the number of updates made.
    """
    if semantics == "reference":
        return _normalized(_reference(losses, steps, total, n_converge, int(n_tolerance), r))
    return _normalized(Counter(_window(losses, steps, total, semantics, n_converge, n_tolerance, r)))


def _window(L, u, T, semantics, N_s, N_e, r):
    c = next((c for c in range(len(L) - N_s + 1) if L[c] == min(L[c : c + N_s])), None)
    if c is None:
        if not L:
            return range(1, T + 1)
        return range(u[L.index(min(L))], T + 1)
    threshold = r * L[c] if semantics == "text" else max(r * (sum(L[c : c + N_s]) / N_s), L[c])
    for i in range(c + N_s, len(L)):
        if N_e <= i + 1 and min(L[i - N_e + 1 : i + 1]) > threshold:
            return range(u[c], u[i - N_e + (semantics == "text")] + 1)
    return range(u[c], T + 1)


def _reference(L, u, T, N_s, N_e, r):
    """The published bookkeeping, with indices for segments: queues, an average that its first update overwrites."""
    converge, smooth = deque(maxlen=N_s), deque(maxlen=N_e)
    final, lowest, threshold, dead = Counter(), None, None, False
    for k in range(len(L)):
        if dead:
            break
        converge.append(k)
        smooth.append(k)
        if lowest is None:
            if len(converge) == N_s and min(converge, key=lambda j: (L[j], j)) == converge[0]:
                lowest = converge[0]
                threshold = max(r * (sum(L[j] for j in converge) / N_s), L[lowest])
                if N_e < N_s:
                    final.update(list(converge)[1 : 1 + N_s - N_e])
                elif N_e > N_s:
                    head = list(smooth)[: N_e - N_s + 1]
                    start = 0
                    for i in reversed(range(len(head))):
                        if L[head[i]] > threshold:
                            start = i + 1
                            break
                    final.update(head[start + 1 :])
            continue
        if smooth[0] < lowest:
            continue
        if min(L[j] for j in smooth) > threshold:
            dead = True
            continue
        final[smooth[0]] += 1
    if lowest is None:
        if not L:
            return Counter(range(1, T + 1))
        final = Counter([len(L) - 1])
    else:
        if not dead:
            rest = list(smooth)[1:]
            while rest and min(L[j] for j in rest) <= threshold:
                final[rest.pop(0)] += 1
        if not final:
            final = Counter([lowest])
    weights: Counter[int] = Counter()
    for k, times in final.items():
        members = range((u[k - 1] if k else 0) + 1, u[k] + 1)
        for i in members:
            weights[i] += Fraction(times, len(members))
    return weights


def _normalized(weights):
    total = sum(weights.values())
    return {i: Fraction(w) / total for i, w in sorted(weights.items()) if w}
