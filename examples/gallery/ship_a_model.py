"""
Ship a model
============

An averaged model is a state dict like any other. This example writes one from a training loop of your own, and loads
one that `swad.train` saved, with its transform and class names.

Run it with ``python examples/gallery/ship_a_model.py``.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from torch import nn

import swad

torch.set_num_threads(1)
torch.manual_seed(0)
folder = Path(tempfile.mkdtemp())

# %%
# From your own loop
# ------------------
# ``averaged_state()`` has every parameter and buffer of the model, so it loads strictly, without swad. A model with
# batch norm first needs `swad.update_bn`.

model = nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
average = swad.EMA(model)
for _ in range(20):
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    average.update_parameters(model)

save_file(average.averaged_state(), folder / "model.safetensors")
shipped = nn.Linear(64, 10)
print(shipped.load_state_dict(load_file(folder / "model.safetensors")))

# %%
# From a run of the benchmark
# ---------------------------
# ``target="none"`` holds no domain out and trains on all of them: the model to ship. A run saves the live weights and
# every average, each in one file with a model card.

config = {"dataset": "digits", "target": "none", "steps": 200, "device": "cpu"}
swad.train({**config, "output": folder / "run"})
weights = folder / "run" / "weights"
for file in sorted(weights.iterdir()):
    print(file.name, f"{file.stat().st_size:,} bytes")

# %%
# `swad.testbed.load_predictor` builds the network, loads the weights, and returns the transform of the training's
# evaluations and the names of the classes. The file says all that is needed. ``swad predict`` and ``swad export`` do
# the same for folders, and for programs without swad.

model, transform, class_names = swad.testbed.load_predictor(weights / "swad.safetensors")
figure, panels = plt.subplots(1, 5, figsize=(8, 2), layout="constrained")
for axes, pixels in zip(panels, load_digits().images[:5], strict=True):
    gray = Image.fromarray((255 - pixels * 255 / 16).astype("uint8"))
    image = gray.resize((28, 28)).convert("RGB")
    with torch.no_grad():
        scores = model(transform(image).unsqueeze(0)).softmax(1)[0]
    axes.imshow(image)
    axes.set(title=f"{class_names[scores.argmax()]} ({scores.max():.0%})", xticks=[], yticks=[])
plt.show()
