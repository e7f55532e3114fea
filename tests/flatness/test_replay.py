"""The replay of a loss function as a CUDA graph."""

from __future__ import annotations

import copy

import pytest
import torch

from helpers.landscapes import fingerprint, images, network
from swad.flatness import captured, compare, image_losses, local, worst_case


def test_without_a_gpu_a_capture_says_so_and_goes_through():
    data, model = images(), network()
    loss = image_losses(data)
    replayed = captured(loss, model)
    if not torch.cuda.is_available():
        assert replayed.reason == "the model is not on a GPU"
    assert local(model, replayed, [0.5], 4).rows == local(model, loss, [0.5], 4).rows
    assert worst_case(model, replayed, 0.1, 2, 1) == worst_case(model, loss, 0.1, 2, 1)


def test_a_copy_of_a_captured_loss_function_computes_the_same():
    loss = captured(image_losses(images()), network())
    copied, model = copy.deepcopy(loss), network().eval()
    assert copied.loss_fn.n_images == loss.loss_fn.n_images
    assert all(torch.equal(losses, loss(model)[domain]) for domain, losses in copied(model).items())


# --- what only a GPU can show ---------------------------------------------------------------------------------------


@pytest.mark.gpu
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


@pytest.mark.gpu
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


@pytest.mark.gpu
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


@pytest.mark.gpu
def test_a_moved_model_is_recorded_anew():
    data = {d: (x.cuda(), y.cuda()) for d, (x, y) in images().items()}
    model = network().cuda()
    loss = image_losses(data)
    replayed = captured(loss, model)
    local(model, replayed, [0.5], 2)
    model[0].weight.data = model[0].weight.data.clone() * 2
    found, wanted = local(model, replayed, [0.5], 2), local(model, loss, [0.5], 2)
    torch.testing.assert_close(found.losses["photo"], wanted.losses["photo"], rtol=1e-6, atol=1e-7)


@pytest.mark.gpu
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


@pytest.mark.gpu
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
