"""Loss functions of resident images, what they may return, and their replay as a CUDA graph."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from helpers.landscapes import fingerprint, images, network
from swad.flatness import LossFunction, captured, compare, image_losses, local, worst_case
from swad.flatness.losses import as_losses

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


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
    loss = image_losses(data, autocast=lambda: torch.autocast("cpu", torch.bfloat16), channels_last=True)
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


def test_without_a_gpu_a_capture_says_so_and_goes_through():
    data, model = images(), network()
    loss = image_losses(data)
    replayed = captured(loss, model)
    if not torch.cuda.is_available():
        assert replayed.reason == "the model is not on a GPU"
    assert local(model, replayed, [0.5], 4).rows == local(model, loss, [0.5], 4).rows
    assert worst_case(model, replayed, 0.1, 2, 1) == worst_case(model, loss, 0.1, 2, 1)


def test_the_lab_is_there_without_importing_torch():
    code = "import sys, swad; swad.flatness; dir(swad.flatness); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- what only a GPU can show ---------------------------------------------------------------------------------------


@gpu
def test_a_replay_gives_the_same_numbers():
    data = {d: (x.cuda(), y.cuda()) for d, (x, y) in images().items()}
    model = network().cuda()
    loss = image_losses(data, batch_size=4)
    replayed = captured(loss, model)
    before = fingerprint(model)
    one, two = local(model, loss, [0.0, 0.5, 2.0], 6), local(model, replayed, [0.0, 0.5, 2.0], 6)
    assert replayed.reason is None
    assert replayed._graph is not None
    assert fingerprint(model) == before
    for domain in data:
        torch.testing.assert_close(one.losses[domain], two.losses[domain], rtol=1e-6, atol=1e-7)
    states = {"a": network(1).state_dict(), "b": network(2).state_dict()}
    graph = replayed._graph
    straight = compare(states, loss, [0.5], 4, model=model)
    found = compare(states, replayed, [0.5], 4, model=model)
    assert replayed._graph is graph  # one recording serves all weights put into one model
    for name in states:
        torch.testing.assert_close(
            found.models[name].losses["photo"], straight.models[name].losses["photo"], rtol=1e-6, atol=1e-7
        )


@gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_replay_reads_the_scale_of_logits_anew(precision):
    data = {d: (x.cuda(), y.cuda()) for d, (x, y) in images().items()}
    model = network().cuda().to(memory_format=torch.channels_last)
    options = {"measure": "both", "logits": "normalized", "precision": precision, "channels_last": True}
    loss, inner = (image_losses(data, batch_size=4, **options) for _ in range(2))
    replayed = captured(inner, model)
    states = {str(seed): {k: (1 + 5 * seed) * v for k, v in network(seed).state_dict().items()} for seed in range(3)}
    straight = compare(states, loss, [0.5, 2.0], 4, model=model)
    found = compare(states, replayed, [0.5, 2.0], 4, model=model)
    assert replayed.reason is None
    for name in states:
        one, two = straight.models[name], found.models[name]
        assert one.settings["logit_scale"] == pytest.approx(two.settings["logit_scale"], rel=1e-6)
        if precision == "fp32":
            torch.testing.assert_close(one.losses["photo"], two.losses["photo"], rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(one.errors.losses["photo"], two.errors.losses["photo"])
        else:  # fused kernels round at other places
            torch.testing.assert_close(one.losses["photo"], two.losses["photo"], rtol=0.02, atol=0.02)
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert len({found.models[name].settings["logit_scale"] for name in states}) == 3


@gpu
def test_a_loss_that_waits_is_not_captured_and_says_why():
    data = {d: (x.cuda(), y.cuda()) for d, (x, y) in images().items()}
    model = network().cuda()
    inner = image_losses(data)

    def waits(model):
        return {domain: losses + 0 * losses.sum().item() for domain, losses in inner(model).items()}

    replayed = captured(waits, model)
    found = local(model, replayed, [0.5], 2)
    assert replayed.reason.startswith("capture failed")
    torch.testing.assert_close(found.losses["photo"], local(model, inner, [0.5], 2).losses["photo"])


@gpu
def test_a_moved_model_is_recorded_anew():
    data = {d: (x.cuda(), y.cuda()) for d, (x, y) in images().items()}
    model = network().cuda()
    loss = image_losses(data)
    replayed = captured(loss, model)
    local(model, replayed, [0.5], 2)
    model[0].weight.data = model[0].weight.data.clone() * 2
    found, wanted = local(model, replayed, [0.5], 2), local(model, loss, [0.5], 2)
    torch.testing.assert_close(found.losses["photo"], wanted.losses["photo"], rtol=1e-6, atol=1e-7)


def test_a_copy_of_a_captured_loss_function_computes_the_same():
    loss = captured(image_losses(images()), network())
    copied, model = copy.deepcopy(loss), network().eval()
    assert copied.loss_fn.n_images == loss.loss_fn.n_images
    assert all(torch.equal(losses, loss(model)[domain]) for domain, losses in copied(model).items())


@gpu
def test_moving_and_measuring_never_waits_for_the_device():
    data = {d: (x.cuda(), y.cuda()) for d, (x, y) in images().items()}
    model = network().cuda()
    replayed = captured(image_losses(data), model)
    local(model, replayed, [0.5], 2)
    waits = []

    def loss(model):
        # From the second evaluation on: settings, the first losses and the rows at the end are read, all else is not.
        torch.cuda.set_sync_debug_mode("error" if waits else "default")
        waits.append(1)
        return replayed(model)

    try:
        local(model, loss, [0.5, 1.0], 4, progress=stop_at(8))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def stop_at(n):
    def progress(description, done, total):
        if done == n:  # the results are read after the last evaluation
            torch.cuda.set_sync_debug_mode("default")

    return progress


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recording_under_the_callers_autocast_reads_the_moved_weights():
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)).cuda()
    data = {"photo": (torch.randn(16, 8, device="cuda"), torch.randint(3, (16,), device="cuda"))}
    loss = image_losses(data)
    replayed = captured(loss, model)
    with torch.autocast("cuda", torch.bfloat16):
        here, there = (local(model, one, [1.0, 5.0], 4).losses["photo"] for one in (replayed, loss))
    assert replayed.reason is None
    torch.testing.assert_close(here, there, rtol=1e-2, atol=1e-3)
    assert here[0, 0] != here[0, 1]
    full = local(model, replayed, [1.0, 5.0], 4).losses["photo"]  # without autocast: recorded anew
    torch.testing.assert_close(full, local(model, loss, [1.0, 5.0], 4).losses["photo"], rtol=1e-4, atol=1e-5)
