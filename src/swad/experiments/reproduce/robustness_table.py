"""Table 6: robustness on ImageNet. `swad.robustness` computes its scores; nothing is trained for it yet."""

from __future__ import annotations

from pathlib import Path

from swad.experiments.flatness_report import Report
from swad.experiments.reproduce.accuracy import printed_cell
from swad.experiments.reproduce.base import Reproduction, Results
from swad.experiments.reproduce.config import PaperConfig
from swad.experiments.reproduce.methods import row_name
from swad.results import published
from swad.results.tables import PAPER, Row, Table
from swad.util.progress import Progress

NEEDS = (
    "Not reproduced: swad.robustness computes these scores, but swad does not train on ImageNet yet. The numbers are "
    "the paper's.",
    "Needed data: ImageNet (1.28 million training images), ImageNet-C (15 corruptions x 5 severities), ImageNet-R "
    "(30,000 images of 200 classes) and the Background Challenge (original, only_bg_t and fg_mask).",
    "Needed training (appendix B.6): ResNet-50 from random weights, 90 epochs, batch 2,048, SGD with momentum 0.9, "
    "learning rate 0.1 per 256 images with 5 epochs of warm-up and polynomial decay; three trainings. SWA: decay to a "
    "twentieth until epoch 72, then cycles of 3 epochs. SWAD: the same decay, then a constant learning rate, averaging "
    "every step of the last 20 %.",
    "The paper's 57.6 for ERM is most likely the mean error that was not divided by AlexNet's: ResNet-50 has an mCE of "
    "76.7 in the paper of ImageNet-C.",
)


def _build(config: PaperConfig, results: Results, folder: Path, progress: Progress | None) -> Report:
    entry = published.table(6)
    rows = tuple(Row(row_name(row), tuple(map(printed_cell, row.values)), PAPER) for row in entry.rows)
    return Report((Table(f"Table 6: {entry.title}", entry.columns, rows, NEEDS),), ())


ITEMS = (Reproduction("table6", published.table(6).title, lambda config: (), _build, datasets=()),)
