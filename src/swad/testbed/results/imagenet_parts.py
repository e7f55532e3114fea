"""Results of classifiers on ImageNet's benchmarks, read from `robustness.jsonl`, and the curves of ImageNet-C."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from swad.testbed.results.corruption_errors import CLEAN, GROUPS, ROBUSTNESS, STORED, Case, CorruptionErrors, Unit
from swad.testbed.results.labels import weights_label
from swad.testbed.results.measurement_rows import Row, read_rows
from swad.testbed.results.run_data import RunData
from swad.util.names import NO_TARGET

BENCHMARK = "benchmark"
"""Kind of the rows."""

IMAGENET, IMAGENET_C = "imagenet", "imagenet-c"
"""Names of parts; those of ImageNet-C are imagenet-c/CORRUPTION/SEVERITY."""
CORRUPTIONS = {name for names in GROUPS.values() for name in names}
"""The 15 corruptions; ImageNet-C has four more, which the curves leave out."""


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


def stored_errors(results: Mapping[str, Sequence[Mapping[str, PartResult]]]) -> CorruptionErrors | None:
    """Return the errors on ImageNet-C's 15 corruptions, for curves; None if there are none.

    Args:
        results: By method, the results of each trial.
    """
    return _collect(
        (method, (NO_TARGET, trial), parts) for method, trials in results.items() for trial, parts in enumerate(trials)
    )


def read_stored_errors(runs: Iterable[RunData]) -> CorruptionErrors | None:
    """Collect the errors of runs on ImageNet-C; None if no run was measured there."""
    measured = []
    for run in runs:
        rows = [row for row in read_rows(run.path, ROBUSTNESS) if row["kind"] == BENCHMARK and row["n"]]
        for weights, last in {row["weights"]: row for row in rows}.items():
            # Results of other settings, or of weights that were trained again, do not belong together.
            same = [row for row in rows if all(row[name] == last[name] for name in ("weights", "key", "fingerprint"))]
            parts = {row["part"]: part_result(row) for row in same}
            measured.append((weights_label(run, weights), (run.target, run.trial), parts))
    # ERM first: the others are compared with it.
    return _collect(sorted(measured, key=lambda entry: (not entry[0].startswith("ERM"), entry[0])))


def _collect(measured: Iterable[tuple[str, Unit, Mapping[str, PartResult]]]) -> CorruptionErrors | None:
    errors: dict[str, dict[Unit, Mapping[Case, float]]] = {}
    partial = False
    for method, unit, parts in measured:
        of_c = {
            (corruption, int(severity)): result
            for part, result in parts.items()
            for benchmark, _, case in [part.partition("/")]
            for corruption, _, severity in [case.partition("/")]
            if benchmark == IMAGENET_C and corruption in CORRUPTIONS
        }
        if of_c:
            clean = {CLEAN: parts[IMAGENET]} if IMAGENET in parts else {}
            errors.setdefault(method, {})[unit] = {case: result.error for case, result in (clean | of_c).items()}
            partial |= len(of_c) < 5 * len(CORRUPTIONS) or any(result.partial for result in of_c.values())
    return CorruptionErrors("ImageNet-C", STORED, errors, partial) if errors else None
