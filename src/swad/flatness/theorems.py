"""Theorems 1 and 2, term by term: bounds of the loss on an unseen domain.

Theorem 1, for a loss in [0, 1] such as the 0-1 error, with probability 1 - delta:

    E_T(theta) < robust + (1 / 2I) sum_i Div(D_i, T) + confidence(N / delta)

Theorem 2, for the robust optimum theta:

    E_T(theta) - min E_T <= robust - min E_D + (1 / I) sum_i Div(D_i, T) + confidence(2 N / delta) + sampling

The paper prints the confidence term as sqrt((v_k ln(m / v_k) + ln(N / delta)) / m); its proof arrives at
sqrt((v_k (ln(m / v_k) + 1) + ln(N / delta)) / (2 m)). It prints N = ceil((diam / gamma)^d) balls of radius gamma / 2;
a ball of that diameter is certainly covered by (1 + 2 diam / gamma)^d of them. The proof needs the confidence term only
for the N parameters theta_k that are worst in their balls on the distribution, and in Theorem 2 for the best parameters
of the target. These are fixed before the sample is drawn, so Hoeffding's inequality alone gives sqrt(ln(N / delta) /
(2 m)), without a VC dimension. Results come in four forms: `printed`, `proved` (the proof's term, the printed N),
`guaranteed` (the proof's term, an N that suffices) and `hoeffding` (that N, without a VC dimension: the smallest that
is proved). N is kept as a logarithm: for networks it has millions of digits.

Two inputs are usually estimates: the robust loss from `worst_case` is a lower bound of a maximum, and the divergence
from a classifier is an estimate from below. The result is then an estimate of the bound, from below.

>>> terms = bound(0.1, [0.4, 0.8], gamma=0.5, diameter=1.0, dimension=2, m=1000, vc_cover=3)
>>> round(terms.cover["printed"], 4), round(terms.confidence["printed"], 4), round(terms.theorem1["printed"], 4)
(1.3863, 0.1477, 0.5477)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from numbers import Real
from typing import Literal

Form = Literal["printed", "proved", "guaranteed", "hoeffding"]
FORMS: tuple[Form, ...] = ("printed", "proved", "guaranteed", "hoeffding")


@dataclass(frozen=True)
class Divergence:
    """The divergence Div(D, T) = 2 sup over events A of |P_D(A) - P_T(A)| of two domains, with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Bound:
    """Every term of both theorems at one radius; mappings are by form (printed, proved, guaranteed, hoeffding).

    Terms that need a VC dimension which was not given are NaN.
    """

    gamma: float
    robust: float
    """The worst loss within distance gamma of the weights, on the training images of all sources."""
    divergence: float
    """The mean of Div(D_i, T) over the sources; Theorem 1 takes half of it, Theorem 2 all of it."""
    divergence_low: float
    divergence_high: float
    """The ends of its interval, if the divergences have one. It assumes that all err the same way, as they share T."""
    cover: Mapping[Form, float]
    """ln N, the logarithm of the cover's size."""
    confidence: Mapping[Form, float]
    """Theorem 1's confidence term; it diverges as gamma goes to 0, since the cover needs more and more balls."""
    confidence2: Mapping[Form, float]
    """Theorem 2's confidence term, with delta / 2."""
    sampling: Mapping[Form, float]
    """Theorem 2's last term, from the VC dimension of the whole parameter space; Hoeffding's needs none."""
    theorem1: Mapping[Form, float]
    """The bound of Theorem 1; a value of 1 or more says nothing."""
    theorem2: Mapping[Form, float]

    @property
    def vacuous(self) -> bool:
        """Whether the smallest proved form of Theorem 1, Hoeffding's, says nothing, because it is 1 or more."""
        return self.theorem1["hoeffding"] >= 1

    def rows(self) -> list[tuple[str, float, float, float, float]]:
        """Return one row for every term: its name and its printed, proved, guaranteed and Hoeffding's value."""

        def row(name: str, values: Mapping[Form, float]) -> tuple[str, float, float, float, float]:
            return name, values["printed"], values["proved"], values["guaranteed"], values["hoeffding"]

        def same(value: float) -> Mapping[Form, float]:
            return dict.fromkeys(FORMS, value)

        return [
            row("robust empirical loss", same(self.robust)),
            row("half the mean divergence", same(self.divergence / 2)),
            row("its interval's low end", same(self.divergence_low / 2)),
            row("its interval's high end", same(self.divergence_high / 2)),
            row("ln of the cover's size", self.cover),
            row("confidence", self.confidence),
            row("Theorem 1", self.theorem1),
            row("the mean divergence", same(self.divergence)),
            row("confidence, delta / 2", self.confidence2),
            row("sampling", self.sampling),
            row("Theorem 2", self.theorem2),
        ]


