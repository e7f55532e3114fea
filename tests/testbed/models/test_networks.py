from __future__ import annotations

import copy
import logging
import os
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers import ROOT
from helpers.special_files import at_most
from swad.tensors.batch_norms import batch_norms
from swad.testbed.models import catalog, networks, weight_files
from swad.testbed.models.networks import NetworkError

timm = pytest.importorskip("timm")
huggingface_hub = pytest.importorskip("huggingface_hub")

REAL = ROOT.parent / "shared" / "weights" / "mobilenetv2_100.in1k.safetensors"
TINY = "test_resnet"  # timm's test network, with half a million parameters and batch norms


def images(n: int = 2, size: int = 64, channels: int = 3) -> torch.Tensor:
    return torch.randn(n, channels, size, size, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def stored(tmp_path) -> Path:
    """The weights of a tiny network with 1,000 classes, in half precision, without the counters."""
    torch.manual_seed(1)
    state = timm.create_model(TINY).state_dict()
    path = tmp_path / "tiny.safetensors"
    save_file({k: v.half() for k, v in state.items() if not k.endswith("num_batches_tracked")}, path)
    return path


@pytest.mark.parametrize("name", [TINY, "test_vit", "test_efficientnet", networks.SMALL])
def test_features_and_head_are_the_predictor(name):
    size = 28 if name == networks.SMALL else 160
    model = networks.build(name, 5).eval()
    x = images(size=size)
    seen = networks.features(model, x)
    head = networks.head(model)
    assert seen.shape == (2, head.in_features)
    torch.testing.assert_close(head(seen), model(x))


@pytest.mark.parametrize("name", [TINY, "test_vit", "test_efficientnet", "mobilenetv2_050"])
def test_a_new_head_is_initialized_like_any_linear_layer(name):
    head = networks.head(networks.build(name, 5))
    bound = head.in_features**-0.5
    assert 0.9 * bound < float(head.weight.detach().abs().max()) <= bound
    assert 0 < float(head.bias.detach().abs().max()) <= bound


@pytest.mark.skipif(not REAL.exists(), reason="needs the MobileNetV2 weights")
def test_a_new_head_on_real_features_has_the_loss_of_chance():
    for seed in range(3):
        torch.manual_seed(seed)
        model = networks.build("mobilenetv2_100", 7, weights=REAL).eval()
        with torch.no_grad():
            scores = model(images(4, size=96))
        loss = torch.nn.functional.cross_entropy(scores, torch.arange(4))
        assert loss < 2.5, "chance has a loss of log 7 = 1.95"


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "ghostnet_050"])
def test_networks_have_no_dropout_of_their_own(name):
    """By default timm's Swin drops whole blocks and GhostNet features: SAM's two passes would use two networks."""
    model = networks.build(name, 5).train()
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        assert model(images).equal(model(images))


def test_frozen_statistics_stay_and_scale_and_shift_train():
    for freeze in (True, False):
        model = networks.build(TINY, 5, freeze_bn=freeze)
        before = copy.deepcopy(model.state_dict())
        model.train()
        norms = batch_norms(model)
        assert norms
        assert all(norm.training is not freeze for norm in norms)
        assert all(p.requires_grad for p in model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(images(4)).square().mean().backward()
        optimizer.step()
        after = model.state_dict()
        changed = {name for name in before if not before[name].equal(after[name])}
        assert any("running_mean" in name for name in changed) is not freeze
        assert any(name.endswith(("bn1.weight", "bn1.bias")) for name in changed)
    twin = copy.deepcopy(networks.build(TINY, 5)).train()
    assert not any(norm.training for norm in batch_norms(twin))


def test_a_frozen_copy_has_no_parameters_and_keeps_its_statistics():
    model = networks.build("test_resnet", 5, freeze_bn=False).train()
    images = torch.randn(4, 3, 32, 32)
    wanted = copy.deepcopy(model).eval()(images)
    twin = networks.frozen_copy(model).train()
    assert not list(twin.parameters())
    assert twin(images).equal(wanted)
    assert twin.state_dict().keys() == model.state_dict().keys()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert twin(images).equal(wanted), "they share no tensor"
    fresh = networks.frozen_copy(model)
    fresh.load_state_dict(twin.state_dict())
    assert fresh(images).equal(wanted)


def test_saved_weights_load_in_plain_timm():
    model = networks.build(TINY, 5)
    plain = timm.create_model(TINY, num_classes=5)
    plain.load_state_dict(model.state_dict(), strict=True)
    torch.testing.assert_close(plain.eval()(images()), model.eval()(images()))


def test_a_weights_file_fills_all_but_the_head(stored):
    torch.manual_seed(0)
    model = networks.build(TINY, 5, weights=stored)
    torch.manual_seed(1)
    origin = timm.create_model(TINY).state_dict()
    for name, tensor in model.state_dict().items():
        if name.startswith("fc."):
            assert tensor.shape[0] == 5
        else:
            assert tensor.dtype == origin[name].dtype
            torch.testing.assert_close(tensor, origin[name], rtol=1e-3, atol=1e-3)


def _packed(weight: torch.Tensor) -> torch.Tensor:
    """Four bits per number, two in a byte: safetensors stores it, and torch converts it to nothing."""
    return torch.zeros(weight.shape, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda weight: weight.to(torch.int8), r"it has no floating-point numbers in bn1\.weight torch\.int8"),
        (lambda weight: _packed(weight), r"it has no floating-point numbers in bn1\.weight torch\.float4_e2m1fn_x2"),
        (lambda weight: weight * float("nan"), r"it has values that are not finite in bn1\.weight"),
    ],
)
def test_weights_that_are_quantized_or_not_finite_are_refused(change, problem, stored):
    state = load_file(stored)
    save_file(state | {"bn1.weight": change(state["bn1.weight"])}, stored)
    with pytest.raises(NetworkError, match=f"does not fit ResNet: {problem}; use the weights of this network"):
        networks.build(TINY, 5, weights=stored)


