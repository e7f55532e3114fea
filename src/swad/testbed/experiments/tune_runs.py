"""Finished runs for `swad.testbed.experiments.tune`: which updates a setting averages, and its accuracy."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from swad.averaging.spans import Phase, Status
from swad.averaging.swad import SWAD, FalseStartWarning, NeverConvergedWarning
from swad.averaging.valley import LossValley
from swad.testbed.averages import registry
from swad.testbed.averages.segment_log import load_segments, read_segment, replay
from swad.testbed.data.splits import DomainSplit
from swad.testbed.measure.finished_runs import finished_runs, skip_notes
from swad.testbed.measure.kept_segments import build_estimate, build_loaders, build_network, kept_segments
from swad.testbed.measure.saved_run import SavedRun, open_run
from swad.testbed.results.measurement_rows import Row, RowFile
from swad.testbed.results.records import RECORDS
from swad.testbed.results.run_data import RunData
from swad.testbed.results.tuning import TuneRow, ValleySetting
from swad.testbed.training.defaults import averaging_plan
from swad.testbed.training.distributed import Dist
from swad.testbed.training.evaluation import evaluate_splits
from swad.testbed.training.export import cpu_weights, model_card, save_weights
from swad.testbed.training.numerics import autocast
from swad.testbed.training.result import averaged_range
from swad.testbed.training.run_dir import SEGMENTS, RunError
from swad.util.files import sha256
from swad.util.progress import Progress
from swad.util.statistics import mean

TUNE = "tune.jsonl"
"""The accuracies of a run's averages, in its directory."""
AT_ONCE = 8
"""Averages that are computed in one pass over the segments; each takes two to three copies of the model."""

_DEFINITIONS = {"swad": "paper", "swad_text": "text", "swad_reference": "reference"}


@dataclass(frozen=True)
class TunableRun:
    """A finished run that holds out one domain."""

    run: RunData
    losses: Mapping[int, float]
    """The validation loss at every evaluation, by step."""
    saved: SavedRun | None
    """The run with its weights; None if it kept no segments."""

    @property
    def path(self) -> str:
        """The run directory, as in `TuneRow.run`."""
        return str(self.run.path)

    def status(self, setting: ValleySetting) -> Status:
        """Return what a setting averages, from the losses alone."""
        # A run with losses that are not finite has finished only because its averages skipped them.
        valley = LossValley(**dataclasses.asdict(setting), nonfinite="skip")
        for step, loss in self.losses.items():
            valley.observe(loss, step)
        return valley.status

    def row(self, setting: ValleySetting) -> TuneRow:
        """Return what a setting averages, without accuracies."""
        status = self.status(setting)
        assert status.start_step is not None
        assert status.end_step is not None
        return TuneRow(
            run=self.path,
            dataset=self.run.table_name,
            algorithm=self.run.algorithm,
            target=self.run.target,
            trial=self.run.trial,
            setting=setting,
            spans=_spans_text(status, setting),
            first_step=status.start_step,
            last_step=status.end_step,
            n_averaged=status.n_averaged,
            first_loss=next(loss for step, loss in self.losses.items() if step >= status.start_step),
            threshold=None if status.phase is Phase.SEARCHING else status.threshold,
        )

    def trained(self) -> list[TuneRow]:
        """Return the averages with which the run was trained, with their recorded accuracies."""
        rows = []
        for label, setting in self._own_settings().items():
            records = self.run.frame
            final = list(records[(records.weights == label) & (records.metric == "accuracy")].itertuples())
            sources = [r.value for r in final if r.split == "out" and r.domain not in self.run.targets]
            target = {r.split: r.value for r in final if r.domain in self.run.targets}
            if sources:
                row = dataclasses.replace(self.row(setting), validation=mean(sources))
                rows.append(dataclasses.replace(row, target_in=target.get("in"), target_out=target.get("out")))
        return rows

    def _own_settings(self) -> dict[str, ValleySetting]:
        """Return the settings of the run's averages by label; not of those that differ in more than a setting."""
        if self.saved is None:
            return {}
        names = {field.name for field in dataclasses.fields(ValleySetting)}
        ratio = averaging_plan(self.saved.config).tolerance_ratio
        settings = {}
        for text in self.saved.config.averages:
            if text.partition(":")[0] not in _DEFINITIONS:  # among others, the user's own, whose file may be gone
                continue
            spec = registry.parse(text)
            if set(spec.options) <= {*names, "nonfinite", "offload"}:
                own = {name: value for name, value in spec.options.items() if name in names}
                default = ValleySetting(tolerance_ratio=ratio, semantics=_DEFINITIONS[spec.name])
                settings[spec.label] = dataclasses.replace(default, **own)
        return settings


