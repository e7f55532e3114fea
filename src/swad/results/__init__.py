"""What runs measured: records, selection, statistics, tables, figures and the page. Never imports torch.

    runs = swad.results.find_runs("runs")                    # every run, with settings and records
    results = swad.results.select(runs, "iid", "swad")       # one result for each target and trial
    print(swad.results.results_table(runs).text())           # the accuracy table of one dataset
    swad.results.compare_over_datasets(swad.results.collect_results(runs), "SWA")    # every method against one
    results.to_frame(), runs.to_frame()                      # pandas data frames

Names are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swad.results.comparisons import compare_methods, compare_over_datasets
    from swad.results.method_results import collect_results
    from swad.results.page.build import write_page
    from swad.results.records import Record, RecordError, read_records, records_frame
    from swad.results.run_data import RunData
    from swad.results.run_tables import accuracy_tables, results_table
    from swad.results.runs import RunList, find_runs, load_run
    from swad.results.selection import Selection, TargetResult, select
    from swad.results.selectors import SelectionError

_HOMES = {
    "Record": "records",
    "RecordError": "records",
    "RunData": "run_data",
    "RunList": "runs",
    "Selection": "selection",
    "SelectionError": "selectors",
    "TargetResult": "selection",
    "accuracy_tables": "run_tables",
    "collect_results": "method_results",
    "compare_methods": "comparisons",
    "compare_over_datasets": "comparisons",
    "find_runs": "runs",
    "load_run": "runs",
    "read_records": "records",
    "records_frame": "records",
    "results_table": "run_tables",
    "select": "selection",
    "write_page": "page.build",
}

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


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"swad.results.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'swad.results' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
