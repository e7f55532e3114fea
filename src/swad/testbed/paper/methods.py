"""The rows of the paper's accuracy tables: the training behind each, the weights, and the search that the paper used.

The paper quotes most of its baselines from DomainBed, whose search is random (†). It searched ERM, MixStyle and SAM
itself, on a grid (‡). SWAD, alone or with another method, has default hyperparameters (appendix B.1, Table 4). Seven
methods are quoted from their own papers, which nobody searched under this protocol; ours have DomainBed's search, as
the rows that they are compared with.

>>> rows = {row_name(row): method_of(row) for row in published.table(9).rows}
>>> rows["ERM‡"].training.search, rows["CORAL†"].training.algorithm, rows["SWAD"].weights, rows["MASF"].training.search
('paper', 'coral', 'swad', 'domainbed')
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swad.testbed.algorithms.registry import canonical_name
from swad.testbed.paper.trainings import ERM, ERM_CYCLIC, Search, Training
from swad.testbed.results import published
from swad.testbed.results.published import PublishedRow

QUOTED = ("MASF", "DMG", "MetaReg", "ER", "pAdaIN", "EISNet", "DSON")
"""Methods that the paper quotes from their own papers."""

COMPETITOR = "Best SOTA competitor"
"""The row of Table 1 that is not one method, but the best of several."""

OWN_SEARCH = ("Mixstyle", "SAM")
"""Methods that the paper searched itself wherever they occur (appendix B.2)."""


@dataclass(frozen=True)
class PaperMethod:
    """A row of a table: its printed name, how it is trained, and which weights it is."""

    name: str
    training: Training
    weights: str = "best"


def algorithm_of(name: str) -> str:
    """Return our algorithm by the paper's name.

    >>> algorithm_of("GroupDRO"), algorithm_of("Π-model")
    ('group_dro', 'pi_model')
    """
    return canonical_name(name.replace("Π", "pi"))


def row_name(row: PublishedRow) -> str:
    """Return the printed name of a row with its mark; the paper's own method is SWAD in all tables.

    >>> [row_name(row) for row in published.table(9).rows][-2:]
    ['DSON', 'SWAD']
    """
    return "SWAD" if row.method == "SWAD" and " + " not in row.name else row.name + row.mark


def method_of(row: PublishedRow) -> PaperMethod | None:
    """Return how a row of Tables 1, 2, 4 and 8 to 13 is made; None for a row that is not one method."""
    name = row_name(row)
    if row.method == "SWAD":
        return PaperMethod(name, ERM, "swad")
    if row.method == "SWA w/ const":
        return PaperMethod(name, ERM, "swa")
    if row.method == "SWA w/ cyclic":
        return PaperMethod(name, ERM_CYCLIC, "swa")
    if row.method == COMPETITOR:
        return None
    base, _, average = row.method.partition(" + ")
    if average:
        return PaperMethod(name, Training(algorithm_of(base)), average.lower())
    own = base in OWN_SEARCH or row.mark == "‡" or "reproduced" in row.name
    search: Search = "paper" if own else "domainbed"
    return PaperMethod(name, Training(algorithm_of(base), search=search))


def methods_of(number: int) -> list[PaperMethod]:
    """Return the methods of a table that can be trained, in the order of its rows."""
    return [method for row in published.table(number).rows if (method := method_of(row)) is not None]


def trainings_of(*numbers: int) -> Callable[[object], list[Training]]:
    """Return a function that lists the trainings of some tables, for any config."""
    return lambda config: [method.training for number in numbers for method in methods_of(number)]
