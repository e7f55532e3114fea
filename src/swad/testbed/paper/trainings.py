"""The trainings of the paper. Items that ask for the same one share its runs.

ERM, EMA, SWA with a constant learning rate, SWAD and most ablations of Table 5 come from one trajectory. Another
algorithm, another split and the cyclic learning rate need their own. What a training keeps is decided here, not by the
items, since runs that keep different files are different runs.

>>> from pathlib import Path
>>> config = PaperConfig(Path("paper"), targets=("paper",))
>>> [spec] = sweep_specs(config, "digits", Training("sam"))
>>> spec.algorithms, spec.averages, spec.protocol, spec.trials
(('sam',), ('swad',), 'defaults', (0, 1, 2))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from swad.testbed.algorithms.registry import get_algorithm
from swad.testbed.data import benchmarks
from swad.testbed.paper.paper_config import PaperConfig
from swad.testbed.sweep.spec import SweepSpec

Search = Literal["defaults", "paper", "domainbed"]

SNAPSHOTS = tuple(range(10, 101, 5))
"""Percent of training at which the live weights of ERM are kept on trial 0, for the surfaces of Figures 2 and 4."""

SWA_WEIGHTS = 50
"""The paper's SWA takes a weight every 2 % of training, wherever evaluations are: 10 in the last 20 %."""

DOMAINBED_STEPS = {"DomainNet": 5000}
"""The paper trains DomainNet for 15,000 steps. The numbers that it quotes from DomainBed are after 5,000."""


@dataclass(frozen=True)
class Training:
    """How the runs of a method are trained.

    Args:
        algorithm: Name of the algorithm.
        split: 80/20, or 60/20/20 for Tables 3 and 5.
        lr_schedule: constant, or cyclic for SWA with a cyclic learning rate.
        search: How the paper found the hyperparameters.
    """

    algorithm: str = "erm"
    split: Literal["80/20", "60/20/20"] = "80/20"
    lr_schedule: Literal["constant", "cyclic"] = "constant"
    search: Search = "defaults"

    def searched(self, config: PaperConfig) -> Training:
        """Return the training with the search that the user chose instead of the paper's."""
        if config.protocol == "printed" or self.search == "defaults":
            return self
        return replace(self, search=config.protocol)

    def averages(self, steps: int, evaluate_every: int) -> tuple[str, ...]:
        """Return the averages of the trajectory.

        >>> Training().averages(5000, 100), Training().averages(15000, 500)
        (('swad', 'swa'), ('swad', 'swa:interval=300'))
        """
        if self.lr_schedule == "cyclic":
            return ("swa",)
        if self.algorithm != "erm":
            return ("swad",)
        interval = max(1, steps // SWA_WEIGHTS)
        # The default interval of both averages is the one between evaluations.
        swa, sparse = (
            name if interval == evaluate_every else f"{name}:interval={interval}" for name in ("swa", "without_dense")
        )
        if self.split == "80/20":
            return ("swad", swa)
        return ("swad", swa, "ema", sparse, "without_opt_overfit", "without_overfit")  # Tables 3 and 5


ERM = Training()
ERM_CYCLIC = Training(lr_schedule="cyclic")
ERM_THREE_WAY = Training(split="60/20/20")


def sweep_specs(config: PaperConfig, dataset: str, training: Training) -> list[SweepSpec]:
    """Return the sweeps of a training on one dataset."""
    training = training.searched(config)
    options = _options(config, dataset, training)
    spec = SweepSpec(
        algorithms=(training.algorithm,),
        averages=training.averages(config.steps_of(dataset), config.evaluate_every_of(dataset)),
        datasets=(dataset,),
        targets=config.targets_of(dataset),
        trials=config.trials,
        protocol=training.search,
        select="iid",
        options=options,
        data=config.data,
    )
    if training != ERM or 0 not in config.trials:
        return [spec]
    # Figures measure the snapshots of trial 0; those of the other trials would only fill the disk.
    later = tuple(trial for trial in config.trials if trial != 0)
    first = replace(spec, trials=(0,), options={**options, "snapshots": _snapshots(config.steps_of(dataset))})
    return [first, replace(spec, trials=later)] if later else [first]


def _options(config: PaperConfig, dataset: str, training: Training) -> dict[str, Any]:
    """Return the settings that differ from their defaults: the name of a run depends on what was requested."""
    options = config.run_options
    if training.search == "domainbed" and dataset in DOMAINBED_STEPS:
        options.setdefault("steps", DOMAINBED_STEPS[dataset])
    if training.split != "80/20":
        options["split"] = training.split
    if training.lr_schedule != "constant":
        options["lr_schedule"] = training.lr_schedule
    if training == ERM_THREE_WAY:
        # SWAD fit-on-val (Table 5) and the sensitivity to N_s, N_e and r choose among the segments after training.
        options["keep_segments"] = True
    if training.algorithm == "arm" and benchmarks.get(dataset).image_spec.low_res:
        # The context network of ARM keeps the resolution of the images: with ARM's own batch size instead of the
        # dataset's, a run takes minutes, not an hour.
        options["hyperparameters"] = {"batch_size": get_algorithm("arm").Hyperparameters().batch_size}
    return options


def _snapshots(steps: int) -> tuple[int, ...]:
    return tuple(sorted({max(1, steps * percent // 100) for percent in SNAPSHOTS}))
