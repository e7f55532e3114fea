"""What is measured besides the cross entropy in fp32: 0-1 errors, logits of the same size, bf16, averages of F."""

from __future__ import annotations

import copy

import pytest
import torch

from helpers.landscapes import images, network, trained
from swad.flatness import average_flatness, captured, compare, image_losses, local
from swad.util.statistics import half_widths


def test_errors_are_measured_in_the_same_evaluations():
    model, data = trained()
    options = {"radii": [0.0, 0.5, 1.0], "n_directions": 6, "groups": {"both": list(data)}}
    calls = 0
    both = image_losses(data, measure="both")

    def counted(model):
        nonlocal calls
        calls += 1
        return both(model)

    found = local(model, counted, **options)
    assert calls == 1 + 6 * 2
    assert found.rows == local(model, image_losses(data), **options).rows
    assert found.errors.rows == local(model, image_losses(data, measure="error"), **options).rows
    assert found.errors.row(1.0, "both").loss == sum(error.mean() for error in found.errors.image_loss.values()) / 2
    assert local(model, image_losses(data), **options).errors is None


def test_normalized_logits_have_the_same_size_and_raw_ones_rise_with_it():
    model, _ = trained(steps=80)
    data = images({"photo": 40, "sketch": 30}, seed=1)  # unseen: on memorized images the loss of loud logits is 0
    louder = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in louder[5].parameters():
            parameter.mul_(3.0)
    options = {"radii": [0.5], "n_directions": 8, "exclude": "5.*"}  # the head, which is three times as large
    raw, normalized = (image_losses(data, logits=logits, measure="both") for logits in ("raw", "normalized"))
    quiet, loud = (local(each, raw, **options).row(0.5).mean for each in (model, louder))
    assert loud > 1.5 * quiet
    alike = compare({"quiet": model, "loud": louder}, normalized, **options)
    one, two = (alike.models[name] for name in ("quiet", "loud"))
    assert one.row(0.5).mean == pytest.approx(two.row(0.5).mean, rel=1e-4)
    assert one.settings["logit_scale"] == pytest.approx(3 * two.settings["logit_scale"], rel=1e-6)
    assert one.errors.row(0.5).mean == local(model, raw, **options).errors.row(0.5).mean  # errors have no scale
    # The twin: the mean norm of centered logits over images, then over domains, is 10.
    norms = []
    for pictures, _ in data.values():
        scores = model(pictures).detach() * one.settings["logit_scale"]
        norms.append((scores - scores.mean(1, keepdim=True)).norm(dim=1).mean().item())
    assert sum(norms) / 2 == pytest.approx(10, rel=1e-6)


def test_chosen_domains_alone_decide_the_scale_of_logits():
    model, data = trained()
    further = {**data, "target": (100 * data["photo"][0], data["photo"][1])}
    scales = [
        image_losses(further, logits="normalized", logits_of=sources, batch_size=9).fit(model)
        for sources in (["photo", "sketch"], None)
    ]
    assert scales[0] == pytest.approx(image_losses(data, logits="normalized").fit(model), rel=1e-6)
    assert scales[1] < 0.5 * scales[0]
    assert captured(image_losses(data, logits="normalized"), model).fit(model) == pytest.approx(scales[0], rel=1e-6)
    assert image_losses(data).fit(model) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp16"}, "precision must be one of fp32, bf16"),
        ({"logits": "loud"}, "logits must be one of raw, normalized"),
        ({"logits_of": ["art"]}, "logits_of must name some of the domains photo, sketch; got 'art'"),
    ],
)
def test_options_of_image_losses_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        image_losses(images(), **options)


def test_bf16_differs_from_fp32_by_far_less_than_the_interval():
    model, data = trained(steps=80)
    options = {"radii": [0.5, 1.0, 2.0], "n_directions": 16}
    exact, half = (local(model, image_losses(data, precision=precision), **options) for precision in ("fp32", "bf16"))
    plain = local(model, image_losses(data), **options)
    assert exact.rows == plain.rows  # there is no TF32 on a CPU
    for one, two in zip(exact.rows, half.rows, strict=True):
        width = (one.high - one.low) / 2
        assert 0 < abs(one.mean - two.mean) < 0.1 * width
        assert (two.high - two.low) / 2 == pytest.approx(width, rel=0.1)
    assert half.image_loss["photo"].dtype == torch.float64


def test_bf16_warns_of_radii_that_rounding_hides():
    model, data = trained()
    with pytest.warns(UserWarning, match="weights in bfloat16 are rounded"):
        local(model, image_losses(data, precision="bf16"), [0.01], 2)


def test_the_average_of_several_weights_is_that_of_their_f():
    data = images({"photo": 20, "sketch": 15})
    loss = image_losses(data, measure="both", logits="normalized")
    results = [local(network(seed), loss, [0.5, 1.0], 8, groups={"both": list(data)}) for seed in range(3)]
    mean = average_flatness(results)
    for name in ("norm", "logit_scale"):
        assert mean.settings[name] == pytest.approx(sum(result.settings[name] for result in results) / 3)
    for i, row in enumerate(mean.rows):
        assert row.mean == pytest.approx(sum(result.rows[i].mean for result in results) / 3)
    several = [result.draw_contributions(["photo"]) for result in results]  # of the same draws
    contributed = {source: sum(each[source] for each in several) / 3 for source in several[0]}
    halves = [(row.high - row.low) / 2 for row in mean.rows if row.domain == "photo"]
    assert halves == pytest.approx(half_widths(contributed))
    errors = [result.errors.row(1.0, "both").mean for result in results]
    assert mean.errors.row(1.0, "both").mean == pytest.approx(sum(errors) / 3)
