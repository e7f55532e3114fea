"""Other settings of SWAD on finished runs, without training: N_s, N_e, r and the definition.

The validation losses that a run recorded decide which updates each setting averages. The averages are computed from the
segments that the run kept, with the additions of the training, and are bit-equal to what it would have saved.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from swad.averaging.rule import FalseStartWarning, NeverConvergedWarning
from swad.averaging.spans import Phase, Status
from swad.averaging.valley import LossValley
from swad.testbed.measure.base import MeasuredRun, Measurement, options_of
from swad.testbed.results import tuning
from swad.testbed.results.measured import Quantity
from swad.testbed.results.measurement_rows import TUNE, Row
from swad.testbed.results.records import RECORDS
from swad.testbed.results.tuning import ValleySetting, setting_of
from swad.util.names import counted

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from matplotlib.figure import Figure
    from torch import nn

    from swad.averaging.swad import SWAD
    from swad.testbed.measure.base import Job
    from swad.testbed.measure.saved_run import SavedRun

AT_ONCE = 8
"""Averages that are computed in one pass over the segments; each takes two to three copies of the model."""

_DEFINITIONS = {"swad": "paper", "swad_text": "text", "swad_reference": "reference"}


@dataclass(frozen=True)
class Tune(Measurement):
    """Try other N_s, N_e and r of SWAD on finished runs without training, and choose by source validation.

    Needs runs that were trained with --keep-segments; of others the steps that each setting averages are shown. The
    settings that runs were trained with are tried, too. Only the chosen setting, for each dataset and algorithm, and
    the trained one are evaluated on the target.

    Args:
        images: Images of every domain, stratified by class. None: all.
        n_converge: N_s: evaluations for which a loss must stay the lowest to start the average.
        n_tolerance: N_e: evaluations in a row above the threshold that end the average; inf for no end.
        tolerance_ratio: r - 1: by how much the threshold exceeds the loss at the start.
        semantics: Definitions to try: paper, text, reference.
        select: Choose a setting by the sources' validation accuracy (iid), or by the target's (oracle), which is then
            evaluated for every setting.
        save: Directory for the averages with the chosen settings, as weights files.
    """

    name, title, file = "tune", "Settings of SWAD", TUNE
    scale, decimals, compared = 1.0, 2, (tuning.TARGET,)
    columns: ClassVar[Mapping[str, Any]] = {
        **dict.fromkeys(("first", "last", "averaged"), int),
        "first_loss": float,
        "trained": bool,
        "converged": bool,
        **dict.fromkeys(("accuracy", "accuracy_out"), float | None),
    }
    by_algorithm, unit, untested = True, "auto", {"unseen": tuning.ORACLE}
    of_saved, at_once = False, 10**6
    note = (
        "Settings in one line average the same in every run; *: the loss never converged in at least one, which "
        "averages only the end of training. A setting is chosen by the accuracy shown on validation, which is "
        "therefore too high; that of an oracle is too high on the target."
    )
    images: int | None = None
    n_converge: tuple[int, ...] = (1, 2, 3, 5)
    n_tolerance: tuple[float, ...] = (3, 6, 10)
    tolerance_ratio: tuple[float, ...] = (0.1, 0.2, 0.3)
    semantics: tuple[str, ...] = ("paper",)
    select: Literal["iid", "oracle"] = "iid"
    save: str | None = None

    def problems(self) -> list[str]:
        """Check every value of every setting by itself, because a valley reports one problem at a time; then all."""
        # Of these values, the valley knows the rules: N_e may be infinite.
        own = {name: option for name, option in options_of(type(self)).items() if name != "n_tolerance"}
        found = [text for name, option in own.items() if (text := option.problem(getattr(self, name)))]
        fields = ("n_converge", "n_tolerance", "tolerance_ratio", "semantics")
        found += [f"{name.replace('_', '-')} needs a value, got none" for name in fields if not getattr(self, name)]
        if found:
            return found
        alone = [ValleySetting(**{name: value}) for name in fields for value in getattr(self, name)]
        return _problems(alone) or _problems(self.grid)

    @property
    def grid(self) -> list[ValleySetting]:
        """All combinations of the values."""
        combined = product(self.semantics, self.tolerance_ratio, self.n_converge, self.n_tolerance)
        return list(dict.fromkeys(ValleySetting(s, e, r, definition) for definition, r, s, e in combined))

    def lacking(self, run: SavedRun) -> str:
        """Without validation losses, no setting averages anything."""
        if self.select == "oracle" and not run.config.targets:
            return "it has no target (use --select iid)"
        return "" if validation_losses(run) else "it recorded no validation loss"

    def check_together(self, runs: Sequence[SavedRun]) -> None:
        """Say what cannot be evaluated."""
        if bare := [run for run in runs if not _segments(run)]:
            warnings.warn(
                f"{len(bare)} of {counted(len(runs), 'run')} kept no segments, so only the averaged steps are shown: "
                "train with --keep-segments to evaluate them",
                stacklevel=2,
            )
        for run in runs:
            if (last := max(validation_losses(run))) < (run.config.steps or 0):
                warnings.warn(f"{run.path} stopped early, so no setting averages beyond step {last:,}", stacklevel=2)

    def settings(self) -> dict[str, Any]:
        """A further setting, and the target, extend a measurement."""
        return {"images": self.images}

    def options(self) -> dict[str, Any]:
        """Return how to choose."""
        return {"select": self.select}

    def weights(self, run: SavedRun, names: Sequence[str]) -> dict[str, str]:
        """Return all settings, and those that the run was trained with."""
        from swad.testbed.measure.saved_run import fingerprint

        mark = fingerprint(run.path / RECORDS)  # another training has other segments
        mark = mark if _segments(run) else f"{mark}, steps alone"
        return dict.fromkeys((setting.name for setting in [*self.grid, *own_settings(run).values()]), mark)

    def n_evaluations(self, run: SavedRun, names: Sequence[str]) -> int:
        """Settings that average the same updates share one evaluation."""
        return len(_by_spans(validation_losses(run), names)) if _segments(run) else 0

    def cases(self) -> Sequence[Row]:
        """The sources first: they choose."""
        return [{"side": side} for side in ("seen", "unseen")[: 1 + (self.select == "oracle")]]

    def then(self, jobs: Sequence[Job], device: torch.device) -> list[Job]:
        """Return the target for the chosen settings and the trained ones; save the averages, if that was requested."""
        from swad.testbed.results.measured import measured
        from swad.testbed.results.runs import load_run

        runs = [load_run(job.run.path) for job in jobs]
        chosen = tuning.choose(measured(runs, Tune))
        further = []
        for run, job in zip(runs, jobs, strict=True):
            (group,) = (
                measured([run], Tune)[["dataset", "settings"]].drop_duplicates().itertuples(index=False, name=None)
            )
            setting = chosen.get(group)
            if setting is None or setting.name not in job.fingerprints or not _segments(job.run):
                continue
            if self.save is not None:
                save_average(job.run, setting, Path(self.save), device)
            if run.targets:
                names = dict.fromkeys([setting.name, *(own.name for own in own_settings(job.run).values())])
                further.append(replace(job, what=replace(self, select="oracle"), only=tuple(names)))
        return further

    def measure(self, run: MeasuredRun, case: Row, weights: Sequence[str]) -> Iterator[list[Row]]:
        """Compute some averages in a pass over the segments, and evaluate them as the run did."""
        saved, losses = run.run, validation_losses(run.run)
        trained = {setting.name for setting in list(own_settings(saved).values())[:1]}
        spans = _by_spans(losses, weights)
        if not _segments(saved):
            place = {"domain": "", "side": case["side"], "accuracy": None, "accuracy_out": None}
            for names in spans.values():
                yield [{"weights": name, **place, **_steps(losses, name, trained)} for name in names]
            return
        from swad.testbed.measure.kept_segments import build_estimate, build_loaders, build_network
        from swad.testbed.training.distributed import Dist
        from swad.testbed.training.evaluation import evaluate_splits
        from swad.testbed.training.numerics import autocast

        sources, target = saved.held_out
        is_seen = case["side"] == "seen"
        splits = {"accuracy": sources.val} if is_seen else {"accuracy": target.train, "accuracy_out": target.val}
        chosen = {name: [saved.subset(part, self.images) for part in parts] for name, parts in splits.items()}
        model, dist = build_network(saved, run.device), Dist(run.device)
        loaders = build_loaders(saved, chosen, run.device, run.workers)
        estimate = build_estimate(saved, run.device, run.workers)
        representatives = {names[0]: names for names in spans.values()}
        for average_name, average in _averages(saved, model, list(representatives)):
            with _quiet(), average.average_parameters(model):
                if estimate is not None:
                    estimate(model)
                scores = {
                    name: evaluate_splits(model, by_domain, dist, lambda: autocast(saved.config, run.device))
                    for name, by_domain in loaders.items()
                }
            rows = []
            for name in representatives[average_name]:
                steps = _steps(losses, name, trained)
                for domain in scores["accuracy"]:
                    accuracies = {kind: by_domain[domain].accuracy for kind, by_domain in scores.items()}
                    place = {"domain": domain, "side": case["side"], "accuracy_out": None, **accuracies}
                    rows.append({"weights": name, **place, **steps})
            yield rows

    @classmethod
    def numbers(cls, rows: Sequence[Row]) -> dict[Quantity, float]:
        """Accuracies, and the steps that an average is of."""
        (row,) = rows
        is_seen = row["side"] == "seen"
        accuracies = {tuning.VALIDATION if is_seen else tuning.TARGET: row["accuracy"]}
        accuracies |= {} if is_seen else {tuning.TARGET_OUT: row["accuracy_out"]}
        found: dict[Quantity, float] = {name: 100 * value for name, value in accuracies.items() if value is not None}
        found |= {tuning.FIRST: row["first"], tuning.LAST: row["last"], tuning.AVERAGED: row["averaged"]}
        found |= {tuning.FIRST_LOSS: row["first_loss"]} if row["accuracy"] is None else {}
        return found | {tuning.TRAINED: row["trained"], tuning.CONVERGED: row["converged"]}

    @classmethod
    def shown(cls, values: pd.DataFrame) -> pd.DataFrame:
        """Tables show settings with equal averages in one line."""
        return tuning.settings_shown(values)

    @classmethod
    def draw(cls, report: Any, dataset: str) -> Figure | None:
        """Draw the heat maps."""
        return tuning.settings_figure(report, dataset)


def _problems(settings: Sequence[ValleySetting]) -> list[str]:
    problems: dict[str, None] = {}
    for setting in settings:
        try:
            LossValley(**dataclasses.asdict(setting))
        except ValueError as error:
            problems[str(error)] = None
    return list(problems)


def validation_losses(run: SavedRun) -> dict[int, float]:
    """Return the validation loss at every evaluation, by step."""
    from swad.testbed.results.runs import load_run

    rows = load_run(run.path).frame
    rows = rows[rows["metric"] == "valley_loss"].sort_values("step")
    return dict(zip(rows["step"].tolist(), rows["value"].tolist(), strict=True))


def own_settings(run: SavedRun) -> dict[str, ValleySetting]:
    """Return the settings of the run's averages by label; not of those that differ in more than a setting."""
    from swad.testbed.averages import registry
    from swad.testbed.training.recipes import averaging_plan

    names = {field.name for field in dataclasses.fields(ValleySetting)}
    ratio = averaging_plan(run.config).tolerance_ratio
    settings = {}
    for text in run.config.averages:
        if text.partition(":")[0] not in _DEFINITIONS:  # among others, the user's own, whose file may be gone
            continue
        spec = registry.parse(text)
        if set(spec.options) <= {*names, "nonfinite", "offload"}:
            own = {name: value for name, value in spec.options.items() if name in names}
            default = ValleySetting(tolerance_ratio=ratio, semantics=_DEFINITIONS[spec.name])
            settings[spec.label] = replace(default, **own)
    return settings


