import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swad.flatness.theorems import FORMS, Divergence, bound, confidence, log_cover

# By hand, for m = 1000, v_k = 3, delta = 0.05, N = 4: 3 ln(1000 / 3) = 17.42743, ln 4 = 1.38629, ln 20 = 2.99573.
PRINTED = math.sqrt((17.427430 + 1.386294 + 2.995732) / 1000)
PROVED = math.sqrt((17.427430 + 3 + 1.386294 + 2.995732) / 2000)


def given_bound(**changes):
    settings = {"gamma": 0.5, "diameter": 1.0, "dimension": 2, "m": 1000, "vc_cover": 3, "vc": 8, "smallest": 0.02}
    return bound(0.1, [0.4, Divergence(0.8, 0.7, 0.9)], **{**settings, **changes})


def test_every_term_by_hand():
    found = given_bound()
    sizes = {"printed": 4, "proved": 4, "guaranteed": 25, "hoeffding": 25}
    assert found.cover == {form: math.log(size) for form, size in sizes.items()}
    assert found.confidence["printed"] == pytest.approx(PRINTED, abs=1e-6) == pytest.approx(0.147680, abs=1e-6)
    assert found.confidence["proved"] == pytest.approx(PROVED, abs=1e-6) == pytest.approx(0.111376, abs=1e-6)
    assert found.confidence["guaranteed"] == pytest.approx(math.sqrt((17.427430 + 3 + 3.218876 + 2.995732) / 2000))
    assert found.confidence["hoeffding"] == pytest.approx(math.sqrt((3.218876 + 2.995732) / 2000), abs=1e-6)
    assert found.confidence2["hoeffding"] == pytest.approx(math.sqrt((3.218876 + 3.688879) / 2000), abs=1e-6)
    assert found.sampling["hoeffding"] == pytest.approx(math.sqrt(3.688879 / 2000), abs=1e-6)
    assert found.divergence == pytest.approx(0.6)
    assert found.theorem1["printed"] == pytest.approx(0.1 + 0.3 + 0.147680, abs=1e-6)
    # Theorem 2: 8 ln 125 = 38.62651, ln 40 = 3.68888.
    confidence2 = math.sqrt((17.427430 + 1.386294 + 3.688879) / 1000)
    sampling = math.sqrt((38.626511 + 3.688879) / 1000)
    assert found.confidence2["printed"] == pytest.approx(confidence2, abs=1e-6)
    assert found.sampling["printed"] == pytest.approx(sampling, abs=1e-6) == pytest.approx(0.205707, abs=1e-6)
    assert found.sampling["proved"] == pytest.approx(math.sqrt((38.626511 + 8 + 3.688879) / 2000), abs=1e-6)
    assert found.theorem2["printed"] == pytest.approx(0.1 - 0.02 + 0.6 + confidence2 + sampling, abs=1e-6)
    assert not found.vacuous
    names = [name for name, *_ in found.rows()]
    assert names[:7] == [
        "robust empirical loss", "half the mean divergence", "its interval's low end", "its interval's high end",
        "ln of the cover's size", "confidence", "Theorem 1",
    ]  # fmt: skip
    assert len(names) == 11
    # 0.4 came without an interval, 0.8 with 0.7 to 0.9.
    assert (found.divergence_low, found.divergence_high) == pytest.approx((0.55, 0.65))
    rows = {name: values for name, *values in found.rows()}
    assert rows["its interval's low end"] == pytest.approx([0.275] * 4)
    assert rows["its interval's high end"] == pytest.approx([0.325] * 4)
    assert rows["confidence"] == [found.confidence[form] for form in FORMS]
    assert rows["Theorem 2"] == [found.theorem2[form] for form in FORMS]


