import numpy as np
import pytest
import torch
from torch import nn

from swad.flatness import local
from swad.testbed.results.flatness_contributions import read_contributions
from swad.testbed.results.flatness_stats import FlatnessCurve, average_curves
from swad.util.statistics import average_contributions, half_widths, subtract_contributions

RADII = (2.0, 0.0, 1.0)
IMAGES = {"a": 0, "b": 0}


class Point(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(dim, dtype=torch.float64))


def measured(hessians, n_directions=12, seed=0, radii=RADII):
    """F of quadratics by image, {domain: images x parameters}, around zero."""

    def loss_fn(model):
        return {domain: 0.5 * (one * model.w.square()).sum(1) for domain, one in hessians.items()}

    return local(Point(next(iter(hessians.values())).shape[1]), loss_fn, radii, n_directions, seed)


def drawn(rng, n=20, dim=10):
    return torch.tensor(rng.gamma(1.0, 1.0, (n, dim))) * torch.linspace(0.1, 3.0, dim, dtype=torch.float64)


def test_the_interval_of_one_run_is_that_of_the_measurement():
    rng = np.random.default_rng(0)
    flat = measured({"a": drawn(rng, 60), "b": drawn(rng, 80)}, n_directions=80)
    halves = half_widths(read_contributions([flat.to_row("m")], "m", ["a", "b"], IMAGES))
    rows = [flat.row(radius) for radius in sorted(RADII)]
    assert halves == pytest.approx([(row.high - row.low) / 2 for row in rows], rel=1e-9)


def test_runs_that_share_directions_and_images_are_resampled_together():
    rng = np.random.default_rng(1)
    common = drawn(rng, 50)
    runs = [measured({"a": common * 1.5 + drawn(rng, 50)}, n_directions=60) for _ in range(3)]
    pooled = average_contributions([read_contributions([run.to_row("m")], "m", ["a"], IMAGES) for run in runs])
    # The slow twin: the same draws of directions and images for every run, one after the other.
    rises = [run.rises["a"].numpy() for run in runs]
    images = [(run.image_sums["a"] / run.n_directions - run.image_loss["a"]).T.numpy() for run in runs]
    deviations = []
    for _ in range(4000):
        k, m = (rng.integers(len(values[0]), size=len(values[0])) for values in (rises, images))
        by_direction = np.mean([values[k].mean(0) - values.mean(0) for values in rises], 0)
        deviations.append(by_direction + np.mean([values[m].mean(0) - values.mean(0) for values in images], 0))
    order = np.argsort(RADII)
    low, high = np.quantile(deviations, [0.025, 0.975], axis=0)
    assert half_widths(pooled) == pytest.approx(((high - low) / 2)[order].tolist(), rel=0.12)
    alone = [half_widths(read_contributions([run.to_row("m")], "m", ["a"], IMAGES)) for run in runs]
    independent = np.sqrt(np.square(alone).sum(0)) / 3
    assert half_widths(pooled)[-1] > 1.3 * independent[-1]


def test_intervals_over_targets_cover_where_images_are_shared():
    rng = np.random.default_rng(2)
    truth, hits, bare_hits = 0.5 * np.linspace(0.1, 3.0, 10).mean(), 0, 0
    for k in range(150):
        common, curves = drawn(rng), []
        for _ in range(3):  # three runs whose networks see the same images in almost the same way
            flat = measured({"a": common * torch.tensor(rng.gamma(200, 1 / 200, (20, 1)))}, 16, k, (1.0,))
            row, contributions = flat.row(1.0, "a"), read_contributions([flat.to_row("m")], "m", ["a"], IMAGES)
            curves.append(FlatnessCurve("ERM", (1.0,), (row.mean,), (row.low,), (row.high,), contributions))
        found = average_curves(curves)
        hits += found.low[0] <= truth <= found.high[0]
        bare = average_curves([FlatnessCurve("ERM", c.radii, c.mean, c.low, c.high) for c in curves])
        bare_hits += bare.low[0] <= truth <= bare.high[0]
    assert 0.88 <= hits / 150 <= 0.99
    assert hits <= bare_hits  # all draws are taken as shared


def test_others_images_and_more_directions():
    rng = np.random.default_rng(3)
    one, two = (measured({"a": drawn(rng), "b": drawn(rng)}, n) for n in (8, 12))
    first, second = (read_contributions([run.to_row("m")], "m", ["a", "b"], IMAGES) for run in (one, two))
    other = read_contributions([one.to_row("m")], "m", ["a", "b"], {"a": 1, "b": 1})
    assert len(average_contributions([first, second])) == 3  # directions, and the images of two domains
    assert len(average_contributions([first, other])) == 5
    assert half_widths(average_contributions([first, first])) == pytest.approx(half_widths(first))
    assert subtract_contributions(first, second) is None  # not the same directions
    assert half_widths(subtract_contributions(first, first)) == [0.0, 0.0, 0.0]
    assert read_contributions([one.to_row("m")], "other", ["a"], IMAGES) is None
    assert read_contributions([], "m", ["a"], IMAGES) is None
    scalar = [local(Point(4), lambda model: model.w.pow(4).sum(), [1.0], 6).to_row("m")]
    (alone,) = read_contributions(scalar, "m", ["all"], {"all": 0}).values()
    assert alone.shape == (3, 1)
    values = np.array([one[0] for one in scalar[0]["losses"]["all"]]).reshape(3, 2).mean(1)
    assert half_widths({0: alone}) == pytest.approx([4.302653 * values.std(ddof=1) / np.sqrt(3)])  # t with 2 degrees
