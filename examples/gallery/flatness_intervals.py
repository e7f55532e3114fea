"""
Is the average flatter? Flatness with intervals
===============================================

`swad.flatness.local` measures how much the loss rises at a distance from the weights: the mean over random directions.
Directions and images are samples, so the result has an interval. `swad.flatness.compare` measures several weights in
the same directions and on the same images, which makes their difference far more precise than either value.

Run it with ``python examples/gallery/flatness_intervals.py``.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import swad

torch.set_num_threads(1)
torch.manual_seed(0)
images, labels = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
images = (images / 16).float()
order = torch.randperm(len(images))
train, test = order[:200], order[200:]
noisy = images + 0.3 * torch.randn(images.shape)

# %%
# Live and averaged weights
# -------------------------

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
average = swad.SWA(model, start=200)
for _ in range(600):
    batch = train[torch.randint(len(train), (8,))]
    optimizer.zero_grad()
    cross_entropy(model(images[batch]), labels[batch]).backward()
    optimizer.step()
    average.update_parameters(model)
weights = {"live": model.state_dict(), "average": average.averaged_state()}

# %%
# How much the loss rises
# -----------------------
# The loss function returns the loss of every image. The intervals then say what would hold for other images of the
# domain, too, and not only for other directions. They do not say what another training would give: for that, measure
# several trainings.
#
# ``normalize="layer"`` makes a radius a share of each layer's norm. Live weights keep growing while the training loss
# falls, so the same absolute distance is a smaller change for them: without it, no difference is shown on noisy scans.


def loss_fn(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        "training images": cross_entropy(model(images[train]), labels[train], reduction="none"),
        "noisy scans": cross_entropy(model(noisy[test]), labels[test], reduction="none"),
    }


radii = [0, 0.1, 0.2, 0.4, 0.6, 0.8]
both = swad.flatness.compare(
    weights, loss_fn, radii, n_directions=50, model=model, normalize="layer"
)
for domain in ("training images", "noisy scans"):
    print(both.sentence("average", "live", domain))

# %%
# The average is flatter where it counts, on images unlike those of training. Near the weights and on the images that it
# fitted, the live model is. The bands are 95 % intervals.

figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for axes, domain in zip(panels, ("training images", "noisy scans"), strict=True):
    for name, flat in both.models.items():
        rows = [flat.row(radius, domain) for radius in radii]
        (line,) = axes.plot(radii, [row.mean for row in rows], marker=".", label=name)
        low, high = [row.low for row in rows], [row.high for row in rows]
        axes.fill_between(radii, low, high, color=line.get_color(), alpha=0.2)
    axes.set(title=domain, xlabel="distance, as a share of each layer", ylabel="rise of the loss")
    axes.legend()
plt.show()
