"""Theorems 1 and 2 for a finished run's saved weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from swad.flatness import Bound, bound, divergence
from swad.flatness.weights import norm
from swad.testbed.experiments.run_flatness import FlatnessConfig, run_worst_case
from swad.testbed.experiments.saved_run import SavedRun, find_device
from swad.testbed.models.networks import features
from swad.testbed.training.run_dir import RunError
from swad.util.progress import Progress


def run_bounds(
    run: SavedRun,
    name: str,
    radii: Sequence[float],
    *,
    vc_cover: float | None = None,
    vc: float | None = None,
    diameter: float | None = None,
    delta: float = 0.05,
    n_images: int | None = 200,
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Bound]:
    """Compute Theorems 1 and 2 for a run's weights at several radii.

    VC dimensions are yours to give; the rest is measured. The robust loss is the worst 0-1 error that ascent found, and
    the divergences come from a classifier on the network's features: both are estimates from below. The
    smallest empirical error of any weights is unknown, so Theorem 2 takes 0 for it; the error at some known weights
    would only make its bound too small.

    Args:
        name: Name of the weights.
        radii: Values of gamma.
        vc_cover: VC dimension of one ball of the cover. Without it only Hoeffding's form has numbers.
        vc: VC dimension of the whole parameter space; Theorem 2 needs it, but for Hoeffding's form.
        diameter: Diameter of the parameter space. By default twice the norm of the weights: a ball around zero with
            the weights on its edge.
        delta: The bounds hold with probability 1 - delta.
        n_images: Images of every source. m counts those that the robust loss is measured on, since the theorems speak
            of one sample: more images make the confidence term smaller.
        device: Device to measure on.
        workers: Processes that read images.
        progress: Called after every ascent step.
    """
    if not run.config.data.targets:
        raise RunError(f"the bounds need a target, but {run.path} has none: give a run with a target")
    torch_device = find_device(device)
    config = FlatnessConfig(n_images=n_images)
    worst_rows = run_worst_case(run, [name], radii, config, device=device, workers=workers, progress=progress)
    model = run.model(name, torch_device)
    images = run.images(n_images, torch_device, workers)
    domain_features = {
        domain: _features(model, images.by_domain[domain][0], run.batch_size(torch_device))
        for domain in (*images.seen, *images.unseen)
    }
    target = torch.cat([domain_features[domain] for domain in images.unseen]).numpy()
    divergences = [divergence(domain_features[domain].numpy(), target) for domain in images.seen]
    weights = list(model.parameters())
    return [
        bound(
            float(row["lower_bound"]),
            divergences,
            gamma=float(row["radius"]),
            diameter=2 * norm(weights) if diameter is None else diameter,
            dimension=sum(tensor.numel() for tensor in weights),
            m=sum(len(labels) for _, labels in images.side("seen").values()),
            vc_cover=vc_cover,
            vc=vc,
            delta=delta,
        )
        for row in worst_rows
        if row["measure"] == "error" and float(row["radius"]) > 0
    ]


@torch.no_grad()
def _features(model: nn.Module, images: Tensor, batch_size: int) -> Tensor:
    starts = range(0, len(images), batch_size)
    return torch.cat([features(model, images[start : start + batch_size]).float().cpu() for start in starts])
