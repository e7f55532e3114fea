"""DomainBed's result files, and those of the published SWAD code, read as runs.

DomainBed writes one directory per run, with one line of `results.jsonl` per evaluation (`args`, `hparams`, `step` and
accuracies such as `env0_in_acc`) and, at the end, a file `done`. The published SWAD code writes the lines of all
targets into one file and leaves `_acc` out. Both record the live weights, so their runs appear in tables as live
weights at the selected step, next to our own runs.

Domains are numbered there in sorted order, and get our names here. A step there is the number of the last update,
counted from 0; here it is the number of updates, so their step 300 is 301. The split `uda` is kept as it is. ERM++
trains a second time on all images and names its accuracies `fd_env0_in_acc`: they become the weights `full_data`,
with the validation accuracy at the end of the first training, by which `collect_results --auto_lr` selects.

**DomainBed's selections** (`model_selection.py` of version b93c22a) are reproduced exactly, down to ties and rounding:

- A group is one trial, dataset, algorithm and target. Candidates are the values of `hparams_seed` in it. Of equal ones,
  the largest seed wins; of equal steps, the earliest.
- iid: the highest mean of the sources' `out` accuracies over all steps; numpy's mean, which rounds at every addition.
- oracle: the `out` accuracy of the target at the last step. Unfinished runs take part with the last step they have.
- lodo: the mean of the `in` accuracies of each source, from the run that holds out the target and that source, at
  every step that all of these runs and the run of the target alone have.
- The result is the target's `in` accuracy. The mean over trials has the population standard deviation / sqrt(n) as its
  error, which is 0 for a single trial (ours shows none); the average over targets has no error there.

Where a directory holds a second training of the same run, later lines replace earlier ones of the same step; DomainBed
would select among both.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from swad.testbed.results.records import Record, RecordError
from swad.testbed.results.run_data import RunData
from swad.util.jsonl import read_lines
from swad.util.names import one_line

RESULTS = "results.jsonl"
FULL_DATA = "full_data"
"""The weights of ERM++ after its second training, on all images."""

DOMAINS: Mapping[str, tuple[str, ...]] = {
    "ColoredMNIST": ("+90%", "+80%", "-90%"),
    "RotatedMNIST": ("0", "15", "30", "45", "60", "75"),
    "PACS": ("art_painting", "cartoon", "photo", "sketch"),
    "VLCS": ("Caltech101", "LabelMe", "SUN09", "VOC2007"),
    "OfficeHome": ("Art", "Clipart", "Product", "Real"),
    "TerraIncognita": ("location_100", "location_38", "location_43", "location_46"),
    "DomainNet": ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
}
"""Our names of the domains in DomainBed's order. Other datasets have env0, env1, ..."""

_ROLES = {
    "dataset": "identity",
    "algorithm": "identity",
    "target": "identity",
    "trial": "identity",
    "seed": "identity",
    "hparams_seed": "hyperparameter",
    "hyperparameters": "hyperparameter",
    "split": "protocol",
    "steps": "protocol",
}
_MAX_DOMAINS = 1000
_ACCURACY = re.compile(r"(fd_)?env(\d+)_(in|out|uda|inTE)(_acc)?")


