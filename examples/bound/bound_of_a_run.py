"""Theorems 1 and 2 of the paper, term by term, for the saved weights of a finished run.

    python examples/bound/bound_of_a_run.py runs/PACS/erm/sketch-0 swad 0.01,0.1,1 --figure bound.pdf

VC dimensions are yours to give; the rest is measured. The robust loss is the worst 0-1 error that gradient ascent
found, and the divergences come from a classifier on the network's features: both are estimates from below. The smallest
empirical error of any weights is unknown, so Theorem 2 takes 0 for it; the error at some known weights would only make
its bound too small. The diameter of the parameter space is twice the norm of the weights: a ball around zero with the
weights on its edge. For networks the bound is far above 1, where it says nothing: compare terms.

It needs scikit-learn: pip install 'swad[vision,flatness]'
"""

import argparse
import math
import warnings

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from swad.flatness import Bound, Divergence, bound
from swad.flatness.weights import norm
from swad.testbed.measure import engine
from swad.testbed.measure.saved_run import SavedRun, find_device, open_run
from swad.testbed.measurements.worst_case import WorstCase
from swad.testbed.models.networks import features


def divergence(source, target, *, folds: int = 5, n_resamples: int = 1000, level: float = 0.95, seed: int = 0):
    """Estimate Div(D, T) = 2 sup over events A of |P_D(A) - P_T(A)| from features, one row per image.

    The supremum is over all events; a classifier of "source or target" gives one event. If its error on held-out images
    is e, with both domains weighted equally, the estimate is 2 (1 - 2 e), the proxy A-distance: 2 if the domains are
    separated perfectly, 0 for a coin toss. A better classifier or better features can only raise it.

    The interval covers the choice of held-out images: it tells how well the error is known, not how far the supremum
    is above the estimate. Each domain's error rate is drawn from its Jeffreys posterior Beta(k + 1/2, n - k + 1/2) for
    k errors among n images, so that no error among 40 images does not count as an error rate of 0.
    """
    sides = [np.asarray(side, dtype=float) for side in (source, target)]
    if any(side.ndim != 2 for side in sides) or sides[0].shape[1:] != sides[1].shape[1:]:
        shapes = " and ".join(str(side.shape) for side in sides)
        raise ValueError(f"features must have one row per image and the same columns in both domains; got {shapes}")
    if min(map(len, sides)) < folds or folds < 2:
        raise ValueError(
            f"cross-validation needs 2 folds or more, and at least as many images of each domain as folds; got {folds} "
            f"folds, {len(sides[0])} and {len(sides[1])} images"
        )
    if not all(np.isfinite(side).all() for side in sides):
        raise ValueError("features must be finite numbers, but some are not: leave those images out")
    if not 0 < level < 1 or n_resamples < 1:
        raise ValueError(f"level must be between 0 and 1 and n_resamples 1 or more, got {level} and {n_resamples}")
    labels = np.repeat([0, 1], [len(side) for side in sides])
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, class_weight="balanced"))
    split = StratifiedKFold(folds, shuffle=True, random_state=seed)
    with warnings.catch_warnings():  # a classifier that has not converged still gives a valid estimate from below
        warnings.simplefilter("ignore", ConvergenceWarning)
        wrong = cross_val_predict(classifier, np.concatenate(sides), labels, cv=split) != labels
    n_wrong = [int(wrong[labels == side].sum()) for side in (0, 1)]
    return divergence_of_errors(n_wrong, [len(side) for side in sides], n_resamples, level, seed)


def divergence_of_errors(n_wrong, n_images, n_resamples: int, level: float, seed: int) -> Divergence:
    """Estimate the divergence from the numbers of errors and of held-out images of each domain."""

    def distance(error):  # 0 for a classifier that is worse than a coin toss
        return np.maximum(0.0, 2 * (1 - 2 * np.asarray(error)))

    rng = np.random.default_rng(seed)
    drawn = [rng.beta(k + 0.5, n - k + 0.5, n_resamples) for k, n in zip(n_wrong, n_images, strict=True)]
    tail = (1 - level) / 2
    low, high = np.quantile(distance((drawn[0] + drawn[1]) / 2), [tail, 1 - tail])
    value = float(distance((n_wrong[0] / n_images[0] + n_wrong[1] / n_images[1]) / 2))
    # Draws never reach 0 or 2, but the estimate may; the interval must contain it.
    return Divergence(value, min(value, float(low)), max(value, float(high)))


