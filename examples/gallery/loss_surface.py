"""
A loss surface
==============

Three weights span a plane. `swad.flatness.plane` evaluates the loss on a grid of that plane, as in Figure 4 of the SWAD
paper: here three steps of one training, and their mean. Distances on the picture are distances between weights.

Run it with ``python examples/gallery/loss_surface.py``.
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
# Three weights of one training
# -----------------------------
# With a constant learning rate the weights do not settle: they move around a minimum.

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
average = swad.SWA(model, start=200)
corners = []
for step in range(1, 601):
    batch = train[torch.randint(len(train), (8,))]
    optimizer.zero_grad()
    cross_entropy(model(images[batch]), labels[batch]).backward()
    optimizer.step()
    average.update_parameters(model)
    if step in (200, 400, 600):
        corners.append({name: tensor.clone() for name, tensor in model.state_dict().items()})

# %%
# The loss on their plane
# -----------------------
# A loss function takes a model and returns losses by domain; those of every image also give intervals elsewhere. The
# projection of the average says where it lies, and how far above the plane.


def loss_fn(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        "training images": cross_entropy(model(images[train]), labels[train], reduction="none"),
        "noisy scans, unseen": cross_entropy(model(noisy[test]), labels[test], reduction="none"),
    }


plane = swad.flatness.plane(*corners)
averaged = average.averaged_state()
surface = plane.evaluate(model, loss_fn, steps=21, points={"average": averaged})
x, y, distance = plane.coordinates(averaged)
print(f"the average of steps 200 to 600 lies at ({x:.2f}, {y:.2f}), {distance:.2f} above the plane")

figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained", sharey=True)
for axes, domain in zip(panels, surface.domains, strict=True):
    losses = torch.tensor(surface.losses(domain)).clamp(min=1e-3)
    drawn = axes.contourf(surface.xs, surface.ys, losses.log10(), levels=14, cmap="viridis_r")
    for step, (corner_x, corner_y) in zip(
        (200, 400, 600), plane.corner_coordinates.values(), strict=True
    ):
        axes.plot(corner_x, corner_y, "^", color="white", markeredgecolor="black", markersize=9)
        axes.annotate(
            f"step {step}", (corner_x, corner_y), (6, 4), textcoords="offset points", color="white"
        )
    axes.plot(
        x, y, "*", color="tab:orange", markeredgecolor="black", markersize=14, label="average"
    )
    axes.set(title=domain, xlabel="distance", aspect="equal")
panels[0].legend(loc="upper left")
figure.colorbar(drawn, ax=panels, label="log10 of the loss")
plt.show()