def status_of(losses: Mapping[int, float], setting: ValleySetting) -> Status:
    """Return what a setting averages, from the losses alone."""
    # A run with losses that are not finite has finished only because its averages skipped them.
    valley = LossValley(**dataclasses.asdict(setting), nonfinite="skip")
    for step, loss in losses.items():
        valley.observe(loss, step)
    return valley.status


def _by_spans(losses: Mapping[int, float], names: Sequence[str]) -> dict[str, list[str]]:
    """Return names of settings by what they average."""
    found: dict[str, list[str]] = {}
    for name in names:
        setting = _setting(name)
        unit = "segments " if setting.semantics == "reference" else ""  # they weigh the same whatever their length
        found.setdefault(unit + ", ".join(map(str, status_of(losses, setting).spans)), []).append(name)
    return found


def _steps(losses: Mapping[int, float], name: str, trained: set[str]) -> Row:
    status = status_of(losses, _setting(name))
    assert status.start_step is not None
    first_loss = next(loss for step, loss in losses.items() if step >= status.start_step)
    steps = {"first": status.start_step, "last": status.end_step, "averaged": status.n_averaged}
    is_converged = status.phase is not Phase.SEARCHING
    return {**steps, "first_loss": first_loss, "trained": name in trained, "converged": is_converged}