def test_a_weights_file_that_does_not_fit_names_the_tensors(stored, tmp_path):
    with pytest.raises(NetworkError) as caught:
        networks.build("test_efficientnet", 5, weights=stored)
    text = str(caught.value)
    assert "it lacks blocks.0.0.bn1.bias, " in text
    assert "it has unknown conv1.0.weight" in text
    assert "it has bn1.bias 32 instead of 24" in text
    assert "\n" not in text
    save_file(dict(timm.create_model(TINY, in_chans=1).state_dict()), tmp_path / "gray.safetensors")
    with pytest.raises(NetworkError, match=r"it has conv1.0.weight .*×1×3×3 instead of .*×3×3×3"):
        networks.build(TINY, 5, weights=tmp_path / "gray.safetensors")


def test_missing_and_broken_weights_files(tmp_path):
    with pytest.raises(NetworkError, match="there is no weights file"):
        networks.build(TINY, 5, weights=tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_text("not at all")
    os.mkfifo(tmp_path / "pipe.safetensors")
    with at_most(5), pytest.raises(NetworkError, match="is a pipe or a device, not a file"):
        weight_files.read_safetensors(tmp_path / "pipe.safetensors")
    with pytest.raises(NetworkError, match=r"cannot read .* as safetensors"):
        networks.build(TINY, 5, weights=tmp_path / "text.safetensors")


def test_unknown_names_and_missing_weights():
    with pytest.raises(NetworkError, match=r"timm has no network 'resnt50.tv': did you mean 'resnet50'"):
        networks.build("resnt50.tv", 5)
    with pytest.raises(NetworkError, match="has no pretrained weights"):
        networks.build(networks.SMALL, 5, weights="pretrained")


@pytest.mark.skipif(not REAL.exists(), reason=f"needs the real weights at {REAL.name} in ../shared/weights")
def test_real_weights():
    model = networks.build("mobilenetv2_100", 7, weights=REAL).eval()
    assert next(model.parameters()).dtype == torch.float32
    plain = timm.create_model("mobilenetv2_100")
    plain.load_state_dict({name: t.float() for name, t in weight_files.read_safetensors(REAL).items()}, strict=False)
    x = images(1, 224)
    with torch.no_grad():
        torch.testing.assert_close(networks.features(model, x), networks.features(plain.eval(), x))
    timm.create_model("mobilenetv2_100", num_classes=7).load_state_dict(model.state_dict(), strict=True)


@pytest.mark.parametrize(
    ("name", "size", "maps"),
    [
        (networks.SMALL, 28, [(12, 14, 14), (24, 14, 14)]),
        ("test_resnet", 64, [(32, 16, 16), (48, 8, 8), (192, 4, 4), (96, 2, 2)]),
        ("test_efficientnet", 64, [(24, 16, 16), (32, 8, 8), (48, 4, 4), (64, 2, 2)]),
        ("test_convnext", 64, [(24, 16, 16), (32, 8, 8), (48, 4, 4), (64, 2, 2)]),
        ("test_vit", 160, [(101, 64)] * 4),
    ],
)
def test_stages_are_where_maps_become_coarser(name, size, maps):
    model = networks.build(name, 5).eval()
    seen = []
    for stage in networks.stages(model):
        stage.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape[1:])))
    model(images(1, size))
    assert seen == maps


