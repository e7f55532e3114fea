"""The settings of one run: how they are built, checked, stored and compared.

Every field of `RunConfig` states its type, its default, its help text and its role; to add a setting, declare it there.
Everything else is derived from that: the options of `swad train`, their reference page, the `Args:` that `help()`
shows, the checks below, `config.json`, and which settings must agree when a run is resumed or compared. This module
imports nothing heavy, so that `swad train --help` answers at once; the checks that need datasets, algorithms or the
machine are in `swad.testbed.training.checks`, and the defaults that depend on them in `swad.testbed.training.resolve`,
which returns a `ResolvedConfig`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from swad.testbed.data.augmentation import Augmentation
from swad.testbed.results.metrics import CLASS_ACCURACY, METRICS, metric_problem, recorded_metrics
from swad.testbed.training import lr_schedule
from swad.testbed.training.setting import Setting, add_args, setting, settings_of
from swad.util.data_path import absolute, data_name
from swad.util.names import NO_TARGET, choice_problem, did_you_mean, is_utf8, name_problem

FORMAT = 2
"""Version of `config.json`."""


class ConfigError(ValueError):
    """Invalid settings; `problems` holds one sentence for each."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(problems[0] if len(problems) == 1 else "\n".join(f"- {problem}" for problem in problems))


