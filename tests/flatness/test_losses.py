"""Loss functions of resident images, and what they may return."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from helpers.landscapes import images, network
from swad.flatness import LossFunction, captured, image_losses, local, worst_case
from swad.flatness.losses import as_losses


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), batch_size=st.integers(1, 12))
def test_batches_do_not_matter(sizes, batch_size):
    data = images({f"d{i}": size for i, size in enumerate(sizes)})
    model = network().eval()
    found = image_losses(data, batch_size=batch_size)(model)
    parts: dict[str, list[torch.Tensor]] = {}
    for part in image_losses(data, batch_size=batch_size).parts(model):
        for domain, term in part.items():
            parts.setdefault(domain, []).append(term)
    for domain, (x, y) in data.items():
        wanted = functional.cross_entropy(model(x), y, reduction="none")
        torch.testing.assert_close(found[domain], wanted)
        torch.testing.assert_close(sum(parts[domain]), wanted.mean())
        assert len(parts[domain]) == -(-len(y) // batch_size)


def test_errors_and_both():
    data, model = images(), network().eval()
    errors, both = (image_losses(data, measure=measure)(model) for measure in ("error", "both"))
    x, y = data["photo"]
    assert errors["photo"].tolist() == (model(x).argmax(1) != y).float().tolist()
    found = as_losses(both)
    assert torch.equal(found.errors["photo"], errors["photo"])
    torch.testing.assert_close(found.losses["photo"], image_losses(data)(model)["photo"])
    assert local(model, image_losses(data, measure="both"), [0.5], 2).n_images == {"photo": 7, "sketch": 5}


def test_small_integers_are_scaled_on_the_way():
    image_spec = torch.randint(256, (6, 1, 6, 6), dtype=torch.uint8)
    labels = torch.randint(3, (6,))
    model = network().eval()
    raw = image_losses({"a": (image_spec, labels)}, transform=lambda batch: batch.float() / 255)(model)
    torch.testing.assert_close(raw["a"], image_losses({"a": (image_spec.float() / 255, labels)})(model)["a"])


def test_lower_precision_is_the_caller_s_choice():
    data, model = images(), network(batch_norm=False).eval()
    loss = image_losses(data, precision="bf16", channels_last=True)
    assert loss(model)["photo"].dtype == torch.float32
    torch.testing.assert_close(loss(model)["photo"], image_losses(data)(model)["photo"], rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ({}, "at least one domain"),
        (torch.zeros(3, 4), "per-image losses"),
        (torch.zeros(0), "per-image losses"),
        (None, "got a NoneType for 'all'"),
        ({"a": [0.5, 0.7]}, "got a list for 'a'"),
        ({"a": torch.zeros(3), "b": torch.zeros(())}, "a scalar of every domain"),
        ({"a": torch.zeros(3, 2), "b": torch.zeros(3)}, "for all domains or for none"),
    ],
)
def test_results_that_cannot_be_read(returned, words):
    with pytest.raises(ValueError, match=words):
        as_losses(returned)


def test_results_that_can():
    assert as_losses(2.5).losses["all"].tolist() == [2.5]
    assert not as_losses(torch.tensor(2.5)).by_image
    assert as_losses(torch.ones(4)).losses["all"].tolist() == [1, 1, 1, 1]
    assert not as_losses(torch.ones(4)).named
    assert as_losses({"a": torch.ones(1)}).by_image


def test_image_losses_refuse():
    x, y = images()["photo"]
    with pytest.raises(ValueError, match="needs at least one domain"):
        image_losses({})
    with pytest.raises(ValueError, match="'photo' has 7 images and 6 labels"):
        image_losses({"photo": (x, y[:6])})
    with pytest.raises(TypeError, match=r"must be {domain: \(images, labels\)}, got a tuple: name the domain"):
        image_losses((x, y))
    for pair in ((x.numpy(), y), x, (x,)):
        with pytest.raises(TypeError, match="of tensors, but 'photo' is not"):
            image_losses({"photo": pair})
    with pytest.raises(ValueError, match="measure must be"):
        image_losses({"photo": (x, y)}, measure="accuracy")


class ByDomain(LossFunction):
    """Cross entropies of resident images, differentiated domain by domain, with a scale fitted to the weights."""

    precision = "bf16"

    def __init__(self, data):
        self.data, self.calls = data, []

    def __call__(self, model):
        self.calls.append("call")
        return {d: functional.cross_entropy(model(x), y, reduction="none") for d, (x, y) in self.data.items()}

    def parts(self, model):
        for domain, (x, y) in self.data.items():
            self.calls.append(domain)
            yield {domain: functional.cross_entropy(model(x), y)}

    def fit(self, model):
        self.calls.append("fit")
        return 2.5


@pytest.mark.parametrize("wrap", [lambda loss, model: loss, captured])
def test_a_loss_function_says_how_it_is_fitted_and_differentiated(wrap):
    model, loss = network(batch_norm=False), ByDomain(images())
    wrapped = wrap(loss, model)
    found = worst_case(model, wrapped, 0.1, 2, 1)
    assert loss.calls[:4] == ["fit", "call", "photo", "sketch"]
    wanted = worst_case(model, lambda model: ByDomain(loss.data)(model), 0.1, 2, 1)
    assert found.lower_bound == pytest.approx(wanted.lower_bound, rel=1e-6)
    with pytest.warns(UserWarning, match="weights in bfloat16 are rounded"):
        assert local(model, wrapped, [0.01], 2).settings["logit_scale"] == 2.5


def test_a_loss_function_needs_a_call_alone():
    class Constant(LossFunction):
        def __call__(self, model):
            return 3 * model[0].weight.square().sum()

    model = network()
    assert local(model, Constant(), [0.5], 4).rows == local(model, lambda model: Constant()(model), [0.5], 4).rows
    assert "logit_scale" not in local(model, Constant(), [0.5], 4).settings
    with pytest.raises(TypeError, match="abstract"):
        LossFunction()


def test_the_lab_is_there_without_importing_torch():
    code = "import sys, swad; swad.flatness; dir(swad.flatness); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
