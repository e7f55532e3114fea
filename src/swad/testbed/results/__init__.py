"""What runs measured: records, selection, statistics, tables, figures and the page. Never imports torch.

    runs = swad.testbed.results.find_runs("runs")               # every run, with settings and records
    results = swad.testbed.results.select(runs, "iid", "swad")  # one result for each target and trial
    print(swad.testbed.results.results_table(runs).text())      # the accuracy table of one dataset
    collected = swad.testbed.results.collect_results(runs)
    swad.testbed.results.compare_over_datasets(collected, "SWA") # every method against one
    results.to_frame(), runs.to_frame()                         # pandas data frames

Names are loaded on first use. The modules, in the order in which data flows through them:

    records, record_table, run_data, runs, domainbed, summary, failures       read runs from their directories
    selectors, selection, method_results, selection_file, unselected_weights  choose the run of each target and trial
    comparisons, method_ranks, published                                      compare methods, also with the paper's
    tables, labels, column_marks, run_tables, comparison_tables, diagnostics  tables, the names in them, and warnings
    training_curves, flatness_*, surfaces, corruption_*, imagenet_parts,      measurements of runs: read, averaged and
    windows, window_tables, tuning, rank_correlation                          as tables
    figures/, page/, trackers/                                                drawings, the HTML page, W&B and others
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swad.util.lazy import lazy_exports

if TYPE_CHECKING:
    from swad.testbed.results.comparisons import compare_methods, compare_over_datasets
    from swad.testbed.results.method_results import collect_results
    from swad.testbed.results.page.build import write_page
    from swad.testbed.results.records import Record, RecordError, read_records, records_frame
    from swad.testbed.results.run_data import RunData
    from swad.testbed.results.run_tables import accuracy_tables, results_table
    from swad.testbed.results.runs import RunList, find_runs, load_run
    from swad.testbed.results.selection import Selection, TargetResult, select
    from swad.testbed.results.selectors import SelectionError

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "comparisons": ("compare_methods", "compare_over_datasets"),
        "method_results": ("collect_results",),
        "page.build": ("write_page",),
        "records": ("Record", "RecordError", "read_records", "records_frame"),
        "run_data": ("RunData",),
        "run_tables": ("accuracy_tables", "results_table"),
        "runs": ("RunList", "find_runs", "load_run"),
        "selection": ("Selection", "TargetResult", "select"),
        "selectors": ("SelectionError",),
    },
)

__all__ = [  # noqa: RUF022 - the reader's order
    "find_runs",
    "load_run",
    "read_records",
    "records_frame",
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
    "Selection",
    "TargetResult",
    "RecordError",
    "SelectionError",
]
