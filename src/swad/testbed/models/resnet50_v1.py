"""ResNet-50 as He et al. released it: stages 2 to 4 halve the resolution in their first 1 × 1 convolution.

The `resnet50` of timm and torchvision (v1.5) does so in the 3 × 3 convolution. Names and shapes of the weights are the
same, so weights of one version load into the other without an error and work badly.

Importing this module registers `resnet50_v1` with timm.
"""

from __future__ import annotations

from typing import Any, cast

from timm.models import register_model, resnet50
from torch import nn


@register_model  # type: ignore[untyped-decorator]
def resnet50_v1(pretrained: bool = False, **options: Any) -> nn.Module:
    """Build ResNet-50 v1 with the options of timm's `resnet50`."""
    if pretrained:
        raise RuntimeError("timm has no weights of this version")
    model = cast(Any, resnet50(**options))
    for stage in (model.layer2, model.layer3, model.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    return cast(nn.Module, model)
