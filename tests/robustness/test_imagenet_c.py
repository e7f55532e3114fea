"""mCE and its relatives against their definitions, and the two layouts of ImageNet-C."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.imagenet_trees import make_imagenet_c
from swad.robustness.corruptions import CORRUPTIONS
from swad.robustness.imagenet_c import (
    ALEXNET_CLEAN_ERROR,
    ALEXNET_ERRORS,
    EXTRA,
    find_folders,
    mce,
    mean_error,
    parts,
    relative_mce,
)

# The means over severities, as the authors' repository prints them.
ALEXNET_MEANS = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}


def test_alexnets_errors_have_the_published_means():
    assert list(ALEXNET_ERRORS) == list(CORRUPTIONS)
    for name, mean in ALEXNET_MEANS.items():
        assert sum(ALEXNET_ERRORS[name]) / 5 == pytest.approx(mean, abs=1e-6)


def test_alexnet_scores_100():
    assert mce(ALEXNET_ERRORS) == pytest.approx(100)
    assert relative_mce(ALEXNET_ERRORS, ALEXNET_CLEAN_ERROR) == pytest.approx(100)
    assert mean_error(ALEXNET_ERRORS) == pytest.approx(78.8993, abs=1e-3)


@given(st.lists(st.floats(0, 1), min_size=75, max_size=75), st.floats(0, 1))
def test_scores_follow_their_definitions(values, clean):
    errors = {name: values[5 * k : 5 * k + 5] for k, name in enumerate(CORRUPTIONS)}
    ratios, relatives = [], []
    for name in CORRUPTIONS:
        mean = sum(errors[name]) / 5
        ratios.append(mean / ALEXNET_MEANS[name])
        relatives.append((mean - clean) / (ALEXNET_MEANS[name] - ALEXNET_CLEAN_ERROR))
    assert mce(errors) == pytest.approx(100 * sum(ratios) / 15, abs=1e-3)
    assert relative_mce(errors, clean) == pytest.approx(100 * sum(relatives) / 15, abs=1e-2)
    assert mean_error(errors) == pytest.approx(100 * sum(values) / 75, abs=1e-9)


def test_the_official_script_averages_over_19():
    errors = {**dict.fromkeys(CORRUPTIONS, [0.5] * 5), **dict.fromkeys(EXTRA, [0.1] * 5)}
    assert mean_error(errors, [*CORRUPTIONS, *EXTRA]) == pytest.approx(100 * (15 * 0.5 + 4 * 0.1) / 19)
    assert mean_error(errors) == pytest.approx(50)


def test_scores_over_some_corruptions_need_only_those():
    errors = {"fog": ALEXNET_ERRORS["fog"], "snow": [0.5] * 5}
    assert mce(errors, ["fog"]) == pytest.approx(100)
    assert mce(errors, ["fog", "snow"]) == pytest.approx((100 + 50 / ALEXNET_MEANS["snow"]) / 2)
    assert relative_mce(errors, ALEXNET_CLEAN_ERROR, ["fog"]) == pytest.approx(100)


def test_all_problems_are_reported_together():
    errors = {**ALEXNET_ERRORS, "snow": [0.5] * 4, "fog": [50.0] * 5, "frosst": [0.5] * 5}
    del errors["contrast"]
    with pytest.raises(ValueError) as caught:
        mce(errors)
    for part in ("'frosst'", "contrast are missing", "severities, got 4 for snow", "divide percent by 100"):
        assert part in str(caught.value)
    with pytest.raises(ValueError, match=r"got \[60, 60, 60, 60, 60\] for gaussian_noise, .* and 12 more: divide"):
        mce({name: [60] * 5 for name in CORRUPTIONS})
    with pytest.raises(ValueError, match="for each of 5 severities, got 1 for gaussian_noise, "):
        mce(dict.fromkeys(CORRUPTIONS, 0.6))
    extra = {"spatter": [0.5] * 5}
    for score in (mce, lambda *given: relative_mce(given[0], 0.2, given[1])):
        with pytest.raises(ValueError, match="AlexNet's errors under spatter are not known: use mean_error"):
            score(extra, ["spatter"])
        with pytest.raises(ValueError, match="no corruption was given"):
            score(extra, [])
    assert mean_error(extra, ["spatter"]) == 50


@pytest.mark.parametrize("clean", [43.478, -0.1, float("nan")])
def test_a_clean_error_in_percent_is_refused(clean):
    with pytest.raises(ValueError, match=r"the clean error must be a fraction from 0 to 1, got .*: divide percent by"):
        relative_mce(ALEXNET_ERRORS, clean)


def test_one_name_is_given_as_a_list():
    with pytest.raises(TypeError, match=r"must be a list of corruptions, got 'fog': pass \['fog'\]"):
        mce(ALEXNET_ERRORS, "fog")


def test_nested_and_flat_archives_are_found(tmp_path):
    (tmp_path / "noise/gaussian_noise/1").mkdir(parents=True)
    (tmp_path / "fog/5").mkdir(parents=True)
    (tmp_path / "weather/fog/5").mkdir(parents=True)  # the flat one is used
    (tmp_path / "extra/saturate/2").mkdir(parents=True)
    assert {key: str(path.relative_to(tmp_path)) for key, path in find_folders(tmp_path).items()} == {
        ("gaussian_noise", 1): "noise/gaussian_noise/1",
        ("fog", 5): "fog/5",
        ("saturate", 2): "extra/saturate/2",
    }
    with pytest.raises(ValueError, match="the archives of ImageNet-C were unpacked into"):
        find_folders(tmp_path / "noise/gaussian_noise/1")
    with pytest.raises(ValueError, match="is not a folder"):
        find_folders(tmp_path / "missing")


@pytest.mark.parametrize("nested", [True, False])
def test_a_part_for_each_corruption_and_severity(tmp_path, nested):
    found = parts(make_imagenet_c(tmp_path, nested, without=("frost",)))
    assert [part.name for part in found[:2]] == ["imagenet-c/gaussian_noise/1", "imagenet-c/gaussian_noise/2"]
    assert len(found) == 18 * 5
    assert all(len(part.images) == 5 and part.stored and len(part.images.missing) == 999 for part in found)