def bound(
    robust: float,
    divergences: Sequence[float | Divergence],
    *,
    gamma: float,
    diameter: float,
    dimension: int,
    m: int,
    vc_cover: float | Sequence[float] | None = None,
    vc: float | None = None,
    delta: float = 0.05,
    smallest: float = 0.0,
) -> Bound:
    """Compute every term of Theorems 1 and 2 at radius `gamma`.

    Args:
        robust: The worst loss within distance gamma of the weights, measured on the m images.
        divergences: The divergence between the target and every source, e.g. estimated by a classifier that tells the
            domains apart, as `examples/bound/bound_of_a_run.py` does.
        gamma: The radius.
        diameter: Diameter of the parameter space.
        dimension: Number of parameters.
        m: Number of training images of all sources.
        vc_cover: VC dimension of one ball of the cover, or of several; the largest confidence term counts. Without it
            only Hoeffding's form has numbers.
        vc: VC dimension of the whole parameter space; Theorem 2 needs it, but for Hoeffding's form.
        delta: The bounds hold with probability 1 - delta.
        smallest: The smallest empirical loss over all parameters, for Theorem 2. A value that is too large makes the
            bound too small; 0 is always safe.
    """
    given = [item if isinstance(item, Divergence) else Divergence(*[float(item)] * 3) for item in divergences]
    values = [item.value for item in given]
    if not 0 <= robust <= 1 or not 0 <= smallest <= 1:
        raise ValueError(f"the theorems need losses between 0 and 1, got {robust} and {smallest}: use the 0-1 error")
    if not values or not all(0 <= value <= 2 for value in values):
        raise ValueError(f"divergences must be between 0 and 2, one for each source; got {values}")
    if not 0 < delta < 1 or m < 1:
        raise ValueError(f"delta must be between 0 and 1 and m 1 or more, got {delta} and {m}")
    vcs: list[float | None] = [None]
    if vc_cover is not None:
        vcs = [float(vc_cover)] if isinstance(vc_cover, Real) else [float(v) for v in vc_cover]  # type: ignore[union-attr]
    if not vcs:
        raise ValueError("vc_cover must hold the VC dimension of at least one ball, got none")
    mean, low, high = (math.fsum(ends) / len(given) for ends in zip(*map(astuple, given), strict=True))
    size, enough = (log_cover(diameter, gamma, dimension, guaranteed=guaranteed) for guaranteed in (False, True))
    sizes: dict[Form, float] = {"printed": size, "proved": size, "guaranteed": enough, "hoeffding": enough}

    def terms(probability: float) -> dict[Form, float]:
        return {form: max(confidence(v, sizes[form], m, probability, form) for v in vcs) for form in FORMS}

    first, second = terms(delta), terms(delta / 2)
    theorem1 = {form: robust + mean / 2 + first[form] for form in FORMS}
    sampling = {form: confidence(vc, 0.0, m, delta / 2, form) for form in FORMS}
    theorem2 = {form: robust - smallest + mean + second[form] + sampling[form] for form in FORMS}
    return Bound(gamma, robust, mean, low, high, sizes, first, second, sampling, theorem1, theorem2)


def log_cover(diameter: float, gamma: float, dimension: int, *, guaranteed: bool = False) -> float:
    """Return ln N for N balls of radius gamma / 2 that cover the parameters: as printed, or guaranteed to suffice.

    >>> log_cover(1.0, 0.5, 2) == math.log(4), log_cover(1.0, 0.5, 2, guaranteed=True) == math.log(25)
    (True, True)
    """
    if not (0 < gamma < math.inf and 0 < diameter < math.inf) or dimension < 1:
        raise ValueError(
            "a cover needs gamma and diameter above 0 and a dimension of 1 or more, got "
            f"gamma={gamma}, diameter={diameter}, dimension={dimension}"
        )
    ratio = 1 + 2 * diameter / gamma if guaranteed else diameter / gamma
    size = dimension * math.log(ratio)
    # Rounding up to whole balls matters for small numbers only, and larger ones would overflow.
    return math.log(max(1, math.ceil(ratio**dimension - 1e-9))) if size < 30 else size


def confidence(vc: float | None, log_size: float, m: int, delta: float, form: Form) -> float:
    """Return the confidence term for a VC dimension, ln N of a cover and m images, as printed, proved or by Hoeffding.

    Without a VC dimension it is NaN, but for Hoeffding's, which needs none.

    >>> round(confidence(3, math.log(4), 1000, 0.05, "proved"), 4)
    0.1114
    >>> round(confidence(None, math.log(4), 1000, 0.05, "hoeffding"), 4)
    0.0468
    """
    if form == "hoeffding":
        return math.sqrt((log_size - math.log(delta)) / (2 * m))
    if vc is None:
        return math.nan
    if not 0 < vc <= m:
        raise ValueError(
            f"the theorems need a VC dimension v with 0 < v <= m; got v = {vc:g} and m = {m}: "
            "give more images or a smaller VC dimension"
        )
    if form == "printed":
        return math.sqrt((vc * math.log(m / vc) + log_size - math.log(delta)) / m)
    return math.sqrt((vc * (math.log(m / vc) + 1) + log_size - math.log(delta)) / (2 * m))
