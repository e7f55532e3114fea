"""Names of algorithms, methods and runs as a reader of the paper knows them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cache

from swad.testbed.results import published
from swad.testbed.results.run_data import RunData
from swad.util.grouping import group_by
from swad.util.names import plain

LIVE_WEIGHTS = ("best", "last")
"""Weights of the training itself, in contrast to averages: at the best validation step and at the last step."""


def algorithm_label(algorithm: str) -> str:
    """Spell an algorithm as its paper does, if it is known.

    >>> algorithm_label("group_dro"), algorithm_label("coral+sam"), algorithm_label("my_method")
    ('GroupDRO', 'CORAL + SAM', 'my_method')

    A class of DomainBed's form has its own name, unless that is the name of an algorithm of the paper.

    >>> algorithm_label("algorithms:EQRM"), algorithm_label("algorithms:CORAL")
    ('EQRM', 'algorithms:CORAL')
    """
    return " + ".join(_spellings().get(plain(part)) or _class_name(part) for part in algorithm.split("+"))


def _class_name(algorithm: str) -> str:
    name = algorithm.rpartition(":")[2]
    return algorithm if plain(name) in _spellings() else name


@cache
def _spellings() -> dict[str, str]:
    names = [row.name for number in (2, 3) for row in published.table(number).rows]
    return {plain(name.replace("Π", "pi")): name for name in ("MIRO", "SAGM", *names)}  # two are later than the paper


def is_erm(algorithm: str) -> bool:
    """Return whether an algorithm is plain ERM, trained here or imported.

    >>> is_erm("erm"), is_erm("ERM (DomainBed)"), is_erm("ERMPlusPlus (DomainBed)")
    (True, True, False)
    """
    return base_algorithm(algorithm).lower() == "erm"


def base_algorithm(algorithm: str) -> str:
    """Return the name of an algorithm without the origin that an imported run has in parentheses."""
    return algorithm.partition(" (")[0]


def method_label(algorithm: str, average: str | None) -> str:
    """Name a row of a results table: an algorithm and the weights of it that were evaluated.

    >>> method_label("erm", "best"), method_label("coral", "last")
    ('ERM (best)', 'CORAL (last)')
    >>> method_label("erm", "swad"), method_label("coral", "swad_no_overfit")
    ('SWAD', 'CORAL + SWAD no overfit')
    >>> method_label("erm", "without_opt_overfit")
    'SWAD w/o opt-overfit'
    >>> method_label("erm", None), method_label("ERM (DomainBed)", None)
    ('ERM (selected step)', 'ERM (DomainBed, selected step)')
    """
    name = algorithm_label(algorithm)
    if average is None:
        return f"{name[:-1]}, selected step)" if name.endswith(")") else f"{name} (selected step)"
    if average in LIVE_WEIGHTS:
        return f"{name} ({average})"
    first, *rest = average.split("_")
    if first == "without":  # an ablation of SWAD
        average_name = f"SWAD w/o {'-'.join(rest)}"
    else:
        abbreviations = ("swad", "swa", "sma", "ema", "lawa", "wsm")
        average_name = " ".join([first.upper() if first in abbreviations else first, *rest])
    return average_name if name == "ERM" else f"{name} + {average_name}"


def weights_label(run: RunData, weights: str | None) -> str:
    """Name the weights of a run in a figure: snapshots by their step, and with the learning rate schedule if cyclic.

    With `weights=None`, name the run's algorithm.

    >>> from pathlib import Path
    >>> run = RunData(Path(), {"algorithm": "erm", "lr_schedule": "cyclic"}, (), True)
    >>> [weights_label(run, weights) for weights in ("swa", "best", "step-000300", "window", None)]
    ['SWA (cyclic)', 'ERM (best, cyclic)', 'ERM (step 300, cyclic)', 'ERM (window, cyclic)', 'ERM (cyclic)']
    >>> run = RunData(Path(), {"algorithm": "erm", "lr_schedule": "constant", "recipe": "imagenet"}, (), True)
    >>> [weights_label(run, weights) for weights in ("swad", "last")]
    ['SWAD', 'ERM (last, constant)']
    >>> run = RunData(Path(), {"algorithm": "miro", "lr_schedule": "constant", "recipe": "own"}, (), True)
    >>> weights_label(run, "last")
    'MIRO (last)'
    """
    if weights is None:
        label = algorithm_label(run.algorithm)
    elif weights == "window":  # live weights inside the range that SWAD averaged
        label = f"{algorithm_label(run.algorithm)} (window)"
    elif weights.startswith("step-"):
        label = f"{algorithm_label(run.algorithm)} (step {int(weights.removeprefix('step-'))})"
    else:
        label = method_label(run.algorithm, weights)
    return _with_schedule(label, run, weights)


def shared_label(runs: Iterable[RunData], average: str | None) -> str:
    """Name a method in a table of runs of one algorithm: with the learning rate schedule if all runs have the same.

    >>> from pathlib import Path
    >>> runs = [RunData(Path(), {"algorithm": "erm", "lr_schedule": name}, (), True) for name in ("cyclic", "constant")]
    >>> shared_label(runs[:1], "swa"), shared_label(runs[1:], "swa"), shared_label(runs, "swa")
    ('SWA (cyclic)', 'SWA', 'SWA')
    """
    runs = list(runs)
    label = method_label(runs[0].algorithm, average)
    labels = {_with_schedule(label, run, average) for run in runs}
    return labels.pop() if len(labels) == 1 else label


def _with_schedule(label: str, run: RunData, weights: str | None) -> str:
    schedule = run.config.get("lr_schedule")
    # In the imagenet recipe ERM decays to zero; live weights at the constant rate of SWAD are not those of ERM.
    of_imagenet = run.config.get("recipe") == "imagenet"
    if schedule == "cyclic" or (schedule == "constant" and of_imagenet and weights in LIVE_WEIGHTS):
        label = f"{label[:-1]}, {schedule})" if label.endswith(")") else f"{label} ({schedule})"
    return label


def run_label(run: RunData) -> str:
    """Name a run in a sentence."""
    target = f"target {' and '.join(run.targets)}" if run.targets else "no target"
    return f"{algorithm_label(run.algorithm)} on {run.dataset}, {target}, trial {run.trial}"


def run_titles(runs: Sequence[RunData]) -> list[str]:
    """Name each of several runs by its target, and by algorithm, learning rate and trial where the runs differ in them.

    >>> from pathlib import Path
    >>> runs = [RunData(Path(), {"algorithm": name, "target": "art"}, (), True) for name in ("erm", "sam")]
    >>> run_titles(runs), run_titles(runs[:1])
    (['art, ERM', 'art, SAM'], ['art'])
    """
    labels = [weights_label(run, None) for run in runs]
    if len({(label, run.target, run.trial) for label, run in zip(labels, runs, strict=True)}) < len(runs):
        labels = [f"{algorithm_label(run.algorithm)} ({run.config.get('lr_schedule') or 'constant'})" for run in runs]
    several_labels, several_trials = len(set(labels)) > 1, len({run.trial for run in runs}) > 1
    return [
        run.target + f", {label}" * several_labels + f", trial {run.trial}" * several_trials
        for run, label in zip(runs, labels, strict=True)
    ]


def directory_names(runs: Sequence[RunData]) -> list[str]:
    """Name each run after its directory, relative to the common parent of all.

    >>> from pathlib import Path
    >>> directory_names([RunData(Path(name), {}, (), True) for name in ("runs/erm/art-0", "runs/sam/art-0")])
    ['erm/art-0', 'sam/art-0']
    """
    if not runs:
        return []
    paths = [os.path.abspath(run.path) for run in runs]
    root = os.path.commonpath(paths)
    return [os.path.basename(path) if path == root else path[len(root) :].lstrip(os.sep) for path in paths]


def differing_hyperparameters(runs: Sequence[RunData]) -> list[str]:
    """Return the hyperparameters and settings of the protocol in which runs of one algorithm differ, sorted by name.

    >>> from pathlib import Path
    >>> runs = [RunData(Path(), {"lr": lr, "clip": None}, (), True) for lr in (1e-5, 5e-5)]
    >>> differing_hyperparameters(runs)
    ['lr']
    """
    differing: set[str] = set()
    for members in group_by(runs, lambda run: run.algorithm).values():
        # Runs of a search share their settings: trials and targets differ.
        settings = [run.compared_settings for run in {run.search_settings: run for run in members}.values()]
        names = {name for each in settings for name in each}
        differing |= {name for name in names if len({each.get(name) for each in settings}) > 1}
    return sorted(differing)
