"""Loss functions: their return values in one form, and a loss function over images that stay on the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate
from numbers import Real
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.gpu.fused_norm import restore
from swad.gpu.fused_vit import fuse_kernels
from swad.util.names import require_choice
from swad.util.packages import has_triton

ALL = "all"
"""The domain name of losses that come without one."""

Returned = Tensor | float | Mapping[str, Tensor]
LossFn = Callable[[nn.Module], Returned]
"""Takes a model and returns a scalar, per-image losses (1-D), or {domain: per-image losses}.

If a domain's tensor has two columns, the first holds losses and the second 0-1 errors of the same images.
"""

Measure = Literal["loss", "error", "both"]
Logits = Literal["raw", "normalized"]
Precision = Literal["fp32", "bf16"]

LOGIT_NORM = 10.0
"""The mean norm of centered logits that `logits="normalized"` scales to, about that of trained networks."""


@dataclass(frozen=True)
class Losses:
    """The return value of a loss function: losses by domain, and 0-1 errors if it gave them."""

    losses: dict[str, Tensor]
    errors: dict[str, Tensor]
    by_image: bool
    """False for scalars: then the interval covers directions only."""
    named: bool
    """Whether the loss function named its domains; otherwise there is only the domain "all"."""

    @property
    def measures(self) -> list[Losses]:
        """These losses, and if there are errors, the same with the errors in the place of the losses."""
        return [self, replace(self, losses=self.errors, errors={})] if self.errors else [self]

    def checked(self) -> Losses:
        """Return these losses if all errors are 0 or 1. This reads values and so waits for the device.

        >>> as_losses(torch.tensor([[0.5, 0.7]])).checked()
        Traceback (most recent call last):
        ValueError: a second column must hold 0-1 errors; got 0.7 for 'all': return one loss per image
        """
        for domain, errors in self.errors.items():
            invalid = errors[(errors != 0) & (errors != 1)]
            if len(invalid):
                raise ValueError(
                    f"a second column must hold 0-1 errors; got {invalid[0].item():.4g} for {domain!r}: return one "
                    "loss per image"
                )
        return self

    @property
    def means(self) -> dict[str, float]:
        """The mean loss by domain."""
        return {domain: losses.double().mean().item() for domain, losses in self.losses.items()}

    def copy_image_losses(self) -> dict[str, Tensor]:
        """Return per-image losses as doubles on the CPU; empty for scalars."""
        if not self.by_image:
            return {}
        return {domain: losses.detach().double().cpu().clone() for domain, losses in self.losses.items()}


def as_losses(returned: Returned) -> Losses:
    """Bring the return value of a loss function to one form, without reading values.

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
        tensor = torch.tensor(value, dtype=torch.float64) if isinstance(value, Real) else value
        if isinstance(tensor, Tensor) and tensor.ndim == 2 and tensor.shape[1] == 2:
            tensor, errors[str(domain)] = tensor[:, 0], tensor[:, 1]
        if not isinstance(tensor, Tensor) or tensor.ndim > 1 or not tensor.numel():
            got = f"shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else f"a {type(value).__name__}"
            raise ValueError(
                "loss_fn must return a scalar, per-image losses (a 1-D tensor, or two columns: loss and error), or a "
                f"mapping of domains to these; got {got} for {domain!r}"
            )
        n_scalars += tensor.ndim == 0
        losses[str(domain)] = tensor.reshape(-1)
    if n_scalars and n_scalars < len(losses):
        raise ValueError("loss_fn must return per-image losses of every domain or a scalar of every domain, got both")
    if errors and len(errors) < len(losses):
        raise ValueError("loss_fn must return errors for all domains or for none, got them for some")
    return Losses(losses, errors, by_image=not n_scalars, named=named)


