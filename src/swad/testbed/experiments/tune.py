"""Other settings of SWAD on finished runs, without training: N_s, N_e, r and the definition.

The validation losses that a run recorded decide which updates each setting averages. Settings that average the same
updates share one evaluation. The averages themselves are computed from the segments that the run kept
(`keep_segments`), with the additions of the training, and are bit-equal to what the training would have saved. A run
without segments still shows the range of every setting.

    rows = tune.sensitivity(["runs/PACS"], tune.grid(n_converge=(1, 3, 5), tolerance_ratio=(0.1, 0.3)))

Accuracies are appended to `tune.jsonl` in the run directory as soon as they are measured, so an interrupted search
resumes. Accuracies on the target are measured for the chosen setting only, unless the target is asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swad.averaging.valley import LossValley
from swad.testbed.experiments.report import Report
from swad.testbed.experiments.tune_runs import TUNE, evaluate_rows, find_tunable, save_average
from swad.testbed.measure.saved_run import find_device
from swad.testbed.results.figures.style import require_matplotlib, save_figures
from swad.testbed.results.figures.tuning import tuning_figure
from swad.testbed.results.tables import Table
from swad.testbed.results.tuning import (
    TuneRow,
    TuneSelect,
    ValleySetting,
    by_group,
    choose,
    chosen_table,
    require_dataset,
    rows_csv,
    settings_table,
)
from swad.util.files import write_text
from swad.util.names import file_stem, require_choice
from swad.util.progress import Progress


def grid(
    n_converge: Sequence[int] = (3,),
    n_tolerance: Sequence[float] = (6,),
    tolerance_ratio: Sequence[float] = (0.3,),
    semantics: Sequence[str] = ("paper",),
) -> tuple[ValleySetting, ...]:
    """Return all combinations of the values; raise an error that lists every invalid one.

    >>> [str(setting) for setting in grid(n_converge=(2, 3), tolerance_ratio=(0.2,))]
    ['N_s 2, N_e 6, r 1.2', 'N_s 3, N_e 6, r 1.2']
    """
    settings = tuple(
        ValleySetting(start, end, ratio, name)
        for name in dict.fromkeys(semantics)
        for ratio in dict.fromkeys(tolerance_ratio)
        for start in dict.fromkeys(n_converge)
        for end in dict.fromkeys(n_tolerance)
    )
    if not settings:
        raise ValueError("a search needs at least one value of each setting, got none")
    # Each value by itself first, because a valley reports one problem at a time.
    alone = [ValleySetting(n_converge=value) for value in n_converge]
    alone += [ValleySetting(n_tolerance=value) for value in n_tolerance]
    alone += [ValleySetting(tolerance_ratio=value) for value in tolerance_ratio]
    alone += [ValleySetting(semantics=value) for value in semantics]
    problems = _problems(alone) or _problems(settings)
    if problems:
        raise ValueError(problems[0] if len(problems) == 1 else "\n- ".join(["several values are invalid:", *problems]))
    return settings


def _problems(settings: Sequence[ValleySetting]) -> list[str]:
    problems: dict[str, None] = {}
    for setting in settings:
        try:
            LossValley(**dataclasses.asdict(setting))
        except ValueError as error:
            problems[str(error)] = None
    return list(problems)


@dataclass(frozen=True)
class Tuning:
    """The result of a search: every setting on every run, the chosen settings, and notes."""

    rows: tuple[TuneRow, ...]
    chosen: Mapping[tuple[str, str], ValleySetting]
    """The chosen setting by dataset and algorithm."""
    trained: tuple[TuneRow, ...]
    """The averages that the runs were trained with, and their recorded accuracies."""
    notes: tuple[str, ...]
    row_files: tuple[Path, ...]
    weights: tuple[Path, ...] = ()

    @property
    def trained_settings(self) -> set[ValleySetting]:
        """The settings that runs were trained with."""
        return {row.setting for row in self.trained}


def tune(
    paths: Sequence[Path | str],
    settings: Sequence[ValleySetting],
    *,
    select: TuneSelect = "iid",
    counts_from: str | None = None,
    data: Path | str | None = None,
    device: str = "cpu",
    workers: int | None = None,
    save: Path | None = None,
    progress: Progress | None = None,
) -> Tuning:
    """Evaluate settings on finished runs, choose one for each dataset and algorithm, and evaluate it on the target.

    Args:
        paths: Run directories, or directories of runs such as a sweep.
        settings: The settings, from `grid`.
        select: "iid": choose by the sources' validation accuracy. "oracle": by the target's, which is then evaluated
            for every setting.
        counts_from: Choose N_s and N_e on this dataset, and r on each, as the paper did with PACS.
        data: Where the dataset is now, if it moved since training.
        device: Device to evaluate on.
        workers: Processes that read images.
        save: Directory for the averages with the chosen settings, as weights files.
        progress: Called after every evaluation.
    """
    require_choice("select", select, ("iid", "oracle"))
    require_matplotlib()  # before evaluating for minutes
    torch_device = find_device(device)
    runs, notes = find_tunable(paths, data)
    evaluated = {run.path: run for run in runs if run.saved is not None}
    if counts_from is not None and evaluated:  # before hours of evaluation
        require_dataset(counts_from, (run.run.table_name for run in evaluated.values()))
    rows = [run.row(setting) for run in runs for setting in settings]
    rows = evaluate_rows(runs, rows, ["validation"], torch_device, workers, progress)
    if select == "oracle":
        rows = evaluate_rows(runs, rows, ["target"], torch_device, workers, progress)
    trained = tuple(row for run in runs for row in run.trained())
    if not evaluated:
        return Tuning(tuple(rows), {}, trained, tuple(notes), ())
    preferred = list(dict.fromkeys(row.setting for row in trained))
    chosen = choose(rows, select, preferred=preferred, counts_from=counts_from)
    selected = [row for row in rows if chosen.get(row.group) == row.setting and row.run in evaluated]
    final = evaluate_rows(runs, selected, ["target"], torch_device, workers, progress)
    weights = [] if save is None else [save_average(evaluated[row.run], row, save, torch_device) for row in final]
    finals = {(row.run, row.setting): row for row in final}
    rows = [finals.get((row.run, row.setting), row) for row in rows]
    row_files = tuple(Path(path) / TUNE for path in evaluated)
    return Tuning(tuple(rows), chosen, trained, tuple(notes), row_files, tuple(weights))


def sensitivity(
    run_dirs: Sequence[Path | str],
    settings: Sequence[ValleySetting],
    *,
    target: bool = True,
    data: Path | str | None = None,
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[TuneRow]:
    """Return every setting on every run, with accuracies where the run kept its segments. Nothing is chosen.

    Args:
        run_dirs: Run directories, or directories of runs.
        settings: The settings, from `grid`.
        target: Evaluate every setting on the target too. This shows how sensitive the reported accuracy is; a setting
            must not be chosen by it.
        data: Where the dataset is now, if it moved since training.
        device: Device to evaluate on.
        workers: Processes that read images.
        progress: Called after every evaluation.
    """
    runs, _ = find_tunable(run_dirs, data)
    rows = [run.row(setting) for run in runs for setting in settings]
    sides = ["validation", "target"] if target else ["validation"]
    return evaluate_rows(runs, rows, sides, find_device(device), workers, progress)


def report_tuning(
    tuning: Tuning, folder: Path, select: TuneSelect = "iid", formats: Sequence[str] = ("svg",)
) -> Report:
    """Write the rows and the heat maps of a search, and return its tables.

    Args:
        tuning: The result of the search.
        folder: Directory for the files.
        select: The selection that chose the settings.
        formats: Formats of the figures: svg, pdf, png.
    """
    tables: list[Table | str] = []
    written = [folder / "tuning.csv"]
    write_text(written[0], rows_csv(tuning.rows))
    for group, rows in by_group(tuning.rows).items():
        chosen = tuning.chosen.get(group)
        tables.append(settings_table(rows, chosen, tuning.trained_settings))
        if chosen is not None:
            figure = tuning_figure(rows, chosen, select)
            written += save_figures(figure, folder / file_stem(group), formats)
    if tuning.chosen:
        tables.append(chosen_table(tuning.rows, tuning.chosen, tuning.trained))
        if select == "oracle":
            tables.append("The oracle looks at the held-out domain, so its accuracies do not estimate an unseen one.")
    return Report(tuple(tables), (*written, *tuning.weights), tuning.row_files, tuning.notes)
