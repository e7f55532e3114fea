"""The hub that timm's pretrained weights come from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

_FILES = (
    "model.safetensors",
    "pytorch_model.bin",
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.bin",
)
"""Weights of a repository, in the order in which timm asks for them; the latter two of CLIP's networks."""


def require_hub(repository: str, log: Callable[[str], None]) -> None:
    """Log that weights are downloaded, and raise the error of the connection if the hub does not answer.

    huggingface_hub repeats an unanswered request for 23 s, timm makes one for each file, and no setting shortens that.
    This one request is not repeated. It waits for HF_HUB_ETAG_TIMEOUT (10 s) at most.

    Args:
        repository: For example "timm/resnet50.tv_in1k". Nothing happens if its weights were downloaded before.
        log: Called with the message.
    """
    import huggingface_hub as hub
    from huggingface_hub.errors import HfHubHTTPError

    repository, _, revision = repository.partition("@")
    revision = revision or "main"
    if any(isinstance(hub.try_to_load_from_cache(repository, file, revision=revision), str) for file in _FILES):
        return
    url = hub.hf_hub_url(repository, _FILES[0], revision=revision)
    log(f"downloading pretrained weights from {url.partition('/resolve/')[0]}")
    with suppress(HfHubHTTPError):  # an answer: timm's own requests find the file or explain the refusal
        hub.get_hf_file_metadata(url)
