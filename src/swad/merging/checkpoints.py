"""The tensors of a checkpoint by name, read from its files when they are asked for.

Nothing is unpickled but tensors and plain values, and files are mapped, so that opening one takes no memory.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swad.tensors.names import canonical
from swad.util.files import read_json, require_regular
from swad.util.names import listed, one_line
from swad.util.packages import require_extra

Checkpoint = str | os.PathLike[str] | Mapping[str, Tensor]
"""A file, a folder of Hugging Face, or a state dict in memory."""

STATE_DICT_KEYS = ("state_dict", "model_state_dict", "model", "model_dict")
"""Where torch files of Lightning, of PyTorch's tutorials, of timm and of DomainBed keep the state dict."""

_FOLDER_FILES = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin")


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or does not fit; the message is one line that says what to do."""


def name_of(checkpoint: Checkpoint) -> str:
    """Return what errors and metadata call a checkpoint."""
    return getattr(checkpoint, "name", "a state dict") if isinstance(checkpoint, Mapping) else os.fspath(checkpoint)


def is_checkpoint_folder(path: Path) -> bool:
    """Whether a directory holds a checkpoint of Hugging Face."""
    return any((path / name).is_file() for name in _FOLDER_FILES)


@contextmanager
def opened(checkpoint: Checkpoint) -> Iterator[Mapping[str, Tensor]]:
    """Open a checkpoint; its tensors are views of mapped files, valid inside the block.

    Names lack what `torch.compile`, FSDP and DDP add. Those of a Lightning checkpoint lack the attribute of the
    `LightningModule` with which all of them begin, such as `model.`

    Args:
        checkpoint: A .safetensors file, a file that `torch.save` wrote with a state dict in it, a folder that
            `save_pretrained` wrote, or a state dict.
    """
    with ExitStack() as files:
        yield _Tensors(_readers(checkpoint, files))


class _Tensors(Mapping[str, Tensor]):
    """Tensors by name, each read when it is asked for."""

    def __init__(self, readers: Mapping[str, Callable[[], Tensor]]) -> None:
        self._readers = readers

    def __getitem__(self, name: str) -> Tensor:
        return self._readers[name]().detach()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


def _readers(checkpoint: Checkpoint, files: ExitStack) -> dict[str, Callable[[], Tensor]]:
    """Return a function for every tensor that reads it, as long as `files` are open."""
    if isinstance(checkpoint, Mapping):
        return _of_state_dict(checkpoint, "the state dict")
    path = Path(checkpoint)
    if path.is_dir():
        path = _file_in(path)
    if path.suffix in (".safetensors", ".json"):
        return _of_safetensors([path] if path.suffix == ".safetensors" else _shards(path), files)
    with _reading(path, "a file of torch.save"):
        require_regular(path)
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    inner = [content[key] for key in STATE_DICT_KEYS if isinstance(content, Mapping) and key in content]
    state = next((value for value in inner if isinstance(value, Mapping)), content)
    from_lightning = isinstance(content, Mapping) and "pytorch-lightning_version" in content
    return _of_state_dict(state, str(path), from_lightning)


def _of_state_dict(state: Any, name: str, from_lightning: bool = False) -> dict[str, Callable[[], Tensor]]:
    if isinstance(state, Mapping) and state and all(isinstance(value, Tensor) for value in state.values()):
        return _renamed({name: partial(state.__getitem__, name) for name in state}, from_lightning)
    got = f"the keys {listed(state, 5)}" if isinstance(state, Mapping) else f"a {type(state).__name__}"
    raise CheckpointError(
        f"{name} must hold tensors by name, itself or under {', '.join(STATE_DICT_KEYS)}; got {got}: "
        f"save model.state_dict()"
    )


def _of_safetensors(paths: Iterable[Path], files: ExitStack) -> dict[str, Callable[[], Tensor]]:
    with require_extra("reading a .safetensors file"):
        from safetensors import safe_open
    readers: dict[str, Callable[[], Tensor]] = {}
    for path in paths:
        with _reading(path, "safetensors"):
            require_regular(path)
            file = files.enter_context(safe_open(path, framework="pt"))
            readers |= {name: partial(file.get_tensor, name) for name in file.keys()}  # noqa: SIM118 - no mapping
    return _renamed(readers)


def _renamed(readers: Mapping[str, Callable[[], Tensor]], from_lightning: bool = False) -> dict[str, Any]:
    """Return the readers by names without what wrappers and Lightning add."""
    plain = {canonical(name): reader for name, reader in readers.items()}
    firsts = {name.partition(".")[0] if "." in name else "" for name in plain}
    if firsts == {"module"} or (from_lightning and len(firsts) == 1 and firsts != {""}):
        return {name.partition(".")[2]: reader for name, reader in plain.items()}
    return plain


def _file_in(folder: Path) -> Path:
    for name in _FOLDER_FILES:
        if (folder / name).is_file():
            return folder / name
    raise CheckpointError(f"{folder} holds no checkpoint ({', '.join(_FOLDER_FILES)}): name a file of weights")


def _shards(index: Path) -> list[Path]:
    with _reading(index, "an index of safetensors files"):
        names = sorted(set(read_json(index)["weight_map"].values()))
        if any(Path(name).name != name for name in names):
            raise ValueError("it names files outside of its folder")
    return [index.parent / name for name in names]


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """Say in one line why a file cannot be read, and what to do."""
    try:
        yield
    except FileNotFoundError:
        raise CheckpointError(f"there is no {path}: check the path") from None
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path} holds more than tensors and plain values, and unpickling that could run any code: "
            f"save only its state dict, with torch.save(model.state_dict(), path)"
        ) from None
    except Exception as error:  # torch and safetensors raise several classes for files that they did not write
        if "mmap can only be used" in str(error):
            raise CheckpointError(
                f"{path} is not in the format that torch.save writes since 1.6: save model.state_dict() with it"
            ) from None
        raise CheckpointError(f"cannot read {path} as {what}: {one_line(error, 200)}; use a complete file") from None
