"""The selection as a small file: which hyperparameters, step and weights represent each method, and why.

`swad select FOLDER` writes it. Someone else, or a later sweep, reads the hyperparameters from
it instead of searching again. The file is JSON, so it can be read, compared and kept under version control.

    selection = read_selection("selection.json")
    selection.options("PACS", "erm", "sketch", average="swad")      # settings for RunConfig.from_options

A selection that does not look at the target contains no accuracy on the target, so nobody can choose by it. Only files
of the oracles contain it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swad.testbed.results.records import LIVE
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import is_count
from swad.testbed.results.selection import ORACLES, SELECTIONS, DatasetResults, weights_steps
from swad.util.files import read_json, sha256, write_text
from swad.util.names import is_name, listed, name_problem, snapshot_name
from swad.util.progress import Progress
from swad.util.version import __version__

FORMAT = "swad-selection"
VERSION = 1
"""Version of the file. It changes when an older reader would misread a file."""


class SelectionFileError(ValueError):
    """A file that is not a valid selection; `problems` holds one sentence for each mistake, with the file's path."""

    def __init__(self, path: str | os.PathLike[str], problems: Sequence[str]) -> None:
        self.problems = tuple(f"{path}: {problem}" for problem in problems)
        lines = "".join(f"\n- {problem}" for problem in problems)
        super().__init__(f"{path} is not a valid selection file: export it again, or correct it{lines}")


@dataclass(frozen=True)
class SelectedRun:
    """The run that represents one method on one target in one trial."""

    dataset: str
    algorithm: str
    average: str | None
    """The weights, such as "swad" or "best"; None for the live weights at `step`."""
    target: str
    trial: int
    hyperparameters: Mapping[str, Any]
    """The hyperparameters of the algorithm: `lr`, `batch_size` and so on."""
    settings: Mapping[str, Any]
    """The other settings that a search varies, such as `clip`, by their names in `RunConfig`."""
    protocol: Mapping[str, Any]
    """The settings that must agree for runs to be compared, such as `steps` and `split`."""
    step: int
    """The step of the weights; for an average, the last step of the training."""
    score: float | None
    """The accuracy by which the run was selected; None if it was the only run and has no such accuracy."""
    run: str
    """The run directory, relative to the directory of all runs."""
    weights: str | None
    """The weights file, relative to the same directory; None if the run did not keep these weights."""
    sha256: str | None
    """The checksum of the weights file."""
    target_accuracy: float | None = None
    """The reported accuracy on the target; only in files of the oracles, which look at the target anyway."""

    @property
    def key(self) -> tuple[str, str, str | None, str, int]:
        """What no two entries of a file share."""
        return (self.dataset, self.algorithm, self.average, self.target, self.trial)

    def options(self) -> dict[str, Any]:
        """Return the hyperparameters as settings of `RunConfig`.

        The averages are left out: they come from the same trajectory, so a run takes those that its user asks for.
        """
        others = {name: value for name, value in self.settings.items() if name != "averages"}
        return {"hyperparameters": dict(self.hyperparameters), **others}


@dataclass(frozen=True)
class SelectionFile:
    """The content of a selection file: the model selection, the version of swad that made it, and the selected runs."""

    selection: str
    runs: tuple[SelectedRun, ...]
    swad: str = __version__

    def options(
        self, dataset: str, algorithm: str, target: str, *, trial: int | None = None, average: str | None = None
    ) -> dict[str, Any]:
        """Return the hyperparameters selected for a method and target, as settings of `RunConfig`.

        Raises ValueError with one line if there are none.

        Args:
            dataset: Name of the dataset.
            algorithm: Name of the algorithm.
            target: The held-out domain.
            trial: The trial. Default, and for a trial that the file lacks: the first trial of the file, as the paper
                uses the hyperparameters chosen on trial 0 in the others.
            average: The weights, such as "swad". Needed only if the hyperparameters were selected for each separately.
        """
        wanted = f"{algorithm} on {dataset} with target {target}"
        runs = [run for run in self.runs if (run.dataset, run.algorithm, run.target) == (dataset, algorithm, target)]
        if not runs:
            methods = sorted({f"{run.algorithm} on {run.dataset} with target {run.target}" for run in self.runs})
            raise ValueError(f"the selection has no run of {wanted}: it has {listed(methods, 6)}")
        trials = {run.trial for run in runs}
        number = trial if trial in trials else min(trials)
        runs = [run for run in runs if run.trial == number]
        averages = {run.average or "live weights": run for run in runs}
        if average in averages:
            return averages[average].options()
        if len({json.dumps(run.options(), sort_keys=True) for run in runs}) > 1:
            raise ValueError(
                f"the selection of {wanted} has different hyperparameters for {listed(averages, 6)}: name one"
                + (f", got {average!r}" if average else "")
            )
        return runs[0].options()

    def weights_problems(self, folder: str | os.PathLike[str]) -> list[str]:
        """List the selected weights that a directory lacks, or has with other content, one sentence each.

        Args:
            folder: The directory of all runs, or a copy of it that came with the file.
        """
        problems = []
        for run in self.runs:
            if run.weights is None:
                continue
            path = Path(folder) / run.weights
            if not path.is_file():
                problems.append(f"{path} is missing: copy it from the runs that were exported")
            elif sha256(path) != run.sha256:
                problems.append(f"{path} is not the file that was exported: its SHA-256 differs")
        return problems


