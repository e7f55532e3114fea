"""Planes and lines: geometry, bit-exact corners, resuming, batch norms."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import swad
from helpers.landscapes import Point, Quadratic, fingerprint, images, network, symmetric
from swad.flatness import Surface, image_losses, line, local, plane


def three(batch_norm=False):
    return [network(seed, batch_norm=batch_norm) for seed in range(3)]


def vector(state) -> torch.Tensor:
    state = state if isinstance(state, dict) else dict(state.named_parameters())
    return torch.cat([tensor.detach().double().flatten() for tensor in state.values()])


# --- geometry -------------------------------------------------------------------------------------------------------


def test_the_axes_are_gram_schmidt_s():
    a, b, c = (vector(model) for model in three())
    surface = plane(*three())
    u, v = surface.u, surface.v
    assert [tensor.shape for tensor in surface.split(u)] == [
        tensor.shape for tensor in three()[0].state_dict().values()
    ]
    assert u.norm() == pytest.approx(1, abs=1e-6)
    assert v.norm() == pytest.approx(1, abs=1e-6)
    assert abs(u @ v) < 1e-7
    wanted_u = b - a
    wanted_v = (c - a) - (c - a) @ wanted_u / wanted_u.norm() ** 2 * wanted_u
    torch.testing.assert_close(u, wanted_u / wanted_u.norm(), atol=1e-6, rtol=0)
    torch.testing.assert_close(v, wanted_v / wanted_v.norm(), atol=1e-6, rtol=0)
    assert surface.x2 == pytest.approx((b - a).norm().item())
    assert math.hypot(surface.x3, surface.y3) == pytest.approx((c - a).norm().item(), rel=1e-6)


@settings(max_examples=20, deadline=None)
@given(x=st.floats(-3, 3), y=st.floats(-3, 3))
def test_coordinates_of_a_point_are_the_point(x, y):
    surface = plane(Point(0), Point(1), Point(2))
    found = surface.coordinates(surface.weights(x, y))
    assert found == pytest.approx((x, y, 0.0), abs=1e-9)


def test_by_default_a_plane_extends_a_quarter_beyond_its_corners_and_a_line_nothing():
    corners = [{"w": torch.tensor(w)} for w in ([0.0, 0.0], [4.0, 0.0], [1.0, 2.0])]
    model = torch.nn.Module()
    model.w = torch.nn.Parameter(torch.zeros(2))
    surface = plane(*corners).evaluate(model, lambda model: model.w.sum(), 3)
    assert (surface.xs, surface.ys) == ((-1.0, 2.0, 5.0), (-1.0, 1.0, 3.0))
    assert line(*corners[:2]).evaluate(model, lambda model: model.w.sum(), 3).xs == (0.0, 0.5, 1.0)


def test_what_is_off_the_plane_is_projected():
    one, two, third = ({"w": torch.tensor(w)} for w in ([0.0, 0, 0, 0], [0.0, 2, 0, 0], [0.0, 1, 1, 0]))
    surface = plane(one, two, third)
    assert surface.corner_coordinates == {"1": (0.0, 0.0), "2": (2.0, 0.0), "3": (1.0, 1.0)}
    assert surface.coordinates({"w": torch.tensor([3.0, 5, 6, 4])}) == pytest.approx((5.0, 6.0, 5.0))
    assert line(one, two).coordinates({"w": torch.tensor([3.0, 5, 0, 4])}) == pytest.approx((2.5, 5.0))


def test_distances_on_the_plane_are_those_in_weight_space():
    models = three()
    surface = plane(*models)
    where = list(surface.corner_coordinates.values())
    for (i, one), (j, two) in itertools.combinations(enumerate(models), 2):
        assert math.dist(where[i], where[j]) == pytest.approx((vector(one) - vector(two)).norm().item(), rel=1e-6)
    mean = {name: sum(m.state_dict()[name] for m in models) / 3 for name in models[0].state_dict()}
    assert surface.coordinates(mean) == pytest.approx(((surface.x2 + surface.x3) / 3, surface.y3 / 3, 0.0), abs=1e-5)


def test_a_grid_has_every_corner_and_further_weights_inside():
    surface = plane(*three())
    far = surface.weights(9.0, -4.0)
    xs, ys = surface.grid((5, 4), 0.0, around=[surface.coordinates(far)[:2]])
    assert (len(xs), len(ys)) == (5, 4)
    assert (min(xs), max(xs)) == pytest.approx((min(0.0, surface.x3), 9.0), abs=1e-5)
    assert (min(ys), max(ys)) == pytest.approx((-4.0, surface.y3), abs=1e-5)
    xs, ys = surface.grid(3, 0.5)
    side = max(max(surface.x2, surface.x3) - min(0.0, surface.x3), surface.y3)
    assert ys[0] == pytest.approx(-side / 2)


# --- losses ---------------------------------------------------------------------------------------------------------


def test_the_corners_have_their_losses_to_the_last_bit():
    models, data = three(), images()
    loss = image_losses(data, measure="both")
    target = network(7, batch_norm=False)
    before = fingerprint(target)
    surface = plane(*(model.state_dict() for model in models)).evaluate(target, loss, 3)
    assert fingerprint(target) == before
    for name, model in zip("123", models, strict=True):
        wanted = loss(model.eval())
        for domain in data:
            assert surface.points[name].losses[domain] == wanted[domain][:, 0].double().mean().item()
            assert surface.points[name].errors[domain] == wanted[domain][:, 1].double().mean().item()


def test_a_point_of_the_grid_that_is_a_corner_is_the_corner():
    one, two = three()[:2]
    target = network(7, batch_norm=False)
    seen = []

    def loss(model):
        seen.append(vector(model))
        return seen[-1].sum()

    found = line(one, two).evaluate(target, loss, steps=3)
    assert [row.x for row in found.grid] == [0.0, 0.5, 1.0]
    assert torch.equal(seen[2], vector(one))
    assert torch.equal(seen[4], vector(two))
    torch.testing.assert_close(seen[3], (vector(one) + vector(two)) / 2, atol=1e-7, rtol=0)
    # Corner 3 lies at (x3, y3): on the upper edge of a grid without margin, whose ends are exact as well.
    w = [{"w": torch.tensor(w)} for w in ([0.1, 0.2], [0.4, 0.2], [0.4, 0.9])]
    surface = plane(*w)
    assert surface.grid(4, 0.0)[1][-1] == surface.y3


def test_a_quadratic_on_its_plane():
    loss = Quadratic(symmetric())
    surface = plane(Point(0), Point(1), Point(2))
    found = surface.evaluate(Point(3), loss, (4, 3), 0.5)
    assert len(found.grid) == 12
    matrix = found.losses()
    for (j, y), (i, x) in itertools.product(enumerate(found.ys), enumerate(found.xs)):
        at = torch.cat([tensor.flatten() for tensor in surface.weights(x, y).values()])
        assert matrix[j][i] == pytest.approx(loss.at(at).item(), rel=1e-9)


def test_domains_and_their_means_as_matrices():
    models, data = three(), images()
    found = plane(*models).evaluate(network(7, batch_norm=False), image_losses(data, measure="both"), 3)
    photo, sketch, mean = found.losses("photo"), found.losses("sketch"), found.losses()
    assert found.domains == ["photo", "sketch"]
    assert mean[2][1] == pytest.approx((photo[2][1] + sketch[2][1]) / 2)
    assert found.losses(["photo"]) == photo
    assert found.losses("photo", errors=True)[0][0] == found.grid[0].errors["photo"]
    assert found.grid[3].y == found.ys[1]
    assert found.grid[3].loss == mean[1][0]


def test_an_average_is_measured_with_its_own_weights():
    models, data = three(), images()
    average = network(8, batch_norm=False)
    loss = image_losses(data)
    found = plane(*models).evaluate(network(7, batch_norm=False), loss, 3, points={"SWAD": average})
    row = found.points["SWAD"]
    assert row.losses["photo"] == loss(average.eval())["photo"].double().mean().item()
    assert (row.x, row.y, row.distance) == plane(*models).coordinates(average)
    assert row.distance > 0.1
    assert list(found.points) == ["1", "2", "3", "SWAD"]
    assert len(found.rows) == 13


def test_modules_may_go_on_training():
    models = three()
    surface = plane(*models)
    before = vector(models[1])
    with torch.no_grad():
        models[1][0].weight.add_(1.0)
    seen = []
    surface.evaluate(network(7, batch_norm=False), lambda m: (seen.append(vector(m)), seen[-1].sum())[1], 2)
    assert torch.equal(seen[1], before)


# --- batch norms ----------------------------------------------------------------------------------------------------


def test_frozen_statistics_are_the_corners_own():
    models = three(batch_norm=True)
    for model in models[1:]:
        model[1].load_state_dict(
            {
                **model[1].state_dict(),
                "running_mean": models[0][1].running_mean,
                "running_var": models[0][1].running_var,
            }
        )
    loss = image_losses(images())
    target = network(9)
    before = fingerprint(target)
    found = plane(*(model.state_dict() for model in models)).evaluate(target, loss, 2)
    assert found.points["2"].losses["photo"] == loss(models[1].eval())["photo"].double().mean().item()
    assert fingerprint(target) == before


def test_others_are_estimated_at_every_point():
    models, data = three(batch_norm=True), images()
    target, loss = network(9), image_losses(data)
    states = [model.state_dict() for model in models]
    with pytest.raises(ValueError, match="give update_bn"):
        plane(*states).evaluate(target, loss, 2)
    batches = [x for x, _ in data.values()]
    before, estimated = fingerprint(target), []

    def update_bn(model):
        estimated.append(model)
        swad.update_bn(batches, model)

    found = plane(*states).evaluate(target, loss, 2, update_bn=update_bn)
    assert fingerprint(target) == before
    assert len(estimated) == len(found.rows)
    swad.update_bn(batches, models[2])
    assert found.points["3"].losses["sketch"] == loss(models[2].eval())["sketch"].double().mean().item()
    bare = [{name: state[name] for name, _ in target.named_parameters()} for state in states]
    again = plane(*bare).evaluate(target, loss, 2, update_bn=update_bn)
    assert again.rows == found.rows
    with pytest.raises(ValueError, match=r"the weights '1' lack 1\.running_mean of shape \(4,\)"):
        plane(*bare).evaluate(target, loss, 2)


def test_weights_may_be_those_of_the_model_that_is_moved():
    """`state_dict()` hands out the live tensors."""
    models, loss = three(), image_losses(images())
    wanted = [loss(model.eval())["photo"].double().mean().item() for model in models]
    for walked in models:
        found = plane(*(model.state_dict() for model in models)).evaluate(
            walked, loss, 2, points={"again": models[1].state_dict(), "module": models[2]}
        )
        got = {name: point.losses["photo"] for name, point in found.points.items()}
        assert [got["1"], got["2"], got["3"]] == wanted
        assert (got["again"], got["module"]) == (wanted[1], wanted[2])
        ends = line(models[0].state_dict(), models[1].state_dict()).evaluate(walked, loss, 3)
        assert [point.losses["photo"] for point in (ends.points["1"], ends.points["2"])] == wanted[:2]


class Waves(torch.nn.Module):
    """A buffer that belongs to the weights, and a parameter under two names."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.register_buffer("frequencies", torch.randn(4))
        self.one = torch.nn.Linear(4, 4, bias=False)
        self.two = torch.nn.Linear(4, 4, bias=False)
        self.two.weight = self.one.weight


