"""Local flatness of the 0-1 error, which unlike the loss does not depend on the size of the logits."""

from __future__ import annotations

from dataclasses import dataclass

from swad.testbed.measurements.flatness import Flatness


@dataclass(frozen=True)
class FlatnessOfError(Flatness):
    """Measure how much the 0-1 error rises around saved weights, on seen and unseen domains.

    Its options are those of `swad measure flatness`.
    """

    name, title, of = "flatness_of_error", "F of the 0-1 error", "error"
    file = Flatness.file
    note = "F: average rise of the 0-1 error at that distance; smaller is flatter."


MEASUREMENT = FlatnessOfError