def read_runs(directory: Path) -> list[RunData]:
    """Read the runs of a directory with a `results.jsonl`: one of DomainBed, or one per target of the published code.

    Raises:
        RecordError: The file is not one of theirs, or a line of it is damaged. A torn last line is ignored.
    """
    path = directory / RESULTS
    lines: dict[tuple[int, ...], list[dict[str, Any]]] = {}
    for number, content in _objects(path):
        try:
            lines.setdefault(_test_envs(content["args"]), []).append(content)
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"{path}, line {number} is not a DomainBed result ({_reason(error)})") from None
    if not lines:
        raise RecordError(f"{path} is empty: remove the directory, or train the run again")
    try:
        return [_run(directory, test_envs, members, len(lines) > 1) for test_envs, members in lines.items()]
    except (KeyError, TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise RecordError(f"{path} is not a DomainBed result ({_reason(error)})") from None


def seed_of(config: Mapping[str, Any]) -> int | None:
    """Return DomainBed's number of the hyperparameters of an imported run; None for a run of ours.

    >>> seed_of({"lr": 0.1}), seed_of({"hparams_seed": 3})
    (None, 3)
    """
    seed = config.get("hparams_seed")
    return seed if isinstance(seed, int) else None


def mean(values: list[float]) -> float:
    """Return numpy's mean, for the selections of DomainBed.

    >>> import statistics
    >>> mean([0.1, 0.2, 0.3]) == statistics.fmean([0.1, 0.2, 0.3])
    False
    """
    import numpy as np

    return float(np.mean(values))


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        for number, line in read_lines(path):
            try:
                content = json.loads(line)
            except (ValueError, RecursionError):
                raise RecordError(
                    f"{path}, line {number} is not JSON: repair the file, or remove it and train the run again"
                ) from None
            if not isinstance(content, dict):
                raise RecordError(f"{path}, line {number} is not a DomainBed result (it is {reprlib.repr(content)})")
            yield number, content
    except OSError as error:
        raise RecordError(f"cannot read {path} ({error.strerror}): restore it or remove the run") from None


def _test_envs(args: Mapping[str, Any]) -> tuple[int, ...]:
    if not isinstance(args, dict):
        raise TypeError(f"args must be settings by name, got {reprlib.repr(args)}")
    # The published code lists the targets of all runs in test_envs, and that of this run in real_test_envs.
    envs = args["real_test_envs" if "real_test_envs" in args else "test_envs"]
    if not isinstance(envs, list) or not envs or not all(type(env) is int and env >= 0 for env in envs):
        raise ValueError(f"test_envs must be numbers of domains, got {reprlib.repr(envs)}")
    return tuple(envs)


def _run(directory: Path, test_envs: tuple[int, ...], lines: list[dict[str, Any]], several: bool) -> RunData:
    first = lines[0]
    args, hparams = first["args"], first.get("hparams") or {}
    if not isinstance(hparams, dict):
        raise TypeError(f"hparams must be values by name, got {reprlib.repr(hparams)}")
    published = "real_test_envs" in args
    dataset, trial = _name(args, "dataset"), _count(args, "trial_seed")
    names = _domain_names(dataset, lines, test_envs)
    targets = [names[env] for env in test_envs]
    held_out = round(100 * float(args.get("holdout_fraction", 0.2)))
    config: dict[str, Any] = {
        "dataset": dataset,
        "algorithm": f"{_name(args, 'algorithm')} ({'published code' if published else 'DomainBed'})",
        "target": targets[0] if len(targets) == 1 else targets,
        "trial": trial,
        "seed": args.get("seed"),
        "hyperparameters": dict(hparams),
        "split": f"{100 - held_out}/{held_out}",
        "steps": args.get("steps"),
    }
    if not published:
        config["hparams_seed"] = _count(args, "hparams_seed")
    run = f"{'+'.join(targets)}-{trial}"
    return RunData(
        path=directory / f"test_env-{'-'.join(map(str, test_envs))}" if several else directory,
        config=config,
        records=tuple(_records(run, lines, names, targets)),
        finished=published or (directory / "done").exists(),
        roles={name: role for name, role in _ROLES.items() if name in config},
    )


class _Accuracy(NamedTuple):
    """The name of an accuracy in a line, taken apart."""

    key: str
    number: int
    split: str
    full_data: bool


@lru_cache(maxsize=1000)
def _accuracies(keys: tuple[str, ...]) -> tuple[_Accuracy, ...]:
    """Find the accuracies among the keys of a line, by the number of the domain; most lines have the same keys."""
    matches = [match for key in keys if (match := _ACCURACY.fullmatch(key))]
    accuracies = [_Accuracy(m[0], int(m[2]), "test" if m[3] == "inTE" else m[3], bool(m[1])) for m in matches]
    return tuple(sorted(accuracies, key=lambda accuracy: (accuracy.number, accuracy.split)))


def _domain_names(dataset: str, lines: list[dict[str, Any]], test_envs: tuple[int, ...]) -> list[str]:
    numbers = {accuracy.number for line in lines for accuracy in _accuracies(tuple(line))}
    if not numbers:
        raise ValueError("it has no accuracy such as env0_in_acc")
    if max([*numbers, *test_envs]) >= _MAX_DOMAINS:
        raise ValueError(f"it has a domain number {max([*numbers, *test_envs])}")
    known = DOMAINS.get(dataset, ())
    return [known[i] if i < len(known) else f"env{i}" for i in range(max([*numbers, *test_envs, len(known) - 1]) + 1)]


def _records(run: str, lines: list[dict[str, Any]], names: list[str], targets: list[str]) -> Iterator[Record]:
    """Yield the records of a run in the order of DomainBed's numbers of domains, which decides how sums round."""
    validation: dict[str, float] = {}  # at the end of the first training
    full_data: dict[str, tuple[int, float]] = {}
    for line in lines:
        step = _count(line, "step", required=True) + 1
        for key, number, split, full in _accuracies(tuple(line)):
            domain, accuracy = names[number], float(line[key])
            if not 0 <= accuracy <= 1:  # nor nan
                raise ValueError(f"{key} must be a fraction, got {accuracy} at step {step - 1}")
            if full:
                if split == "in":
                    full_data[domain] = (step, accuracy)
                continue
            if split == "out" and domain not in targets:
                validation[domain] = accuracy
            yield Record(run, step, domain, split, "accuracy", accuracy)
        if isinstance(line.get("tr_outloss"), float):  # the published code's mean validation loss of the sources
            yield Record(run, step, None, None, "valley_loss", line["tr_outloss"])
        if isinstance(line.get("loss"), float):
            yield Record(run, step, None, None, "train_loss", line["loss"])
    if full_data:
        last = max(step for step, _ in full_data.values())
        for domain, accuracy in validation.items():
            yield Record(run, last, domain, "out", "accuracy", accuracy, FULL_DATA)
        for domain, (step, accuracy) in full_data.items():
            yield Record(run, step, domain, "in", "accuracy", accuracy, FULL_DATA)


def _name(args: Mapping[str, Any], key: str) -> str:
    value = args[key]
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError(f"{key} must be a name, got {reprlib.repr(value)}")
    return value


def _count(content: Mapping[str, Any], key: str, required: bool = False) -> int:
    value = content[key] if required else content.get(key, 0)
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError(f"{key} must be a whole number, got {reprlib.repr(value)}")
    return value


def _reason(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else one_line(error)
