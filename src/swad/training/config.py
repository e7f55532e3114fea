"""The settings of one run: typed, documented field by field, grouped by concern.

Every field states its type, its default, its help text and its role. Everything else is derived from that: the
options of `swad train`, their reference page, the `Args:` that `help()` shows, the checks below, `config.json`, and
which settings must agree when a run is resumed or compared. This module imports nothing heavy, so that
`swad train --help` answers at once; the checks that need datasets, algorithms or the machine, and the defaults that
depend on them, are in `swad.training.resolve`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

from swad.data.augmentation import Augmentation
from swad.training import lr_schedule, recipe
from swad.training.setting import Setting, add_args, setting
from swad.util.names import NO_TARGET, did_you_mean

FORMAT = 2
"""Version of `config.json`."""


class ConfigError(ValueError):
    """Invalid settings; `problems` holds one sentence for each."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(problems[0] if len(problems) == 1 else "\n".join(f"- {problem}" for problem in problems))


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
        "Default: crop=0.7, flip=0.5, jitter=0.3, grayscale=0.1. Low-resolution images are not augmented.",
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
        help="timm model, or `small`. Default: small for low-resolution data, else ResNet-50.",
    )
    weights: str | None = setting(
        None,
        role="protocol",
        help="Initial weights: pretrained, random or a safetensors file. Default: pretrained; random for small.",
    )
    freeze_bn: bool | None = setting(
        None,
        role="protocol",
        help="Freeze the running statistics of batch norms; scale and shift are still trained. Default: True.",
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
    clip: float | None = setting(None, role="hyperparameter", help="Clip gradients to this norm. Default: no clipping.")
    steps: int | None = setting(
        None, role="protocol", minimum=1, help="Optimizer steps. Default: the dataset's, or those of the epochs."
    )
    epochs: float | None = setting(
        None,
        role="protocol",
        help="Passes over the training images, unless steps are given; a schedule in epochs then divides the steps. "
        "Default: the recipe's.",
    )
    warmup_epochs: float | None = setting(
        None,
        role="hyperparameter",
        help="Epochs in which the imagenet recipe raises the learning rate. Default: 5, or less in proportion if "
        "training is shorter than 90 epochs.",
    )
    optimizer: Literal["adam", "sgd"] | None = setting(
        None,
        role="hyperparameter",
        help="Optimizer, with the lr and weight_decay of the hyperparameters. Default: adam, or the recipe's.",
    )
    momentum: float | None = setting(None, role="hyperparameter", help="Momentum of SGD. Default: 0.9.")
    lr_schedule: str | None = setting(
        None,
        role="hyperparameter",
        help="constant; step:at=0.6,gamma=0.1 (times gamma after that share of the steps); exponential:gamma=0.99 "
        "(times gamma after every epoch); or cyclic: over the last 20 % of training the learning rate decays to a "
        "twentieth in cycles of 2 %, and SWA averages the weights at the end of each cycle. In the imagenet recipe, "
        "constant and cyclic first decay to a twentieth, and decay goes down to zero instead. Default: constant, or "
        "the recipe's.",
    )
    micro_batch: int | None = setting(
        None,
        role="protocol",
        minimum=1,
        help="Most images of a process in one forward pass; gradients of a larger batch are accumulated. Batch norms "
        "see one pass. Default: 256 in the imagenet recipe.",
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
        help="Weight averages of the trajectory, e.g. swad, swa, ema or swad:semantics=text.",
    )
    evaluate_every: int | None = setting(
        None,
        role="protocol",
        minimum=1,
        help="Steps between evaluations; the last step is always evaluated. Default: the dataset's.",
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
            from swad.averaging import registry

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
    strategy: Literal["ddp", "fsdp"] = setting(
        "ddp",
        role="machine",
        help="How several processes share a network. ddp: each has all of it. fsdp: each has a share of parameters, "
        "gradients, optimizer state and averages (FSDP2), for networks that do not fit otherwise.",
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
        (), role="output", free_on_resume=False, help="Save the live weights after these steps."
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
        help="Minimum steps between checkpoints, which are saved at evaluations. Default: once a minute.",
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


@dataclass(frozen=True)
class RunConfig:
    """The settings of one run, by concern. None means the default of the dataset, the network or the machine.

    >>> config = RunConfig.from_options(dataset="digits", target="paper", output="runs/paper-0", steps=10)
    >>> config.training.steps, config.data.trial, config.name
    (10, 0, 'paper-0')
    >>> RunConfig.from_options(dataset="digits", target="paper", output="runs/paper-0", step=10)
    Traceback (most recent call last):
    swad.training.config.ConfigError: there is no setting 'step': did you mean 'steps'?

    Args:
        output (Path, required): Directory of the run. If it contains an unfinished run with the same settings, that
            run is resumed.
    """

    output: Path
    data: DataConfig
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    machine: MachineConfig = dataclasses.field(default_factory=MachineConfig)
    files: FilesConfig = dataclasses.field(default_factory=FilesConfig)

    def __post_init__(self) -> None:
        object.__setattr__(self, "output", Path(self.output))

    @classmethod
    def from_options(cls, *, output: Path | str, **options: Any) -> RunConfig:
        """Build the settings from the fields' names alone, without their sections.

        Args:
            output (Path | str, required): Directory of the run.
        """
        _require_known(options)
        required = [name for name, known in SETTINGS.items() if known.required and name not in options]
        if required:
            raise ConfigError([f"{name} is required: {SETTINGS[name].help}" for name in required])
        sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
        for name, value in options.items():
            sections[SETTINGS[name].section][name] = value
        return cls(output=Path(output), **{section: SECTIONS[section](**own) for section, own in sections.items()})

    def replace(self, **options: Any) -> RunConfig:
        """Return a copy with some settings changed, given by the fields' names alone."""
        output = options.pop("output", self.output)
        return RunConfig.from_options(output=output, **{**self.options(), **options})

    def options(self) -> dict[str, Any]:
        """The settings by field name, without their sections and without `output`."""
        return {name: getattr(getattr(self, known.section), name) for name, known in SETTINGS.items()}

    # -- derived values -------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the run in records."""
        return f"{self.data.target_name}-{self.data.trial}"

    @property
    def eval_offset(self) -> int:
        """Steps by which evaluations come late: 1 in the reference schedule."""
        return int(self.evaluation.schedule == "reference")

    @property
    def total_steps(self) -> int:
        """Optimizer steps of a complete run."""
        assert self.training.steps is not None
        return self.training.steps + self.eval_offset

    @property
    def cycle_steps(self) -> int | None:
        """Steps in one cycle of the learning rate; None if it is not cyclic."""
        assert self.training.steps is not None
        if self.training.lr_schedule != "cyclic":
            return None
        if self.training.recipe == recipe.IMAGENET:
            return max(1, self._epochs_in_steps(recipe.CYCLE_EPOCHS))
        return max(1, self.training.steps // 50)

    @property
    def warmup_steps(self) -> int:
        """Steps in which the learning rate rises."""
        epochs = self.training.warmup_epochs
        return self._epochs_in_steps(recipe.WARMUP_EPOCHS) if epochs is None else self._in_steps(epochs)

    def _epochs_in_steps(self, of_90: float) -> int:
        assert self.training.epochs is not None
        return self._in_steps(recipe.scaled_epochs(self.training.epochs, of_90))

    def _in_steps(self, epochs: float) -> int:
        assert self.training.steps is not None
        assert self.training.epochs is not None
        return round(epochs * self.training.steps / self.training.epochs)

    def evaluates(self, step: int) -> bool:
        """Whether an evaluation follows step number `step`."""
        every = self.evaluation.evaluate_every
        assert every is not None
        return step == self.total_steps or step % every == self.eval_offset % every

    # -- checks ---------------------------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """List everything that is wrong with the settings by themselves, one sentence each."""
        options = self.options()
        problems = [problem for name, value in options.items() if (problem := SETTINGS[name].problem(value))]
        clip = self.training.clip
        if isinstance(clip, int | float) and not 0 < clip < math.inf:
            problems.append(f"clip must be a number above 0, got {clip!r}")
        epochs, warmup = self.training.epochs, self.training.warmup_epochs
        if isinstance(epochs, int | float) and not 0 < epochs < math.inf:
            problems.append(f"epochs must be a number above 0, got {epochs!r}")
        if isinstance(warmup, int | float) and not 0 <= warmup < math.inf:
            problems.append(f"warmup_epochs must be a number of at least 0, got {warmup!r}")
        momentum = self.training.momentum
        if isinstance(momentum, int | float) and not 0 <= momentum < 1:
            problems.append(f"momentum must be from 0 to below 1, got {momentum!r}")
        if momentum is not None and self.training.optimizer != "sgd":
            problems.append(f"momentum is for the optimizer sgd, got {momentum!r} with adam: set optimizer")
        schedule = self.training.lr_schedule
        if schedule is not None and (problem := lr_schedule.problem(schedule, self.training.epochs)):
            problems.append(problem)
        problems += _augmentation_problems(self.data.augmentation)
        for name in ("image_mean", "image_std"):
            values = getattr(self.data, name)
            valid = all(type(value) in (int, float) and math.isfinite(value) for value in values or ())
            if not valid or (name == "image_std" and not all(value > 0 for value in values or ())):
                problems.append(f"{name} must be numbers, those of image_std above 0, got {values!r}")
        if not self.evaluation.report_live and not self.evaluation.averages:
            problems.append("without report_live there must be an average to train for, got no averages")
        return problems

    # -- files ----------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The settings as plain values by section, without `output`: a run may be moved."""
        return {
            section: {name: _plain(getattr(getattr(self, section), name)) for name in _names(section)}
            for section in SECTIONS
        }

    def to_json(self) -> dict[str, Any]:
        """The content of `config.json`: the settings, and the role of each for readers that know no RunConfig."""
        roles = {name: known.role for name, known in SETTINGS.items()}
        return {"format": FORMAT, "config": self.to_dict(), "roles": roles}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], output: Path | str) -> RunConfig:
        """Read the content of a `config.json` in the directory `output`."""
        options = stored_options(content, output)
        try:
            config = cls.from_options(output=output, **options)
            problems = config.problems()
        except (TypeError, ValueError, ArithmeticError) as error:
            problems = [str(error)]
        if problems:
            raise ConfigError([f"{output} has invalid settings ({problems[0]}): restore its config.json"])
        return config

    def differences(self, content: Mapping[str, Any]) -> list[str]:
        """List the settings that a stored run has otherwise and that resuming it may not change.

        Args:
            content: The content of the stored run's `config.json`.
        """
        defaults = {name: _plain(known.default) for name, known in SETTINGS.items()}
        # A field that was added later had its default then.
        stored = defaults | PROTOCOL | stored_options(content, self.output)
        current = json.loads(json.dumps({name: _plain(value) for name, value in self.options().items()}))
        if isinstance(stored.get("data_dir"), str):
            stored["data_dir"] = os.path.abspath(stored["data_dir"])
        differences = []
        for name in sorted(current):
            before, now = stored[name], current[name]
            # Under the name "folder", another directory is another dataset.
            own_folder = name == "data_dir" and self.data.dataset == "folder"
            if before == now or (SETTINGS[name].free_on_resume and not own_folder):
                continue
            if isinstance(before, dict) and isinstance(now, dict):
                differences += [
                    f"{key} was {before.get(key)!r}, now {now.get(key)!r}"
                    for key in sorted({*before, *now})
                    if before.get(key) != now.get(key)
                ]
            else:
                differences.append(f"{name} was {before!r}, now {now!r}")
        return differences


PROTOCOL: dict[str, Any] = {
    "optimizer": "adam",
    "lr_schedule": "constant",
    "freeze_bn": True,
    "augmentation": dataclasses.asdict(Augmentation()),
    "batches": "balanced",
}
"""The settings of the evaluation protocol, which the recipe of an algorithm's own paper may replace."""


def _augmentation_problems(values: Mapping[str, Any]) -> list[str]:
    known = PROTOCOL["augmentation"]
    if unknown := sorted(set(values) - set(known)):
        return [f"the augmentation has {', '.join(known)}, got {', '.join(unknown)}"]
    return Augmentation(**values).problems()


def stored_options(content: Mapping[str, Any], output: Path | str) -> dict[str, Any]:
    """The settings in the content of the `config.json` of a run directory, by field name."""
    if not isinstance(content, Mapping):
        raise ConfigError([f"{output} holds settings that are no JSON object: restore config.json, or train again"])
    sections = content.get("config")
    if (
        content.get("format") == FORMAT
        and isinstance(sections, Mapping)
        and all(isinstance(section, Mapping) for section in sections.values())
    ):
        options = {
            name: value for section in sections.values() for name, value in section.items() if name not in _REMOVED
        }
        if set(options) <= set(SETTINGS):
            return options
    raise ConfigError([f"{output} was written by another version of swad: train the run again in another directory"])


_REMOVED = ("tensorboard",)
"""Settings of earlier versions that changed no result, so that runs with them can still be read."""


def _require_known(options: Mapping[str, Any]) -> None:
    problems = []
    for name in options:
        if name not in SETTINGS:
            hint = did_you_mean(name, SETTINGS) or f"the settings are {', '.join(SETTINGS)}"
            problems.append(f"there is no setting {name!r}: {hint}")
    if problems:
        raise ConfigError(problems)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


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


def _names(section: str) -> list[str]:
    return [field.name for field in dataclasses.fields(SECTIONS[section])]


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
    """Add every field to the docstrings of the sections, of `RunConfig` and of `from_options`."""
    summaries = []
    for section, section_class in SECTIONS.items():
        required = any(known.required for known in SETTINGS.values() if known.section == section)
        default = ", required" if required else f" = {section_class.__name__}()"
        summary = (section_class.__doc__ or "").partition("\n")[0]
        summaries.append(f"{section} ({section_class.__name__}{default}): {summary}")
        add_args(section_class, [known.doc for known in SETTINGS.values() if known.section == section])
    add_args(RunConfig, summaries)
    add_args(RunConfig.from_options.__func__, [known.doc for known in SETTINGS.values()])  # type: ignore[attr-defined]


_document()
