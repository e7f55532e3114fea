"""What the author of a measurement writes, and what a measurement is given.

A measurement is one file: a frozen dataclass whose fields are the options of its command, with

    cases      what is measured of every set of weights; default: one case
    measure    how one case is measured on a saved run; import torch inside
    numbers    which numbers follow from the stored rows of one set of weights on one domain
    title, axis, scale, note                          how tables and figures show the numbers

See `swad.testbed.results.measured.Reading` for the latter. Storing, resuming, costs and progress are in
`swad.testbed.measure.engine`; tables, tests, figures and files in `swad.testbed.results.measured_report`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_type_hints

from swad.testbed.results.measured import Reading
from swad.testbed.results.measurement_rows import Row, read_rows
from swad.testbed.training.setting import Setting
from swad.util.options import Bounds
from swad.util.progress import Progress, part_progress

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from swad.testbed.data.loaders import EvalLoader
    from swad.testbed.data.splits import DomainSplit
    from swad.testbed.measure.saved_run import Images, SavedRun

SourceSplit = Literal["training", "validation", "all"]

KEPT = 2**30
"""Bytes of a domain's images up to which they stay on the device, if they are needed again; more are read again."""


@dataclass(frozen=True)
class Measurement(Reading, ABC):
    """A measurement of some of a run's weights."""

    of_device: ClassVar[bool] = False
    """Whether values depend on the kind of device, whose random numbers differ."""
    of_window: ClassVar[bool] = False
    """Whether the weights may be "window", several snapshots inside the range that SWAD averaged."""

    of_saved: ClassVar[bool] = True
    """Whether the weights are saved ones, whose files must be there."""
    at_once: ClassVar[int] = 8
    """Most sets of weights to measure together; images are read again for further ones."""

    images: int | None = 200

    def __post_init__(self) -> None:
        if problems := self.problems():
            raise ValueError("; ".join(problems))

    def problems(self) -> list[str]:
        """Return the rules that options break; each says the rule and what was received."""
        found = [option.problem(getattr(self, name)) for name, option in options_of(type(self)).items()]
        return [text for text in found if text]

    @property
    def source_images(self) -> SourceSplit:
        """Which images of the source domains are measured; of the target it is all of them."""
        return "validation"

    @property
    def passes(self) -> int:
        """How often a case evaluates every image, for the cost."""
        return 1

    def on(self, run: SavedRun, device: torch.device) -> Self:
        """Return the measurement with the defaults that a run or a device decides.

        Check here what would end the measurement later, such as a package that is missing.
        """
        return self

    def lacking(self, run: SavedRun) -> str:
        """Return why a run has nothing to measure, so that it is skipped; empty if it has."""
        return ""

    def check_together(self, runs: Sequence[SavedRun]) -> None:
        """Raise an error if runs cannot be compared; nothing is measured before."""

    def weights(self, run: SavedRun, names: Sequence[str]) -> dict[str, str]:
        """Return what to measure of a run, each with a fingerprint that changes with it. Default: saved weights."""
        return {name: run.fingerprint(name) for name in names}

    def settings(self) -> dict[str, Any]:
        """Return the settings that distinguish rows which must not be mixed. Default: every field."""
        return dataclasses.asdict(self)

    def options(self) -> dict[str, Any]:
        """Return options that decide what is shown of the rows, and not the rows themselves. Default: none."""
        return {}

    def n_evaluations(self, run: SavedRun, names: Sequence[str]) -> int:
        """Return how many evaluations of a case some weights take: fewer than weights where some are equal."""
        return len(names)

    def then(self, jobs: Sequence[Job], device: torch.device) -> Sequence[Job]:
        """Return what is to be measured next, when the rows of all runs are there. Default: nothing."""
        return ()

    def cases(self) -> Sequence[Row]:
        """Return what is measured of every set of weights, as the fields that tell their rows apart."""
        return [{}]

    @abstractmethod
    def measure(self, run: MeasuredRun, case: Row, weights: Sequence[str]) -> Iterator[list[Row]]:
        """Measure one case; every list that is yielded is complete for its weights, and is stored at once.

        Rows are made by `run.row`. Evaluate all weights on a batch before the next one is read.
        """


@dataclass(frozen=True)
class Job:
    """One run to measure."""

    run: SavedRun
    what: Measurement
    """The measurement with the defaults that the run decides."""
    fingerprints: Mapping[str, str]
    """The weights by name; a fingerprint changes with the file."""
    settings: Mapping[str, Any]
    """What identifies stored rows."""
    only: tuple[str, ...] = ()
    """Measure only these of the weights, after the others."""

    def rows(self, stored: Sequence[Row] | None = None) -> list[Row]:
        """Return the stored rows of these weights with these settings; `stored` are those of the file, if known."""
        stored = read_rows(self.run.path, self.what.file) if stored is None else stored
        keys = {row["key"] for row in stored if row["kind"] == "settings" and _without_marks(row) == self.settings}
        marks = set(self.fingerprints.items())
        rows = [row for row in stored if row["key"] in keys and row["kind"] == self.what.kind]
        return [row for row in rows if (row["weights"], row.get("fingerprint")) in marks]

    def missing(self, stored: Sequence[Row], names: Collection[str] | None = None) -> list[tuple[Row, list[str]]]:
        """Return the cases that some of the weights lack, and these weights."""
        fields = self.what.cases()[0].keys()
        rows = self.rows(stored)
        done = {(*(row.get(field) for field in fields), row["weights"], row["fingerprint"]) for row in rows}
        names = names or self.only or self.fingerprints
        wanted = {name: mark for name, mark in self.fingerprints.items() if name in names}
        missing = []
        for case in self.what.cases():
            lacking = [name for name, mark in wanted.items() if (*case.values(), name, mark) not in done]
            if lacking:
                missing.append((case, lacking))
        return missing


