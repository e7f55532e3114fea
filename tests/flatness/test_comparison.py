"""Several models on the same directions and images."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn

from helpers.landscapes import Point, Quadratic, fingerprint, images, network, symmetric, trained
from swad.flatness import Comparison, compare, image_losses, local
from swad.flatness.comparison import DifferenceRow
from swad.flatness.local_flatness import LocalFlatness


def by_scale(scales):
    """Images whose losses curve more or less with the weights' own scale."""

    def loss(model):
        return {"photo": scales * model.vector().pow(4).sum(), "sketch": 0.5 * scales * model.vector().pow(4).sum()}

    return loss


def scaled(factor):
    model = Point()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    return model


SCALES = torch.linspace(0.5, 1.5, 20, dtype=torch.float64)


def test_a_flatter_model_is_found_out():
    both = compare({"ERM": scaled(1.0), "SWAD": scaled(0.7)}, by_scale(SCALES), [0.0, 0.5, 1.0], 40)
    assert re.fullmatch(
        r"SWAD is flatter than ERM at every radius "
        r"\(p = \S+, paired t-test over directions and images, for these weights only\)",
        both.sentence("SWAD", "ERM"),
    )
    assert both.sentence("ERM", "SWAD", "sketch").startswith("ERM is sharper than SWAD at every radius on sketch (p = ")
    for row in both.differences("SWAD", "ERM"):
        wanted = (
            both.models["SWAD"].row(row.radius, row.domain).mean - both.models["ERM"].row(row.radius, row.domain).mean
        )
        assert row.mean == pytest.approx(wanted, abs=1e-12)
        assert row.radius == 0 or row.low <= row.mean <= row.high < 0


def test_a_sentence_corrects_p_values_for_the_number_of_radii(monkeypatch):
    both = compare({"ERM": scaled(1.0), "SWAD": scaled(0.7)}, by_scale(SCALES), [0.5, 1.0], 4)
    rows = [DifferenceRow("SWAD", "ERM", radius, None, -1.0, -2.0, 0.0, p) for radius, p in ((0.5, 0.03), (1.0, 0.2))]
    monkeypatch.setattr(Comparison, "differences", lambda *_: rows)
    assert both.sentence("SWAD", "ERM").startswith(
        "no difference between SWAD and ERM is shown at any radius (p = 0.06 or more, "
    )


def test_pairing_tells_apart_what_two_intervals_do_not():
    # Two curvatures that differ by 2 % and directions that differ by much more.
    one, two = Quadratic(symmetric(3)), Quadratic(1.02 * symmetric(3))
    model, other = nn.Module(), nn.Module()
    for module, flag in ((model, 0.0), (other, 1.0)):
        module.point = Point()
        module.flag = flag

    def loss(model):
        return (two if model.flag else one)(model.point)

    both = compare({"sharp": other, "flat": model}, loss, [1.0], 60)
    flat, sharp = both.models["flat"].row(1.0), both.models["sharp"].row(1.0)
    assert sharp.low < flat.high  # the intervals overlap
    (row,) = both.differences("flat", "sharp")
    assert row.high < 0
    assert row.p < 0.01


def test_a_model_does_not_differ_from_itself():
    model, data = trained()
    both = compare({"one": model, "two": copy.deepcopy(model)}, image_losses(data), [0.5, 2.0], 10)
    assert all(row.mean == row.low == row.high == 0 and row.p == 1 for row in both.differences("one", "two"))
    assert both.sentence("one", "two").startswith("no difference between one and two is shown at any radius (p = 1,")


def test_chance_is_not_called_a_difference_too_often():
    # Two losses with the same expected rise: 5 % of the comparisons may err.
    found = 0
    for seed in range(60):
        root = symmetric(seed)
        turned = torch.linalg.qr(symmetric(seed + 1000)).Q
        twin = turned @ root @ turned.T
        model, other = Point(), Point()
        one, two = Quadratic(root, center=model.vector().detach()), Quadratic(twin, center=model.vector().detach())
        both = compare(
            {"a": model, "b": other}, lambda m, o=other, one=one, two=two: (two if m is o else one)(m), [1.0], 40, seed
        )
        found += both.differences("a", "b")[0].p < 0.05
    assert found <= 8


def test_some_radii_only():
    def loss(model):  # sharper near, flatter far
        away = (model.vector() - 1).norm()
        near = away * 5 if model.steep else away.square()
        return torch.minimum(near, torch.tensor(2.0, dtype=torch.float64)) if model.steep else near

    one, two = Point(), Point()
    for model, steep in ((one, True), (two, False)):
        model.steep = steep
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(1.0)
    both = compare({"steep": one, "bowl": two}, loss, [0.1, 3.0], 6)
    sentence = both.sentence("steep", "bowl")
    assert sentence.startswith("steep is flatter at radius 3 (p = ")
    assert "and sharper at radius 0.1 (p = " in sentence


def test_state_dicts_are_put_into_a_model_that_stays_as_it_was():
    model, data = trained(0)
    other, _ = trained(1)
    third = network(2, batch_norm=False)
    loss = image_losses(data, batch_size=16)
    before = fingerprint(third)
    both = compare({"a": model.state_dict(), "b": other}, loss, [0.5, 1.0], 4, model=third)
    assert fingerprint(third) == before
    alone = local(model, loss, [0.5, 1.0], 4)
    assert both.models["a"].rows == alone.rows
    assert both.models["b"].rows == local(other, loss, [0.5, 1.0], 4).rows


def test_buffers_come_with_a_state_dict():
    first, second, data = network(0), network(1), images()
    loss = image_losses(data)
    both = compare({"a": first.state_dict(), "b": second.state_dict()}, loss, [0.5], 2, model=network(2))
    for name, model in (("a", first), ("b", second)):
        assert both.models[name].loss == local(model, loss, [0.5], 2).loss


