"""Results of classifiers on ImageNet's benchmarks, read from `robustness.jsonl`, and the curves of ImageNet-C."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swad.testbed.results.corruption_means import AXIS, CLEAN, COMPARED, CORRUPTIONS, mean_errors
from swad.testbed.results.labels import weights_label
from swad.testbed.results.measured import COLUMNS, Reading
from swad.testbed.results.measured_report import MeasuredReport, report
from swad.testbed.results.measurement_rows import ROBUSTNESS, Row, read_rows
from swad.testbed.results.run_data import RunData
from swad.util.names import NO_TARGET

if TYPE_CHECKING:
    import pandas as pd

BENCHMARK = "benchmark"
"""Kind of the rows."""

IMAGENET, IMAGENET_C = "imagenet", "imagenet-c"
"""Names of parts; those of ImageNet-C are imagenet-c/CORRUPTION/SEVERITY."""


@dataclass(frozen=True)
class PartResult:
    """How many images of a part were classified correctly."""

    correct: int
    n: int
    expected: int
    """Images of the published set."""
    missing: tuple[str, ...] = ()
    """Class folders without images."""
    backgrounds: int | None = None
    """Backgrounds of the challenge, of which there are as many as objects in the published set."""

    @property
    def accuracy(self) -> float:
        """The share of correct answers."""
        return self.correct / self.n

    @property
    def error(self) -> float:
        """The share of wrong answers."""
        return (self.n - self.correct) / self.n

    @property
    def partial(self) -> bool:
        """Whether images of the published set are missing, or too many."""
        return self.n != self.expected or self.backgrounds not in (None, self.expected)


def part_result(row: Row) -> PartResult:
    """Return the result in a stored row."""
    return PartResult(row["correct"], row["n"], row["expected"], tuple(row["missing"]), row.get("backgrounds"))


class ImageNetC(Reading):
    """Errors on the stored images of ImageNet-C's 15 corruptions."""

    name, title, axis, compared, file = "imagenet-c", "Corruption error, %", AXIS, COMPARED, ROBUSTNESS
    note = "Errors on the stored images of ImageNet-C's 15 corruptions."

    @classmethod
    def notes(cls, settings: Mapping[str, Any]) -> str:
        """Say where images or corruptions of the published set are missing."""
        return f"{cls.note} Partial: do not compare it with published numbers." if settings else cls.note

    @classmethod
    def report(
        cls, runs: Sequence[RunData], weights: Collection[str] = (), by_target: str | None = None, log: bool = False
    ) -> MeasuredReport | None:
        """Return the errors of runs, whose rows have counts by part."""
        values = read_stored_values(runs)
        return report(values, cls, by_target, log) if len(values) else None


def stored_values(results: Mapping[str, Sequence[Mapping[str, PartResult]]]) -> pd.DataFrame:
    """Return the errors on ImageNet-C's 15 corruptions as rows of `measured`, for curves.

    Args:
        results: By method, the results of each trial.
    """
    return _values(
        ((NO_TARGET, trial), method, parts) for method, trials in results.items() for trial, parts in enumerate(trials)
    )


def read_stored_values(runs: Iterable[RunData]) -> pd.DataFrame:
    """Read the errors of runs on ImageNet-C as rows of `measured`."""
    found = []
    for run in runs:
        rows = [row for row in read_rows(run.path, ROBUSTNESS) if row["kind"] == BENCHMARK and row["n"]]
        for weights, last in {row["weights"]: row for row in rows}.items():
            # Results of other settings, or of weights that were trained again, do not belong together.
            same = [row for row in rows if all(row[name] == last[name] for name in ("weights", "key", "fingerprint"))]
            parts = {row["part"]: part_result(row) for row in same}
            found.append(((run.target, run.trial), weights_label(run, weights), parts))
    # ERM first: the others are compared with it.
    return _values(sorted(found, key=lambda entry: (not entry[1].startswith("ERM"), entry[1])))


def _values(found: Iterable[tuple[tuple[str, int], str, Mapping[str, PartResult]]]) -> pd.DataFrame:
    import pandas as pd

    units, partial = [], False
    for unit, method, parts in found:
        of_c = {
            (corruption, int(severity)): result
            for part, result in parts.items()
            for benchmark, _, case in [part.partition("/")]
            for corruption, _, severity in [case.partition("/")]
            if benchmark == IMAGENET_C and corruption in CORRUPTIONS
        }
        if of_c:
            clean = {CLEAN: parts[IMAGENET]} if IMAGENET in parts else {}
            units.append((unit, method, {case: result.error for case, result in (clean | of_c).items()}))
            partial |= len(of_c) < 5 * len(CORRUPTIONS) or any(result.partial for result in of_c.values())
    shared = set.intersection(*(set(errors) for *_, errors in units)) if units else set()
    dataset = f"ImageNet-C{', partial' * partial}"
    settings = json.dumps({"images": "partial"} if partial else {})
    lines = [
        (dataset, "", method, *unit, "stored", quantity, value, method, settings)
        for unit, method, errors in units
        for quantity, value in mean_errors({case: errors[case] for case in errors if case in shared}).items()
    ]
    return pd.DataFrame(lines, columns=list(COLUMNS))