class LossFunction(ABC):
    """What this package asks of a loss function. A plain callable becomes one that has the defaults of all but a call.

    Subclass it for losses that are differentiated batch by batch, or that are fitted to the weights.
    """

    precision: Precision | None = None
    """The precision that the network is evaluated in, if it is not that of the weights."""

    @abstractmethod
    def __call__(self, model: nn.Module) -> Returned:
        """Return a scalar, per-image losses (1-D), or {domain: per-image losses}; see `LossFn`."""

    def losses(self, model: nn.Module) -> Losses:
        """Evaluate a model and bring the losses to one form."""
        return as_losses(self(model))

    def parts(self, model: nn.Module) -> Iterator[dict[str, Tensor]]:
        """Yield terms to differentiate one by one; over all parts they sum to the mean loss of every domain."""
        # Whole numbers and booleans have no mean of their own dtype; `selected_loss` refuses them.
        yield {
            domain: (losses if losses.is_floating_point() else losses.double()).mean()
            for domain, losses in self.losses(model).losses.items()
        }

    def fit(self, model: nn.Module) -> float | None:
        """Fit what depends on the measured weights, and return the scale of the logits if there is one.

        Called at the weights themselves, before they are evaluated.
        """
        return None

    def fused(self, model: nn.Module) -> AbstractContextManager[None]:
        """Fuse the kernels of a network for the duration of a capture; the model is restored after it."""
        return nullcontext()


class _Plain(LossFunction):
    def __init__(self, function: LossFn) -> None:
        self._function = function

    def __call__(self, model: nn.Module) -> Returned:
        return self._function(model)


def as_loss_function(loss_fn: LossFn) -> LossFunction:
    """Return a loss function as it is, and any other callable as a loss function."""
    return loss_fn if isinstance(loss_fn, LossFunction) else _Plain(loss_fn)


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


