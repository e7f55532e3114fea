"""The settings of one run: how they are built, checked, stored and compared.

Every field states its type, its default, its help text and its role in `swad.testbed.training.config_sections`.
Everything else is derived from that: the options of `swad train`, their reference page, the `Args:` that `help()`
shows, the checks below, `config.json`, and which settings must agree when a run is resumed or compared. This module
imports nothing heavy, so that `swad train --help` answers at once; the checks that need datasets, algorithms or the
machine are in `swad.testbed.training.checks`, and the defaults that depend on them in `swad.testbed.training.resolve`.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swad.testbed.data.augmentation import Augmentation
from swad.testbed.training import lr_schedule, recipe
from swad.testbed.training.config_sections import (
    SECTIONS,
    DataConfig,
    EvaluationConfig,
    FilesConfig,
    MachineConfig,
    ModelConfig,
    TrainingConfig,
)
from swad.testbed.training.config_sections import SETTINGS as SETTINGS
from swad.testbed.training.config_sections import TITLES as TITLES
from swad.testbed.training.setting import add_args
from swad.util.names import did_you_mean, is_utf8, name_problem

FORMAT = 2
"""Version of `config.json`."""


class ConfigError(ValueError):
    """Invalid settings; `problems` holds one sentence for each."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(problems[0] if len(problems) == 1 else "\n".join(f"- {problem}" for problem in problems))


@dataclass(frozen=True)
class RunConfig:
    """The settings of one run, by concern. None means the default of the dataset, the network or the machine.

    >>> config = RunConfig.from_options(dataset="digits", target="paper", output="runs/paper-0", steps=10)
    >>> config.training.steps, config.data.trial, config.name
    (10, 0, 'paper-0')
    >>> RunConfig.from_options(dataset="digits", target="paper", output="runs/paper-0", step=10)
    Traceback (most recent call last):
    swad.testbed.training.config.ConfigError: there is no setting 'step': did you mean 'steps'?

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

    @property
    def reads_cache(self) -> bool:
        """Whether images come from a cache of decoded images; the imagenet recipe decodes them on the GPU instead."""
        return self.data.input_pipeline == "gpu" and self.training.recipe != recipe.IMAGENET

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
        schedule = self.training.lr_schedule
        if schedule is not None and (problem := lr_schedule.problem(schedule, self.training.epochs)):
            problems.append(problem)
        problems += _augmentation_problems(self.data.augmentation) + self._name_problems()
        try:
            json.dumps(self.data.dataset_options)
        except (TypeError, ValueError) as error:
            problems.append(
                f"dataset_options are stored as JSON, which takes numbers, texts, lists and dictionaries, got "
                f"{self.data.dataset_options!r}: {error}"
            )
        std = self.data.image_std or ()
        if not SETTINGS["image_std"].problem(std) and not all(value > 0 for value in std):
            problems.append(f"image_std must be numbers above 0, got {std!r}")
        if not self.evaluation.report_live and not self.evaluation.averages:
            problems.append("a run without report_live needs at least one average, got none")
        return problems

    def _name_problems(self) -> list[str]:
        """List the names and paths that `config.json` cannot hold, or that a report would refuse."""
        problems = [name_problem("the target", name) for name in self.data.targets if isinstance(name, str)]
        if self.data.dataset == "folder" and self.data.data_dir is not None:  # its results have the directory's name
            folder = Path(os.path.abspath(self.data.data_dir)).name
            problems.append(name_problem("the folder of a dataset", folder))
        texts = {name: str(value) for name, value in self.options().items() if isinstance(value, str | Path)}
        texts.pop("target", None)
        return list(filter(None, problems)) + [
            f"{name} must be in UTF-8, got {text!r}: rename it" for name, text in texts.items() if not is_utf8(text)
        ]

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


def _names(section: str) -> list[str]:
    return [field.name for field in dataclasses.fields(SECTIONS[section])]


def _document() -> None:
    """Add the sections to the docstring of `RunConfig`, and every field to that of `from_options`."""
    summaries = []
    for section, section_class in SECTIONS.items():
        required = any(known.required for known in SETTINGS.values() if known.section == section)
        default = ", required" if required else f" = {section_class.__name__}()"
        summary = (section_class.__doc__ or "").partition("\n")[0]
        summaries.append(f"{section} ({section_class.__name__}{default}): {summary}")
    add_args(RunConfig, summaries)
    add_args(RunConfig.from_options.__func__, [known.doc for known in SETTINGS.values()])  # type: ignore[attr-defined]


_document()
