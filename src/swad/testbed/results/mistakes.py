"""What is wrong: the accuracy of every class, the confusion matrix, and the mistakes with the highest probability.

All of it is of one method on a dataset, SWAD or without it that with the highest score of the model selection, and of
the images on which it is reported. It comes from the predictions that the selected runs kept.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from swad.testbed.results.records import LIVE, RecordError
from swad.testbed.results.runs import once
from swad.testbed.results.selection import DatasetResults
from swad.testbed.results.tables import Cell, Row, Table
from swad.util.names import counted

if TYPE_CHECKING:
    import pandas as pd

SHOWN = "SWAD"
"""The method whose predictions are shown, if there are any."""
MAX_MATRIX = 30
"""The confusion matrix has at most these classes: those with the most mistakes."""
MAX_DOMAINS = 12
"""With more domains, the table of classes has no column for each."""
MAX_SHADE = 0.6
"""Strongest color behind a number, so that it stays readable."""


@dataclass(frozen=True)
class ShownPredictions:
    """The predictions of the method that is shown."""

    dataset: str
    method: str
    images: pd.DataFrame
    """The columns of `read_predictions`, and `run`, the place in the list of runs."""
    n_runs: int
    n_missing: int
    """Selected runs without predictions that can be read."""

    @cached_property
    def confusion(self) -> pd.DataFrame:
        """The number of images by class and predicted class."""
        import pandas as pd

        names = self.images["label"].cat.categories
        counts = pd.crosstab(self.images["label"], self.images["prediction"], dropna=False)
        return counts.reindex(index=names, columns=names, fill_value=0)

    @cached_property
    def shares(self) -> pd.DataFrame:
        """The confusion matrix in percent of each class, of the classes with the most mistakes if there are many."""
        counts = self.confusion
        n_wrong = counts.sum(axis=1) - counts.to_numpy().diagonal()
        names = counts.index.isin(n_wrong.nlargest(MAX_MATRIX).index)
        return (100 * counts.div(counts.sum(axis=1), axis=0)).loc[names, names].fillna(0.0)

    @property
    def lead(self) -> str:
        """Say what was counted."""
        domains = ", ".join(sorted(self.images["domain"].unique()))
        text = f"{self.method} on {domains}: {len(self.images):,} predictions of {counted(self.n_runs, 'run')}."
        return text + (f" {counted(self.n_missing, 'run')} kept no predictions." if self.n_missing else "")

    def mistakes(self, most: int) -> pd.DataFrame:
        """Return the wrong predictions with the highest probability, each image once."""
        wrong = self.images[(self.images["label"] != self.images["prediction"]).to_numpy()]
        wrong = wrong.sort_values("probability", ascending=False, kind="stable")
        return wrong.drop_duplicates(["domain", "image"]).head(most)


@once
def shown_predictions(results: DatasetResults) -> ShownPredictions | None:
    """Return the predictions of SWAD, or without it of the method with the highest mean score; None if there are none.

    Live weights at steps of their own are not considered, as their predictions are not kept.
    """
    import pandas as pd

    from swad.testbed.results.predictions import PREDICTIONS

    rows = results.results[results.results["weights"] != LIVE]
    if rows.empty:
        return None
    scores = rows.groupby("method", sort=False)["score"].mean().fillna(0.0)
    method = SHOWN if SHOWN in scores else str(scores.idxmax())
    chosen = list(rows[rows["method"] == method].itertuples())
    found = []
    for row in chosen:
        if (results.runs[row.run].path / PREDICTIONS).is_file():
            try:
                found.append(_of_result(results, row))
            except RecordError as error:  # one damaged file must not cost the report
                warnings.warn(str(error), stacklevel=2)
    if not found:
        return None
    images = pd.concat(found, ignore_index=True)
    return ShownPredictions(results.dataset, method, images, len(found), len(chosen) - len(found))


def _of_result(results: DatasetResults, row: Any) -> pd.DataFrame:
    """Return the predictions for the images behind a reported number."""
    from swad.testbed.results.predictions import read_predictions

    run = results.runs[row.run]
    images = read_predictions(run.path)
    split = results.split if run.targets else "test" if results.has_test else "out"
    wanted = (images["weights"] == row.weights) & ((images["split"] == split) | (split == "full"))
    if run.targets:
        wanted &= images["domain"].isin(run.targets)
    return images[wanted.to_numpy()].assign(run=row.run)


def class_table(shown: ShownPredictions) -> Table:
    """Build the table of classes: accuracy, precision and F1 of each, and the accuracy in each domain."""
    counts, images = shown.confusion, shown.images
    groups = (
        (images["label"] == images["prediction"]).groupby([images["domain"], images["label"]], observed=True).mean()
    )
    domains = list(groups.index.unique(0))
    domains = domains if 1 < len(domains) <= MAX_DOMAINS else []
    rows = []
    for name, of_class in counts.iterrows():
        right, n, n_predicted = of_class[name], of_class.sum(), counts[name].sum()
        others = of_class.drop(name)
        taken_for = f"{others.idxmax()} ({others.max()})" if others.max() else "–"
        cells = [Cell(float(n), decimals=0), _percent(right, n), _percent(right, n_predicted)]
        cells += [_percent(2 * right, n + n_predicted), Cell(text=taken_for)]
        cells += [_percent(groups.get((domain, name)), 1) for domain in domains]
        rows.append(Row(str(name), tuple(cells)))
    notes = ["In %. The accuracy on a class is its sensitivity (recall), precision its positive predictive value."]
    if domains:
        domain, label = groups.idxmin()
        notes.append(f"Worst group: {label} in {domain}, {100 * groups.min():.1f} %.")
    columns = ("Images", "Accuracy", "Precision", "F1", "Most often taken for", *domains)
    return Table(f"Classes: {shown.dataset}, {shown.method}", columns, tuple(rows), tuple(notes), "Class")


def confusion_table(shown: ShownPredictions) -> Table:
    """Build the confusion matrix in percent of each class."""
    rows = [
        Row(str(label), tuple(Cell(share, shade=MAX_SHADE * share / 100) for share in of_class))
        for label, of_class in shown.shares.iterrows()
    ]
    note = "A row is a class, a column what its images are taken for, in % of the class."
    if len(rows) < len(shown.confusion):
        note += f" The {len(rows)} of {len(shown.confusion)} classes with the most mistakes."
    return Table("Confusion matrix", tuple(map(str, shown.shares.columns)), tuple(rows), (note,), "Class")


def _percent(part: float | None, whole: float) -> Cell:
    return Cell(100 * part / whole) if part is not None and whole else Cell()
