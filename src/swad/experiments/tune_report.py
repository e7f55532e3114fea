"""Tables, rows and heat maps of a search over settings of SWAD."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swad.experiments.tune import Tuning
from swad.results.figures.style import save_figures
from swad.results.figures.tuning import tuning_figure
from swad.results.tables import Table
from swad.results.tuning import TuneSelect, by_group, chosen_table, rows_csv, settings_table
from swad.util.files import write_text
from swad.util.names import file_stem


@dataclass(frozen=True)
class TuningReport:
    """What is printed, and the files that were written."""

    tables: tuple[Table | str, ...]
    written: tuple[Path, ...]


def write_tuning(
    tuning: Tuning, folder: Path, select: TuneSelect = "iid", formats: Sequence[str] = ("svg",)
) -> TuningReport:
    """Write the rows and the heat maps of a search, and return its tables.

    Args:
        tuning: The result of the search.
        folder: Directory for the files.
        select: The selection that chose the settings.
        formats: Formats of the figures: svg, pdf, png.
    """
    tables: list[Table | str] = []
    written = [folder / "tuning.csv"]
    write_text(written[0], rows_csv(tuning.rows))
    for group, rows in by_group(tuning.rows).items():
        chosen = tuning.chosen.get(group)
        tables.append(settings_table(rows, chosen, tuning.trained_settings))
        if chosen is not None:
            figure = tuning_figure(rows, chosen, select)
            written += save_figures(figure, folder / file_stem(group), formats)
    if tuning.chosen:
        tables.append(chosen_table(tuning.rows, tuning.chosen, tuning.trained))
        if select == "oracle":
            tables.append("The oracle looks at the held-out domain, so its accuracies do not estimate an unseen one.")
    return TuningReport(tuple(tables), (*written, *tuning.weights))
