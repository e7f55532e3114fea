from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional

from helpers.tiny_algorithms import batch_for, make, noise_for
from swad.testbed.algorithms.base import StepContext
from swad.testbed.algorithms.mixstyle import EPS
from swad.testbed.data.loaders import Batch
from swad.testbed.models import networks, small_cnn


def seen_after(algorithm, batch, noise, mode=True):
    """Return the output of every mixed stage, before and after its hook."""
    found = {}
    stages = networks.stages(algorithm.predictor)[: algorithm.n_stages]
    handles = []
    for k, stage in enumerate(stages):
        own = stage.forward  # the hooks come after it

        def forward(x, own=own, k=k):
            found[k, "before"] = own(x)
            return found[k, "before"]

        stage.forward = forward
        handles.append(stage.register_forward_hook(lambda module, args, out, k=k: found.__setitem__((k, "after"), out)))
    algorithm.train(mode)
    with torch.no_grad():
        algorithm.loss(batch, noise)
    for stage, handle in zip(stages, handles, strict=True):
        handle.remove()
        del stage.forward
    return found


def by_hand(maps, partner, share):
    """Mix image by image and channel by channel, in double precision; maps are `[images, channels, positions]`."""
    maps = maps.double().clone()
    wanted = torch.empty_like(maps)
    for n in range(len(maps)):
        own, other, part = maps[n], maps[partner[n]], share[n].double()
        for c in range(maps.shape[1]):
            x, y = own[c], other[c]
            deviation, other_deviation = ((features.var(correction=0) + EPS).sqrt() for features in (x, y))
            mixed = part * deviation + (1 - part) * other_deviation
            wanted[n, c] = (x - x.mean()) / deviation * mixed + part * x.mean() + (1 - part) * y.mean()
    return wanted


@pytest.mark.parametrize(("name", "size"), [(networks.SMALL, 28), ("test_resnet", 64), ("test_vit", 160)])
def test_statistics_are_mixed(name, size):
    algorithm = make("mixstyle", networks.build(name, 5), p=0.5, alpha=1.0, batch_size=2)
    batch = batch_for(algorithm, 1, (3, size, size))
    noise = noise_for(algorithm) | {"coin": torch.tensor([True, False, True][: algorithm.n_stages])}
    found = seen_after(algorithm, batch, noise)
    for k in range(algorithm.n_stages):
        before, after = found[k, "before"], found[k, "after"]
        if not noise["coin"][k]:
            assert after.equal(before)
            continue
        if name == "test_vit":
            assert after[:, :1].equal(before[:, :1]), "the class token stays"
            before, after = before[:, 1:].mT, after[:, 1:].mT
        before, after = before.flatten(2), after.flatten(2)
        want = by_hand(before, noise["partner"][k], noise["share"][k])
        torch.testing.assert_close(after.double(), want, rtol=1e-3, atol=1e-4)
        assert not torch.allclose(after, before, atol=1e-2)


@pytest.mark.parametrize("declared", [True, False])
def test_channels_last_networks_are_mixed(declared):
    """Some networks declare the layout; others, such as SAM's ViT and VOLO, do not."""
    timm = pytest.importorskip("timm")
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", num_classes=5, img_size=64, window_size=2, depths=(1,) * 4
    )
    assert model.output_fmt == "NHWC"
    if not declared:
        del model.output_fmt
    algorithm = make("mixstyle", model, p=1.0, alpha=1.0, batch_size=1)
    noise = noise_for(algorithm)
    found = seen_after(algorithm, batch_for(algorithm, 1, (3, 64, 64)), noise)
    before, after = (found[0, when].flatten(1, 2).mT for when in ("before", "after"))
    torch.testing.assert_close(
        after.double(), by_hand(before, noise["partner"][0], noise["share"][0]), rtol=1e-3, atol=1e-4
    )


def test_the_layout_is_known_when_columns_equal_channels():
    """The layout that the network declares decides."""
    pytest.importorskip("timm")
    algorithm = make("mixstyle", networks.build("test_resnet", 5), p=1.0, alpha=1.0, batch_size=1)
    hook = next(iter(networks.stages(algorithm.predictor)[0]._forward_hooks.values()))
    side = networks.channels(algorithm.predictor)[0]
    assert hook.channel_axis(torch.zeros(1, side, side, side)) == 1
    hook.layout = "NHWC"
    assert hook.channel_axis(torch.zeros(1, side, side, side)) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pit_ti_224", "MixStyle needs maps with 64 channels .* after stage 1 .*, got a tuple: choose another network"),
        (
            "twins_svt_small",
            "stages of a network must be modules, but those of Twins are not: choose another",
        ),
    ],
)
def test_networks_without_feature_maps_are_errors(name, message):
    pytest.importorskip("timm")
    with pytest.raises(networks.NetworkError, match=message):
        algorithm = make("mixstyle", networks.build(name, 5), batch_size=1)
        algorithm.loss(batch_for(algorithm, 1, (3, 224, 224)), noise_for(algorithm))


def test_statistics_carry_no_gradient():
    algorithm = make("mixstyle", p=1.0, alpha=1.0)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    algorithm.loss(batch, noise).backward()
    twin = copy.deepcopy(algorithm.predictor).double()

    def mixed(maps, k):
        share = noise["share"][k].double().view(-1, 1, 1, 1)
        with torch.no_grad():
            mean, deviation = (
                maps.mean((2, 3), keepdim=True),
                (maps.var((2, 3), correction=0, keepdim=True) + EPS).sqrt(),
            )
            center = share * mean + (1 - share) * mean[noise["partner"][k]]
            spread = share * deviation + (1 - share) * deviation[noise["partner"][k]]
        return (maps - mean) / deviation * spread + center

    for stage in networks.stages(twin):
        stage._forward_hooks.clear()
    maps = mixed(twin.body(mixed(twin.stem(batch.images.double()), 0)), 1)
    pooled = functional.max_pool2d(maps, 2, 2)
    loss = functional.cross_entropy(twin.head(twin.hidden(pooled.flatten(1))), batch.labels)
    wanted = torch.autograd.grad(loss, list(twin.parameters()))
    for weight, gradient in zip(algorithm.predictor.parameters(), wanted, strict=True):
        torch.testing.assert_close(weight.grad.double(), gradient, rtol=1e-3, atol=1e-6)


