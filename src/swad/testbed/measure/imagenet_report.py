"""Scores of ImageNet's robustness benchmarks, each by its name: tables, the figure of ImageNet-C, and a JSON file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swad.robustness import backgrounds, imagenet_c, imagenet_r
from swad.robustness.corruptions import CORRUPTIONS, SEVERITIES
from swad.testbed.measure.imagenet import Benchmarks
from swad.testbed.measure.imagenet_models import ImageNetModel
from swad.testbed.results.figures.style import FORMATS
from swad.testbed.results.imagenet_parts import IMAGENET, IMAGENET_C, ImageNetC, PartResult, stored_values
from swad.testbed.results.measured_report import report
from swad.testbed.results.measurement_rows import ROBUSTNESS
from swad.testbed.results.report import Report
from swad.testbed.results.tables import Cell, Row, Table
from swad.util.files import write_json, write_text
from swad.util.names import listed

Parts = Mapping[str, PartResult]

PARTIAL = "*"
ALL_19 = (*CORRUPTIONS, *imagenet_c.EXTRA)
STORED_SIZE = 224
"""Height and width of the images of ImageNet-C and of the Background Challenge."""


@dataclass(frozen=True)
class Score:
    """A number in percent, and whether it lacks part of the published images."""

    value: float
    partial: bool = False

    def __sub__(self, other: Score) -> Score:
        return Score(self.value - other.value, self.partial or other.partial)


def report_imagenet(
    models: Sequence[ImageNetModel],
    benchmarks: Benchmarks,
    results: Mapping[str, Parts],
    *,
    output: Path,
    formats: Sequence[str] = FORMATS,
) -> Report:
    """Return tables of every score.

    Args:
        models: The models.
        benchmarks: Where the images are.
        results: By label and part, in the order of the models.
        output: Directory for the figure, `imagenet-c.csv` and `imagenet.json`.
        formats: Formats of the figure.
    """
    output.mkdir(parents=True, exist_ok=True)
    written = []
    values = stored_values({label: [parts] for label, parts in results.items()})
    if len(values):
        written += report(values, ImageNetC).save_figures(output / "imagenet-c", formats)
    tables = [table for label, parts in results.items() if (table := corruption_table(label, parts)) is not None]
    if tables:
        written.append(output / "imagenet-c.csv")
        write_text(written[-1], "".join(table.csv(header=number == 0) for number, table in enumerate(tables)))
    path = output / "imagenet.json"
    write_json(
        path,
        {
            label: {name: {"value": score.value, "partial": score.partial} for name, score in scores(parts).items()}
            for label, parts in results.items()
        },
    )
    tables = [score_table(results, notes(models, benchmarks, results)), *tables]
    row_files = dict.fromkeys(model.directory / ROBUSTNESS for model in models)
    return Report(tuple(tables), (*written, path), tuple(row_files))


def scores(parts: Parts) -> dict[str, Score]:
    """Return every score that the parts allow, by its name."""
    found: dict[str, Score] = {}

    def add(name: str, part: str) -> None:
        if part in parts:
            found[name] = Score(100 * parts[part].accuracy, parts[part].partial)

    def subtract(name: str, first: str, second: str) -> None:
        if first in found and second in found:
            found[name] = found[first] - found[second]

    add("ImageNet top-1", IMAGENET)
    found |= _corruption_scores(parts)
    add("ImageNet-R, among its 200 classes", imagenet_r.NAME)
    add("ImageNet, among the same 200", imagenet_r.CLEAN)
    subtract("gap to ImageNet-R", "ImageNet, among the same 200", "ImageNet-R, among its 200 classes")
    for variation in backgrounds.VARIATIONS:
        add(f"IN-9 {variation}", f"{backgrounds.PREFIX}/{variation}")
    subtract("BG-Gap: mixed_same - mixed_rand", "IN-9 mixed_same", "IN-9 mixed_rand")
    add("Background Challenge", backgrounds.CHALLENGE)
    return found


def corruption_errors(parts: Parts) -> dict[str, list[float]]:
    """Return the errors of the corruptions that have all five severities."""
    names = {name: [f"{IMAGENET_C}/{name}/{severity}" for severity in SEVERITIES] for name in ALL_19}
    return {name: [parts[part].error for part in five] for name, five in names.items() if parts.keys() >= set(five)}


def _corruption_scores(parts: Parts) -> dict[str, Score]:
    errors = corruption_errors(parts)
    of_15, of_19 = [name for name in CORRUPTIONS if name in errors], list(errors)
    incomplete = any(result.partial for name, result in parts.items() if name.startswith(f"{IMAGENET_C}/"))
    partial_15, partial_19 = incomplete or len(of_15) < 15, incomplete or len(of_19) < 19
    found = {}
    if of_15:
        found["mCE, normalized by AlexNet"] = Score(imagenet_c.mce(errors, of_15), partial_15)
        if (clean := parts.get(IMAGENET)) is not None:
            relative = imagenet_c.relative_mce(errors, clean.error, of_15)
            found["relative mCE, normalized by AlexNet"] = Score(relative, partial_15 or clean.partial)
        found["mean error over 15 corruptions"] = Score(imagenet_c.mean_error(errors, of_15), partial_15)
    if len(of_19) > len(of_15):
        found["mean error over 19 corruptions"] = Score(imagenet_c.mean_error(errors, of_19), partial_19)
    return found


def score_table(results: Mapping[str, Parts], notes: Sequence[str]) -> Table:
    """Build the table of all scores: a row for each, a column for each model."""
    by_model = [scores(parts) for parts in results.values()]
    order = [name for found in by_model for name in found]
    order.sort(key=lambda name: max((list(found).index(name) for found in by_model if name in found), default=0))
    rows = [Row(name, tuple(_cell(found.get(name)) for found in by_model)) for name in dict.fromkeys(order)]
    return Table("Robustness on ImageNet, %", tuple(results), tuple(rows), tuple(notes), corner="Score")


def _cell(score: Score | None) -> Cell:
    return Cell() if score is None else Cell(score.value, decimals=2, mark=PARTIAL * score.partial)


def corruption_table(label: str, parts: Parts) -> Table | None:
    """Build the table of a model's errors by corruption and severity; None without ImageNet-C."""
    complete, rows = corruption_errors(parts), []
    for name in ALL_19:
        found = [parts.get(f"{IMAGENET_C}/{name}/{severity}") for severity in SEVERITIES]
        if not any(found):
            continue
        mark = PARTIAL * any(each is not None and each.partial for each in found)
        mean = Cell(imagenet_c.mean_error(complete, [name]), mark=mark) if name in complete else Cell()
        compared = name in complete and name in CORRUPTIONS
        alexnet = Cell(imagenet_c.mce(complete, [name]), mark=mark) if compared else Cell()
        cells = [Cell() if each is None else Cell(100 * each.error, mark=PARTIAL * each.partial) for each in found]
        rows.append(Row(name, (*cells, mean, alexnet)))
    columns = (*(f"severity {severity}" for severity in SEVERITIES), "mean", "CE")
    note = "Error in %; CE: the sum over severities divided by AlexNet's, in %. mCE is its mean."
    if extra := [row.name for row in rows if row.name in imagenet_c.EXTRA]:
        note += f" Without AlexNet's, {', '.join(extra)} count in the mean over 19 only."
    return Table(f"ImageNet-C: {label}", columns, tuple(rows), (note,), corner="Corruption") if rows else None


