"""The settings of a run with every default filled in, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from swad.testbed.training import lr_schedule, recipe
from swad.testbed.training.config import PROTOCOL, ConfigError, RunConfig, stored_options


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig(RunConfig):
    """What a run computes: the settings as `swad.testbed.training.resolve` returns them and `config.json` holds them.

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

    @property
    def cycle_steps(self) -> int | None:
        """Steps in one cycle of the learning rate; None if it is not cyclic."""
        if self.lr_schedule != "cyclic":
            return None
        if self.recipe == recipe.IMAGENET:
            return max(1, self._epochs_in_steps(recipe.CYCLE_EPOCHS))
        return lr_schedule.cycle_steps(self.steps)

    @property
    def warmup_steps(self) -> int:
        """Steps in which the learning rate rises."""
        epochs = self.warmup_epochs
        return self._epochs_in_steps(recipe.WARMUP_EPOCHS) if epochs is None else self._in_steps(epochs)

    def _epochs_in_steps(self, of_90: float) -> int:
        assert self.epochs is not None
        return self._in_steps(recipe.scaled_epochs(self.epochs, of_90))

    def _in_steps(self, epochs: float) -> int:
        assert self.epochs is not None
        return round(epochs * self.steps / self.epochs)

    @property
    def reads_cache(self) -> bool:
        """Whether images come from a cache of decoded images; the imagenet recipe decodes them on the GPU instead."""
        return self.input_pipeline == "gpu" and self.recipe != recipe.IMAGENET

    def evaluates(self, step: int) -> bool:
        """Whether an evaluation follows step number `step`."""
        return step == self.total_steps or step % self.evaluate_every == self.eval_offset % self.evaluate_every
