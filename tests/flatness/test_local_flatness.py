"""F_gamma against known landscapes and brute force; seeds, JSON, restoration, intervals."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.nn import functional

import swad
from helpers.landscapes import Point, Quadratic, brute_force, fingerprint, images, network, symmetric
from swad.flatness import LocalFlatness, image_losses, local
from swad.flatness.directions import Directions
from swad.flatness.weights import Weights
from swad.util.statistics import contributions, half_widths, student_quantile

RADII = [0.0, 0.5, 2.0, 7.0]


def test_it_is_reached_as_the_house_says():
    assert swad.flatness.local is local
    assert callable(swad.flatness.plane)
    assert callable(swad.flatness.worst_case)
    with pytest.raises(AttributeError, match="no attribute 'locale'"):
        swad.flatness.locale  # noqa: B018


# --- known landscapes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("antithetic", [True, False])
def test_a_quadratic_is_exact_in_every_direction_at_every_radius(antithetic):
    model = Point()
    slope = torch.randn(10, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    loss = Quadratic(symmetric(), slope)
    flat = local(model, loss, RADII, n_directions=6, antithetic=antithetic)
    with Weights(model) as weights:
        drawn = Directions(weights, 0, antithetic, "sphere")
        for k, (i, radius) in itertools.product(range(6), enumerate(RADII)):
            d = torch.cat([tensor.flatten() for tensor in drawn[k]])
            assert d.norm() == pytest.approx(1, abs=1e-12)
            gradient = loss.hessian @ model.vector() + slope
            rise = radius * gradient @ d + radius**2 / 2 * d @ loss.hessian @ d
            assert flat.losses["all"][k, i] - flat.loss["all"] == pytest.approx(rise.item(), rel=1e-9, abs=1e-12)
    assert flat.row(0.0).mean == flat.row(0.0).low == flat.row(0.0).high == 0


def test_its_expectation_is_the_trace_over_twice_the_dimension():
    loss = Quadratic(symmetric(1))
    flat = local(Point(), loss, [1.0, 3.0], n_directions=4000)
    for radius in (1.0, 3.0):
        wanted = radius**2 * loss.hessian.trace().item() / 20
        row = flat.row(radius)
        assert row.mean == pytest.approx(wanted, rel=0.15)
        assert row.low < wanted < row.high


def test_pairs_cancel_the_slope():
    slope = torch.full((10,), 100.0, dtype=torch.float64)
    loss = Quadratic(torch.eye(10, dtype=torch.float64), slope)
    paired = local(Point(), loss, [2.0], n_directions=20).row(2.0)
    single = local(Point(), loss, [2.0], n_directions=20, antithetic=False).row(2.0)
    assert paired.mean == pytest.approx(2.0, abs=1e-9)  # gamma^2 / 2, whatever the slope
    assert paired.high - paired.low < 1e-9
    assert single.high - single.low > 10


# --- networks -------------------------------------------------------------------------------------------------------


def means(data):
    def loss(model):
        with torch.no_grad():
            return {d: functional.cross_entropy(model(x), y, reduction="none").double() for d, (x, y) in data.items()}

    return loss


@pytest.mark.parametrize("antithetic", [True, False])
@pytest.mark.parametrize("normalize", ["sphere", "filter", "layer"])
def test_a_network_against_copies_of_it(antithetic, normalize):
    model, data = network(), images()
    flat = local(model, image_losses(data, batch_size=4), [0.3, 1.0], 6, 3, antithetic=antithetic, normalize=normalize)
    for i, radius in enumerate([0.3, 1.0]):
        twin = brute_force(model, means(data), radius, 6, 3, antithetic=antithetic, normalize=normalize)
        for domain in data:
            wanted = torch.stack([losses[domain].mean() for losses in twin])
            torch.testing.assert_close(flat.losses[domain][:, i], wanted, rtol=1e-6, atol=1e-7)
            by_image = torch.stack([losses[domain] for losses in twin]).sum(0)
            torch.testing.assert_close(flat.image_sums[domain][i], by_image, rtol=1e-6, atol=1e-6)
    base = {domain: losses.mean() for domain, losses in means(data)(model.eval()).items()}
    row = flat.row(1.0, "sketch")
    assert row.loss == pytest.approx(base["sketch"].item(), rel=1e-6)
    assert row.mean == pytest.approx((flat.losses["sketch"][:, 1].mean() - base["sketch"]).item(), rel=1e-5)
    assert row.n_images == 5
    assert flat.row(1.0).n_images == 12
    assert flat.row(1.0).mean == pytest.approx((flat.row(1.0, "photo").mean + row.mean) / 2)


def test_filters_and_layers_against_a_hand_twin():
    model = network()
    for normalize in ("filter", "layer"):
        with Weights(model) as weights:
            raw = torch.cat([t.flatten() for t in Directions(weights, 4, False, "sphere")[2]])
            found = Directions(weights, 4, False, normalize)[2]
            pieces = torch.split(raw, [t.numel() for t in weights.live])
            for piece, parameter, direction in zip(pieces, weights.live, found, strict=True):
                wanted = piece.reshape(parameter.shape).clone()
                if normalize == "layer":
                    wanted *= parameter.norm() / wanted.norm()
                else:
                    for f in range(len(parameter)):
                        wanted[f] *= parameter[f].norm() / wanted[f].norm()
                torch.testing.assert_close(direction, wanted, rtol=1e-5, atol=1e-7)


def test_a_sphere_is_uniform_over_all_chosen_parameters():
    model = network()
    with Weights(model, exclude="1.*") as weights:
        assert weights.dim == sum(p.numel() for n, p in model.named_parameters() if not n.startswith("1."))
        drawn = torch.stack([torch.cat([t.flatten() for t in one]) for one in drawn_by(weights, 200)])
    torch.testing.assert_close(drawn.norm(dim=1), torch.ones(200))
    assert abs(drawn.mean().item()) < 5 / math.sqrt(drawn.numel() * weights.dim)
    assert (drawn.square().mean(0) * weights.dim).sub(1).abs().max() < 0.6  # no coordinate has a share of its own


def drawn_by(weights, n, seed=0):
    directions = Directions(weights, seed, False, "sphere")
    return [directions[k] for k in range(n)]


def test_directions_do_not_depend_on_layout_precision_or_order():
    plain, other = network(), network().to(memory_format=torch.channels_last)
    wide = network().double()
    with Weights(plain) as one, Weights(other) as two, Weights(wide) as three:
        last = drawn_by(one, 3)[2]
        only = Directions(two, 0, False, "sphere")[2]
        double = Directions(three, 0, False, "sphere")[2]
        for a, b, c in zip(last, only, double, strict=True):
            assert torch.equal(a, b)
            torch.testing.assert_close(a.double(), c, rtol=1e-6, atol=1e-9)
        assert only[0].stride() == two.live[0].stride()
        assert not torch.equal(Directions(one, 1, False, "sphere")[2][0], last[0])


# --- seeds and JSON -------------------------------------------------------------------------------------------------


def same(one: LocalFlatness, other: LocalFlatness) -> bool:
    return (
        all(torch.equal(one.losses[d], other.losses[d]) for d in one.domains)
        and all(torch.equal(one.image_sums[d], other.image_sums[d]) for d in one.image_sums)
        and one.rows == other.rows
    )


def measure(**options):
    model, data = network(), images()
    defaults = {"radii": [0.0, 0.5, 1.0], "n_directions": 8, "seed": 1}
    return local(model, image_losses(data, batch_size=4), **(defaults | options))


def test_the_seed_decides_the_result():
    result = measure()
    assert same(result, measure())
    assert not same(result, measure(seed=2))
    shown = [f"{row.mean:.4g} at {row.radius:g}" for row in result.rows if row.domain is None]
    assert repr(result) == f"LocalFlatness(F = {', '.join(shown)}; 8 directions; intervals in .rows)"


def test_radii_and_the_number_of_directions_change_no_direction():
    many, few = measure(), measure(radii=[1.0], n_directions=4)
    for domain in many.domains:
        assert torch.equal(many.losses[domain][:4, 2:], few.losses[domain])


def test_progress_counts_evaluations_of_perturbed_weights():
    calls = []
    measure(n_directions=4, progress=lambda *arguments: calls.append(arguments))
    assert calls == [("local flatness", done, 8) for done in range(1, 9)]


def test_json_keeps_every_bit():
    result = measure()
    row = json.loads(json.dumps(result.to_row("swad"), allow_nan=False))
    assert (row["kind"], row["model"], row["n_directions"]) == ("flatness", "swad", 8)
    assert same(result, LocalFlatness.from_row(row))
    with pytest.raises(ValueError, match="a group must hold some of the domains photo, sketch"):
        LocalFlatness.from_row(row, groups={"seen": ["art"]})


# --- the model stays what it was ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, None])
def test_everything_is_put_back(error):
    model, data = network(), images()
    model.train()
    model[3].eval()
    model[0].bias.requires_grad_(False)
    model[5].weight.grad = torch.ones_like(model[5].weight)
    before = fingerprint(model)
    calls = itertools.count()

    def rude(model):
        """Changes all it can reach."""
        x, y = data["photo"]
        model.train()
        with torch.enable_grad():
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
        model[1].running_mean = model[1].running_mean + 1
        model[0].bias.requires_grad_(True)
        if next(calls) == 3 and error is not None:
            raise error
        return loss.detach()

    with nullcontext() if error is None else pytest.raises(error):
        local(model, rude, [0.1], 4)
    assert fingerprint(model) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_what_fails_as_it_begins_changes_nothing(error):
    """No block was entered, so nobody but the beginning itself can put gradients and modes back."""
    model = network()
    model(images()["photo"][0]).sum().backward()

    class Refuses(torch.nn.Module):
        def train(self, mode=True):
            if not mode:
                raise error
            return super().train(mode)

    model.append(Refuses()).append(torch.nn.Dropout())
    gradients, modes = [p.grad for p in model.parameters()], [m.training for m in model.modules()]
    with pytest.raises(error):
        local(model, lambda model: 0.0, [1.0], 2)
    assert all(now is before for now, before in zip((p.grad for p in model.parameters()), gradients, strict=True))
    assert [m.training for m in model.modules()] == modes


def test_buffers_that_were_none_or_not_there_are_so_again():
    class Caches(torch.nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.register_buffer("cache", None)

        def forward(self, x):
            self.cache = self.weight.detach().clone()
            self.register_buffer("more", torch.ones(1))
            return super().forward(x)

    model = Caches()
    local(model, lambda model: model(torch.ones(1, 2)).sum(), [1.0], 2)
    assert model._buffers == {"cache": None}


def test_rows_can_be_walked_through_and_radii_be_any_numbers():
    model, loss = Point(), Quadratic(symmetric())
    flat = local(model, loss, np.float32(0.5), 4)
    assert list(flat) == flat.rows
    assert len(flat) == 1
    assert flat.rows == local(model, loss, torch.tensor([0.5]), 4).rows == local(model, loss, [0.5], 4).rows


def test_weights_too_coarse_for_the_radius_are_warned_of():
    model = network().bfloat16()
    data = {"photo": (images()["photo"][0].bfloat16(), images()["photo"][1])}
    with pytest.warns(UserWarning, match="weights in bfloat16 are rounded by about .* compared with a move of 0.01"):
        local(model, image_losses(data), [0.0, 0.01, 5.0], 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        local(network(), image_losses(images()), [0.01], 2)
    with pytest.raises(ValueError, match="only real weights can be perturbed, but spectrum is complex: exclude it"):
        local(Spectral(), lambda model: 0.0, [1.0], 2)
    local(Spectral(), lambda model: 0.0, [1.0], 2, exclude="spectrum")


class Spectral(torch.nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
        self.spectrum = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))


def test_evaluation_mode_is_the_mode():
    model = network()  # with dropout and batch norm
    loss = image_losses(images())
    assert model.training
    one, two = local(model, loss, [0.5], 2), local(model.eval(), loss, [0.5], 2)
    assert torch.equal(one.losses["photo"], two.losses["photo"])


def test_a_caller_s_autocast_does_not_hide_the_moves():
    model, data = network(batch_norm=False), images()
    plain = local(model, image_losses(data), [10.0], 2).row(10.0)
    with torch.autocast("cpu", torch.bfloat16):
        cast = local(model, image_losses(data), [10.0], 2).row(10.0)
    assert abs(plain.mean) > 0.5
    assert cast.mean == pytest.approx(plain.mean, rel=0.2)


def test_half_precision_weights_are_moved_in_single():
    model = network(batch_norm=False).to(torch.bfloat16)
    before = fingerprint_of_bits(model)
    data = {d: (x.bfloat16(), y) for d, (x, y) in images().items()}
    flat = local(model, image_losses(data), [1.0], 2)
    assert math.isfinite(flat.row(1.0).mean)
    assert fingerprint_of_bits(model) == before


def fingerprint_of_bits(model):
    return [p.detach().view(torch.int16).tolist() for p in model.parameters()]


# --- what is chosen, what is refused --------------------------------------------------------------------------------


def test_patterns_and_groups():
    model, data = network(), images({"photo": 4, "sketch": 3, "art": 5})
    loss = image_losses(data)
    seen = []

    def watched(model):
        seen.append(model[5].weight.detach().clone())
        return loss(model)

    flat = local(model, watched, [1.0], 2, exclude="5.*", groups={"seen": ["photo", "art"], "unseen": ["sketch"]})
    assert all(torch.equal(weight, seen[0]) for weight in seen)
    assert [row.domain for row in flat.rows] == ["photo", "sketch", "art", "seen", "unseen", None]
    assert flat.row(1.0, "seen").mean == pytest.approx((flat.row(1.0, "photo").mean + flat.row(1.0, "art").mean) / 2)
    assert flat.row(1.0, "unseen").mean == flat.row(1.0, "sketch").mean
    assert local(model, loss, [1.0], 2, include="5.*").settings["parameters"] == 64 * 3 + 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"radii": []}, "radii must be"),
        ({"radii": [-1.0]}, "radii must be"),
        ({"radii": [1.0, 1.0]}, "radii must be"),
        ({"n_directions": 3}, "an even number"),
        ({"n_directions": 0, "antithetic": False}, "1 or more"),
        ({"normalize": "cube"}, "one of sphere, filter, layer"),
        ({"include": "nothing.*"}, "matches no parameter"),
        ({"exclude": "*"}, "no floating-point parameter"),
        ({"groups": {"photo": ["sketch"]}}, "must not be named like one"),
        ({"groups": {"seen": ["art"]}}, "must hold some of the domains"),
        ({"confidence": 1.0}, "between 0 and 1"),
    ],
)
def test_refusals(options, words):
    model = network()
    before = fingerprint(model)
    with pytest.raises(ValueError, match=words) as caught:
        local(model, image_losses(images()), **({"radii": [1.0], "n_directions": 2} | options))
    assert "\n" not in str(caught.value)
    assert fingerprint(model) == before


def test_a_state_dict_is_no_model():
    with pytest.raises(TypeError, match="got a OrderedDict: pass the model itself"):
        local(network().state_dict(), image_losses(images()), [1.0])


def test_losses_that_change_their_images_are_refused():
    sizes = iter([3, 3, 4, 4])
    with pytest.raises(ValueError, match="same domains and images every time"):
        local(network(), lambda model: torch.ones(next(sizes)), [1.0], 2)


def test_losses_that_blow_up_are_said_so():
    flat = local(Point(), lambda model: model.vector().square().sum() * float("inf"), [1.0], 4)
    assert math.isnan(flat.row(1.0).mean)
    assert math.isnan(flat.row(1.0).low)
    row = json.loads(json.dumps(flat.to_row(), allow_nan=False))
    assert math.isnan(LocalFlatness.from_row(row).row(1.0).mean)


# --- intervals ------------------------------------------------------------------------------------------------------


def test_an_interval_agrees_with_resampling_the_whole_table():
    """The slow twin keeps every loss, resamples directions and images, and averages where they meet."""
    rng = np.random.default_rng(1)
    rows, columns = 24, 60
    table = rng.normal(size=(rows, 1)) + 0.8 * np.exp(rng.normal(size=(1, columns)))
    table += 0.3 * rng.normal(size=(rows, columns))
    resamples = [
        table[rng.integers(rows, size=rows)][:, rng.integers(columns, size=columns)].mean() for _ in range(3000)
    ]
    margins = {"directions": contributions(table.mean(1)[:, None]), "images": contributions(table.mean(0)[:, None])}
    low, high = np.quantile(resamples, [0.05, 0.95])
    assert half_widths(margins, 0.9) == pytest.approx([(high - low) / 2], rel=0.1)  # of which Student's t is 4 %


def test_the_interval_of_a_mean_over_domains_counts_each_as_its_share():
    sizes = {"photo": torch.tensor([1.0, 3.0, 8.0]), "sketch": torch.tensor([2.0, 2.5])}  # alike in all directions

    def loss(model):
        return {name: size * (model.vector() - Point().vector()).square().sum() for name, size in sizes.items()}

    row = local(Point(), loss, [1.0], 4).row(1.0)
    halves = [student_quantile(len(size)) * size.std().item() / len(size) ** 0.5 / 2 for size in sizes.values()]
    assert (row.high - row.low) / 2 == pytest.approx(math.hypot(*halves), rel=1e-6)


def test_one_direction_gives_no_interval():
    row = local(Point(), Quadratic(symmetric()), [1.0], 2).row(1.0)
    assert math.isfinite(row.mean)
    assert math.isnan(row.low)
    assert row.n_images is None


def test_tied_weights_count_once_and_wrappers_not_at_all():
    class Tied(Point):
        def __init__(self):
            super().__init__()
            self.again = self.a

    class Twice(Quadratic):
        def __call__(self, model):
            return self.at(torch.cat([model.again.flatten(), model.b]))

    plain = local(Point(), Quadratic(symmetric()), [1.0], 4)
    tied = local(Tied(), Twice(symmetric()), [1.0], 4)
    assert tied.settings["parameters"] == 10
    assert torch.equal(plain.losses["all"], tied.losses["all"])
    model = network(batch_norm=False)
    loss = image_losses(images())
    compiled = torch.compile(model, backend="eager")
    assert torch.equal(local(compiled, loss, [1.0], 2).losses["photo"], local(model, loss, [1.0], 2).losses["photo"])