def notes(models: Sequence[ImageNetModel], benchmarks: Benchmarks, results: Mapping[str, Parts]) -> list[str]:
    """Say what is missing, what is partial, and how images were resized."""
    lines = []
    absent = [
        f"{name} (--{option})"
        for name, option, given in (
            ("ImageNet", "imagenet", benchmarks.imagenet),
            ("ImageNet-C", "imagenet-c", benchmarks.imagenet_c),
            ("ImageNet-R", "imagenet-r", benchmarks.imagenet_r),
            ("the Background Challenge", "backgrounds", benchmarks.backgrounds),
        )
        if given is None
    ]
    if absent:
        lines.append(f"Not measured, because no directory was given: {', '.join(absent)}.")
    # Parts without an image of a model's classes are not measured either.
    knows_all = any(model.classes is None for model in models)
    lacks = "lacks" if knows_all else "lacks images of these models' classes for"
    lines += _missing_parts(benchmarks, results, lacks)
    lines += _partial_parts(results)
    if any(score.partial for parts in results.values() for score in scores(parts).values()):
        lines.append(f"{PARTIAL} Partial: do not compare it with published numbers.")
    lines.append("Lower is better for mCE, relative mCE, mean errors and gaps; all other scores are accuracies.")
    if benchmarks.imagenet_c is not None:
        lines.append(
            "Papers print mCE, relative mCE and the mean error all as mCE; the official script prints the mean error "
            "over 19 corruptions."
        )
    sizes = dict.fromkeys(model.input.size for model in models)
    for size in sizes:
        if size != STORED_SIZE and (benchmarks.imagenet_c or benchmarks.backgrounds):
            lines.append(
                f"{', '.join(model.label for model in models if model.input.size == size)}: images that are stored at "
                f"another size than {size} pixels were resized to it."
            )
    return lines


def _missing_parts(benchmarks: Benchmarks, results: Mapping[str, Parts], lacks: str) -> list[str]:
    """Name the corruptions, severities and folders that were not found."""
    lines = []
    measured = {name for parts in results.values() for name in parts}
    if benchmarks.imagenet_c is not None:
        absent = {
            name: [each for each in SEVERITIES if f"{IMAGENET_C}/{name}/{each}" not in measured] for name in ALL_19
        }
        lacking = [
            f"{name} at {'/'.join(map(str, each))}" if len(each) < len(SEVERITIES) else name
            for name, each in absent.items()
            if each
        ]
        if lacking:
            n_complete = sum(not absent[name] for name in CORRUPTIONS)
            lines.append(
                f"ImageNet-C {lacks} {', '.join(lacking)}: its scores are over the {n_complete} of "
                f"{len(CORRUPTIONS)} corruptions that are complete."
            )
    if benchmarks.backgrounds is not None:
        lacking = [name for name in backgrounds.VARIATIONS if f"{backgrounds.PREFIX}/{name}" not in measured]
        if lacking:
            lines.append(f"The Background Challenge {lacks} {', '.join(lacking)}.")
        if needed := backgrounds.missing_folders(benchmarks.backgrounds):
            lines.append(f"The challenge itself was not run, because it needs {', '.join(needed)}.")
    return lines


def _partial_parts(results: Mapping[str, Parts]) -> list[str]:
    """Name the parts with another number of images than published, those of equal size together."""
    by_text: dict[str, list[str]] = {}
    for parts in results.values():
        for name, part in parts.items():
            if part.partial:
                text = f"{part.n:,} of {part.expected:,} images"
                if part.backgrounds not in (None, part.expected):
                    text += f" on {part.backgrounds:,} of {part.expected:,} backgrounds"
                if part.missing:
                    text += f", no image of {listed(part.missing)}"
                if name not in by_text.setdefault(text, []):
                    by_text[text].append(name)
    return [f"{listed(names)}: {text}." for text, names in by_text.items()]
