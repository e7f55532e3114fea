"""Results of classifiers on ImageNet's benchmarks, read from `robustness.jsonl`, and the curves of ImageNet-C."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from swad.results.corruption_errors import CLEAN, GROUPS, ROBUSTNESS, STORED, Case, CorruptionErrors, Unit
from swad.results.flatness_rows import Row, read_rows
from swad.results.labels import weights_label
from swad.results.runs import RunData
from swad.util.names import NO_TARGET

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

    @property
    def accuracy(self) -> float:
        """The share of correct answers."""
        return self.correct / self.n

    @property
    def error(self) -> float:
        """The share of wrong answers."""
        return 1 - self.accuracy

    @property
    def partial(self) -> bool:
        """Whether images of the published set are missing, or too many."""
        return self.n != self.expected


def part_result(row: Row) -> PartResult:
    """Return the result in a stored row."""
    return PartResult(row["correct"], row["n"], row["expected"], tuple(row["missing"]))


def stored_errors(results: Mapping[str, Sequence[Mapping[str, PartResult]]]) -> CorruptionErrors | None:
    """Return the errors on ImageNet-C's 15 corruptions, for curves; None if there are none.

    Args:
        results: By method, the results of each trial.
    """
    errors: dict[str, dict[Unit, Mapping[Case, float]]] = {}
    for method, trials in results.items():
        for trial, parts in enumerate(trials):
            by_case = _by_case(parts)
            if by_case.keys() - {CLEAN}:
                errors.setdefault(method, {})[NO_TARGET, trial] = by_case
    return CorruptionErrors("ImageNet-C", STORED, errors) if errors else None


def read_stored_errors(runs: Iterable[RunData]) -> CorruptionErrors | None:
    """Collect the errors of runs on ImageNet-C; None if no run was measured there."""
    errors: dict[str, dict[Unit, Mapping[Case, float]]] = {}
    for run in runs:
        rows = [row for row in read_rows(run.path, ROBUSTNESS) if row["kind"] == BENCHMARK and row["n"]]
        for weights, last in {row["weights"]: row for row in rows}.items():
            # Results of other settings, or of weights that were trained again, do not belong together.
            same = [row for row in rows if all(row[name] == last[name] for name in ("weights", "key", "fingerprint"))]
            by_case = _by_case({row["part"]: part_result(row) for row in same})
            if by_case.keys() - {CLEAN}:
                errors.setdefault(weights_label(run, weights), {})[run.target, run.trial] = by_case
    # ERM first: the others are compared with it.
    ordered = dict(sorted(errors.items(), key=lambda item: (not item[0].startswith("ERM"), item[0])))
    return CorruptionErrors("ImageNet-C", STORED, ordered) if ordered else None


def _by_case(parts: Mapping[str, PartResult]) -> dict[Case, float]:
    known = {name for names in GROUPS.values() for name in names}
    by_case = {CLEAN: parts[IMAGENET].error} if IMAGENET in parts else {}
    for part, result in parts.items():
        benchmark, _, rest = part.partition("/")
        corruption, _, severity = rest.partition("/")
        if benchmark == IMAGENET_C and corruption in known:
            by_case[corruption, int(severity)] = result.error
    return by_case
