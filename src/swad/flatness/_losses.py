"""What a loss function may return, brought to one form; and one made from images that stay on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

WHOLE = "all"
"""The domain of losses that come without one."""

Returned = Tensor | float | Mapping[str, Tensor]
LossFn = Callable[[nn.Module], Returned]
"""A model in; out comes a scalar, per-image losses (1-D), or {domain: per-image losses}.

Where a domain's tensor has two columns, the first are losses and the second 0-1 errors of the same images.
"""

Measure = Literal["loss", "error", "both"]


@dataclass(frozen=True)
class Measured:
    """Losses by domain, and 0-1 errors where they came along."""

    losses: dict[str, Tensor]
    errors: dict[str, Tensor]
    by_image: bool
    """False for a scalar: then there are no images to resample."""
    named: bool
    """Whether the domains have names, or there is only `WHOLE`."""

    @property
    def sizes(self) -> dict[str, int]:
        """Images of every domain; 0 for a scalar."""
        return {domain: len(losses) if self.by_image else 0 for domain, losses in self.losses.items()}


def first_measured(returned: Returned) -> Measured:
    """`measured` for the first call of a loss function, with a look at what is said to be errors, which waits.

    >>> first_measured(torch.tensor([[0.5, 0.7]]))
    Traceback (most recent call last):
    ValueError: a second column holds 0-1 errors, nothing else; got 0.7 for 'all': give one loss an image
    """
    found = measured(returned)
    for domain, values in found.errors.items():
        others = values[(values != 0) & (values != 1)]
        if len(others):
            raise ValueError(
                f"a second column holds 0-1 errors, nothing else; got {others[0].item():.4g} for {domain!r}: give one "
                "loss an image"
            )
    return found


def measured(returned: Returned) -> Measured:
    """Bring what a loss function returned to one form.

    >>> measured({"photo": torch.tensor([1.0, 2.0])}).sizes
    {'photo': 2}
    """
    named = isinstance(returned, Mapping)
    tensors = dict(returned) if isinstance(returned, Mapping) else {WHOLE: returned}
    if not tensors:
        raise ValueError("loss_fn must return losses of at least one domain, got an empty mapping")
    losses: dict[str, Tensor] = {}
    errors: dict[str, Tensor] = {}
    scalars = 0
    for domain, value in tensors.items():
        tensor = value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
        if tensor.ndim == 2 and tensor.shape[1] == 2:
            tensor, errors[str(domain)] = tensor[:, 0], tensor[:, 1]
        if tensor.ndim > 1 or not tensor.numel():
            raise ValueError(
                "loss_fn must return a scalar, per-image losses (1-D, or two columns: loss and error), or a mapping of "
                f"domains to these; got shape {tuple(tensor.shape)} for {domain!r}"
            )
        scalars += tensor.ndim == 0
        losses[str(domain)] = tensor.reshape(-1)
    if scalars and scalars < len(losses):
        raise ValueError("loss_fn must return per-image losses of every domain or a scalar of every domain, got both")
    if errors and len(errors) < len(losses):
        raise ValueError("loss_fn must return errors beside the losses of every domain or of none, got some")
    return Measured(losses, errors, by_image=not scalars, named=named)


def mean_over_domains(losses: Mapping[str, Tensor]) -> Tensor:
    """The mean over domains of each domain's mean: every domain weighs the same."""
    means = [tensor.double().mean() for tensor in losses.values()]
    return torch.stack(means).mean()


def image_losses(
    images: Mapping[str, tuple[Tensor, Tensor]],
    *,
    batch_size: int = 256,
    measure: Measure = "loss",
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    transform: Callable[[Tensor], Tensor] | None = None,
    device: torch.device | str | None = None,
    channels_last: bool = False,
) -> ImageLosses:
    """A loss function of images by domain, {name: (images, labels)}, which stay on the device from now on.

    It gives the cross entropy of every image (`measure="loss"`), its 0-1 error (`"error"`), or both as two columns.
    `transform` is applied to each batch on the device (e.g. scaling of uint8 images). For a CUDA graph see `captured`.

    >>> data = {"photo": (torch.zeros(3, 2), torch.tensor([0, 1, 0]))}
    >>> image_losses(data)(nn.Linear(2, 2, bias=False))["photo"].mul(1000).round().tolist()
    [693.0, 693.0, 693.0]
    """
    return ImageLosses(images, batch_size, measure, autocast, transform, device, channels_last)


