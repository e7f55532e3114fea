"""SWAD in a plain PyTorch loop, on scikit-learn's handwritten digits.

Command: python examples/pytorch_loop.py        Cost: about 6 seconds on one CPU core, no download.
Expect: on noisy scans, a domain unseen in training, the average two points or so more accurate than the last weights.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import swad

torch.set_num_threads(1)  # the cost above is for one core
torch.manual_seed(0)
images, labels = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
images = (images / 16).float()
order = torch.randperm(len(images))
train, val, test = order[:300], order[300:800], order[800:]
noisy = images[test] + 0.3 * torch.randn(len(test), 64)

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
averager = swad.SWAD(model)  # 1

for step in range(1, 1001):
    batch = train[torch.randint(len(train), (16,))]
    optimizer.zero_grad()
    cross_entropy(model(images[batch]), labels[batch]).backward()
    optimizer.step()
    averager.update_parameters(model)  # 2: after every optimizer step
    if step % 10 == 0:
        with torch.no_grad():
            val_loss = cross_entropy(model(images[val]), labels[val])
        if averager.observe(val_loss).should_stop:  # 3: after every evaluation, of the live model
            break


@torch.no_grad()
def accuracy() -> float:
    return (model(noisy).argmax(1) == labels[test]).float().mean().item()


live = accuracy()
averager.copy_to(model)
status = averager.status
print(f"ended at step {step}: {status.reason}")
print(f"averaged steps {status.start_step} to {status.end_step}, {status.n_averaged} of them")
print(f"accuracy on noisy scans: live {live:.1%}, averaged {accuracy():.1%}")
