"""Pretrained weights from the hub."""

from __future__ import annotations

import logging
from unittest import mock

import pytest

from swad.testbed.models import networks
from swad.testbed.models.networks import NetworkError

timm = pytest.importorskip("timm")
huggingface_hub = pytest.importorskip("huggingface_hub")


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
