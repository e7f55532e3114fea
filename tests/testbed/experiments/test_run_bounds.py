import math

import pytest
import torch

from helpers.tiny_runs import copied
from swad.flatness._divergence import divergence
from swad.testbed.experiments import run_bounds, run_flatness
from swad.testbed.experiments.saved_run import open_run
from swad.testbed.models.networks import features


@pytest.mark.slow
def test_every_term_of_a_runs_bound_by_hand(tiny_run, tmp_path):
    run = open_run(copied(tiny_run, tmp_path / "run"))
    (found,) = run_bounds.run_bounds(run, "swad", [0.2], vc_cover=5, vc=20, n_images=12)
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
    (_, climbed) = run_flatness.run_worst_case(run, ["swad"], [0.2], run_flatness.FlatnessConfig(n_images=12))
    assert (climbed["measure"], climbed["lower_bound"]) == ("error", found.robust)
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
        run_bounds.run_bounds(run, "swad", [0.2], diameter=0, n_images=12)
