"""The trainings of the imagenet recipe, which together give ERM, EMA, SWA and SWAD: Table 6 of the paper.

ERM has a training of its own. SWAD and SWA share the first 80 % of one trajectory: the run of SWAD trains it and keeps
a checkpoint there, from which the run of SWA branches off.
"""

from __future__ import annotations

from swad.testbed.training import recipe
from swad.testbed.training.config import RunConfig


def recipe_runs(config: RunConfig) -> list[RunConfig]:
    """Return the runs of the recipe, in the order in which they can be trained.

    Each keeps what it is trained for: ERM its live weights and an EMA, the others their average.

    >>> runs = recipe_runs(RunConfig.from_options(dataset="imagenet", target="none", output="runs/none-0"))
    >>> [(run.output.name, run.averages) for run in runs]  # doctest: +NORMALIZE_WHITESPACE
    [('none-0-decay', ('ema',)),
     ('none-0-constant', ('without_opt_overfit:as=swad',)),
     ('none-0-cyclic', ('swa',))]
    >>> runs[2].branch_from == runs[1].output
    True

    Args:
        config: The common settings. `output` becomes one directory for each run.
    """
    outputs = {name: config.output.with_name(f"{config.output.name}-{name}") for name in recipe.AVERAGES}
    return [
        config.replace(
            output=output,
            lr_schedule=name,
            averages=recipe.AVERAGES[name],
            report_live=name == "decay",
            branch_from=outputs["constant"] if name == "cyclic" else None,
            keep_segments=config.keep_segments and name != "cyclic",  # a branch cannot have all of them
        )
        for name, output in outputs.items()
    ]