def _validation_losses(run: RunData) -> dict[int, float]:
    rows = run.frame[run.frame.metric == "valley_loss"]
    return dict(zip(rows.step.tolist(), rows.value.tolist(), strict=True))


def find_tunable(paths: Sequence[Path | str], data: Path | str | None) -> tuple[list[TunableRun], list[str]]:
    """Return the finished runs that hold out at most one domain, and notes on what is missing.

    Args:
        paths: Run directories, or directories of runs.
        data: Where the dataset is now, if it moved since training.
    """
    found, notes = finished_runs(paths)
    runs: dict[Path, TunableRun] = {}
    without_loss = []
    for run in found:
        losses = _validation_losses(run)
        if not losses:
            without_loss.append(run.path)
            continue
        saved = open_run(run.path, data) if kept_segments(run.path) else None
        runs[run.path] = TunableRun(run, dict(sorted(losses.items())), saved)
    notes += skip_notes({"recorded no validation loss": without_loss})
    if not runs:
        reason = f" ({'; '.join(notes)})" if notes else ""
        raise RunError(f"there is no finished run to tune{reason}: train one to its end, with --keep-segments")
    kept = sum(run.saved is not None for run in runs.values())
    if kept < len(runs):
        which = "the runs kept no segments" if not kept else f"{len(runs) - kept} of {len(runs)} runs kept no segments"
        notes.append(f"{which}, so only their averaged steps are shown: train with --keep-segments to evaluate them")
    notes += [
        f"{run.path} stopped early, so no setting averages beyond step {max(run.losses):,}"
        for run in runs.values()
        if max(run.losses) < (run.run.config.get("steps") or 0)  # runs that keep segments never stop early
    ]
    return list(runs.values()), notes


def _spans_text(status: Status, setting: ValleySetting) -> str:
    """Name an average; equal names are equal averages."""
    unit = "segments " if setting.semantics == "reference" else ""  # they weigh the same whatever their length
    return unit + ", ".join(map(str, status.spans))


# ------------------------------------------------------------ evaluation


