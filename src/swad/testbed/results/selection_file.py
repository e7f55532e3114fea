"""The selection as a small file: which hyperparameters, step and weights represent each method, and why.

`swad select FOLDER` writes it. Someone else, or a later sweep, reads the hyperparameters from
it instead of searching again. The file is JSON, so it can be read, compared and kept under version control.

    selection = read_selection("selection.json")
    selection.options("PACS", "erm", "sketch", average="swad")      # settings for RunConfig.from_options

A selection that does not look at the target contains no accuracy on the target, so nobody can choose by it. Only files
of the oracles contain it.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from swad.testbed.results.records import LIVE, MAX_COUNT
from swad.testbed.results.run_data import RunData
from swad.testbed.results.selection import ORACLES, SELECTIONS, DatasetResults
from swad.util.files import read_bytes, sha256, write_text
from swad.util.names import listed, snapshot_name
from swad.util.progress import Progress
from swad.util.version import __version__

FORMAT = "swad-selection"
VERSION = 1
"""Version of the file. It changes when an older reader would misread a file."""

_PRINTABLE = r"[^\x00-\x1f\x7f-\x9f]+\Z"
Name = Annotated[str, Meta(pattern=r"\A" + _PRINTABLE, description="a name without control characters")]
RelativePath = Annotated[str, Meta(pattern=r"\A(?!/)(?!(.*/)?\.\.(/|\Z))" + _PRINTABLE)]
"""A shared file must not lead outside of the directory that its reader names."""
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT - 1)]
Fraction = Annotated[float, Meta(ge=0, le=1)]


class SelectedRun(Struct, frozen=True, omit_defaults=True):
    """The run that represents one method on one target in one trial."""

    dataset: Name
    algorithm: Name
    average: Name | None
    """The weights, such as "swad" or "best"; None for the live weights at `step`."""
    target: Name
    trial: Count
    hyperparameters: dict[Name, bool | int | float | str]
    """The hyperparameters of the algorithm: `lr`, `batch_size` and so on. Other programs may have texts among them."""
    settings: dict[str, Any]
    """The other settings that a search varies, such as `clip`, by their names in `RunConfig`."""
    protocol: dict[str, Any]
    """The settings that must agree for runs to be compared, such as `steps` and `split`."""
    step: Count
    """The step of the weights; for an average, the last step of the training."""
    score: Fraction | None
    """The accuracy, or other metric, by which the run was selected; None if it was the only run and has none."""
    run: RelativePath
    """The run directory, relative to the directory of all runs."""
    weights: RelativePath | None
    """The weights file, relative to the same directory; None if the run did not keep these weights."""
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")] | None
    """The checksum of the weights file."""
    target_accuracy: Fraction | None = None
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


class SelectionFile(Struct, frozen=True):
    """The content of a selection file: the model selection, the version of swad that made it, and the selected runs."""

    selection: Literal[SELECTIONS]  # type: ignore[valid-type]
    runs: tuple[SelectedRun, ...]
    swad: str = __version__
    select_by: str = "accuracy"
    """The metric of the scores."""

    def __post_init__(self) -> None:
        for key, count in Counter(run.key for run in self.runs).items():
            if count > 1:
                raise ValueError(f"it selects {count} runs for {', '.join(map(str, key))}")
        if self.selection not in ORACLES and any(run.target_accuracy is not None for run in self.runs):
            raise ValueError(f"target_accuracy belongs in files of {' and '.join(ORACLES)} only")

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
    selected = [(dataset.runs[row.run], row) for dataset in results for row in dataset.results.itertuples()]
    if not selected:
        raise ValueError(f"a selection file needs selected runs, but {method} selected none: the table's notes say why")
    runs = []
    for number, (run, result) in enumerate(selected, start=1):
        runs.append(_selected_run(run, result, Path(folder), with_target=method in ORACLES))
        if progress is not None:
            progress("checksums of the selected weights", number, len(selected))
    return SelectionFile(method, tuple(runs), select_by=results[0].select_by)


def _selected_run(run: RunData, result: Any, folder: Path, *, with_target: bool) -> SelectedRun:
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
        step=result.weights_step,
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
    header = {"format": FORMAT, "version": VERSION, "swad": selection.swad, "selection": selection.selection}
    header["select_by"] = selection.select_by
    # One line per run: short, and a comparison of two files shows the runs that differ.
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}," for name, value in header.items()]
    runs = [msgspec.to_builtins(run, enc_hook=str) for run in selection.runs]
    entries = ",\n".join(f"    {json.dumps(run, allow_nan=False)}" for run in runs)
    write_text(path, "\n".join(["{", *lines, '  "runs": [', entries, "  ]", "}"]) + "\n", follow_link=True)


class _Header(Struct):
    format: Literal[FORMAT]  # type: ignore[valid-type]
    version: int


def read_selection(path: str | os.PathLike[str]) -> SelectionFile:
    """Read a selection file and check all of it. An error says where the file is damaged, as `$.runs[3].trial`."""
    try:
        content = read_bytes(Path(path))
        header = msgspec.json.decode(content, type=_Header)
        if header.version != VERSION:
            raise ValueError(f"its version is {header.version}, but this swad reads version {VERSION}: upgrade swad")
        return msgspec.json.decode(content, type=SelectionFile)
    except OSError as error:
        raise ValueError(f"cannot read {path} ({error.strerror}): give a file that `swad select` wrote") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a valid selection file ({error}): export it again, or correct it") from None