# ------------------------------------------------------------ writing


def make_selection(
    results: Iterable[DatasetResults], folder: str | os.PathLike[str], *, progress: Progress | None = None
) -> SelectionFile:
    """Collect the selected runs of all methods and datasets.

    Args:
        results: What `collect_results` returned.
        folder: The directory of all runs; paths in the file are relative to it.
        progress: Follows the checksums of the weights files, which are read completely.
    """
    results = list(results)
    methods = {dataset.selection for dataset in results}
    if len(methods) != 1:
        got = ", ".join(sorted(methods)) or "no results"
        raise ValueError(f"a selection file holds the results of one model selection, got {got}")
    (method,) = methods
    selected = [
        (dataset.runs[row.run], row, step)
        for dataset in results
        for row, step in zip(dataset.results.itertuples(), weights_steps(dataset.runs, dataset.results), strict=True)
    ]
    if not selected:
        raise ValueError(f"a selection file needs selected runs, but {method} selected none: the table's notes say why")
    runs = []
    for number, (run, result, step) in enumerate(selected, start=1):
        runs.append(_selected_run(run, result, step, Path(folder), with_target=method in ORACLES))
        if progress is not None:
            progress("checksums of the selected weights", number, len(selected))
    return SelectionFile(method, tuple(runs))


def _selected_run(run: RunData, result: Any, step: int, folder: Path, *, with_target: bool) -> SelectedRun:
    settings = run.settings("hyperparameter")
    own = settings.pop("hyperparameters", {})
    file = weights_file(run, result.weights, result.step)
    return SelectedRun(
        dataset=run.dataset,
        algorithm=run.algorithm,
        average=None if result.weights == LIVE else result.weights,
        target=result.target,
        trial=result.trial,
        hyperparameters=own,
        settings=settings,
        protocol=run.settings("protocol"),
        step=step,
        score=result.score if math.isfinite(result.score) else None,
        run=_relative(run.path, folder),
        weights=None if file is None else _relative(file, folder),
        sha256=None if file is None else sha256(file),
        target_accuracy=result.value if with_target and math.isfinite(result.value) else None,
    )


def weights_file(run: RunData, weights: str, step: int) -> Path | None:
    """Return the file of these weights in a run directory; None if the run did not keep them."""
    name = snapshot_name(step) if weights == LIVE else weights
    path = run.path / "weights" / f"{name}.safetensors"
    return path if path.is_file() else None


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def write_selection(path: str | os.PathLike[str], selection: SelectionFile) -> None:
    """Write a selection file atomically."""
    runs = [dataclasses.asdict(run) for run in selection.runs]
    if selection.selection not in ORACLES:
        for run in runs:
            del run["target_accuracy"]
    header = {"format": FORMAT, "version": VERSION, "swad": selection.swad, "selection": selection.selection}
    # One line per run: short, and a comparison of two files shows the runs that differ.
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}," for name, value in header.items()]
    entries = ",\n".join(f"    {json.dumps(run, allow_nan=False, default=str)}" for run in runs)
    write_text(path, "\n".join(["{", *lines, '  "runs": [', entries, "  ]", "}"]) + "\n", follow_link=True)


