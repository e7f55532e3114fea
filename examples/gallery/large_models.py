"""
Large models: LoRA, a probe before fine-tuning, and rates by layer
==================================================================

Three ways to fine-tune a large pretrained network, each with SWAD, here on a tiny ViT with random weights. They show
where the average belongs. **None was measured on a large model**: whether SWAD helps there is open.

Run it with ``python examples/gallery/large_models.py``.
"""

# sphinx_gallery_thumbnail_path = "gallery/tiles/large_models.png"
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from sklearn.datasets import load_digits
from transformers import ViTConfig, ViTForImageClassification

import swad

torch.set_num_threads(1)
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
images = torch.as_tensor(images / 16).float().reshape(-1, 1, 8, 8)
labels = torch.as_tensor(labels)
order = torch.randperm(len(images))
train, val, test = order[:400], order[400:800], order[800:]


def tiny_vit() -> ViTForImageClassification:
    """In your project: ``from_pretrained``."""
    torch.manual_seed(0)
    return ViTForImageClassification(
        ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            image_size=8,
            patch_size=2,
            num_channels=1,
            num_labels=10,
        )
    )


@torch.no_grad()
def evaluate(model, part) -> tuple[float, float]:
    """Return loss and accuracy."""
    model.eval()
    output = model(pixel_values=images[part], labels=labels[part])
    model.train()
    right = output.logits.argmax(1) == labels[part]
    return output.loss.item(), right.float().mean().item()


def fit(model, optimizer, steps, averager=None) -> None:
    """Train; the average follows every step and every evaluation."""
    for step in range(1, steps + 1):
        batch = train[torch.randint(len(train), (32,))]
        model(pixel_values=images[batch], labels=labels[batch]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if averager is not None:
            averager.update_parameters(model)
            if step % 20 == 0 and averager.observe(evaluate(model, val)[0]).should_stop:
                break


# %%
# LoRA: only the adapters are averaged
# ------------------------------------
# SWAD averages what is trained, so adapters and the new head need no setting, and its buffers are as small as they are.
# ``save_pretrained`` writes the averaged adapter. ``restart`` is for these random weights, whose loss begins on a
# plateau; pretrained ones rarely need it.
base = tiny_vit()
names = {name.rpartition(".")[2] for name, _ in base.named_modules()}
attention = ["query", "value"] if "query" in names else ["q_proj", "v_proj"]
lora = get_peft_model(
    base, LoraConfig(r=4, target_modules=attention, modules_to_save=["classifier"])
)
averager = swad.SWAD(lora, valley=swad.LossValley(restart=True))
adapters = [p for p in lora.parameters() if p.requires_grad]
fit(lora, torch.optim.AdamW(adapters, lr=5e-3), 400, averager)
averager.copy_to(lora)
with tempfile.TemporaryDirectory() as folder:
    lora.save_pretrained(folder)
    written = sorted(file.name for file in Path(folder).iterdir() if file.suffix != ".md")
    again = PeftModel.from_pretrained(tiny_vit(), folder)
share = sum(p.numel() for p in adapters) / sum(p.numel() for p in lora.parameters())
print(f"LoRA: averaged {share:.0%} of the parameters; wrote {', '.join(written)}")
print(
    f"LoRA: test accuracy {evaluate(lora, test)[1]:.2f}, loaded again {evaluate(again, test)[1]:.2f}"
)

# %%
# A linear probe first, then all layers
# -------------------------------------
# A random head distorts pretrained features at the start of fine-tuning, so it is trained alone first (LP-FT; Kumar et
# al., ICLR 2022). The average begins with the fine-tuning: in the probe the other layers stand still.
model = tiny_vit()
for parameter in model.vit.parameters():
    parameter.requires_grad = False
fit(model, torch.optim.AdamW(model.classifier.parameters(), lr=1e-2), 60)
for parameter in model.vit.parameters():
    parameter.requires_grad = True
averager = swad.SWAD(
    model, valley=swad.LossValley(restart=True)
)  # after unfreezing: it averages what is trainable now
fit(model, torch.optim.AdamW(model.parameters(), lr=1e-3), 400, averager)
averager.copy_to(model)
print(
    f"LP-FT: test accuracy {evaluate(model, test)[1]:.2f}, averaged {averager.status.n_averaged} steps"
)

# %%
# Lower learning rates for lower layers
# -------------------------------------
# SWAD averages weights, whatever the groups of the optimizer and their rates are. Keep each rate constant, because
# an average of weights needs steps of one size.
model = tiny_vit()
n_layers, decay, lr = model.config.num_hidden_layers, 0.7, 3e-3
groups = {}
for name, parameter in model.named_parameters():
    numbers = [int(part) for part in name.split(".") if part.isdecimal()]
    depth = 0 if "embeddings" in name else numbers[0] + 1 if numbers else n_layers + 1
    groups.setdefault(depth, []).append(parameter)
optimizer = torch.optim.AdamW(
    [
        {"params": parameters, "lr": lr * decay ** (n_layers + 1 - depth)}
        for depth, parameters in groups.items()
    ]
)
averager = swad.SWAD(model, valley=swad.LossValley(restart=True))
fit(model, optimizer, 400, averager)
averager.copy_to(model)
rates = ", ".join(f"{group['lr']:.2g}" for group in optimizer.param_groups)
print(f"rates {rates}: test accuracy {evaluate(model, test)[1]:.2f}")
