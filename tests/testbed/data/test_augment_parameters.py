"""The parameters of the augmentation are distributed as torchvision's, and depend only on seed and step."""

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import ColorJitter, RandomResizedCrop

from helpers.batches import draw
from swad.testbed.data.augment_parameters import COLUMNS, FACTORS, FIELDS, GRAYSCALE, ORDER, draw_steps, identity
from swad.testbed.data.augmentation import Augmentation

GOLDEN_ROW = [
    *(38, 4, 189, 223, 227, 227, 0),
    *(1.1480929851531982, 1.279726505279541, 0.801645040512085, -0.1712958961725235),
    *(0, 2, 3, 1, 0),
]


def crops_of_torchvision(height: int, width: int, n: int) -> np.ndarray:
    image = torch.empty(3, height, width)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return np.array([RandomResizedCrop.get_params(image, [0.7, 1.0], [3 / 4, 4 / 3]) for _ in range(n)])


@pytest.mark.parametrize(("height", "width"), [(227, 227), (60, 90), (300, 131)])
def test_crops_are_distributed_as_in_torchvision(height, width):
    theirs = crops_of_torchvision(height, width, 4000)
    ours = draw(0, np.array([[height, width]] * 4000))[:, :4]

    def traits(crops):
        top, left, high, wide = crops.T.astype(float)
        return {
            "area": high * wide,
            "aspect": wide / high,
            "top": top,
            "left": left,
            "bottom": height - high - top,
            "right": width - wide - left,
        }

    for name, values in traits(ours).items():
        assert stats.ks_2samp(values, traits(theirs)[name]).pvalue > 0.001, name


@pytest.mark.parametrize(("height", "width"), [(10, 1000), (1000, 10), (1, 1), (2, 3), (7, 400)])
def test_the_center_is_cropped_if_no_crop_fits_as_in_torchvision(height, width):
    theirs = {tuple(crop) for crop in crops_of_torchvision(height, width, 300).tolist()}
    ours = {tuple(crop) for crop in draw(0, np.array([[height, width]] * 300))[:, :4].tolist()}
    assert ours == theirs


def test_the_settings_bound_the_parameters():
    sizes = np.array([[60, 90], [227, 227]] * 1000)
    rows = draw(0, sizes, Augmentation(crop=0.9, flip=0.2, jitter=0.05, grayscale=0))
    area = (rows[:, 2] * rows[:, 3]) / (sizes[:, 0] * sizes[:, 1])
    assert 0.88 < area.min() < 0.92
    changes = rows[:, FACTORS] - [1, 1, 1, 0]
    assert 0.045 < np.abs(changes).max() <= 0.05
    assert rows[:, COLUMNS.index("flip")].mean() == pytest.approx(0.2, abs=0.03)
    assert not rows[:, GRAYSCALE].any()
    # Nothing of the augmentation is left, also for images of a shape that no crop would keep.
    sizes = np.array([[60, 300], [227, 227]])
    rows = draw(0, sizes, Augmentation(crop=1, flip=0, jitter=0, grayscale=0))
    rows[:, ORDER] = range(4)
    assert (rows == identity(sizes)).all()


def test_factors_are_distributed_as_in_torchvision():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ranges = [(0.7, 1.3)] * 3 + [(-0.3, 0.3)]
        theirs = [ColorJitter.get_params(*ranges) for _ in range(4000)]
    rows = draw(0, np.full((4000, 2), 227))
    for i, name in enumerate(("brightness", "contrast", "saturation", "hue")):
        ours = rows[:, COLUMNS.index(name)]
        assert stats.ks_2samp(ours, [factors[1 + i] for factors in theirs]).pvalue > 0.001, name
    assert np.abs(np.corrcoef(rows[:, FACTORS].T) - np.eye(4)).max() < 0.06


def test_orders_flips_and_grayscale_have_the_right_frequencies():
    rows = draw(0, np.full((20000, 2), 227))
    orders, counts = np.unique(rows[:, ORDER], axis=0, return_counts=True)
    assert len(orders) == 24
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders.tolist())
    assert stats.chisquare(counts).pvalue > 0.001
    for column, probability in ((COLUMNS.index("flip"), 0.5), (GRAYSCALE, 0.1)):
        assert set(np.unique(rows[:, column])) == {0, 1}
        assert stats.binomtest(int(rows[:, column].sum()), 20000, probability).pvalue > 0.001


def test_parameters_depend_only_on_seed_step_position_and_view():
    sizes = np.random.RandomState(0).randint(20, 300, (6, 5, 2))
    whole = draw_steps(3, range(10, 16), sizes, views=2)
    assert whole.shape == (6, 2, 5, FIELDS)
    assert whole.dtype == np.float32
    assert (whole[2:4] == draw_steps(3, range(12, 14), sizes[2:4], views=2)).all()
    assert (whole[[4, 1]] == draw_steps(3, [14, 11], sizes[[4, 1]], views=2)).all()
    assert (whole[:, :1] == draw_steps(3, range(10, 16), sizes)).all()
    assert (whole[:, :, :3] == draw_steps(3, range(10, 16), sizes[:, :3], views=2)).all()
    same = draw_steps(3, range(10, 16), np.full((6, 5, 2), 227), views=2)[..., 7:11].reshape(-1, 4)
    assert len(np.unique(same, axis=0)) == 60
    assert (draw_steps(4, range(10, 16), sizes)[..., FACTORS] != whole[:, :1, :, FACTORS]).all()


def test_drawn_parameters_never_change():
    assert draw_steps(0, [1], np.full((1, 1, 2), 227))[0, 0, 0].tolist() == pytest.approx(GOLDEN_ROW)