# ------------------------------------------------------------ reading


def read_selection(path: str | os.PathLike[str]) -> SelectionFile:
    """Read a selection file and check all of it; every problem is reported, not only the first."""
    try:
        content = read_json(path)
    except OSError as error:
        raise ValueError(f"cannot read {path} ({error.strerror}): give a file that `swad select` wrote") from None
    except ValueError as error:
        raise SelectionFileError(path, [f"it is not JSON ({' '.join(str(error).split())})"]) from None
    problems = _header_problems(content)
    if problems:
        raise SelectionFileError(path, problems)
    runs = []
    for number, entry in enumerate(content["runs"], start=1):
        entry_problems = _entry_problems(entry, content["selection"])
        problems += [f"run {number}: {problem}" for problem in entry_problems]
        if not entry_problems:
            runs.append(SelectedRun(**{name: entry[name] for name in _RULES if name in entry}))
    for key, count in Counter(run.key for run in runs).items():
        if count > 1:
            problems.append(f"it selects {count} runs for {', '.join(str(part) for part in key)}")
    if problems:
        raise SelectionFileError(path, problems)
    return SelectionFile(content["selection"], tuple(runs), content["swad"])


def _header_problems(content: Any) -> list[str]:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return [f'it must hold a JSON object with "format": "{FORMAT}"']
    version = content.get("version")
    if version != VERSION:
        return [f"its version is {reprlib.repr(version)}, but this swad reads version {VERSION}: upgrade swad"]
    problems = []
    if content.get("selection") not in SELECTIONS:
        got = reprlib.repr(content.get("selection"))
        problems.append(f"selection must be one of {', '.join(SELECTIONS)}, got {got}")
    if not isinstance(content.get("swad"), str):
        problems.append(f"swad must be the version that wrote the file, got {reprlib.repr(content.get('swad'))}")
    if not isinstance(content.get("runs"), list):
        problems.append(f"runs must be a list, got {reprlib.repr(content.get('runs'))}")
    return problems


def _entry_problems(entry: Any, selection: str) -> list[str]:
    if not isinstance(entry, dict):
        return [f"an object is expected, got {reprlib.repr(entry)}"]
    problems = []
    for name, (rule, is_valid) in _RULES.items():
        if name == "target_accuracy" and selection not in ORACLES:
            if name in entry:
                problems.append(f"target_accuracy belongs in files of {' and '.join(ORACLES)} only")
        elif name not in entry:
            problems.append(f"{name} is missing")
        elif not is_valid(entry[name]):
            problems.append(f"{name} must be {rule}, got {reprlib.repr(entry[name])}")
    return problems


def _is_fraction(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1  # type: ignore[operator]


def _is_path(value: object) -> bool:
    # A shared file must not lead outside of the directory that its reader names.
    return name_problem("a path", value) is None


def _is_hyperparameters(value: object) -> bool:
    return isinstance(value, dict) and all(
        # Results of other programs may have texts among their hyperparameters.
        is_name(name) and (type(plain) in (bool, int, str) or (type(plain) is float and math.isfinite(plain)))
        for name, plain in value.items()
    )


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _or_null(is_valid: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or is_valid(value)


_RULES: dict[str, tuple[str, Callable[[object], bool]]] = {
    "dataset": ("a name", is_name),
    "algorithm": ("a name", is_name),
    "average": ("a name or null", _or_null(is_name)),
    "target": ("a name", is_name),
    "trial": ("a whole number", is_count),
    "hyperparameters": ("numbers or texts by name", _is_hyperparameters),
    "settings": ("values by name", lambda value: isinstance(value, dict)),
    "protocol": ("values by name", lambda value: isinstance(value, dict)),
    "step": ("a whole number", is_count),
    "score": ("a fraction between 0 and 1, or null", _or_null(_is_fraction)),
    "run": ("a relative path", _is_path),
    "weights": ("a relative path or null", _or_null(_is_path)),
    "sha256": ("64 hexadecimal digits or null", _or_null(_is_sha256)),
    "target_accuracy": ("a fraction between 0 and 1, or null", _or_null(_is_fraction)),
}
"""The rule for every value of an entry. Unknown values, which a later version may add, are ignored."""
