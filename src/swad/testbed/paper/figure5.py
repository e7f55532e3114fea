"""Figure 5: validation accuracy and loss of every source over training, with t_s and t_e."""

from __future__ import annotations

from collections.abc import Sequence

from swad.testbed.paper.reproduction import PaperRuns, first_trial_item
from swad.testbed.paper.trainings import ERM
from swad.testbed.results.figures.training import valley_figure
from swad.testbed.results.report import Report
from swad.testbed.results.run_tables import ranges_table


def _build(paper_runs: PaperRuns, dataset: str, names: Sequence[str]) -> Report:
    runs = paper_runs.first_trial(dataset, ERM)
    drawing = valley_figure(runs, "swad", ("accuracy", "loss"))
    return Report((ranges_table(runs),), tuple(paper_runs.save(drawing, "figure5", *names)))


ITEMS = (first_trial_item("figure5", "Validation accuracy and loss over training", ERM, _build),)
