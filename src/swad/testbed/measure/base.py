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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_type_hints

from swad.testbed.results.measured import Reading, measured
from swad.testbed.results.measurement_rows import Row, RowFile, read_rows
from swad.testbed.training.setting import Setting
from swad.util.jsonl import json_values
from swad.util.options import Bounds
from swad.util.progress import Progress, part_progress

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from swad.testbed.data.loaders import EvalLoader
    from swad.testbed.data.splits import DomainSplit
    from swad.testbed.measure.saved_run import Images, SavedRun
    from swad.testbed.results.measured_report import MeasuredReport
    from swad.testbed.results.run_data import RunData
    from swad.testbed.results.surface_report import SurfaceReport

Stored = Mapping[Path, Sequence[Row]]
"""All rows of a file of measurements, by directory."""
Missing = Sequence[tuple[Row, Sequence[str]]]
"""Cases, and the weights that lack them."""
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
    """Whether saved weights are measured, which the user may choose with --weights, and whose files must be there."""
    of_means: ClassVar[bool] = True
    """Whether tables show means of numbers, which --by-target shows by target."""
    at_once: ClassVar[int] = 8
    """Most sets of weights to measure together; images are read again for further ones."""
    bounds: ClassVar[Mapping[str, Bounds]] = {}
    """Bounds of fields that are numbers."""

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
        """Which images of the source domains are measured: those that `source_split` names; of the target all."""
        split: SourceSplit = getattr(self, "source_split", "validation")
        return split

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

    @classmethod
    def report(
        cls, runs: Sequence[RunData], weights: Collection[str] = (), by_target: str | None = None, log: bool = False
    ) -> MeasuredReport | SurfaceReport | None:
        """Return what runs have stored as tables, figures and files; None if there is nothing.

        Args:
            runs: The runs.
            weights: Some of the weights; by default all that were requested.
            by_target: A column to tabulate by target, instead of all columns over targets.
            log: Whether figures have a logarithmic axis.
        """
        from swad.testbed.results.measured_report import report

        values = measured(runs, cls, weights)
        return report(values, cls, by_target, log) if len(values) else None

    def n_images(self, run: MeasuredRun, case: Row) -> int:
        """Return the number of images of a case, for the cost."""
        return sum(len(domain) for domain in run.domains if case.get("side") in (domain.side, None))

    def measure_all(self, run: MeasuredRun, missing: Missing) -> Iterator[tuple[Row, list[Row]]]:
        """Measure the cases that weights lack, and yield rows with their case. Override it if cases share work."""
        progress, n_done, n_all = run.progress, 0, sum(len(names) for _, names in missing)
        for case, names in missing:
            run.case, run.progress = case, part_progress(progress, n_done, n_all, len(names))
            for rows in self.measure(run, case, names):
                yield case, rows
            n_done += len(names)

    @abstractmethod
    def measure(self, run: MeasuredRun, case: Row, weights: Sequence[str]) -> Iterator[list[Row]]:
        """Measure one case; every list that is yielded is complete for its weights, and is stored at once.

        Rows are made by `run.row`. Evaluate all weights on a batch before the next one is read. A case that takes long
        stores rows of its own kinds by `run.keep`, and reads those of an interrupted measurement by `run.kept`.
        """


@dataclass(frozen=True)
class Job:
    """One run to measure, or several models that share their images."""

    run: Any
    """What `Measurement.measure` gets as `run.run`: a `SavedRun`, or what stands for the models."""
    what: Measurement
    """The measurement with the defaults that the run decides."""
    fingerprints: Mapping[str, str]
    """The weights by name; a fingerprint changes with the file."""
    settings: Mapping[str, Any]
    """What identifies stored rows."""
    only: tuple[str, ...] = ()
    """Measure only these of the weights, after the others."""
    places: Mapping[str, tuple[Path, str]] = field(default_factory=dict)
    """Directory of the rows of weights, and their name there. Default: the run directory, and the same name."""

    def place(self, name: str) -> tuple[Path, str]:
        """Return where the rows of weights are stored: a directory, and their name there."""
        return self.places[name] if self.places else (self.run.path, name)

    @property
    def directories(self) -> tuple[Path, ...]:
        """The directories whose files have the rows."""
        return tuple(dict.fromkeys(self.place(name)[0] for name in self.fingerprints))

    def stored(self) -> Stored:
        """Read the rows of all files."""
        return {directory: read_rows(directory, self.what.file) for directory in self.directories}

    def rows(self, stored: Stored | None = None, *, every_kind: bool = False) -> list[Row]:
        """Return the stored rows of these weights with these settings; `stored` are those of the files, if known."""
        found = []
        for directory, rows in (self.stored() if stored is None else stored).items():
            keys = {row["key"] for row in rows if row["kind"] == "settings" and _without_marks(row) == self.settings}
            marks: dict[Any, str] = {(*self.place(name), mark): name for name, mark in self.fingerprints.items()}
            for row in rows:
                is_result = row["kind"] == self.what.kind or (every_kind and row["kind"] not in ("settings", "shown"))
                if is_result and row["key"] in keys:
                    name = marks.get((directory, row.get("weights"), row.get("fingerprint")))
                    found += [] if name is None else [{**row, "weights": name}]
        return found

    def missing(self, stored: Stored | None = None, names: Collection[str] | None = None) -> Missing:
        """Return the cases that some of the weights lack, and these weights."""
        cases = self.what.cases()
        done = {(*(row.get(field) for field in cases[0]), row["weights"]) for row in self.rows(stored)}
        wanted = [name for name in self.fingerprints if name in (names or self.only or self.fingerprints)]
        lacking = ((case, [name for name in wanted if (*case.values(), name) not in done]) for case in cases)
        return [(case, names) for case, names in lacking if names]