def evaluate_rows(
    runs: Sequence[TunableRun],
    rows: Sequence[TuneRow],
    sides: Sequence[str],
    device: torch.device,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[TuneRow]:
    """Return the rows with their accuracies. Stored accuracies are reused, and settings with equal averages share one.

    Args:
        runs: The runs of the rows. The rows of runs without segments stay as they are.
        sides: "validation", "target" or both.
        device: Device to evaluate on.
        workers: Processes that read images.
        progress: Called after every evaluation.
    """
    saved = {run.path: run.saved for run in runs if run.saved is not None}
    averages: dict[str, dict[str, ValleySetting]] = {path: {} for path in saved}
    for row in rows:
        if row.run in saved:
            averages[row.run].setdefault(row.spans, row.setting)
    # A run without a target has validation images alone.
    parts = [(path, side) for path in saved for side in sides if side != "target" or saved[path].config.targets]
    total = sum(len(averages[path]) for path, _ in parts)
    done = 0
    scores: dict[tuple[str, str, str], dict[str, float]] = {}
    for path, side in parts:
        for spans, accuracies in _measure(saved[path], averages[path], side, device, workers):
            scores[path, spans, side] = accuracies
            done += 1
            if progress is not None:
                progress(f"evaluating averages on {side}", done, total)
    for side in sides:
        rows = [_with_scores(row, side, scores.get((row.run, row.spans, side))) for row in rows]
    return list(rows)


def _with_scores(row: TuneRow, side: str, accuracies: Mapping[str, float] | None) -> TuneRow:
    if accuracies is None:
        return row
    if side == "validation":
        return dataclasses.replace(row, validation=accuracies["out"])
    return dataclasses.replace(row, target_in=accuracies["in"], target_out=accuracies["out"])


def _measure(
    run: SavedRun, settings: Mapping[str, ValleySetting], side: str, device: torch.device, workers: int | None
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield every average of one run with its mean accuracy over domains by split; measure those that are not stored.

    Args:
        settings: One setting for every average, by the text of its updates.
        side: "validation" or "target".
        device: Device to evaluate on.
        workers: Processes that read images.
    """
    if not settings:
        return
    with RowFile(run.path, TUNE) as file:
        # Rows of earlier versions have the statistics of the last update where batch norms were trained.
        estimated = {} if run.config.freeze_bn else {"statistics": "estimated"}
        key = file.add_settings({"device": device.type, "records": sha256(run.path / RECORDS), **estimated})
        stored = {row["average"]: row for row in file.rows_of(key, kind=side)}
        missing = [spans for spans in settings if spans not in stored]
        for spans in settings:
            if spans in stored:
                yield spans, _means(stored[spans])
        if not missing:
            return
        model, dist = build_network(run, device), Dist(device)
        loaders = build_loaders(run, _splits(run, side), device, workers)
        estimate = build_estimate(run, device, workers)
        for begin in range(0, len(missing), AT_ONCE):
            batch = {spans: settings[spans] for spans in missing[begin : begin + AT_ONCE]}
            for spans, average in _replay(run, model, batch).items():
                with _never_converged_ignored(), average.average_parameters(model):
                    if estimate is not None:
                        estimate(model)
                    accuracy = {
                        split: {
                            domain: score.accuracy
                            for domain, score in evaluate_splits(
                                model, by_domain, dist, lambda: autocast(run.config, device)
                            ).items()
                        }
                        for split, by_domain in loaders.items()
                    }
                row = {"key": key, "kind": side, "average": spans, "accuracy": accuracy}
                file.append(row)
                yield spans, _means(row)


def _means(row: Row) -> dict[str, float]:
    return {split: mean(by_domain.values()) for split, by_domain in row["accuracy"].items()}


def _splits(run: SavedRun, side: str) -> dict[str, tuple[DomainSplit, ...]]:
    """Return the splits of one side, by name."""
    sources, target = run.held_out
    return {"out": sources.val} if side == "validation" else {"in": target.train, "out": target.val}


def _replay(run: SavedRun, model: nn.Module, windows: Mapping[str, ValleySetting]) -> dict[str, SWAD]:
    """Compute averages from the segments of a run."""
    files = load_segments(run.path / SEGMENTS)
    names = tuple(read_segment(files[0]).sum)  # as in the training, whichever parameters it froze
    averages = {
        spans: SWAD(model, **dataclasses.asdict(setting), nonfinite="skip", include=names)
        for spans, setting in windows.items()
    }
    replay(files, model, averages)
    return averages


def save_average(run: TunableRun, row: TuneRow, folder: Path, device: torch.device) -> Path:
    """Write the average of one setting as a weights file with its card.

    Args:
        row: The setting, with its accuracies.
        folder: Directory for the file, which is named after the run.
        device: Device to compute on.
    """
    saved = run.saved
    assert saved is not None
    model, estimate = build_network(saved, device), build_estimate(saved, device, workers=None)
    (average,) = _replay(saved, model, {row.spans: row.setting}).values()
    with _never_converged_ignored(), average.average_parameters(model):
        if estimate is not None:
            estimate(model)
        state = cpu_weights(model)
    description = f"An average of the weights along the trajectory: SWAD with {row.setting}"
    status = averaged_range(run.status(row.setting))
    card = model_card(saved.config, saved.held_out.sources, max(run.losses), description, status)
    tuned = {**dataclasses.asdict(row.setting), "validation": row.validation, "target_in": row.target_in}
    name = saved.name if saved.path.name == saved.name else f"{saved.name}-{saved.path.name}"  # in a sweep, a hash
    path = folder / run.run.dataset / row.algorithm / f"{name}.safetensors"
    save_weights(path, state, {**card, "tuned": tuned})
    return path


@contextmanager
def _never_converged_ignored() -> Iterator[None]:
    """Do not warn of a loss that never converged, or of a false start: that is what tuning is to show."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NeverConvergedWarning)
        warnings.simplefilter("ignore", FalseStartWarning)
        yield
