"""Loss functions: their return values in one form, and a loss function over images that stay on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

ALL = "all"
"""The domain name of losses that come without one."""

Returned = Tensor | float | Mapping[str, Tensor]
LossFn = Callable[[nn.Module], Returned]
"""Takes a model and returns a scalar, per-image losses (1-D), or {domain: per-image losses}.

If a domain's tensor has two columns, the first holds losses and the second 0-1 errors of the same images.
"""

Measure = Literal["loss", "error", "both"]


@dataclass(frozen=True)
class Losses:
    """The return value of a loss function: losses by domain, and 0-1 errors if it gave them."""

    losses: dict[str, Tensor]
    errors: dict[str, Tensor]
    by_image: bool
    """False for scalars: then the interval covers directions only."""
    named: bool
    """Whether the loss function named its domains; otherwise there is only the domain "all"."""

    def copy_image_losses(self) -> dict[str, Tensor]:
        """Return per-image losses as doubles on the CPU; empty for scalars."""
        if not self.by_image:
            return {}
        return {domain: losses.detach().double().cpu().clone() for domain, losses in self.losses.items()}


def check_losses(returned: Returned) -> Losses:
    """Bring the first return value of a loss function to one form, and check that its errors are 0 or 1.

    The check reads values and so waits for the device; `as_losses` does not.

    >>> check_losses(torch.tensor([[0.5, 0.7]]))
    Traceback (most recent call last):
    ValueError: a second column must hold 0-1 errors; got 0.7 for 'all': return one loss per image
    """
    result = as_losses(returned)
    for domain, errors in result.errors.items():
        invalid = errors[(errors != 0) & (errors != 1)]
        if len(invalid):
            raise ValueError(
                f"a second column must hold 0-1 errors; got {invalid[0].item():.4g} for {domain!r}: return one loss "
                "per image"
            )
    return result


def as_losses(returned: Returned) -> Losses:
    """Bring the return value of a loss function to one form.

    >>> as_losses({"photo": torch.tensor([1.0, 2.0])}).losses
    {'photo': tensor([1., 2.])}
    """
    named = isinstance(returned, Mapping)
    tensors = dict(returned) if isinstance(returned, Mapping) else {ALL: returned}
    if not tensors:
        raise ValueError("loss_fn must return losses of at least one domain, got an empty mapping")
    losses: dict[str, Tensor] = {}
    errors: dict[str, Tensor] = {}
    n_scalars = 0
    for domain, value in tensors.items():
        tensor = value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
        if tensor.ndim == 2 and tensor.shape[1] == 2:
            tensor, errors[str(domain)] = tensor[:, 0], tensor[:, 1]
        if tensor.ndim > 1 or not tensor.numel():
            raise ValueError(
                "loss_fn must return a scalar, per-image losses (1-D, or two columns: loss and error), or a mapping of "
                f"domains to these; got shape {tuple(tensor.shape)} for {domain!r}"
            )
        n_scalars += tensor.ndim == 0
        losses[str(domain)] = tensor.reshape(-1)
    if n_scalars and n_scalars < len(losses):
        raise ValueError("loss_fn must return per-image losses of every domain or a scalar of every domain, got both")
    if errors and len(errors) < len(losses):
        raise ValueError("loss_fn must return errors for all domains or for none, got them for some")
    return Losses(losses, errors, by_image=not n_scalars, named=named)


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
    """Build a loss function over labeled images that stay on the device.

    Args:
        images: {domain: (images, labels)}.
        batch_size: Number of images per forward pass; a batch may span two domains.
        measure: "loss" for the cross entropy of every image, "error" for its 0-1 error, "both" for two columns.
        autocast: Makes the context that forward passes run in, e.g. `lambda: torch.autocast("cuda")`.
        transform: Applied to each batch on the device, e.g. to scale uint8 images.
        device: Device to keep the images on; by default they stay where they are.
        channels_last: Store images in the channels-last layout.

    >>> data = {"photo": (torch.zeros(3, 2), torch.tensor([0, 1, 0]))}
    >>> image_losses(data)(nn.Linear(2, 2, bias=False))["photo"].mul(1000).round().tolist()
    [693.0, 693.0, 693.0]
    """
    return ImageLosses(images, batch_size, measure, autocast, transform, device, channels_last)


class ImageLosses:
    """A loss function over images that stay on the device; see `image_losses`."""

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
            raise ValueError(
                f"image_losses needs at least one domain and a batch_size of 1 or more; got {len(images)} domains and "
                f"batch_size={batch_size}"
            )
        if measure not in ("loss", "error", "both"):
            raise ValueError(f"measure must be 'loss', 'error' or 'both'; got {measure!r}")
        for domain, (pictures, labels) in images.items():
            if len(pictures) != len(labels) or not len(labels):
                raise ValueError(
                    f"every domain needs images, each with a label; {domain!r} has {len(pictures)} images and "
                    f"{len(labels)} labels"
                )
        self.measure, self.batch_size = measure, batch_size
        self.n_images = {domain: len(labels) for domain, (_, labels) in images.items()}
        self._autocast, self._transform = autocast, transform
        first = next(iter(images.values()))[0]
        device = first.device if device is None else torch.device(device)
        layout = torch.channels_last if channels_last and first.ndim == 4 else torch.preserve_format
        # All domains in one tensor, so that a batch may hold the end of one domain and the start of the next.
        self._images = torch.cat([pictures.to(device) for pictures, _ in images.values()])
        self._images = self._images.to(memory_format=layout)
        self._labels = torch.cat([labels.to(device) for _, labels in images.values()])

    def __call__(self, model: nn.Module) -> dict[str, Tensor]:
        """Return per-image values by domain."""
        starts = range(0, len(self._labels), self.batch_size)
        values = torch.cat([self._batch(model, slice(start, start + self.batch_size)) for start in starts])
        return dict(zip(self.n_images, torch.split(values, list(self.n_images.values())), strict=True))

    def parts(self, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Yield values batch by batch within each domain, so that gradients need the activations of one batch only."""
        first = 0
        for domain, n in self.n_images.items():
            for start in range(first, first + n, self.batch_size):
                yield domain, self._batch(model, slice(start, min(start + self.batch_size, first + n)))
            first += n

    def _batch(self, model: nn.Module, span: slice) -> Tensor:
        images, labels = self._images[span], self._labels[span]
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


def loss_parts(loss_fn: LossFn, model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Yield terms to differentiate one by one; over all terms they sum to the mean loss of every domain.

    A loss function that has `parts` (as `image_losses` does) is differentiated batch by batch, any other at once.
    """
    parts = getattr(loss_fn, "parts", None)
    sizes = getattr(loss_fn, "n_images", None)
    if callable(parts) and isinstance(sizes, Mapping):
        for domain, losses in parts(model):
            yield {domain: (losses[:, 0] if losses.ndim == 2 else losses).sum() / sizes[domain]}
        return
    yield {domain: losses.mean() for domain, losses in as_losses(loss_fn(model)).losses.items()}


def selected_loss(part: Mapping[str, Tensor], domain: str | None) -> Tensor | None:
    """Return one domain's term of a part (None: the sum over domains); None if the part has no such term."""
    terms = [term for name, term in part.items() if domain in (None, name)]
    if not terms:
        return None
    total = torch.stack(terms).sum()
    if not total.requires_grad:
        raise ValueError(
            "gradients need a loss_fn that torch can differentiate, but its result has no graph: use no .item(), no "
            "torch.no_grad() and no 0-1 error in it"
        )
    return total