class ImageLosses:
    """Cross entropies or errors of resident images; see `image_losses`."""

    def __init__(
        self,
        images: Mapping[str, tuple[Tensor, Tensor]],
        batch_size: int,
        measure: Measure,
        autocast: Callable[[], AbstractContextManager[object]],
        transform: Callable[[Tensor], Tensor] | None,
        device: torch.device | str | None,
        channels_last: bool,
    ) -> None:
        if not images or batch_size < 1:
            raise ValueError(f"image_losses needs images and batches of 1 or more, got {len(images)} and {batch_size}")
        if measure not in ("loss", "error", "both"):
            raise ValueError(f"measure must be 'loss', 'error' or 'both'; got {measure!r}")
        for domain, (pictures, labels) in images.items():
            if len(pictures) != len(labels) or not len(labels):
                raise ValueError(
                    f"every image needs a label, and every domain an image; {domain!r} has {len(pictures)} images and "
                    f"{len(labels)} labels"
                )
        self.measure, self.batch_size = measure, batch_size
        self.n_images = {domain: len(labels) for domain, (_, labels) in images.items()}
        self._autocast, self._transform = autocast, transform
        some = next(iter(images.values()))[0]
        device = some.device if device is None else torch.device(device)
        layout = torch.channels_last if channels_last and some.ndim == 4 else torch.preserve_format
        # One long row of images, so that a batch may hold the end of one domain and the start of the next.
        self._images = torch.cat([pictures.to(device) for pictures, _ in images.values()])
        self._images = self._images.to(memory_format=layout)
        self._labels = torch.cat([labels.to(device) for _, labels in images.values()])

    def __call__(self, model: nn.Module) -> dict[str, Tensor]:
        """Per-image values by domain."""
        starts = range(0, len(self._labels), self.batch_size)
        whole = torch.cat([self._batch(model, slice(start, start + self.batch_size)) for start in starts])
        return dict(zip(self.n_images, torch.split(whole, list(self.n_images.values())), strict=True))

    def parts(self, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Domain by domain and batch by batch, so that only one batch's activations are held for a gradient."""
        begin = 0
        for domain, n in self.n_images.items():
            for start in range(begin, begin + n, self.batch_size):
                yield domain, self._batch(model, slice(start, min(start + self.batch_size, begin + n)))
            begin += n

    def _batch(self, model: nn.Module, where: slice) -> Tensor:
        images, labels = self._images[where], self._labels[where]
        if self._transform is not None:
            images = self._transform(images)
        with self._autocast():
            scores = cast(Tensor, model(images))
        scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
        if self.measure == "error":
            return (scores.argmax(1) != labels).to(scores.dtype)
        losses = functional.cross_entropy(scores, labels, reduction="none")
        if self.measure == "loss":
            return losses
        return torch.stack([losses, (scores.argmax(1) != labels).to(losses.dtype)], 1)


def parts_of(loss_fn: LossFn, model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Pieces to differentiate one by one: what each adds to the mean losses of the domains it touches.

    A loss function that has `parts` (as `image_losses` does) is taken batch by batch, any other at once.
    """
    pieces = getattr(loss_fn, "parts", None)
    sizes = getattr(loss_fn, "n_images", None)
    if callable(pieces) and isinstance(sizes, Mapping):
        for domain, losses in pieces(model):
            yield {domain: (losses[:, 0] if losses.ndim == 2 else losses).sum() / sizes[domain]}
        return
    yield {domain: losses.mean() for domain, losses in measured(loss_fn(model)).losses.items()}


def climbing(piece: Mapping[str, Tensor], domain: str | None) -> Tensor | None:
    """The sum over a piece's domains, or one domain's share of it; None where it has none of that domain."""
    wanted = [value for name, value in piece.items() if domain in (None, name)]
    if not wanted:
        return None
    total = torch.stack(wanted).sum()
    if not total.requires_grad:
        raise ValueError(
            "gradients need a loss_fn that torch can differentiate; got a result without a graph: use no .item(), no "
            "torch.no_grad() and no 0-1 error in it"
        )
    return total
