"""
Your own dataset and method
===========================

A folder of images ``<domain>/<class>/<image>`` is a dataset, and a file with a loss is a method. Neither needs to be
registered. The commands here are those of a terminal: one call trains ERM and the new method, with SWAD on both.

Run it with ``python examples/gallery/own_data_and_method.py``.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

folder = Path(tempfile.mkdtemp())

# %%
# A dataset: folders
# ------------------
# Three domains of the digits 0 to 4: as they were scanned, inverted, and turned by 30 degrees.

images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8)
domains = {
    "scanned": lambda image: image,
    "inverted": lambda image: Image.fromarray(255 - np.asarray(image)),
    "turned": lambda image: image.rotate(30),
}
for number, (pixels, label) in enumerate(zip(images[:600], labels[:600], strict=True)):
    domain = list(domains)[number % len(domains)]
    image = Image.fromarray((pixels * 255 / 16).astype(np.uint8)).resize((28, 28)).convert("RGB")
    if label < 5:
        path = folder / "my_images" / domain / f"digit {label}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        domains[domain](image).save(path)

figure, panels = plt.subplots(1, 3, figsize=(6, 2.2), layout="constrained")
for axes, domain in zip(panels, domains, strict=True):
    axes.imshow(Image.open(min((folder / "my_images" / domain / "digit 4").iterdir())))
    axes.set(title=domain, xticks=[], yticks=[])
plt.show()

# %%
# A method: a file with a loss
# ----------------------------
# Label smoothing, with its amount as a hyperparameter that a sweep may search. The name of the file is the name of the
# method.

(folder / "my_methods").mkdir()
(folder / "my_methods" / "smooth.py").write_text('''
"""Label smoothing: train towards targets that leave some probability to every class."""

from dataclasses import dataclass

from torch.nn.functional import cross_entropy

from swad.testbed.algorithms.base import Algorithm
from swad.testbed.algorithms.hyperparameters import Hyperparameters, Uniform, hyper


@dataclass(frozen=True)
class SmoothHyperparameters(Hyperparameters):
    amount: float = hyper(0.1, Uniform(0, 0.3), "probability that is shared by all classes")


class Smooth(Algorithm):
    Hyperparameters = SmoothHyperparameters

    def loss(self, batch, noise):
        amount = self.hyperparameters.amount
        return cross_entropy(self.scores(batch, noise), self.labels(batch), label_smoothing=amount)


ALGORITHM = Smooth
''')

# %%
# Train and report
# ----------------
# In a terminal this is ``export SWAD_ALGORITHMS=my_methods`` and the command below. Running it again after an
# interruption resumes what is unfinished. Without ``--target`` every domain is held out in turn. The input pipeline
# ``gpu`` decodes every image once and augments in batches, also on a CPU.

command = """
swad train folder --data my_images --target turned --algorithm erm,smooth --device cpu
    --network small --image-size 28 --set lr=3e-3,batch_size=16 --steps 120 --evaluate-every 6
    --input-pipeline gpu
"""
settings = {"SWAD_ALGORITHMS": "my_methods", "SWAD_CACHE": str(folder / "cache"), "COLUMNS": "100"}
words = [sys.executable, "-m", *command.split()]
done = subprocess.run(words, cwd=folder, env=os.environ | settings, capture_output=True, text=True)
if done.returncode:
    raise RuntimeError(done.stderr)
print(done.stdout[done.stdout.index("my_images\n") :].partition("Selected runs")[0])

# %%
# One short training of few images proves nothing. ``--trial 0,1,2`` repeats it, and the table then says which
# differences are significant.