@pytest.mark.parametrize("buffer", [{}, {"1.running_mean": torch.zeros(1)}])
def test_a_state_dict_without_its_buffers_is_refused(buffer):
    """Those of `model=` belong to other weights."""
    first, second = network(0).state_dict(), network(1).state_dict()
    del second["1.running_mean"]
    with pytest.raises(ValueError, match=r"the weights 'b' lack 1\.running_mean of shape \(4,\): give a whole state"):
        compare({"a": first, "b": second | buffer}, image_losses(images()), [0.5], 2, model=network(2))


def test_radii_and_patterns_may_be_iterators():
    models, loss = {"a": network(0), "b": network(1)}, image_losses(images())
    wanted = compare(models, loss, [0.5, 1.0], 4, include=["0.*"], groups={"both": ["photo", "sketch"]})
    found = compare(models, loss, iter([0.5, 1.0]), 4, include=iter(["0.*"]), groups=wanted.models["a"].groups)
    assert {name: flat.to_row() for name, flat in found.models.items()} == {
        name: flat.to_row() for name, flat in wanted.models.items()
    }
    alone = local(models["a"], loss, [0.5, 1.0], 4, include=iter(["0.*"]), groups={"both": iter(["photo", "sketch"])})
    assert alone.settings == wanted.models["a"].settings
    assert alone.rows == wanted.models["a"].rows


def test_every_model_is_reported_as_soon_as_it_is_measured():
    models, data = {"a": network(0), "b": network(1)}, images()
    loss = image_losses(data)
    whole = compare(models, loss, [0.5, 1.0], 6)
    saved, calls = {}, []

    def save(name, result):
        if saved:
            raise OSError("disk full")
        saved[name] = result

    with pytest.raises(OSError, match="disk full"):
        compare(models, loss, [0.5, 1.0], 6, on_result=save, progress=lambda *arguments: calls.append(arguments))
    assert calls == [("local flatness", done, 24) for done in range(1, 25)]
    assert list(saved) == ["a"]
    rest = compare({"b": models["b"]}, loss, [0.5, 1.0], 6)
    assert Comparison({**saved, **rest.models}).differences("a", "b") == whole.differences("a", "b")


def test_at_every_radius_is_as_sure_as_the_least_sure_radius():
    noise = torch.randn(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = (noise - noise.mean()) / noise.std()
    rises = {"rough": torch.zeros(40, 2).double(), "smooth": torch.stack([-1 + 0.01 * noise, -0.42 + noise], 1)}
    settings = {"seed": 0, "norm": 1.0}
    models = {
        name: LocalFlatness((1.0, 2.0), False, settings, {"all": 0.0}, {"all": one}, {}, {}, named=False)
        for name, one in rises.items()
    }
    both = Comparison(models)
    sure, less = (row.p for row in both.differences("smooth", "rough"))
    assert sure < 0.001
    assert 0.004 < less < 0.03  # 0.42 / sqrt(1 / 40) = 2.66 standard errors
    assert f"flatter than rough at every radius (p = {less:.2g}, " in both.sentence("smooth", "rough")


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"seed": 1}, r"seed \(0 and 1\)"),
        ({"normalize": "layer"}, r"normalize \(sphere and layer\)"),
        ({"include": ["a"]}, r"include \(\[\] and \['a'\]\); parameters \(10 and 6\)"),
        ({"exclude": "b"}, r"exclude \(\[\] and \['b'\]\); parameters \(10 and 6\)"),
        ({"antithetic": False}, r"antithetic \(True and False\)"),
        ({"radii": [0.5]}, r"radii \(\(1.0,\) and \(0.5,\)\)"),
        ({"n_directions": 6}, r"directions \(4 and 6\)"),
    ],
)
def test_measurements_with_other_settings_are_not_paired(changes, difference):
    usual = {"radii": [1.0], "n_directions": 4}
    one = local(scaled(1.0), Quadratic(symmetric()), **usual)
    same = local(scaled(0.5), Quadratic(symmetric()), **usual)  # of another norm
    other = local(scaled(0.5), Quadratic(symmetric()), **{**usual, **changes})
    assert list(Comparison({"one": one, "two": same}).models) == ["one", "two"]
    with pytest.raises(ValueError, match=rf"'one' and 'two' differ in {difference}: measure them together") as caught:
        Comparison({"one": one, "two": other})
    assert "\n" not in str(caught.value)


def test_refusals():
    loss = image_losses(images())
    for models, got in (({}, "none"), ([network()], "a list")):
        with pytest.raises(ValueError, match=f"compare needs models by name, .*; got {got}$"):
            compare(models, loss, [1.0])
    with pytest.raises(TypeError, match="must be a module or a state dict, got a str: load them first"):
        compare({"a": "swad.safetensors"}, loss, [1.0], 2, model=network())
    with pytest.raises(ValueError, match="give the model to load it into"):
        compare({"a": network().state_dict()}, loss, [1.0], 2)
    with pytest.raises(ValueError, match="compare models of one architecture"):
        compare({"a": network(), "b": network(batch_norm=False)}, loss, [1.0], 2)
    both = compare({"a": network(), "b": network(1)}, loss, [0.0], 2)
    with pytest.raises(ValueError, match="no model 'c'"):
        both.differences("a", "c")
    with pytest.raises(ValueError, match="no radius above 0 to compare at"):
        both.sentence("a", "b")
    lacking = network().state_dict()
    del lacking["0.weight"]
    for weights in (lacking, {**lacking, "0.weight": torch.zeros(7)}):
        with pytest.raises(ValueError, match=r"the weights 'a' lack 0\.weight of shape .*: give a whole state dict"):
            compare({"a": weights}, loss, [1.0], 2, model=network())
