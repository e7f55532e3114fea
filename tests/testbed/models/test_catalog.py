"""Which networks there are, and the images that each was made for."""

from __future__ import annotations

import pytest

from swad.testbed.models import catalog
from swad.testbed.models.networks import NetworkError

pytest.importorskip("timm")


@pytest.mark.parametrize(
    ("name", "size", "mean"),
    [
        (catalog.DEFAULT, 224, (0.485, 0.456, 0.406)),
        ("mobilenetv2_100", 224, (0.485, 0.456, 0.406)),
        ("vit_tiny_patch16_384", 384, (0.5, 0.5, 0.5)),
        ("vit_base_patch16_clip_224", 224, (0.48145466, 0.4578275, 0.40821073)),
    ],
)
def test_images_are_those_that_the_network_was_made_for(name, size, mean):
    config = catalog.input_config(name)
    assert (config.size, config.mean) == (size, mean)


def test_an_unknown_tag_is_one_line_with_the_known_ones():
    with pytest.raises(NetworkError, match=r"timm has no weights 'resnet50.nope' .*; it has resnet50\.") as caught:
        catalog.input_config("resnet50.nope")
    assert "\n" not in str(caught.value)


def test_only_a_network_of_a_fixed_size_takes_the_size_of_other_images():
    assert catalog.takes_image_size("test_vit", 96)
    assert not catalog.takes_image_size("test_vit", 160)
    assert not catalog.takes_image_size("test_resnet", 96)