def bounds_of_run(
    run: SavedRun,
    name: str,
    radii: list[float],
    *,
    vc_cover: float | None = None,
    vc: float | None = None,
    diameter: float | None = None,
    delta: float = 0.05,
    n_images: int | None = 200,
    device: str = "cpu",
) -> list[Bound]:
    """Compute both theorems at several radii.

    Args:
        run: The run, with a target.
        name: Name of its weights.
        radii: Values of gamma.
        vc_cover: VC dimension of one ball of the cover. Without it only Hoeffding's form has numbers.
        vc: VC dimension of the whole parameter space; Theorem 2 needs it, but for Hoeffding's form.
        diameter: Diameter of the parameter space. Default: twice the norm of the weights.
        delta: The bounds hold with probability 1 - delta.
        n_images: Images of every source; None: all. m counts those that the robust loss is measured on, since the
            theorems speak of one sample: more images make the confidence term smaller.
        device: Device to measure on.
    """
    if not run.config.targets:
        raise ValueError(f"the bounds need a target, but {run.path} has none: give a run with a target")
    torch_device = find_device(device)
    model, images = run.model(name, torch_device), run.images(n_images, torch_device, None)
    batch_size = run.batch_size(torch_device)

    @torch.no_grad()
    def features_of(domain: str) -> torch.Tensor:
        pictures = images.by_domain[domain][0]
        return torch.cat([features(model, batch).float().cpu() for batch in torch.split(pictures, batch_size)])

    target = torch.cat([features_of(domain) for domain in images.unseen])
    divergences = [divergence(features_of(domain), target) for domain in images.seen]
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
        for row in _worst_cases(run, name, WorstCase(images=n_images, radii=tuple(radii)), torch_device)
        if row["measure"] == "error" and float(row["radius"]) > 0
    ]


def _worst_cases(run, name, what, device):
    """Search for the worst case, unless it is stored, and return its rows."""
    (job,) = engine.plan([(run, [name])], what, device)
    engine.measure([job], device)
    return job.rows()


def bound_figure(bounds):
    """Draw every term of Theorem 1 against the radius, and their sum with the smallest confidence that is proved.

    Args:
        bounds: What `swad.flatness.bound` returned at several radii.
    """
    from swad.testbed.results.figures.style import FAINT, PALETTE, add_legend, figure_style, new_figure

    if not bounds:
        raise ValueError("a figure needs the bound at one radius or more, got none")
    bounds = sorted(bounds, key=lambda bound: bound.gamma)
    radii = [bound.gamma for bound in bounds]
    lows, highs = [bound.divergence_low / 2 for bound in bounds], [bound.divergence_high / 2 for bound in bounds]
    sums = [bound.theorem1["hoeffding"] for bound in bounds]
    with figure_style():
        figure = new_figure(5.0, 3.9)
        axes = figure.subplots()
        axes.axhspan(1, 1e9, color=FAINT, alpha=0.12, linewidth=0, zorder=0)
        axes.plot(radii, sums, color=FAINT, linewidth=5, label="sum")
        axes.plot(radii, [bound.robust for bound in bounds], color=PALETTE[0], label="robust loss (lower bound)")
        axes.plot(radii, [b.divergence / 2 for b in bounds], color=PALETTE[2], label="½ divergence (estimate)")
        if lows != highs:
            axes.fill_between(radii, lows, highs, color=PALETTE[2], alpha=0.25, linewidth=0, label="its interval")
        labels = {"hoeffding": "confidence, Hoeffding"}
        for form, style in (
            ("printed", (0, (1, 1.5))),
            ("proved", (0, (4, 2))),
            ("guaranteed", (0, (6, 2, 1.2, 2))),
            ("hoeffding", "-"),
        ):
            values = [bound.confidence[form] for bound in bounds]
            if not all(map(math.isnan, values)):  # forms whose VC dimension is unknown
                axes.plot(
                    radii, values, color=PALETTE[1], linestyle=style, label=labels.get(form, f"confidence, {form}")
                )
        axes.set_yscale("log")
        values = [v for b in bounds for v in (b.robust, b.divergence / 2, *b.confidence.values())] + lows
        # Values of 0 have no place on a logarithmic axis: an interval down to 0 reaches its lower end.
        axes.set_ylim(0.6 * min(value for value in values if value > 0), 4 * max(*sums, *highs, 1.0))
        if len(radii) > 1 and radii[0] > 0 and radii[-1] / radii[0] > 20:
            axes.set_xscale("log")
        axes.set_xlabel("radius γ")
        axes.set_ylabel("error (log scale)")
        axes.set_title(
            "Theorem 1. The confidence term grows without limit as γ → 0.\nAbove 1 (shaded) the bound is vacuous.",
            loc="left",
            fontsize=9,
        )
        axes.grid(axis="y")
        add_legend(figure)
        return figure


def main() -> None:
    """Print every term at every radius, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="directory of the run")
    parser.add_argument("weights", help="name of the weights, e.g. swad")
    parser.add_argument("radii", type=lambda text: [float(radius) for radius in text.split(",")], help="e.g. 0.01,0.1")
    parser.add_argument("--vc-cover", type=float, help="VC dimension of one ball of the cover")
    parser.add_argument("--vc", type=float, help="VC dimension of the whole parameter space")
    parser.add_argument("--images", type=int, default=200, help="images of every source")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--figure", help="file to draw Theorem 1 in")
    options = parser.parse_args()
    bounds = bounds_of_run(
        open_run(options.run),
        options.weights,
        options.radii,
        vc_cover=options.vc_cover,
        vc=options.vc,
        n_images=options.images,
        device=options.device,
    )
    for terms in bounds:
        print(f"radius {terms.gamma:<22g}{'printed':>14}{'proved':>14}{'guaranteed':>14}{'Hoeffding':>14}")
        for name, *values in terms.rows():
            print(f"{name:29}" + "".join(f"{value:14.4g}" for value in values))
    if options.figure:
        bound_figure(bounds).savefig(options.figure)
        print(options.figure)


if __name__ == "__main__":
    main()
