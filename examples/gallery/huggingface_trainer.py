"""
Hugging Face: SWAD as a callback of the Trainer
===============================================

`swad.integrations.transformers.SWADCallback` follows the training and reads ``eval_loss``. Here a tiny ViT with random
weights learns scikit-learn's handwritten digits. For fine-tuning put your pretrained model in its place.

Run it with ``python examples/gallery/huggingface_trainer.py``.
"""

# sphinx_gallery_thumbnail_path = "gallery/tiles/huggingface_trainer.png"
import tempfile

import torch
from sklearn.datasets import load_digits
from transformers import (
    PrinterCallback,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    set_seed,
)

from swad.integrations.transformers import SWADCallback

torch.set_num_threads(1)
set_seed(0)
images, labels = load_digits(return_X_y=True)
images = torch.as_tensor(images / 16).float().reshape(-1, 1, 8, 8)
examples = [
    {"pixel_values": image, "labels": int(label)}
    for image, label in zip(images, labels, strict=True)
]
order = torch.randperm(len(examples)).tolist()
parts = order[:400], order[400:800], order[800:]
train, val, test = ([examples[i] for i in part] for part in parts)

config = ViTConfig(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    image_size=8,
    patch_size=2,
    num_channels=1,
    num_labels=10,
)
model = ViTForImageClassification(config)


def accuracy(prediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}


# %%
# The training
# ------------
# Two arguments matter: a constant learning rate, and an evaluation every ``eval_steps`` steps. When training ends, the
# callback puts the average into the model. With ``apply_at_end=False`` the live weights stay, so that both can be
# evaluated here.

callback = SWADCallback(apply_at_end=False)
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        folder,
        max_steps=600,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        per_device_train_batch_size=32,
        per_device_eval_batch_size=500,
        eval_strategy="steps",
        eval_steps=20,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        log_level="error",
        logging_strategy="no",
    )
    trainer = Trainer(
        model,
        args,
        train_dataset=train,
        eval_dataset=val,
        compute_metrics=accuracy,
        callbacks=[callback],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    live = trainer.evaluate(test)["eval_accuracy"]
    with callback.average_parameters():
        averaged = trainer.evaluate(test)["eval_accuracy"]

status = callback.status
print(f"ended at step {trainer.state.global_step}: {status.reason}")
print(f"averaged steps {status.start_step} to {status.end_step}, {status.n_averaged} of them")
print(f"test accuracy: live {live:.1%}, averaged {averaged:.1%}")