def options_of(what: type[Measurement]) -> dict[str, Setting]:
    """Return the options of a measurement: its fields, with the text on each in the docstring's ``Args:``."""
    texts: dict[str, str] = {}
    for cls in reversed(what.__mro__):  # a subclass may leave out the options that it inherits
        _, _, arguments = (inspect.cleandoc(cls.__doc__ or "")).partition("Args:\n")
        found = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", arguments, re.MULTILINE)
        texts |= {name: " ".join(text.split()) for name, text in found}
    hints, bounds = get_type_hints(what), {"images": Bounds(minimum=1)}
    return {
        field.name: Setting(
            name=field.name,
            section="",
            annotation=hints[field.name],
            default=field.default,
            required=False,
            role=None,
            help=texts.get(field.name, ""),
            free_on_resume=True,
            bounds=bounds.get(field.name, Bounds()),
        )
        for field in dataclasses.fields(what)
    }


class MeasuredRun:
    """A saved run while it is measured: its domains, and its networks on the device.

    Args:
        run: The run.
        what: The measurement, which says which images.
        device: Device of images and networks.
        workers: Processes that read images.
        progress: Called with what a case has done; its share of all cases is added.
    """

    def __init__(
        self,
        run: SavedRun,
        what: Measurement,
        device: torch.device,
        workers: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.run, self.device, self.progress = run, device, progress
        self._what, self.workers = what, workers
        self._models: dict[str, nn.Module] = {}

    @cached_property
    def domains(self) -> tuple[Domain, ...]:
        """The source domains, then the target; images are read batch by batch."""
        from swad.testbed.measure.saved_run import source_splits

        held_out = self.run.held_out
        sides = {"seen": source_splits(held_out.sources, self._what.source_images), "unseen": held_out.target.full}
        return tuple(Domain(part.name, side, self._loader(part)) for side, parts in sides.items() for part in parts)

    @cached_property
    def images(self) -> Images:
        """All images on the device at once, for what evaluates them a thousand times."""
        return self.run.images(self._what.images, self.device, self.workers, self._what.source_images)

    def model(self, weights: str) -> nn.Module:
        """Return the network with these weights in evaluation mode. It is loaded once."""
        if weights not in self._models:
            self._models[weights] = self.run.model(weights, self.device)
        return self._models[weights]

    def logits(self, weights: str, images: Tensor) -> Tensor:
        """Return the outputs of the network for a batch, without gradients."""
        import torch

        with torch.inference_mode():
            logits: Tensor = self.model(weights)(images).float()
        return logits

    def part(self, index: int, n_parts: int) -> Progress | None:
        """Return the progress of one of several equal parts of the case."""
        return part_progress(self.progress, index, n_parts)

    def row(self, weights: str, domain: Domain, **values: Any) -> Row:
        """Return a row of values of one set of weights on one domain."""
        return {"weights": weights, "domain": domain.name, "side": domain.side, **values}

    def _loader(self, part: DomainSplit) -> EvalLoader:
        from swad.testbed.data.loaders import EvalLoader

        spec, chosen = self.run.held_out.sources.image_spec, self.run.subset(part, self._what.images)
        read_again = self._what.passes * len(self._what.cases()) > 1
        keep = read_again and len(chosen) * 3 * spec.size**2 <= KEPT
        size = self.run.batch_size(self.device)
        return EvalLoader(chosen, spec, size, workers=self.workers, device=self.device, keep=keep)


@dataclass(frozen=True)
class Domain:
    """The images of one domain, read in batches."""

    name: str
    side: str
    """Images of the sources are "seen", those of the target "unseen"."""
    loader: EvalLoader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images as the network takes them, and labels."""
        return iter(self.loader)

    def bytes(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield images as bytes, labels, and the numbers of the images in the domain."""
        import torch

        keys, labels, start = torch.from_numpy(self.loader.keys).to(self.loader.device), self.loader.labels(), 0
        for images in self.loader.byte_batches():
            batch = slice(start, start := start + len(images))
            yield images, labels[batch], keys[batch]

    def normalize(self, images: Tensor) -> Tensor:
        """Return bytes as the network takes them."""
        normalized: Tensor = self.loader.normalize(images)
        return normalized


def _without_marks(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in ("key", "kind")}