def test_hoeffdings_form_needs_no_vc_dimension():
    found, with_vc = given_bound(vc_cover=None, vc=None), given_bound()
    for name in ("confidence", "confidence2", "sampling", "theorem1", "theorem2"):
        values = getattr(found, name)
        assert values["hoeffding"] == getattr(with_vc, name)["hoeffding"]
        assert all(math.isnan(values[form]) for form in FORMS if form != "hoeffding")
    assert not found.vacuous
    many = given_bound(vc_cover=500)
    assert many.theorem1["hoeffding"] < 1 < many.theorem1["guaranteed"]
    assert not many.vacuous


def test_hoeffdings_form_holds_for_parameters_that_are_fixed_before_the_sample():
    """Coin flips: N = 200 fixed weights with error 0.3; one of the samples errs by more in at most delta of cases."""
    rng, m, n, delta = np.random.default_rng(0), 50, 200, 0.2
    errors = rng.binomial(m, 0.3, (2000, n)) / m
    missed = (0.3 - errors.min(1) > confidence(None, math.log(n), m, delta, "hoeffding")).mean()
    assert missed <= delta
    assert (0.3 - errors.min(1) > confidence(None, 0.0, m, delta, "hoeffding")).mean() > delta  # the cover counts


@given(st.integers(1, 1000), st.floats(0, 1e6), st.floats(0.001, 0.999))
def test_hoeffdings_form_is_the_smallest_that_is_proved(vc, log_size, delta):
    assert confidence(vc, log_size, vc, delta, "hoeffding") <= confidence(vc, log_size, vc, delta, "guaranteed")


def test_numbers_of_numpy_are_numbers():
    settings = {"gamma": 0.1, "diameter": 10.0, "dimension": 100, "m": 1000}
    assert bound(0.1, [0.5], vc_cover=np.int64(3), vc=9, **settings) == bound(0.1, [0.5], vc_cover=3, vc=9, **settings)


def test_the_largest_ball_counts():
    assert given_bound(vc_cover=[1, 3, 2]).confidence == given_bound(vc_cover=3).confidence


def test_the_confidence_term_diverges_as_gamma_goes_to_zero():
    terms = [given_bound(gamma=10.0**-k).confidence for k in range(0, 300, 30)]
    for form in FORMS:
        values = [term[form] for term in terms]
        assert all(later > earlier for earlier, later in itertools.pairwise(values))
    # Slowly for two parameters; with those of a network it is above 1 at any radius worth looking at.
    assert given_bound(dimension=30_000).vacuous


def test_large_covers_are_kept_as_logarithms():
    assert log_cover(100.0, 0.1, 25_000_000) == pytest.approx(25_000_000 * math.log(1000))
    assert log_cover(1.0, 2.0, 10) == 0  # one ball
    assert log_cover(1.05, 0.5, 2) == math.log(5)  # 4.41, rounded up to whole balls


@given(st.floats(0.01, 5), st.floats(0.01, 5), st.integers(1, 50))
def test_a_guaranteed_cover_is_larger(gamma, diameter, dimension):
    assert log_cover(diameter, gamma, dimension, guaranteed=True) >= log_cover(diameter, gamma, dimension)


@given(st.integers(1, 1000), st.floats(0, 1e6), st.floats(0.001, 0.999))
def test_the_printed_term_is_the_looser_one_wherever_there_is_data_enough(vc, log_size, delta):
    m = 3 * vc  # v ln(m / v) > v
    assert confidence(vc, log_size, m, delta, "printed") >= confidence(vc, log_size, m, delta, "proved")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gamma": 0}, "gamma and diameter above 0"),
        ({"vc_cover": 2000}, "with 0 < v <= m"),
        ({"vc_cover": []}, "at least one ball"),
        ({"delta": 1.0}, "delta must be"),
        ({"m": 0, "vc_cover": None}, "m 1 or more"),
        ({"smallest": -1.0}, "losses between 0 and 1"),
    ],
)
def test_what_the_theorems_do_not_cover_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        given_bound(**changes)
    with pytest.raises(ValueError, match="between 0 and 2"):
        bound(0.1, [], gamma=1, diameter=1, dimension=1, m=10, vc_cover=1)
