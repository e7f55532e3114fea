"""The batch norms of a model, and recomputing their running statistics for averaged weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

ForwardFn = Callable[[nn.Module, Any], Any]


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return the batch norms of a model that have running statistics.

    >>> len(batch_norms(nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False))))
    1
    """
    return [norm for norm in model.modules() if isinstance(norm, _BatchNorm) and norm.track_running_stats]


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Return the running means and variances of a model, also those of norms that are no batch norms of torch."""
    return [tensor for name, tensor in model.named_buffers() if _last_part(name) in ("running_mean", "running_var")]


def is_bn_statistic(name: str) -> bool:
    """Whether a batch norm's buffer has this name; a state dict does not tell buffers from parameters.

    >>> is_bn_statistic("layer1.bn1.running_var"), is_bn_statistic("layer1.bn1.weight")
    (True, False)
    """
    return _last_part(name) in ("running_mean", "running_var", "num_batches_tracked")


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


@torch.no_grad()
def update_bn(
    loader: Iterable[Any],
    model: nn.Module,
    *,
    forward_fn: ForwardFn | None = None,
    device: torch.device | str | None = None,
    n_batches: int | None = None,
) -> None:
    """Recompute the running statistics of every batch norm in `model` from one pass over `loader`.

    The running statistics belong to the weights of training, not to averaged weights. Models trained with frozen
    statistics, as in the paper's protocol, do not need this.

    Batches count in proportion to their size, so a short last batch does not count as a full one. Dropout stays off,
    as in inference. A compiled model runs eagerly. Modes and momenta are restored afterwards; if the pass raises, the
    statistics are restored too.

    >>> model = nn.Sequential(nn.BatchNorm1d(1))
    >>> update_bn([torch.tensor([[1.0], [3.0]]), torch.tensor([[8.0], [8.0], [8.0], [8.0]])], model)
    >>> model[0].running_mean.item()
    6.0

    Args:
        loader: Batches: tensors, tuples or lists (the first item is the input), or mappings (keyword arguments).
        model: The model with averaged weights.
        forward_fn: Called as `forward_fn(model, batch)` instead, for any other batch. It moves the batch to the device.
        device: Where batches are moved to. By default the device of the model.
        n_batches: Take only the first ones, e.g. of a loader without end. By default all.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"update_bn takes the loader first and then the model, got a {type(model).__name__} as model")
    if n_batches is not None and n_batches < 1:
        raise ValueError(f"n_batches must be at least 1, got {n_batches}: leave it out for all batches")
    norms = batch_norms(model)
    if not norms:
        return
    device = norms[0].get_buffer("running_mean").device if device is None else torch.device(device)
    modes = {module: module.training for module in model.modules()}
    momenta = {norm: norm.momentum for norm in norms}
    saved = [(norm, {k: v.clone() for k, v in norm.named_buffers(recurse=False)}) for norm in norms]
    sizes: dict[_BatchNorm, int] = dict.fromkeys(norms, 0)

    def weigh(norm: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Counted in the layer: only there the number of rows is known, whatever the shape of the batch.
        assert isinstance(norm, _BatchNorm)
        n_rows = [*args, *kwargs.values()][0].shape[0]
        sizes[norm] += n_rows
        norm.momentum = n_rows / sizes[norm]

    hooks = [norm.register_forward_pre_hook(weigh, with_kwargs=True) for norm in norms]
    seen = 0
    try:
        model.eval()
        for norm in norms:
            norm.reset_running_stats()
            norm.train()
        for batch in islice(loader, n_batches):
            seen += 1
            # Eagerly: a compiled model would be compiled again for every batch, since the momentum changes.
            with torch.compiler.set_stance("force_eager"):
                if forward_fn is not None:
                    forward_fn(model, batch)
                else:
                    call_model(model, _to(batch, device))
        if seen == 0:
            raise ValueError(
                "update_bn needs at least one batch, but the loader gave none: pass a loader that is not exhausted"
            )
    except BaseException:
        for norm, buffers in saved:  # partly reset statistics are worse than the old ones
            for name, value in buffers.items():
                norm.get_buffer(name).copy_(value)
        raise
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
        for norm, momentum in momenta.items():
            norm.momentum = momentum


def call_model(model: nn.Module, batch: Any) -> None:
    """Call the model with a batch: a tensor, a sequence that starts with one, or a mapping of keyword arguments."""
    if isinstance(batch, Tensor):
        model(batch)
    elif isinstance(batch, Mapping):
        model(**batch)
    elif isinstance(batch, Sequence) and batch and isinstance(batch[0], Tensor):
        model(batch[0])
    else:
        raise TypeError(
            f"a batch must be a tensor, a tuple or list that starts with one, or a mapping; "
            f"got {type(batch).__name__}: pass forward_fn(model, batch)"
        )


def _to(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: _to(value, device) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [_to(value, device) for value in batch]
    return batch