SECTIONS = {
    "data": ("Data", "dataset"),
    "model": ("Model", "network"),
    "training": ("Training", "algorithm"),
    "evaluation": ("Evaluation and averages", "averages"),
    "machine": ("Machine", "device"),
    "files": ("Files", "snapshots"),
}
"""The groups of settings in help texts and in `config.json`: the heading of each, and its first field."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of one run. None means the default of the dataset, the network or the machine.

    >>> config = RunConfig.from_options(dataset="digits", target="paper", output="runs/paper-0", steps=10)
    >>> config.steps, config.trial, config.name
    (10, 0, 'paper-0')
    >>> RunConfig.from_options(dataset="digits", target="paper", output="runs/paper-0", step=10)
    Traceback (most recent call last):
    swad.testbed.training.config.ConfigError: there is no setting 'step': did you mean 'steps'?

    Args:
        output (Path, required): Directory of the run. If it contains an unfinished run with the same settings, that
            run is resumed.
    """

    output: Path

    # -- data ---------------------------------------------------------------------------------------------------------

    dataset: str = setting(role="identity", help="Dataset (see `swad datasets`); `folder` for your own images.")
    target: str | tuple[str, ...] | None = setting(
        role="identity",
        help="Domain to hold out; several for leave-one-domain-out selection; none to train on all domains.",
    )
    data_dir: Path | None = setting(
        None,
        role="machine",
        help="Directory of the dataset, or the one above it; or a CSV file or parquet files of images, or "
        "hub:owner/name at the Hugging Face Hub. Built-in datasets need none.",
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

    # -- the model ----------------------------------------------------------------------------------------------------

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

    # -- training -----------------------------------------------------------------------------------------------------

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

    # -- evaluation and averages --------------------------------------------------------------------------------------

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
    metrics: tuple[str, ...] = setting(
        (),
        role="output",
        free_on_resume=False,
        help="Metrics to record beside loss and accuracy: balanced_accuracy, auc, f1, worst_group (lowest accuracy on "
        "a class in a domain), class_accuracy (accuracy on every class, its sensitivity).",
    )
    select_by: str = setting(
        "accuracy",
        role="output",
        free_on_resume=False,
        help="Metric on source validation by which `best` is chosen: accuracy, worst_domain, accuracy:CLASS or one of "
        "--metrics. It is recorded, too.",
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

    # -- the machine --------------------------------------------------------------------------------------------------

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

    # -- files --------------------------------------------------------------------------------------------------------

    snapshots: tuple[int, ...] = setting(
        (), role="output", free_on_resume=False, help="Save the live weights after these steps, e.g. 2500,3500,4500."
    )
    predictions: bool = setting(
        True,
        role="output",
        help="Keep what all reported weights predict for every image of the final evaluation, in `predictions.npz`.",
    )
    keep_segments: bool = setting(
        False,
        role="output",
        free_on_resume=False,
        help="Keep the weights that `swad measure tune` and `swad measure windows` need: the sum of every segment, and "
        "the weights at each new lowest validation loss. One to two copies of the model per evaluation (ResNet-50, 50 "
        "evaluations: 5 to 9 GB).",
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
        # JSON, command lines and users give lists and texts for these; the code below sees one form.
        targets = (self.target,) if isinstance(self.target, str) else tuple(self.target or ())
        targets = () if targets == (NO_TARGET,) else targets
        averages: Any = self.averages
        if isinstance(averages, str):
            # Imported here so that `swad train --help` answers at once.
            from swad.testbed.averages import registry

            averages = registry.split(averages)
        forms: dict[str, Any] = {
            "output": Path(self.output),
            "target": (targets[0] if len(targets) == 1 else targets) or None,
            # One directory keeps one name, from whichever directory a command is started.
            "data_dir": None if self.data_dir is None else absolute(self.data_dir),
            "averages": tuple(averages),
            "log": (self.log,) if isinstance(self.log, str) else tuple(self.log),
            "metrics": (self.metrics,) if isinstance(self.metrics, str) else tuple(self.metrics),
            "snapshots": tuple(sorted(self.snapshots)),
        }
        forms |= {name: dict(getattr(self, name)) for name in ("dataset_options", "augmentation", "hyperparameters")}
        for name, kind in (("image_mean", tuple), ("image_std", tuple), ("cache", Path), ("branch_from", Path)):
            value = getattr(self, name)
            forms[name] = None if value is None else kind(value)
        for name, value in forms.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_options(cls, *, output: Path | str, **options: Any) -> Self:
        """Build the settings; unknown names, missing ones and values of the wrong kind are refused with a sentence.

        Args:
            output (Path | str, required): Directory of the run.
        """
        if not isinstance(output, str | os.PathLike):
            raise ConfigError([f"output must be a path, got {output!r}"])
        if unknown := [unknown_setting(name) for name in options if name not in SETTINGS]:
            raise ConfigError(unknown)
        required = [name for name, known in SETTINGS.items() if known.required and name not in options]
        if required:
            raise ConfigError([f"{name} is required: {SETTINGS[name].help}" for name in required])
        converted = [(SETTINGS[name], value) for name, value in options.items() if SETTINGS[name].is_converted]
        if problems := [problem for known, value in converted if (problem := known.problem(value))]:
            raise ConfigError(problems)
        return cls(output=Path(output), **options)

    def replace(self, **options: Any) -> RunConfig:
        """Return a copy with some settings changed, which has to be resolved again if this one was."""
        return RunConfig.from_options(**{"output": self.output, **self.options(), **options})

    def options(self) -> dict[str, Any]:
        """The settings by name, without `output`."""
        return {name: getattr(self, name) for name in SETTINGS}

    # -- derived values -------------------------------------------------------------------------------------------

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

    @property
    def name(self) -> str:
        """The name of the run in records."""
        return f"{self.target_name}-{self.trial}"

    @property
    def recorded_metrics(self) -> tuple[str, ...]:
        """The metrics that are recorded beside loss and accuracy."""
        return recorded_metrics(self.metrics, self.select_by)

    @property
    def eval_offset(self) -> int:
        """Steps by which evaluations come late: 1 in the reference schedule."""
        return int(self.schedule == "reference")

    # -- checks ---------------------------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """List everything that is wrong with the settings by themselves, one sentence each."""
        options = self.options()
        problems = [problem for name, value in options.items() if (problem := SETTINGS[name].problem(value))]
        schedule = self.lr_schedule
        if schedule is not None and (problem := lr_schedule.problem(schedule, self.epochs)):
            problems.append(problem)
        problems += _augmentation_problems(self.augmentation) + self._name_problems() + self._metric_problems()
        try:
            json.dumps(self.dataset_options)
        except (TypeError, ValueError) as error:
            problems.append(
                f"dataset_options are stored as JSON, which takes numbers, texts, lists and dictionaries, got "
                f"{self.dataset_options!r}: {error}"
            )
        std = self.image_std or ()
        if not SETTINGS["image_std"].problem(std) and not all(value > 0 for value in std):
            problems.append(f"image_std must be numbers above 0, got {std!r}")
        if not self.report_live and not self.averages:
            problems.append("a run without report_live needs at least one average, got none")
        return problems

    def _metric_problems(self) -> list[str]:
        recorded = (*METRICS, CLASS_ACCURACY)
        problems = [choice_problem("a metric", name, recorded) for name in self.metrics if name not in recorded]
        if problem := metric_problem("select_by", self.select_by):
            problems.append(problem)
        if not problems and self.recorded_metrics and importlib.util.find_spec("torchmetrics") is None:
            problems.append(f"{', '.join(self.recorded_metrics)} needs torchmetrics: pip install 'swad[metrics]'")
        return problems

    def _name_problems(self) -> list[str]:
        """List the names and paths that `config.json` cannot hold, or that a report would refuse."""
        problems = [name_problem("the target", name) for name in self.targets if isinstance(name, str)]
        if self.dataset == "folder" and self.data_dir is not None:  # its results have the directory's name
            problems.append(name_problem("the folder of a dataset", data_name(self.data_dir)))
        texts = {name: str(value) for name, value in self.options().items() if isinstance(value, str | Path)}
        texts.pop("target", None)
        return list(filter(None, problems)) + [
            f"{name} must be in UTF-8, got {text!r}: rename it" for name, text in texts.items() if not is_utf8(text)
        ]

    # -- files ----------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The settings as plain values by section, without `output`: a run may be moved."""
        sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
        for name, value in self.options().items():
            sections[SETTINGS[name].section][name] = _plain(value)
        return sections

    def to_json(self) -> dict[str, Any]:
        """The content of `config.json`: the settings, and the role of each for readers that know no RunConfig."""
        roles = {name: known.role for name, known in SETTINGS.items()}
        return {"format": FORMAT, "config": self.to_dict(), "roles": roles}

    def differences(self, content: Mapping[str, Any]) -> list[str]:
        """List the settings that a stored run has otherwise and that resuming it may not change.

        Args:
            content: The content of the stored run's `config.json`.
        """
        defaults = {name: _plain(known.default) for name, known in SETTINGS.items()}
        # A field that was added later had its default then; of a resolved run that is what the protocol fills in.
        stored = defaults | PROTOCOL | stored_options(content, self.output)
        current = json.loads(json.dumps({name: _plain(value) for name, value in self.options().items()}))
        if isinstance(stored.get("data_dir"), str):
            stored["data_dir"] = str(absolute(stored["data_dir"]))
        differences = []
        for name in sorted(current):
            before, now = stored[name], current[name]
            # Under the name "folder", another directory is another dataset.
            own_folder = name == "data_dir" and self.dataset == "folder"
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


SETTINGS: dict[str, Setting] = settings_of(RunConfig, {first: section for section, (_, first) in SECTIONS.items()})
"""Every setting by name, in the order of the fields."""

add_args(RunConfig, [known.doc for known in SETTINGS.values()])


PROTOCOL: dict[str, Any] = {
    "optimizer": "adam",
    "lr_schedule": "constant",
    "freeze_bn": True,
    "augmentation": dataclasses.asdict(Augmentation()),
    "batches": "balanced",
}
"""The settings of the evaluation protocol, which the recipe of an algorithm's own paper may replace."""


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig(RunConfig):
    """What a run computes: the settings with every default filled in, as `resolve` returns them and
    `config.json` holds them.

    These have a value here; the rest is as in `RunConfig`.
    """

    network: str = field()
    weights: str = field()
    freeze_bn: bool = field()
    input_pipeline: Literal["torchvision", "gpu"] = field()
    batches: Literal["balanced", "pooled"] = field()
    optimizer: Literal["adam", "sgd"] = field()
    lr_schedule: str = field()
    steps: int = field()
    evaluate_every: int = field()
    seed: int = field()
    precision: Literal["fp32", "bf16"] = field()

    @classmethod
    def from_json(cls, content: Mapping[str, Any], output: Path | str) -> Self:
        """Read the content of a `config.json` in the directory `output`."""
        options = PROTOCOL | stored_options(content, output)
        try:
            config = cls.from_options(output=output, **options)
            problems = config.problems()
        except (TypeError, ValueError, ArithmeticError) as error:
            problems = [str(error)]
        if problems:
            raise ConfigError([f"{output} has invalid settings ({problems[0]}): restore its config.json"])
        return config

    @property
    def total_steps(self) -> int:
        """Optimizer steps of a complete run."""
        return self.steps + self.eval_offset

    def evaluates(self, step: int) -> bool:
        """Whether an evaluation follows step number `step`."""
        return step == self.total_steps or step % self.evaluate_every == self.eval_offset % self.evaluate_every


def _augmentation_problems(values: Mapping[str, Any]) -> list[str]:
    known = PROTOCOL["augmentation"]
    if unknown := sorted(set(values) - set(known)):
        return [f"the augmentation has {', '.join(known)}, got {', '.join(unknown)}"]
    return Augmentation(**values).problems()


def stored_options(content: Mapping[str, Any], output: Path | str) -> dict[str, Any]:
    """The settings in the content of the `config.json` of a run directory, by field name."""
    if not isinstance(content, Mapping):
        raise ConfigError([f"config.json of {output} must hold a JSON object: restore it, or train again"])
    sections = content.get("config")
    if (
        content.get("format") == FORMAT
        and isinstance(sections, Mapping)
        and all(isinstance(section, Mapping) for section in sections.values())
    ):
        if sections.get("machine", {}).get("strategy") == "fsdp":
            advice = "the processes of a run use DDP: train it again in another directory"
            raise ConfigError([f"{output} was trained with strategy fsdp, but {advice}"])
        options = {
            name: value for section in sections.values() for name, value in section.items() if name not in _REMOVED
        }
        if set(options) <= set(SETTINGS):
            return options
    raise ConfigError([f"{output} was written by another version of swad: train the run again in another directory"])


_REMOVED = ("tensorboard", "strategy")
"""Settings of earlier versions that changed no result, so that runs with them can still be read."""


def unknown_setting(name: str, known: Iterable[str] = SETTINGS, hint: str = "") -> str:
    """Say that there is no setting of this name, with a hint or the known one that was probably meant."""
    hint = hint or did_you_mean(name, known) or f"the settings are {', '.join(known)}"
    return f"there is no setting {name!r}: {hint}"


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