def test_the_stages_of_a_vit_are_quarters_of_its_blocks():
    model = networks.build("test_vit", 5)
    assert [list(model.blocks).index(stage) for stage in networks.stages(model)] == [1, 2, 4, 5]


@pytest.mark.parametrize(
    ("name", "channels", "shape"),
    [("test_resnet", 32, (32, 16, 16)), ("test_efficientnet", 16, (16, 32, 32)), ("test_convnext", None, None)],
)
def test_the_stem_ends_before_the_first_stage(name, channels, shape):
    model = networks.build(name, 5).eval()
    found = networks.stem(model)
    assert [count for _, count in found] == ([] if channels is None else [channels])
    seen = []
    for module, _ in found:
        module.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape[1:])))
    networks.stages(model)[0].register_forward_hook(lambda module, args, out: seen.append(None))
    model(images(1, 64))
    assert seen == ([None] if shape is None else [shape, None])


def test_networks_without_stages_are_errors():
    with pytest.raises(NetworkError, match="stages need timm's feature_info, which Linear does not have"):
        networks.stages(torch.nn.Linear(2, 2))


def test_a_network_of_a_fixed_size_is_built_for_other_images():
    assert networks.build("test_vit", 5, image_size=96)(images(size=96)).shape == (2, 5)


@pytest.mark.parametrize(("name", "size"), [("test_vit", 10), ("test_resnet", 0)])
def test_images_that_a_network_cannot_take_are_one_line(name, size):
    with pytest.raises(NetworkError) as caught:
        networks.build(name, 5, image_size=size)
    assert "\n" not in str(caught.value)


def test_resnet50_v1_has_its_strides_in_the_first_convolution():
    model = networks.build("resnet50_v1", 7, image_size=64)
    state = {name: tensor.shape for name, tensor in model.state_dict().items()}
    plain = timm.create_model("resnet50", num_classes=7)
    assert state == {name: tensor.shape for name, tensor in plain.state_dict().items()}
    convolutions = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Conv2d)}
    blocks = ("layer2.0", "layer3.0", "layer4.0")
    expected = {"conv1", *(f"{block}.{part}" for block in blocks for part in ("conv1", "downsample.0"))}
    assert {name for name, module in convolutions.items() if module.stride != (1, 1)} == expected
    assert catalog.input_config("resnet50_v1") == catalog.InputConfig()
    with pytest.raises(NetworkError, match=r"timm has no weights of this version; .*use a local safetensors file"):
        networks.build("resnet50_v1", 7, weights="pretrained")


@pytest.mark.parametrize("name", [networks.DEFAULT, f"hf-hub:timm/{networks.DEFAULT}"])
def test_an_unreachable_hub_is_asked_once_and_fails_in_one_line(name, capfd, monkeypatch):
    asked = []

    def offline(url):
        asked.append(url)
        raise OSError("no route to\nthe hub")

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *args, **options: None)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", offline)
    logged = []
    rule = rf"weights of {name}: no route to the hub; .*\(--weights FILE\).*\(--weights random\)"
    with pytest.raises(NetworkError, match=rule) as caught:
        networks.build(name, 5, weights="pretrained", log=logged.append)
    assert "\n" not in str(caught.value)
    assert asked == [f"https://huggingface.co/timm/{networks.DEFAULT}/resolve/main/model.safetensors"]
    assert logged == [f"downloading pretrained weights from https://huggingface.co/timm/{networks.DEFAULT}"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("cached", ["model.safetensors", "open_clip_pytorch_model.bin", None])
def test_a_reachable_hub_leaves_the_download_and_its_errors_to_timm(cached, capfd, monkeypatch):
    def answer(url):
        assert not cached
        raise huggingface_hub.errors.HfHubHTTPError("not found", response=mock.MagicMock())

    def refuse(name, **options):
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s [Retry 1/5].")
        raise OSError("the hub\nrefuses")

    find = {cached: "path"}.get
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repository, file, **options: find(file))
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", answer)
    monkeypatch.setattr(timm, "create_model", refuse)
    logged = []
    with pytest.raises(NetworkError, match=r"weights of mobilenetv2_100: the hub refuses; "):
        networks.build("mobilenetv2_100", 5, weights="pretrained", log=logged.append)
    assert len(logged) == (not cached)
    assert capfd.readouterr() == ("", "")
