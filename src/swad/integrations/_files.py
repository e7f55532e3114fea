"""The state of an average as one safetensors file: tensors by name, the header in the metadata, no pickle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import Tensor


def write(path: Path, state: dict[str, Any], identity: str) -> None:
    """Write the state whole or not at all; `identity` says which checkpoint it belongs to."""
    from safetensors.torch import save_file

    tensors = {
        f"{piece}/{kind}/{name}": tensor.detach().contiguous()
        for piece, kinds in state["tensors"].items()
        for kind, named in kinds.items()
        for name, tensor in named.items()
    }
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        save_file(tensors, partial, metadata={"header": state["header"], "identity": identity})
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def identity(path: Path) -> str | None:
    """Which checkpoint the file belongs to."""
    return _metadata(path).get("identity")


def read(path: Path) -> dict[str, Any]:
    """The state as `load_state_dict` takes it."""
    from safetensors import safe_open

    header = _metadata(path)["header"]
    tensors: dict[str, dict[str, dict[str, Tensor]]] = {}
    with safe_open(path, framework="pt") as file:
        for key in file.keys():  # noqa: SIM118 - a file handle, not a dict
            piece, kind, name = key.split("/", 2)
            tensors.setdefault(piece, {"sums": {}, "carried": {}})[kind][name] = file.get_tensor(key)
    return {"header": header, "tensors": tensors}


def _metadata(path: Path) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {})
