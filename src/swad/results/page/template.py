"""The files of the page, and the environment that renders them."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from swad.results.tables import OURS, Cell


def asset(name: str) -> str:
    """Return a file of the page: template, styles or script."""
    return files("swad.results.page").joinpath(name).read_text(encoding="utf-8")


def environment() -> Any:
    """Return the environment that renders the page's templates, in which every value is escaped."""
    try:
        import jinja2
    except ImportError:
        raise ImportError("the report page needs jinja2: pip install 'swad[report]'") from None
    templates = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["sort_value"] = _sort_value
    templates.tests["ours"] = lambda row: row.group == OURS
    return templates


def _sort_value(cell: Cell) -> str:
    """Return the value that a column is sorted by: the number in full precision, or the text."""
    if cell.value is not None:
        return repr(float(cell.value))
    return cell.text or ""