class Store:
    """The files of a job, which are locked.

    Args:
        job: The job.
        files: Its files by directory.
    """

    def __init__(self, job: Job, files: Mapping[Path, RowFile]) -> None:
        self._job, self._files = job, files
        self._keys = {directory: file.add_settings(job.settings) for directory, file in files.items()}

    @property
    def stored(self) -> Stored:
        """All rows of the files."""
        return {directory: file.rows for directory, file in self._files.items()}

    def append(self, case: Row, rows: Iterable[Row]) -> None:
        """Write rows of a case; those of one directory together."""
        by_directory: dict[Path, list[Row]] = {}
        for row in rows:
            directory, name = self._job.place(row["weights"])
            marks = {"key": self._keys[directory], "kind": self._job.what.kind, **case}
            of_weights = {"fingerprint": self._job.fingerprints[row["weights"]], **row, "weights": name}
            by_directory.setdefault(directory, []).append({**marks, **of_weights})
        for directory, of_directory in by_directory.items():
            self._files[directory].append(*map(json_values, of_directory))

    def kept(self, case: Row, weights: str) -> list[Row]:
        """Return the rows of every kind of one case of these weights."""
        wanted = {**case, "weights": weights}.items()
        return [row for row in self._job.rows(self.stored, every_kind=True) if wanted <= row.items()]

    def mark_shown(self) -> None:
        """Store that this measurement was requested last."""
        options = {"options": self._job.what.options()} if self._job.what.options() else {}
        marks = [(*self._job.place(name), mark) for name, mark in self._job.fingerprints.items()]
        for directory, file in self._files.items():
            names, fingerprints = zip(*((name, mark) for place, name, mark in marks if place == directory), strict=True)
            file.mark_shown(self._keys[directory], weights=list(names), fingerprints=list(fingerprints), **options)


def as_stored(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as they are read back: lists instead of tuples."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


def options_of(what: type[Measurement]) -> dict[str, Setting]:
    """Return the options of a measurement: its fields, with the text on each in the docstring's ``Args:``."""
    texts: dict[str, str] = {}
    for cls in reversed(what.__mro__):  # a subclass may leave out the options that it inherits
        _, _, arguments = (inspect.cleandoc(cls.__doc__ or "")).partition("Args:\n")
        found = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", arguments, re.MULTILINE)
        texts |= {name: " ".join(text.split()) for name, text in found}
    hints, bounds = get_type_hints(what), {"images": Bounds(minimum=1), **what.bounds}
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
        store: Where the rows are.
    """

    def __init__(
        self,
        run: Any,
        what: Measurement,
        device: torch.device,
        workers: int | None = None,
        progress: Progress | None = None,
        store: Store | None = None,
    ) -> None:
        self.run, self.device, self.progress = run, device, progress
        self._what, self.workers, self._store = what, workers, store
        self.case: Row = {}
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
        images: Images = self.run.images(self._what.images, self.device, self.workers, self._what.source_images)
        return images

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

    def keep(self, row: Row) -> None:
        """Store a row of a kind of its own, before the case is complete."""
        if self._store is not None:
            self._store.append(self.case, [row])

    def kept(self, weights: str) -> list[Row]:
        """Return the rows of every kind that an interrupted measurement of this case has stored."""
        return [] if self._store is None else self._store.kept(self.case, weights)

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
