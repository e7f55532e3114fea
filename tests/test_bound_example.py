"""The example that computes the paper's bound for a finished run: the divergence, and every term by hand."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import forked
from swad.flatness.theorems import Divergence, bound

pytest.importorskip("sklearn")

EXAMPLE = Path(__file__).parents[1] / "examples" / "bound" / "bound_of_a_run.py"
FUNCTIONS = runpy.run_path(str(EXAMPLE))
divergence, divergence_of_errors, bounds_of_run, bound_figure = (
    FUNCTIONS[name] for name in ("divergence", "divergence_of_errors", "bounds_of_run", "bound_figure")
)


def test_divergence_of_known_distributions():
    """Two unit normals d apart: the best event is a half line, and the divergence 2 (2 Phi(d / 2) - 1)."""
    rng = np.random.default_rng(1)
    for apart in (0.0, 1.0, 3.0):
        exact = 2 * math.erf(apart / 2 / math.sqrt(2))
        found = divergence(rng.normal(0, 1, (1500, 1)), rng.normal(apart, 1, (1500, 1)))
        assert found.value == pytest.approx(exact, abs=0.12)
        assert found.low <= found.value <= found.high
        assert found.high - found.low < 0.25


def test_unequal_sizes_weigh_the_same():
    """With nine sources to one target, guessing "source" errs on a tenth, and still knows nothing."""
    rng = np.random.default_rng(2)
    found = divergence(rng.normal(0, 1, (900, 3)), rng.normal(0, 1, (100, 3)))
    assert found.value < 0.3
    assert found == divergence(*(rng.normal(0, 1, (n, 3)) for rng in [np.random.default_rng(2)] for n in (900, 100)))


def test_unequal_sizes_do_not_move_the_boundary():
    """Unit normals 2 apart, nine to one: a classifier that counts images would call most of the few the many's."""
    rng = np.random.default_rng(3)
    found = divergence(rng.normal(0, 1, (1800, 1)), rng.normal(2, 1, (200, 1)))
    assert found.value == pytest.approx(2 * math.erf(1 / math.sqrt(2)), abs=0.15)  # 1.37; uncorrected 0.9


def test_no_error_is_not_certainty():
    rng = np.random.default_rng(4)
    found = divergence(rng.normal(0, 1, (40, 2)), rng.normal(9, 1, (40, 2)))
    assert found.value == found.high == 2
    assert 1.8 < found.low < 1.97
    more = divergence(rng.normal(0, 1, (400, 2)), rng.normal(9, 1, (400, 2)))
    assert found.low < more.low < 2


def test_the_interval_of_a_rare_error_holds_it_as_often_as_it_says():
    """1 % of 100 images of each domain: one judgement in eight sees no error at all."""
    rng = np.random.default_rng(5)
    hits = 0
    for k in range(600):
        found = divergence_of_errors(rng.binomial(100, 0.01, 2).tolist(), [100, 100], 500, 0.95, k)
        hits += found.low <= 2 * (1 - 2 * 0.01) <= found.high
        assert found.low <= found.value <= found.high
    assert 0.91 < hits / 600 < 0.99


def test_features_that_do_not_fit_are_refused():
    rows = np.zeros((10, 2))
    with pytest.raises(ValueError, match="one row per image"):
        divergence(rows, np.zeros((10, 3)))
    with pytest.raises(ValueError, match="folds"):
        divergence(rows[:3], rows)
    with pytest.raises(ValueError, match="finite"):
        divergence(rows + np.nan, rows)