def test_other_buffers_must_agree_and_tied_weights_be_left_out():
    def loss(model):
        return (model.two(model.one(model.frequencies))).square().mean()

    models = [Waves(seed) for seed in range(3)]
    with pytest.raises(ValueError, match="different buffers frequencies, so a point between them has none"):
        plane(*models).evaluate(Waves(9), loss, 2)
    for model in models:
        model.frequencies.fill_(1.0)
    found = plane(*models).evaluate(Waves(9), loss, 2)
    assert found.points["3"].losses["all"] == pytest.approx(loss(models[2]).item())
    with pytest.raises(ValueError, match="no parameter matches"):  # one tensor, whichever name is excluded
        plane(*models, exclude="two.*")
    states = [model.state_dict() for model in models]
    with pytest.raises(ValueError, match=r"two.weight is tied to another parameter of Waves: exclude it by name"):
        plane(*states, exclude="frequencies").evaluate(Waves(9), loss, 2)
    again = plane(*states, exclude=["frequencies", "two.*"]).evaluate(Waves(9), loss, 2)
    assert again.points["3"].losses["all"] == found.points["3"].losses["all"]


def test_extra_points_have_their_own_buffers():
    def loss(model):
        return model.two(model.one(model.frequencies)).square().mean()

    models = [Waves(seed) for seed in range(3)]
    for model, value in zip(models, (1.0, 1.0, 2.0), strict=True):
        model.frequencies.fill_(value)
    alone = line(*models[:2]).evaluate(Waves(9), loss, 3)
    found = line(*models[:2]).evaluate(Waves(9), loss, 3, points={"other": models[2]})
    assert found.points["other"].losses["all"] == pytest.approx(loss(models[2]).item())
    assert [row for row in found.rows if row.name != "other"] == alone.rows