def _setting(name: str) -> ValleySetting:
    setting = setting_of(name)
    assert setting is not None
    return setting


def _segments(run: SavedRun) -> list[Path]:
    from swad.testbed.measure.kept_segments import kept_segments

    return kept_segments(run.path)


def _averages(run: SavedRun, model: nn.Module, names: Sequence[str]) -> Iterator[tuple[str, SWAD]]:
    """Compute the averages of some settings from the segments of a run."""
    from swad.averaging.swad import SWAD
    from swad.testbed.averages.segment_log import read_segment, replay

    files = _segments(run)
    parameters = tuple(read_segment(files[0]).sum)  # as in the training, whichever parameters it froze
    for start in range(0, len(names), AT_ONCE):
        averages = {
            name: SWAD(model, **dataclasses.asdict(_setting(name)), nonfinite="skip", include=parameters)
            for name in names[start : start + AT_ONCE]
        }
        replay(files, model, averages)
        yield from averages.items()


def save_average(run: SavedRun, setting: ValleySetting, folder: Path, device: torch.device) -> Path:
    """Write the average of one setting as a weights file with its card, named after the run."""
    from swad.testbed.measure.kept_segments import build_estimate, build_network
    from swad.testbed.training.export import cpu_weights, model_card, save_weights
    from swad.testbed.training.output import averaged_range

    model, estimate = build_network(run, device), build_estimate(run, device, workers=None)
    losses = validation_losses(run)
    ((_, average),) = _averages(run, model, [setting.name])
    with _quiet(), average.average_parameters(model):
        if estimate is not None:
            estimate(model)
        state = cpu_weights(model)
    description = f"An average of the weights along the trajectory: SWAD with {setting}"
    steps = averaged_range(status_of(losses, setting))
    card = model_card(run.config, run.held_out.sources, max(losses), description, steps)
    name = run.name if run.path.name == run.name else f"{run.name}-{run.path.name}"  # in a sweep, a hash
    path = folder / run.config.dataset / run.config.algorithm / f"{name}.safetensors"
    save_weights(path, state, {**card, "tuned": dataclasses.asdict(setting)})
    return path


@contextmanager
def _quiet() -> Iterator[None]:
    """Do not warn of a loss that never converged, or of a false start: that is what tuning is to show."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NeverConvergedWarning)
        warnings.simplefilter("ignore", FalseStartWarning)
        yield


MEASUREMENT = Tune
