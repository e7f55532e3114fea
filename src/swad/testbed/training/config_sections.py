"""The settings that a run has: every field with its type, default, help text and role, in sections by concern.

To add a setting, declare it here; `swad.testbed.training.config` says what follows from the declaration. This module
imports nothing heavy, so that `swad train --help` answers at once.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

from swad.testbed.training.setting import Setting, add_args, setting
from swad.util.names import NO_TARGET


@dataclass(frozen=True)
class DataConfig:
    """The data: which domain is held out, how images are split and read."""

    dataset: str = setting(role="identity", help="Dataset (see `swad datasets`); `folder` for your own images.")
    target: str | tuple[str, ...] | None = setting(
        role="identity",
        help="Domain to hold out; several for leave-one-domain-out selection; none to train on all domains.",
    )
    data_dir: Path | None = setting(
        None, role="machine", help="Directory of the dataset, or the one above it. Built-in datasets need none."
    )
    dataset_options: Mapping[str, Any] = setting(
        factory=dict, role="protocol", help="Options that the dataset's file defines."
    )
    check_counts: bool = setting(
        True, role="protocol", help="Require the published number of images in every domain of a known dataset."
    )
    trial: int = setting(
        0, role="identity", minimum=0, help="Number of the train-validation split; the protocol uses 0, 1 and 2."
    )
    split: Literal["80/20", "60/20/20"] = setting(
        "80/20",
        role="protocol",
        help="Training and validation share of every domain, or training, validation and test (Tables 3 and 5).",
    )
    input_pipeline: Literal["torchvision", "gpu"] | None = setting(
        None,
        role="protocol",
        help="torchvision: decode and augment each image on the CPU, as published. gpu: decode once into a cache and "
        "augment in batches on the device. Default: gpu on a GPU unless the cache would exceed 32 GB. In the imagenet "
        "recipe, gpu decodes JPEG files on the device and caches nothing; default: torchvision.",
    )
    cache_size: int | None = setting(
        None,
        role="protocol",
        minimum=1,
        help="Height and width of cached images. Default: their own if all are alike and at most 256, else 256.",
    )
    image_size: int | None = setting(
        None,
        role="protocol",
        minimum=1,
        help="Height and width of the images that the network sees. Default: the network's; low-resolution images keep "
        "theirs.",
    )
    image_mean: tuple[float, ...] | None = setting(
        None,
        role="protocol",
        help="Mean of each channel, for pixels from 0 to 1. Default: the network's, or the low-resolution dataset's.",
    )
    image_std: tuple[float, ...] | None = setting(
        None,
        role="protocol",
        help="Standard deviation of each channel. Default: the network's, or the low-resolution dataset's.",
    )
    augmentation: Mapping[str, float] = setting(
        factory=dict,
        role="protocol",
        help="Training augmentation: crop (smallest share of the area; 1 for no crop), flip, jitter, grayscale. "
        "Default: crop=0.7,flip=0.5,jitter=0.3,grayscale=0.1. Low-resolution images are not augmented.",
    )
    batches: Literal["balanced", "pooled"] | None = setting(
        None,
        role="protocol",
        help="balanced: batch_size images of every source domain in a step. pooled: batch_size images of all source "
        "domains together, drawn with equal probability. Default: balanced.",
    )

    def __post_init__(self) -> None:
        # JSON and command lines give lists and strings; the code below sees one form.
        names = (self.target,) if isinstance(self.target, str) else tuple(self.target or ())
        names = () if names == (NO_TARGET,) else names
        object.__setattr__(self, "target", (names[0] if len(names) == 1 else names) or None)
        # One directory keeps one name, from whichever directory a command is started.
        object.__setattr__(self, "data_dir", None if self.data_dir is None else Path(os.path.abspath(self.data_dir)))
        object.__setattr__(self, "dataset_options", dict(self.dataset_options))
        object.__setattr__(self, "augmentation", dict(self.augmentation))
        for name in ("image_mean", "image_std"):
            values = getattr(self, name)
            object.__setattr__(self, name, None if values is None else tuple(values))

    @property
    def targets(self) -> tuple[str, ...]:
        """The held-out domains; empty if the run trains on all."""
        return (self.target,) if isinstance(self.target, str) else self.target or ()

    @property
    def target_name(self) -> str:
        """The held-out domains in names of runs and directories."""
        return "+".join(self.targets) or NO_TARGET

    @property
    def three_way(self) -> bool:
        """Whether every domain has a test split besides training and validation."""
        return self.split == "60/20/20"


@dataclass(frozen=True)
class ModelConfig:
    """The network and its initial weights."""

    network: str | None = setting(
        None,
        role="protocol",
        help="timm model, `small` (about 32 pixels), or your own: a file in a folder that SWAD_NETWORKS names. "
        "Default: small for low-resolution data, else ResNet-50.",
    )
    weights: str | None = setting(
        None,
        role="protocol",
        help="Initial weights: pretrained, random or a safetensors file. Default: pretrained; random for small and "
        "your own networks.",
    )
    freeze_bn: bool | None = setting(
        None,
        role="protocol",
        help="Freeze the running statistics of batch norms; scale and shift are still trained. Default: True; "
        "False if the weights are random.",
    )


@dataclass(frozen=True)
class TrainingConfig:
    """The algorithm, its hyperparameters and how long it trains."""

    algorithm: str = setting(
        "erm",
        role="identity",
        help="Training algorithm (see `swad algorithms`). Append +sam or +sagm to combine it with SAM or SAGM.",
    )
    recipe: Literal["imagenet", "own"] | None = setting(
        None,
        role="protocol",
        help="own: train as the algorithm's own paper does (optimizer, schedule, epochs, augmentation, ...; `swad "
        "algorithms show NAME` lists them). imagenet: train on one large dataset from scratch, with SGD, warm-up, "
        "decay and epochs. Default: the dataset's; without one, DomainBed's protocol.",
    )
    hyperparameters: Mapping[str, float | str] = setting(
        factory=dict,
        role="hyperparameter",
        help="Hyperparameters of the algorithm: lr, batch_size (images per source domain and step), weight_decay, "
        "dropout and its own. In the imagenet recipe, lr is that of 256 images, and batch_size counts all images.",
    )
    clip: float | None = setting(
        None, role="hyperparameter", above=0, help="Clip gradients to this norm. Default: no clipping."
    )
    steps: int | None = setting(
        None, role="protocol", minimum=1, help="Optimizer steps. Default: the dataset's, or those of the epochs."
    )
    epochs: float | None = setting(
        None,
        role="protocol",
        above=0,
        help="Passes over the training images. If steps are given too, they set the length, and a schedule in epochs "
        "is scaled to them. Default: the recipe's.",
    )
    warmup_epochs: float | None = setting(
        None,
        role="hyperparameter",
        minimum=0,
        help="Epochs in which the imagenet recipe raises the learning rate. Default: 5, or proportionally fewer "
        "if training is shorter than 90 epochs.",
    )
    optimizer: Literal["adam", "sgd"] | None = setting(
        None,
        role="hyperparameter",
        help="Optimizer, with the lr and weight_decay of the hyperparameters. Default: adam, or the recipe's.",
    )
    momentum: float | None = setting(
        None, role="hyperparameter", minimum=0, below=1, help="Momentum of SGD. Default: 0.9."
    )
    lr_schedule: str | None = setting(
        None,
        role="hyperparameter",
        help="constant; step:at=0.6,gamma=0.1 (times gamma after that share of the steps); exponential:gamma=0.99 "
        "(times gamma after every epoch); or cyclic: over the last 20 % of training the learning rate decays to a "
        "twentieth in cycles of 2 %, and SWA averages the weights at the end of each cycle. In the imagenet recipe, "
        "constant and cyclic first decay to a twentieth, and the schedule decay goes down to zero. Default: constant, "
        "or the recipe's.",
    )
    micro_batch: int | None = setting(
        None,
        role="protocol",
        minimum=1,
        help="Largest number of images per process in one forward pass; a larger batch accumulates gradients over "
        "several. Batch norms see one pass at a time. Default: 256 in the imagenet recipe.",
    )
    seed: int | None = setting(
        None,
        role="identity",
        minimum=0,
        help="Seed of batches, augmentation, noise and initial weights. "
        "Default: derived from dataset, algorithm, target and trial.",
    )
    precision: Literal["fp32", "bf16"] | None = setting(
        None,
        role="protocol",
        help="Precision of the forward pass; weights and averages are always fp32. "
        "Default: bf16 on a GPU that supports it, except for low-resolution data; else fp32.",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "hyperparameters", dict(self.hyperparameters))


@dataclass(frozen=True)
class EvaluationConfig:
    """The averages, and when and on which images they and the live weights are evaluated."""

    averages: tuple[str, ...] = setting(
        ("swad",),
        role="hyperparameter",
        help="Weight averages of the trajectory, e.g. swad, swa, ema or swad:semantics=text, or your own: a file in a "
        "folder that SWAD_AVERAGES names.",
    )
    evaluate_every: int | None = setting(
        None,
        role="protocol",
        minimum=1,
        help="Steps between evaluations; the last step is always evaluated. Default: the dataset's. On "
        "datasets without a published schedule (digits, folder and your own), short runs have 20 evaluations.",
    )
    schedule: Literal["default", "reference"] = setting(
        "default",
        role="protocol",
        help="default: T steps, evaluated after K, 2K, ..., T. reference: T + 1 steps, evaluated after 1, K + 1, ..., "
        "T + 1, as the published code does.",
    )
    report_live: bool = setting(
        True,
        role="output",
        free_on_resume=False,
        help="Also report the live weights: `best` (highest validation accuracy) and `last`.",
    )
    early_stop: bool = setting(
        True,
        role="protocol",
        help="Stop once every requested average is complete. Takes effect only without live weights to report.",
    )
    validation_subsample: int | None = setting(
        None,
        role="protocol",
        minimum=1,
        help="Validate on this many images per source domain during training; the final evaluation uses all.",
    )
    augment_validation: bool = setting(
        False, role="protocol", help="Augment source validation images, as DomainBed does."
    )
    target_every_evaluation: bool = setting(
        False,
        role="output",
        free_on_resume=False,
        help="Evaluate the target at every evaluation, not only at the end (needed for oracle_best_step).",
    )

    def __post_init__(self) -> None:
        averages = self.averages
        if isinstance(averages, str):  # as on the command line
            # Imported here so that `swad train --help` answers at once.
            from swad.testbed.averages import registry

            averages = registry.split(averages)
        object.__setattr__(self, "averages", tuple(averages))


@dataclass(frozen=True)
class MachineConfig:
    """How and where the run is computed."""

    device: str = setting("cpu", role="machine", help="Device: auto, cpu, cuda or cuda:1.")
    engine: Literal["auto", "eager", "graph", "compile"] = setting(
        "auto",
        role="machine",
        help="How a step is executed: eager, CUDA graph, or a graph with the network compiled. "
        "auto: on a GPU a graph, compiled where the run is long enough to benefit; else eager.",
    )
    deterministic: bool = setting(
        False,
        role="machine",
        free_on_resume=False,
        help="Make results bit-equal on a GPU too, at some cost in speed. They always are on the CPU.",
    )
    workers: int | None = setting(
        None,
        role="machine",
        minimum=0,
        help="Worker processes that load images. Default: one per core, at most 8 except in the imagenet recipe.",
    )
    threads: int | None = setting(
        None,
        role="machine",
        minimum=1,
        free_on_resume=False,
        help="CPU threads per process; the last bits of results depend on it. "
        "Default: 1 for the small network, else torch's.",
    )
    cache: Path | None = setting(
        None,
        role="machine",
        help="Directory of decoded images. Default: $SWAD_CACHE, or ~/.cache/swad/images.",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "cache", None if self.cache is None else Path(self.cache))


@dataclass(frozen=True)
class FilesConfig:
    """The files that a run keeps besides records and final weights."""

    snapshots: tuple[int, ...] = setting(
        (), role="output", free_on_resume=False, help="Save the live weights after these steps, e.g. 2500,3500,4500."
    )
    keep_segments: bool = setting(
        False,
        role="output",
        free_on_resume=False,
        help="Keep the weights that `swad tune` and `swad windows` need: the sum of every segment, and the weights at "
        "each new lowest validation loss. One to two copies of the model per evaluation (ResNet-50, 50 evaluations: "
        "5 to 9 GB).",
    )
    branch_from: Path | None = setting(
        None,
        role="machine",
        help="Directory of a run of the imagenet recipe. This run differs in the last 20 % only and continues from the "
        "checkpoint that was kept there. Default: train from the first step.",
    )
    checkpoint_every: int | None = setting(
        None,
        role="machine",
        minimum=1,
        help="Steps between checkpoints. Default: once a minute.",
    )
    log: tuple[str, ...] = setting(
        (),
        role="output",
        help="Send the records to these tools while the run trains: wandb, mlflow, tensorboard.",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "branch_from", None if self.branch_from is None else Path(self.branch_from))
        object.__setattr__(self, "log", (self.log,) if isinstance(self.log, str) else tuple(self.log))
        object.__setattr__(self, "snapshots", tuple(sorted(self.snapshots)))


# -- the fields, for everything that is derived from them -------------------------------------------------------------


SECTIONS: dict[str, Any] = {
    "data": DataConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
    "evaluation": EvaluationConfig,
    "machine": MachineConfig,
    "files": FilesConfig,
}
TITLES = {
    "data": "Data",
    "model": "Model",
    "training": "Training",
    "evaluation": "Evaluation and averages",
    "machine": "Machine",
    "files": "Files",
}
"""Headings of the sections on the command line and in its reference."""


def _settings() -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    for section, section_class in SECTIONS.items():
        hints = get_type_hints(section_class)
        for field in dataclasses.fields(section_class):
            made = None if field.default_factory is MISSING else field.default_factory()
            default = made if field.default is MISSING else field.default
            required = field.default is MISSING and field.default_factory is MISSING
            assert field.name not in settings, f"two sections have a field {field.name}"
            settings[field.name] = Setting(field.name, section, hints[field.name], default, required, **field.metadata)
    return settings


SETTINGS: dict[str, Setting] = _settings()
"""Every field by name; names are unique across sections."""


def _document() -> None:
    """Add every field to the docstring of its section."""
    for section, section_class in SECTIONS.items():
        add_args(section_class, [known.doc for known in SETTINGS.values() if known.section == section])


_document()