def test_partners_are_in_other_domains_and_every_image_is_one():
    for domains in (2, 3, 4):
        algorithm = make("mixstyle", domains=domains)
        for step in range(1, 10):
            for partner in noise_for(algorithm, step)["partner"]:
                assert sorted(partner.tolist()) == list(range(4 * domains))
                own = torch.arange(4 * domains) // 4
                assert (partner // 4 != own).all()
                for domain in range(domains):
                    assert len(set((partner[4 * domain : 4 * domain + 4] // 4).tolist())) == 1
    some = [noise_for(make("mixstyle"), step)["partner"] for step in (1, 2)]
    assert not some[0].equal(some[1])
    assert not some[0][0].equal(some[0][1]), "every stage has its own"


def test_coins_and_shares_follow_the_hyperparameters():
    algorithm = make("mixstyle", p=0.25)
    noises = [noise_for(algorithm, step) for step in range(1, 301)]
    assert torch.stack([noise["coin"] for noise in noises]).double().mean().item() == pytest.approx(0.25, abs=0.05)
    shares = torch.cat([noise["share"].flatten() for noise in noises])
    # Beta(.1, .1): mean 1/2, variance 1 / (4 (2 α + 1)).
    assert shares.mean().item() == pytest.approx(0.5, abs=0.02)
    assert shares.var().item() == pytest.approx(1 / 4.8, abs=0.01)
    assert not any(noise["coin"].any() for noise in [noise_for(make("mixstyle", p=0.0), step) for step in range(9)])


def test_only_training_is_mixed():
    algorithm, plain = make("mixstyle", p=1.0, alpha=1.0), make("erm")
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    for _ in range(2):  # before a step, and after one
        wanted = plain.predictor(batch.images)
        assert algorithm.predictor(batch.images).equal(wanted)
        assert algorithm.predictor.eval()(batch.images).equal(wanted)
        assert copy.deepcopy(algorithm.predictor).eval()(batch.images).equal(wanted)
        algorithm.eval()
        assert algorithm.loss(batch, noise).equal(plain.loss(batch, {}))
        algorithm.train()
        assert not algorithm.loss(batch, noise).equal(plain.loss(batch, {}))
        algorithm.update(batch, noise, StepContext())
        plain.predictor.load_state_dict(algorithm.predictor.state_dict())


def test_mixing_stops_after_an_error():
    algorithm = make("mixstyle", p=1.0, alpha=1.0)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    with pytest.raises(IndexError):
        algorithm.loss(Batch(1, batch.images, torch.full((12,), 99)), noise)
    assert algorithm.predictor(batch.images).equal(make("erm").predictor(batch.images))


def test_a_copy_has_its_own_mixing_state():
    algorithm = make("mixstyle", p=1.0, alpha=1.0)
    twin = copy.deepcopy(algorithm)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    assert twin.loss(batch, noise).equal(algorithm.loss(batch, noise))
    assert twin._mixing is not algorithm._mixing


def test_probability_zero_is_erm():
    algorithm, plain = make("mixstyle", p=0.0, dropout=0.5), make("erm", dropout=0.5)
    batch, noise = batch_for(algorithm), noise_for(algorithm)
    torch.testing.assert_close(algorithm.loss(batch, noise), plain.loss(batch, {"dropout_mask": noise["dropout_mask"]}))


@pytest.mark.slow
def test_compiled_networks_are_mixed_too():
    algorithm = make("mixstyle", p=1.0, alpha=1.0)
    batch = batch_for(algorithm)
    wanted = [algorithm.loss(batch, noise_for(algorithm, step)) for step in (1, 2)]
    plain = algorithm.predictor(batch.images)
    torch._dynamo.reset()
    algorithm._predict = torch.compile(algorithm._predict, backend="aot_eager")
    for step, want in zip((1, 2), wanted, strict=True):
        torch.testing.assert_close(algorithm.loss(batch, noise_for(algorithm, step)), want)
    torch.testing.assert_close(algorithm.predict(batch.images), plain)
    torch._dynamo.reset()


def test_mixstyle_and_padain_learn_the_class_without_the_style():
    """Brightness tells the label in training only, a spot always: they learn the spot, ERM the brightness."""

    def draw(seed, shift):
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(0, 2, (32,), generator=generator)
        images = 0.2 * torch.randn((32, 1, 28, 28), generator=generator)
        images += torch.where(shift * (labels == 1), 1.0, 0.0)[:, None, None, None]
        for image, label in zip(images, labels.tolist(), strict=True):
            image[:, 4 + 12 * label : 8 + 12 * label, 12:16] += 1
        return Batch(seed, images, labels)

    def right(name, **options):
        torch.manual_seed(0)
        algorithm = make(name, small_cnn.SmallNet(2, 1), domains=2, batch_size=16, lr=1e-3, **options)
        for step in range(1, 61):
            algorithm.update(draw(step, True), noise_for(algorithm, step), StepContext())
        fresh = draw(999, False)
        return (algorithm.predictor.eval()(fresh.images).argmax(1) == fresh.labels).double().mean().item()

    erm = right("erm")
    assert right("mixstyle", p=1.0, alpha=0.5) > erm + 0.1
    assert right("padain", p=0.5) > erm + 0.1
