"""Errors under the corruptions of ImageNet-C, on seen and unseen domains.

No download is needed: the run's own images are corrupted on the device. All weights see the same corrupted images.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from swad.testbed.measure.base import MeasuredRun, Measurement
from swad.testbed.results.corruption_means import AXIS, CLEAN, COMPARED, CORRUPTIONS, mean_errors
from swad.testbed.results.measured import Case, Quantity
from swad.testbed.results.measurement_rows import ROBUSTNESS, Row
from swad.util.names import did_you_mean

SEVERITIES = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Corruption(Measurement):
    """Measure errors under noise, blur, weather and digital corruption, by the definitions of ImageNet-C.

    Args:
        images: Images of every domain, stratified by class. None: all.
        corruptions: Names of corruptions. Uncorrupted images are always measured too.
        severities: Severities from 1 to 5.
        seed: Seed of the corruptions.
    """

    name, title, axis = "corruption", "Corruption error, %", AXIS
    file, kind, fields, compared = ROBUSTNESS, "error", ("corruption", "severity"), COMPARED
    columns: ClassVar[Mapping[str, Any]] = {"corruption": str, "severity": int, "error": float}
    note = (
        "Seen: validation images of the sources. Corruptions are computed here by the definitions of ImageNet-C, frost "
        "with a computed texture: do not compare with errors on its stored images."
    )
    corruptions: tuple[str, ...] = CORRUPTIONS
    severities: tuple[int, ...] = SEVERITIES
    seed: int = 0

    def problems(self) -> list[str]:
        """Check names and severities, too."""
        found = [
            f"there is no corruption {name!r}: {did_you_mean(name, CORRUPTIONS) or ', '.join(CORRUPTIONS)}"
            for name in self.corruptions
            if name not in CORRUPTIONS
        ]
        if not self.severities or not set(self.severities) <= set(SEVERITIES):
            found.append(f"severities must be from 1 to 5, got {', '.join(map(str, self.severities)) or 'none'}")
        return [*super().problems(), *found]

    def settings(self) -> dict[str, Any]:
        """Further corruptions and severities extend a measurement."""
        from swad.robustness.corruptions import VERSION

        return {"images": self.images, "seed": self.seed, "version": VERSION}

    def cases(self) -> Sequence[Row]:
        """Every corruption and severity; first the images as they are."""
        every = [CLEAN, *((name, severity) for name in self.corruptions for severity in self.severities)]
        return [{"corruption": name, "severity": severity} for name, severity in every]

    def measure(self, run: MeasuredRun, case: Row, weights: Sequence[str]) -> Iterator[list[Row]]:
        """Corrupt every batch once for all weights."""
        from swad.robustness.corruptions import corrupt

        rows = []
        for domain in run.domains:
            wrong = dict.fromkeys(weights, 0)
            for images, labels, keys in domain.bytes():
                if case["severity"]:
                    images = corrupt(images, case["corruption"], case["severity"], seed=self.seed, indices=keys)
                images = domain.normalize(images)
                for name in weights:
                    wrong[name] += int((run.logits(name, images).argmax(1) != labels).sum())
            n = len(domain)
            rows += [run.row(name, domain, error=wrong[name] / n, n=n) for name in weights]
        yield rows

    @classmethod
    def numbers(cls, rows: Sequence[Row]) -> dict[Quantity, float]:
        """Clean, corrupted, what corruption adds, and by kind of corruption; then by severity."""
        return mean_errors({(row["corruption"], row["severity"]): row["error"] for row in rows})

    @classmethod
    def covered(cls, cases: Collection[Case]) -> dict[str, Any]:
        """Say how many corruptions the means are over, and at which severities."""
        names, severities = ({case[number] for case in cases if case != CLEAN} for number in (0, 1))
        of_all = len(names) == len(CORRUPTIONS)
        return {"corruptions": "all 15" if of_all else sorted(names), "severities": sorted(severities)}

    @classmethod
    def notes(cls, settings: Mapping[str, Any]) -> str:
        """Name what earlier versions of the corruptions did otherwise."""
        has_frost = settings["corruptions"] == "all 15" or "frost" in settings["corruptions"]
        if has_frost and settings.get("version", 1) < 3:
            return f"{cls.note} Frost was measured with an earlier texture, which was darker than that of ImageNet-C."
        return cls.note


MEASUREMENT = Corruption