def test_normalized_logits_have_the_scale_of_the_first_corner():
    first, second, other = three()
    loss = image_losses(images(), logits="normalized")
    local(other, loss, [0.5], 2)  # leaves its own scale behind
    rows = []
    found = line(first, second).evaluate(other, loss, 3, on_row=rows.append)
    assert found.points["1"].losses == local(first, loss, [0.5], 2).loss
    assert found.points["2"].losses == loss.losses(second.eval()).means
    fit_to_another = image_losses(images(), logits="normalized")
    local(other, fit_to_another, [0.5], 2)
    resumed = line(first, second).evaluate(other, fit_to_another, 3, done_rows=rows[:3])
    assert resumed.rows == found.rows


# --- resuming -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda w: plane(*w), lambda w: line(*w[:2])])
def test_a_killed_surface_goes_on(make):
    models, data = three(), images()
    target = network(7, batch_norm=False)
    inner = image_losses(data)
    whole = make(models).evaluate(target, inner, 3)
    rows, calls = [], itertools.count()

    def mortal(model):
        if next(calls) == 4:
            raise KeyboardInterrupt
        return inner(model)

    before = fingerprint(target)
    with pytest.raises(KeyboardInterrupt):
        make(models).evaluate(target, mortal, 3, on_row=lambda row: rows.append(json.loads(json.dumps(row))))
    assert fingerprint(target) == before
    with pytest.raises(ValueError, match="not measured yet"):
        Surface.from_rows(rows)
    assert len(rows) == 5
    done, seen, ticks = list(rows), [], []
    again = make(models).evaluate(
        target, mortal, 3, done_rows=done, on_row=seen.append, progress=lambda *call: ticks.append(call)
    )
    assert again.rows == whole.rows
    assert len(done) + len(seen) == 1 + len(whole.rows)
    assert ticks[-1] == ("loss surface", len(whole.rows), len(whole.rows))
    assert Surface.from_rows([*done, *seen]) == again
    with pytest.raises(ValueError, match="another grid or other weights"):
        make(models).evaluate(target, inner, 4, done_rows=done)
    with pytest.raises(ValueError, match="of other images or weights"):
        make(models).evaluate(target, image_losses(images(seed=3)), 3, done_rows=done)


