"""Creating networks of timm, with pretrained weights from the hub."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

from torch import nn

from swad.testbed.models.catalog import import_timm, pretrained_config, require_known
from swad.testbed.models.weight_files import NetworkError
from swad.util.names import one_line

_HUB_PREFIXES = ("hf-hub:", "hf_hub:")
_FILES = (
    "model.safetensors",
    "pytorch_model.bin",
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.bin",
)
"""Weights of a repository, in the order in which timm asks for them; the latter two of CLIP's networks."""


def create(name: str, instead: str, log: Callable[[str], None] = print, **options: Any) -> nn.Module:
    """Create a timm network; `instead` says what to do without the hub."""
    timm = import_timm()
    require_known(name)
    try:
        if options.get("pretrained") and (repository := _hub_repository(name)):
            require_hub(repository, log)
        with _quiet("timm", "huggingface_hub", "httpx", "urllib3"):
            return cast(nn.Module, timm.create_model(name, **options))
    except Exception as error:  # timm, the hub and the model code raise many classes; the text has the cause
        reason = one_line(error, 200)
        if options.get("pretrained"):
            raise NetworkError(
                f"cannot get the pretrained weights of {name}: {reason}; connect to the internet, or {instead}"
            ) from None
        raise NetworkError(f"timm cannot build {name}: {reason}") from None


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


def _hub_repository(name: str) -> str | None:
    """Return where the pretrained weights are on the hub; None if timm has them elsewhere or not at all."""
    if name.startswith(_HUB_PREFIXES):
        return name.partition(":")[2]
    known = pretrained_config(name)
    return None if known is None else known.hf_hub_id


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Mute loggers: the hub logs every retry, and the error at the end says it all."""
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
