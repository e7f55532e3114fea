"""The walk through weight space, against points computed by hand."""

from __future__ import annotations

import torch

from helpers.landscapes import Point as Model
from helpers.landscapes import fingerprint
from swad.flatness.losses import as_loss_function
from swad.flatness.points import Point, walk
from swad.flatness.weights import Weights


def directions(model, n):
    generator = torch.Generator().manual_seed(1)
    return [
        [torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) for tensor in model.parameters()]
        for _ in range(n)
    ]


def visit(model, points, **options):
    """Walk with a loss that shows the weights, and return what was seen by key, with calls in their order."""
    seen, calls = {}, []
    with torch.no_grad(), Weights(model) as weights:
        if own := options.pop("center", None):
            options["center"] = weights.of(own)
        visits = walk(
            weights,
            as_loss_function(lambda model: model.vector()),
            points,
            arrive=lambda point: calls.append(("arrive", point.key)),
            progress=lambda number: calls.append(("progress", number)),
            **options,
        )
        for point, losses in visits:
            seen[point.key] = losses.losses["all"]
            calls.append(("measured", point.key))
    return seen, calls


def test_a_point_is_the_center_plus_all_moves_and_nothing_of_the_last_point():
    model = Model()
    before, theta = fingerprint(model), model.vector().detach().clone()
    u, v = directions(model, 2)
    flat_u, flat_v = (torch.cat([tensor.flatten() for tensor in each]) for each in (u, v))
    points = [Point("u", [(u, 2.0)]), Point("both", [(u, -1.0), (v, 0.5)]), Point("center")]
    seen, calls = visit(model, points)
    torch.testing.assert_close(seen["u"], theta + 2 * flat_u)
    torch.testing.assert_close(seen["both"], theta - flat_u + 0.5 * flat_v)
    assert torch.equal(seen["center"], theta)
    assert fingerprint(model) == before
    assert calls[:4] == [("arrive", "u"), ("measured", "u"), ("progress", 1), ("arrive", "both")]


def test_points_that_are_done_are_counted_but_not_visited():
    model = Model()
    (u,) = directions(model, 1)
    points = [Point(key, [(u, float(key))]) for key in range(4)]
    seen, calls = visit(model, points, done={0, 2})
    assert list(seen) == [1, 3]
    assert [call for call in calls if call[0] == "progress"] == [("progress", number) for number in range(1, 5)]
    assert ("arrive", 2) not in calls


def test_another_center_and_weights_of_their_own():
    model, other, third = Model(0), Model(1), Model(2)
    (u,) = directions(model, 1)
    points = [Point("moved", [(u, 1.0)]), Point("own", weights=third.state_dict())]
    seen, _ = visit(model, points, center=other.state_dict())
    torch.testing.assert_close(seen["moved"], other.vector() + torch.cat([tensor.flatten() for tensor in u]))
    assert torch.equal(seen["own"], third.vector())
