"""
Merge checkpoints that are on disk
==================================

`swad.merge` averages checkpoints after training: of one training or of several that began with the same weights. It
reads files of safetensors, ``torch.save``, Lightning and Hugging Face, one tensor at a time. The command ``swad merge``
does the same.

Run it with ``python examples/gallery/merge_checkpoints.py``.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import swad

torch.set_num_threads(1)
torch.manual_seed(0)
images, labels = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
images = (images / 16).float()
noisy = images + 0.3 * torch.randn(images.shape)
order = torch.randperm(len(images))
train, val, test = order[:600], order[600:1000], order[1000:]
folder = Path(tempfile.mkdtemp())

# %%
# One start, six trainings
# ------------------------
# Weights can be averaged if they lie in one valley, so all trainings continue from the same weights. The first weights
# have seen all kinds of digits, noisy ones too; each fine-tuning sees 60 clean scans only.

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def fit(inputs: torch.Tensor, part: torch.Tensor, lr: float, steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        batch = part[torch.randint(len(part), (16,))]
        optimizer.zero_grad()
        cross_entropy(model(inputs[batch]), labels[batch]).backward()
        optimizer.step()


fit(noisy, train, lr=1e-3, steps=200)
start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
paths = []
for number, part in enumerate(train.chunk(10)[:6]):
    model.load_state_dict(start)
    fit(images, part, lr=5e-3, steps=200)
    paths.append(folder / f"training-{number}.safetensors")
    save_file(model.state_dict(), paths[-1])

# %%
# Soups
# -----
# Without options all checkpoints count the same. With a ``score`` the soup is greedy: it begins with the best
# checkpoint, and takes another one only if the score does not fall. The score comes from validation images, never from
# those of the final test.


@torch.no_grad()
def accuracy(weights: dict[str, torch.Tensor], inputs: torch.Tensor, part: torch.Tensor) -> float:
    model.load_state_dict(weights)
    return (model(inputs[part]).argmax(1) == labels[part]).float().mean().item()


single = [swad.merge([path]) for path in paths]
uniform = swad.merge(paths, folder / "merged.safetensors")
greedy = swad.merge(paths, score=lambda weights: accuracy(weights, images, val))


def show(name: str, weights: dict[str, torch.Tensor]) -> None:
    on_noisy, on_clean = (accuracy(weights, inputs, test) for inputs in (noisy, images))
    print(f"{name:22} clean scans {on_clean:.1%}, noisy scans {on_noisy:.1%}")


show("best single, validated", max(single, key=lambda weights: accuracy(weights, images, val)))
show("uniform soup", uniform)
show("greedy soup", greedy)

# %%
# Between the start and a fine-tuned model
# ----------------------------------------
# ``initial`` and ``alpha`` interpolate with the weights before fine-tuning (WiSE-FT): ``alpha=0`` is the start, 1 the
# merged checkpoints.

alphas = [step / 10 for step in range(11)]
figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
for axes, inputs, title in zip(
    panels, (images, noisy), ("clean scans", "noisy scans"), strict=True
):
    for checkpoints, name in ((paths[:1], "one training"), (paths, "uniform soup of six")):
        between = (swad.merge(checkpoints, initial=start, alpha=alpha) for alpha in alphas)
        axes.plot(alphas, [accuracy(weights, inputs, test) for weights in between], label=name)
    axes.set(title=title, xlabel="alpha")
panels[0].set_ylabel("accuracy")
panels[0].legend()
plt.show()