# --- refusals -------------------------------------------------------------------------------------------------------


def test_points_on_one_line_span_no_plane():
    one, two = network(0).state_dict(), network(1).state_dict()
    between = {name: (one[name] + two[name]) / 2 for name in one if one[name].is_floating_point()}
    with pytest.raises(ValueError, match="not on one line"):
        plane(one, two, between)
    with pytest.raises(ValueError, match="first two are the same"):
        plane(one, one, two)
    with pytest.raises(ValueError, match="two different weights"):
        line(one, one)


def test_other_refusals():
    models = three()
    with pytest.raises(ValueError, match=r"weights 3 have 1\.weight, which weights 1 lack"):
        plane(models[0], models[1], network(2))
    with pytest.raises(ValueError, match="matches no parameter"):
        plane(*models, exclude="head")
    with pytest.raises(ValueError, match="belong to the corners"):
        plane(*models).evaluate(models[0], lambda m: 0.0, points={"1": models[0]})
    with pytest.raises(ValueError, match="2 steps or more"):
        plane(*models).evaluate(models[0], lambda m: 0.0, 1)
    for steps, margin in ((1, 0.0), ((3, 3), 0.0), (3, -0.1)):
        with pytest.raises(ValueError, match="a line needs 2 steps or more and a margin of 0 or more"):
            line(*models[:2]).evaluate(models[0], lambda m: 0.0, steps, margin)
    with pytest.raises(ValueError, match="not a floating-point parameter"):
        plane({"w": torch.zeros(2)}, {"w": torch.ones(2)}, {"w": torch.tensor([0.0, 1.0])}).evaluate(
            models[0], lambda m: 0.0
        )


def test_parameters_left_out_stay_the_model_s_own():
    models = three()
    target = network(7, batch_norm=False)
    seen = []

    def loss(model):
        seen.append(model[5].weight.detach().clone())
        return model[0].weight.square().sum()

    plane(*models, exclude="5.*").evaluate(target, loss, 2)
    assert all(torch.equal(weight, target[5].weight) for weight in seen)
