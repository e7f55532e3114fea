"""The network of the docs, built, trained and loaded by its name; mistakes in a file are one line."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers.documents import example
from swad.tensors.batch_norms import batch_norms
from swad.testbed.models import catalog, networks, own
from swad.testbed.models.networks import NetworkError

pytest.importorskip("timm")

EXAMPLE = example("reference/writing-a-method.md", "NETWORK = Tiny")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    folder = tmp_path / "networks"
    folder.mkdir()
    monkeypatch.setattr(own, "__path__", [str(folder)])
    (folder / "own_tiny.py").write_text(EXAMPLE)
    return folder


def test_the_documented_network_has_features_and_frozen_norms(folder):
    model = networks.build("own_tiny", 5, channels=1, image_size=16).eval()
    images = torch.randn(2, 1, 16, 16)
    torch.testing.assert_close(networks.head(model)(networks.features(model, images)), model(images))
    assert [networks.is_frozen(norm) for norm in batch_norms(model)] == [True]
    assert catalog.input_config("own_tiny").size == 224
    assert not catalog.has_pretrained("own_tiny")
    assert catalog.has_pretrained("resnet18")
    with pytest.raises(NetworkError, match="'own_tiny' has no pretrained weights"):
        networks.build("own_tiny", 5, weights="pretrained")


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("own_missing", "", "a file of a network must define NETWORK, but own_missing.py does not: add the line"),
        ("own_number", "NETWORK = 3", "NETWORK must be a class or a function, got 3 in own_number.py"),
        ("own_broken", "\nimport no_such_package", r"own_broken.py, line 2: ModuleNotFoundError.*; correct the file"),
        ("own_signature", "def NETWORK(n): ...", r"by NETWORK\(num_classes=5, in_chans=3\), but it raises TypeError"),
        ("own_nothing", "def NETWORK(num_classes, in_chans): ...", "must return a torch.nn.Module, got NoneType"),
        ("resnet18", "", "network names must be unique, but 'resnet18' exists already"),
        ("small", "", "network names must be unique, but 'small' exists already"),
        (
            "own_linear",
            "from torch import nn\ndef NETWORK(num_classes, in_chans): return nn.Linear(3, num_classes)",
            r"own_linear cannot take images of 3×8×8: .*use images of the size that it takes",
        ),
        (
            "own_extra",
            "from torch import nn\nclass NETWORK(nn.Module):\n    def __init__(self, num_classes, in_chans):\n"
            "        super().__init__()\n    def get_extra_state(self):\n        return {}",
            "must contain only tensors, which safetensors files can store, got _extra_state: register buffers",
        ),
        (
            "own_flat",
            "from torch import nn\ndef NETWORK(num_classes, in_chans): return nn.Flatten()",
            r"own_flat is not a classifier: its scores for an image must have shape \(1, 5\), got \(1, 192\)",
        ),
    ],
)
def test_a_mistake_in_a_file_is_one_line(folder, name, code, message):
    (folder / f"{name}.py").write_text(code)
    with pytest.raises(NetworkError, match=message) as raised:
        networks.build(name, 5, image_size=8)
    assert "\n" not in str(raised.value)


def test_unknown_names_suggest_yours(folder, monkeypatch):
    with pytest.raises(NetworkError, match=r"timm has no network 'own_tinny': did you mean 'own_tiny'.* SWAD_NETWORKS"):
        networks.build("own_tinny", 5)
    monkeypatch.setattr(own, "__path__", [str(folder), str(folder)])
    with pytest.raises(NetworkError, match=r"there are 2 files own_tiny.py: rename yours"):
        networks.build("own_tiny", 5)
    monkeypatch.setattr(own, "__path__", [str(folder / "nowhere")])
    with pytest.raises(NetworkError, match=r"SWAD_NETWORKS must name existing folders, got .*nowhere"):
        networks.build("own_tiny", 5)


def test_a_plain_module_has_no_features():
    for use in (networks.head, lambda model: networks.features(model, torch.zeros(1, 3))):
        with pytest.raises(NetworkError, match=r"need a network with timm's forward_features, .*got Linear without"):
            use(nn.Linear(3, 2))


def test_no_network_of_your_own_is_random_in_training(folder):
    (folder / "own_random.py").write_text(
        "import torchvision\n"
        "from torch import nn\n"
        "class Random(nn.Module):\n"
        "    def __init__(self, num_classes, in_chans):\n"
        "        super().__init__()\n"
        "        self.drop = nn.Sequential(nn.Dropout(0.5), torchvision.ops.StochasticDepth(0.5, 'row'))\n"
        "        self.encoder = nn.TransformerEncoderLayer(in_chans, 1, 8, dropout=0.5, batch_first=True)\n"
        "        self.recurrent = nn.LSTM(in_chans, 4, num_layers=2, dropout=0.5, batch_first=True)\n"
        "        self.head = nn.Linear(4, num_classes)\n"
        "    def forward(self, images):\n"
        "        rows = self.encoder(self.drop(images).flatten(2).transpose(1, 2))\n"
        "        return self.head(self.recurrent(rows)[0].mean(1))\n"
        "NETWORK = Random\n"
    )
    model = networks.build("own_random", 5, image_size=8).train()
    images = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(model(images), model(images))


def test_scores_that_are_not_of_the_head_are_refused_for_features_only(folder):
    (folder / "own_scaled.py").write_text(
        EXAMPLE.replace("return self.head(self.body(images))", "return 3 * self.head(self.body(images))")
    )
    model = networks.build("own_scaled", 5, image_size=16)
    assert model(torch.randn(2, 3, 16, 16)).shape == (2, 5)
    with pytest.raises(NetworkError, match="got Tiny whose scores are not those of its head for its features: choose"):
        networks.head(model)