@pytest.mark.slow
def test_every_term_of_a_runs_bound_by_hand(tiny_run, tmp_path):
    from helpers.tiny_runs import copied
    from swad.testbed.measure import engine
    from swad.testbed.measure.saved_run import open_run
    from swad.testbed.measurements.worst_case import WorstCase
    from swad.testbed.models.networks import features

    run = open_run(copied(tiny_run, tmp_path / "run"))
    (found,) = bounds_of_run(run, "swad", [0.2], vc_cover=5, vc=20, n_images=12)
    state = run.state("swad")
    dimension = sum(tensor.numel() for tensor in state.values())
    norm = math.sqrt(sum(tensor.double().square().sum().item() for tensor in state.values()))
    m = 3 * 12  # of the 1,080 training images those that were climbed on
    cover = dimension * math.log(2 * norm / 0.2)
    confidence = math.sqrt((5 * math.log(m / 5) + cover - math.log(0.05)) / m)
    confidence2 = math.sqrt((5 * math.log(m / 5) + cover - math.log(0.025)) / m)
    sampling = math.sqrt((20 * math.log(m / 20) - math.log(0.025)) / m)
    assert found.confidence["printed"] == pytest.approx(confidence)
    assert found.theorem1["printed"] == pytest.approx(found.robust + found.divergence / 2 + confidence)
    jobs = engine.plan([(run, ["swad"])], WorstCase(images=12, radii=(0.2,)))
    engine.measure(jobs)
    (climbed,) = [row for row in jobs[0].rows() if row["measure"] == "error"]
    assert climbed["lower_bound"] == found.robust
    assert found.robust > 0
    assert found.vacuous
    # Nothing is taken off for the least error of all weights, which nobody knows.
    assert found.theorem2["printed"] == pytest.approx(found.robust + found.divergence + confidence2 + sampling)
    model, images = run.model("swad"), run.images(12)
    with torch.no_grad():
        rows = {domain: features(model, pictures).numpy() for domain, (pictures, _) in images.by_domain.items()}
    apart = [divergence(rows[domain], rows["paper"]) for domain in images.seen]
    assert found.divergence_low == pytest.approx(sum(one.low for one in apart) / 3)
    assert found.divergence_high == pytest.approx(sum(one.high for one in apart) / 3)
    assert found.divergence_low < found.divergence <= found.divergence_high
    with pytest.raises(ValueError, match="a cover needs gamma and diameter above 0"):
        bounds_of_run(run, "swad", [0.2], diameter=0, n_images=12)


@pytest.mark.slow
def test_a_run_without_a_target_is_refused(tmp_path):
    from helpers.tiny_runs import finished
    from swad.testbed.measure.saved_run import open_run

    run = open_run(finished(tmp_path, target="none"))
    with pytest.raises(ValueError, match=r"the bounds need a target, but .* has none"):
        bounds_of_run(run, "swa", [0.1])


@pytest.mark.slow
def test_it_runs_as_its_first_lines_say(tiny_run, tmp_path):
    from helpers.tiny_runs import copied

    run, figure = copied(tiny_run, tmp_path / "run"), tmp_path / "bound.pdf"
    done = forked.run([EXAMPLE, run, "swad", "0.1,1", "--images", "12", "--figure", figure])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("radius")] == ["0.1", "1"]
    assert sum(line.startswith("Theorem 1 ") for line in lines) == 2
    assert lines[-1] == str(figure)
    assert figure.stat().st_size > 1000


def test_the_figure_says_that_the_bound_diverges():
    pytest.importorskip("matplotlib")
    settings = {"diameter": 10.0, "dimension": 100, "m": 1000, "vc_cover": 10}
    figure = bound_figure([bound(0.1, [0.5], gamma=gamma, **settings) for gamma in (0.01, 0.1, 1.0)])
    (axes,) = figure.axes
    title = axes.get_title(loc="left")
    assert "grows without limit as γ → 0" in title
    assert "Above 1" in title
    lines = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert lines["confidence, printed"][0] > lines["confidence, printed"][-1]
    assert not axes.collections  # numbers without an interval have no band
    apart = Divergence(0.5, 0.4, 0.8)
    (axes,) = bound_figure([bound(0.1, [apart], gamma=gamma, **settings) for gamma in (0.1, 1.0)]).axes
    (band,) = axes.collections
    assert band.get_label() == "its interval"
    assert axes.get_ylabel() == "error (log scale)"
    assert {0.2, 0.4} == {round(y, 6) for y in band.get_paths()[0].vertices[:, 1].tolist()}
    wide = Divergence(0.5, 0.001, 40.0)
    (axes,) = bound_figure([bound(0.1, [wide], gamma=gamma, **settings) for gamma in (0.1, 1.0)]).axes
    low, high = axes.get_ylim()
    assert low < 0.0005
    assert high > 20
    del settings["vc_cover"]  # then only Hoeffding's form has numbers
    (axes,) = bound_figure([bound(0.1, [0.5], gamma=gamma, **settings) for gamma in (0.1, 1.0)]).axes
    assert [line.get_label() for line in axes.lines if "confidence" in line.get_label()] == ["confidence, Hoeffding"]
    with pytest.raises(ValueError, match="one radius or more"):
        bound_figure([])