class ImageLosses(LossFunction):
    """A loss function over labeled images that stay on the device.

    Args:
        images: {domain: (images, labels)}.
        batch_size: Number of images per forward pass; a batch may span two domains.
        measure: "loss" for the cross entropy of every image, "error" for its 0-1 error, "both" for two columns.
        logits: "normalized" multiplies the logits of each model by a constant, so that all models have logits of the
            same size: at the weights themselves, the mean norm of an image's logits minus their mean is `LOGIT_NORM`.
            Functions of this package fit the constant; perturbed weights keep it, and all points of a plane or line
            have that of its first corner.
        logits_of: The domains whose images decide that constant; by default all. Give the sources, so that the target
            decides nothing.
        precision: "bf16" evaluates the network in bf16, and losses and their sums in fp32 or higher; "fp32" is exact,
            without TF32. By default as torch is set.
        transform: Applied to each batch on the device, e.g. to scale uint8 images.
        device: Device to keep the images on; by default they stay where they are.
        channels_last: Store images in the channels-last layout.

    >>> data = {"photo": (torch.zeros(3, 2), torch.tensor([0, 1, 0]))}
    >>> image_losses(data)(nn.Linear(2, 2, bias=False))["photo"].mul(1000).round().tolist()
    [693.0, 693.0, 693.0]
    """

    def __init__(
        self,
        images: Mapping[str, tuple[Tensor, Tensor]],
        *,
        batch_size: int = 256,
        measure: Measure = "loss",
        logits: Logits = "raw",
        logits_of: Collection[str] | None = None,
        precision: Precision | None = None,
        transform: Callable[[Tensor], Tensor] | None = None,
        device: torch.device | str | None = None,
        channels_last: bool = False,
    ) -> None:
        if not isinstance(images, Mapping):
            got = type(images).__name__
            raise TypeError(f"images must be {{domain: (images, labels)}}, got a {got}: name the domain")
        if not images or batch_size < 1:
            raise ValueError(
                f"image_losses needs at least one domain and a batch_size of 1 or more; got {len(images)} domains and "
                f"batch_size={batch_size}"
            )
        require_choice("measure", measure, get_args(Measure))
        require_choice("logits", logits, get_args(Logits))
        if precision is not None:
            require_choice("precision", precision, get_args(Precision))
        images = {str(domain): pair for domain, pair in images.items()}  # as in every result
        fitted = [str(domain) for domain in logits_of or images]
        unknown = [domain for domain in fitted if domain not in images]
        if unknown:
            raise ValueError(f"logits_of must name some of the domains {', '.join(images)}; got {unknown[0]!r}")
        for domain, pair in images.items():
            if len(pair) != 2 or not all(isinstance(tensor, Tensor) for tensor in pair):
                raise TypeError(f"images must be {{domain: (images, labels)}} of tensors, but {domain!r} is not")
            pictures, labels = pair
            if len(pictures) != len(labels) or not len(labels):
                raise ValueError(
                    f"every domain needs images, each with a label; {domain!r} has {len(pictures)} images and "
                    f"{len(labels)} labels"
                )
        self.measure, self.batch_size = measure, batch_size
        self.n_images = {domain: len(labels) for domain, (_, labels) in images.items()}
        ends = accumulate(self.n_images.values())
        self._batches = {  # of each domain alone
            domain: [slice(start, min(start + batch_size, end)) for start in range(end - n, end, batch_size)]
            for (domain, n), end in zip(self.n_images.items(), ends, strict=True)
        }
        self.precision, self._transform = precision, transform
        self._normalized_by = None if logits == "raw" else fitted
        first = next(iter(images.values()))[0]
        device = first.device if device is None else torch.device(device)
        layout = torch.channels_last if channels_last and first.ndim == 4 else torch.preserve_format
        # All domains in one tensor, so that a batch may hold the end of one domain and the start of the next.
        self._images = torch.cat([pictures.to(device) for pictures, _ in images.values()])
        self._images = self._images.to(memory_format=layout)
        self._labels = torch.cat([labels.to(device) for _, labels in images.values()])
        # A tensor, which a captured graph reads again at every replay.
        self._logit_scale = torch.ones((), device=device)

    @contextmanager
    def fused(self, model: nn.Module) -> Iterator[None]:
        """Fuse the kernels of a network in bf16 for the duration of a capture; the model is restored after it."""
        if self.precision != "bf16" or not self._labels.is_cuda or not has_triton():
            yield
            return
        with torch.no_grad(), self._in_precision():
            fuse_kernels(model, self._inputs(slice(0, 2)))
        try:
            yield
        finally:
            restore(model)

    @torch.no_grad()
    def fit(self, model: nn.Module) -> float | None:
        """Fit the constant of normalized logits to a model's weights and return it; None for raw logits."""
        if self._normalized_by is None:
            return None
        norms = []
        for domain, batches in self._batches.items():
            if domain in self._normalized_by:
                scores = torch.cat([self._scores(model, batch) for batch in batches]).double()
                norms.append((scores - scores.mean(1, keepdim=True)).norm(dim=1).mean())
        norm = torch.stack(norms).mean().item()
        scale = LOGIT_NORM / norm if norm > 0 else 1.0
        self._logit_scale.fill_(scale)
        return scale

    def __call__(self, model: nn.Module) -> dict[str, Tensor]:
        """Return per-image values by domain."""
        starts = range(0, len(self._labels), self.batch_size)
        values = torch.cat([self._values(model, slice(start, start + self.batch_size)) for start in starts])
        return dict(zip(self.n_images, torch.split(values, list(self.n_images.values())), strict=True))

    def parts(self, model: nn.Module) -> Iterator[dict[str, Tensor]]:
        """Yield terms batch by batch within each domain, so that gradients need the activations of one batch only."""
        for domain, batches in self._batches.items():
            for batch in batches:
                values = self._values(model, batch)
                yield {domain: (values[:, 0] if values.ndim == 2 else values).sum() / self.n_images[domain]}

    def _in_precision(self) -> AbstractContextManager[object]:
        device = self._labels.device.type
        if self.precision == "bf16":
            return torch.autocast(device, torch.bfloat16)
        return _exact_fp32() if self.precision == "fp32" and device == "cuda" else nullcontext()

    def _inputs(self, batch: slice) -> Tensor:
        images = self._images[batch]
        return images if self._transform is None else self._transform(images)

    def _scores(self, model: nn.Module, batch: slice) -> Tensor:
        images = self._inputs(batch)
        with self._in_precision():
            scores = cast(Tensor, model(images))
        return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores

    def _values(self, model: nn.Module, batch: slice) -> Tensor:
        labels, scores = self._labels[batch], self._scores(model, batch)
        if self._normalized_by is not None:
            scores = scores * self._logit_scale
        if self.measure == "error":
            return (scores.argmax(1) != labels).to(scores.dtype)
        losses = functional.cross_entropy(scores, labels, reduction="none")
        if self.measure == "loss":
            return losses
        return torch.stack([losses, (scores.argmax(1) != labels).to(losses.dtype)], 1)


image_losses = ImageLosses


@contextmanager
def _exact_fp32() -> Iterator[None]:
    """Turn TF32 off, which rounds the factors of convolutions and matrix products to 10 bits."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
