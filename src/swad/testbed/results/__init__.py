"""What runs measured: records, selection, statistics, tables, figures and the page. Never imports torch.

    runs = swad.testbed.results.find_runs("runs")               # every run, with its settings
    runs.frame, runs.records                                    # data frames: a row for each run, for each value
    swad.testbed.results.select(runs, "iid", "swad")            # a data frame: one result for each target and trial
    print(swad.testbed.results.results_table(runs).text())      # the accuracy table of one dataset
    collected = swad.testbed.results.collect_results(runs)
    swad.testbed.results.compare_over_datasets(collected, "SWA") # every method against one

Names are loaded on first use. The modules, in the order in which data flows through them:

    records, frames, predictions, run_data, runs, domainbed, failures         read runs from their directories
    metrics, selection, selection_file, unselected_weights                    choose the run of each target and trial
    compare, comparisons, method_ranks, published                             means and tests, also of accuracies; ranks
    tables, labels, unit_tables, accuracy_table, run_tables, mistakes,        tables, the names in them, and warnings
    diagnostics
    training_curves, measured, measured_report, windows, tuning, surfaces,    measurements of runs: read, averaged and
    surface_report, corruption_means, imagenet_parts, rank_correlation        as tables
    figures/, page/, trackers/                                                drawings, the HTML page, W&B and others
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swad.util.lazy import lazy_exports

if TYPE_CHECKING:
    from swad.testbed.results.accuracy_table import accuracy_tables, results_table
    from swad.testbed.results.comparisons import compare_methods, compare_over_datasets
    from swad.testbed.results.page.build import write_page
    from swad.testbed.results.predictions import read_predictions
    from swad.testbed.results.records import Record, RecordError, read_records
    from swad.testbed.results.run_data import RunData
    from swad.testbed.results.runs import RunList, find_runs, load_run
    from swad.testbed.results.selection import SelectionError, collect_results, select

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "comparisons": ("compare_methods", "compare_over_datasets"),
        "page.build": ("write_page",),
        "predictions": ("read_predictions",),
        "records": ("Record", "RecordError", "read_records"),
        "run_data": ("RunData",),
        "accuracy_table": ("accuracy_tables", "results_table"),
        "runs": ("RunList", "find_runs", "load_run"),
        "selection": ("SelectionError", "collect_results", "select"),
    },
)

__all__ = [  # noqa: RUF022 - the reader's order
    "find_runs",
    "load_run",
    "read_records",
    "read_predictions",
    "select",
    "results_table",
    "accuracy_tables",
    "collect_results",
    "compare_methods",
    "compare_over_datasets",
    "write_page",
    "Record",
    "RunData",
    "RunList",
    "RecordError",
    "SelectionError",
]
