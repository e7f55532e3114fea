"""
timm: SWAD in place of ModelEmaV3
=================================

`swad.integrations.timm.ModelSwad` has the interface of timm's ``ModelEmaV3``: build it from the model, call ``update``
after every optimizer step, and evaluate it like a model. One line is new: it observes the validation loss.

Run it with ``python examples/gallery/timm_loop.py``.
"""

# sphinx_gallery_thumbnail_path = "gallery/tiles/timm_loop.png"
import timm
import torch
from sklearn.datasets import load_digits
from timm.optim import create_optimizer_v2
from torch.nn.functional import cross_entropy

from swad.integrations.timm import ModelSwad

torch.set_num_threads(1)
torch.manual_seed(0)
images, labels = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
images = torch.nn.functional.interpolate((images / 16).float().reshape(-1, 1, 8, 8), scale_factor=4)
order = torch.randperm(len(images))
train, val, test = order[:300], order[300:800], order[800:]
noisy = images.clone()
noisy[test] += 0.3 * torch.randn(noisy[test].shape)
wrong = train[torch.rand(len(train)) < 0.1]
labels[wrong] = torch.randint(10, (len(wrong),))

model = timm.create_model("test_vit", pretrained=False, in_chans=1, num_classes=10)
optimizer = create_optimizer_v2(model, opt="adamw", lr=2e-3)
model_swad = ModelSwad(model)  # in place of ModelEmaV3(model)


@torch.no_grad()
def validate(net: torch.nn.Module, images: torch.Tensor, part: torch.Tensor) -> tuple[float, float]:
    net.eval()
    logits = net(images[part])
    right = logits.argmax(1) == labels[part]
    return cross_entropy(logits, labels[part]).item(), right.float().mean().item()


# %%
# The loop
# --------

num_updates = 0
for epoch in range(1, 61):
    model.train()
    for batch in train[torch.randperm(len(train))].split(32):
        cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()
        num_updates += 1
        model_swad.update(model, step=num_updates)
    if epoch % 4:
        continue
    val_loss, _ = validate(model, images, val)
    if model_swad.observe(val_loss).should_stop:  # the one new line
        break

# %%
# Live and averaged weights
# -------------------------
# A network with batch norm would first need ``swad.update_bn(train_loader, model_swad.module)``.

status = model_swad.status
live, averaged = (validate(net, noisy, test)[1] for net in (model, model_swad))
print(f"ended at step {num_updates}: {status.reason}")
print(f"averaged steps {status.start_step} to {status.end_step}, {status.n_averaged} of them")
print(f"accuracy on noisy scans: live {live:.1%}, averaged {averaged:.1%}")
