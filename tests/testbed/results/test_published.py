import pytest

from swad.testbed.results import published
from swad.testbed.results.published import Number, PublishedTable

# How many decimals each table of the paper's source prints, counted apart from the extraction.
COUNTS = {1: 24, 2: 116, 3: 36, 4: 81, 5: 70, 6: 12, 8: 55, 9: 188, 10: 153, 11: 153, 12: 153, 13: 235}
GAINS = {4: 4}  # numbers in brackets behind the average, which the lookup leaves out


@pytest.mark.parametrize("number", COUNTS)
def test_no_number_is_missing(number: int) -> None:
    cells = [cell for row in published.table(number).rows for cell in row.values if isinstance(cell, Number)]
    printed = sum(1 + (cell.error is not None) for cell in cells)
    assert printed + GAINS.get(number, 0) == COUNTS[number]


def means(table: PublishedTable) -> list[tuple[str, float, float]]:
    """Every printed average with the mean of what it is printed behind."""
    found = []
    for row in table.rows:
        members: list[float] = []
        for column, cell in zip(table.columns, row.values, strict=True):
            if column.endswith("Avg."):
                if isinstance(cell, Number):
                    found.append((row.name + row.mark, sum(members) / len(members), cell.value))
                members = []
            elif isinstance(cell, Number):
                members.append(cell.value)
    return found


def test_printed_averages_agree_with_their_rows_but_for_the_known_misprints() -> None:
    off = set()
    for table in published.tables():
        for name, mean, printed in means(table):
            assert abs(mean - printed) <= 0.1 + 1e-9, (table.number, name)  # rounding twice allows no more
            if abs(mean - printed) > 0.05 + 1e-9:
                off.add((table.number, name.rstrip("†‡")))
    known = {(entry["table"], entry["row"]) for entry in published._data()["misprints"] if entry["column"] == "Avg."}
    assert off == known == {(2, "CORAL"), (4, "CORAL")}


def test_table_2_is_the_average_of_the_full_tables() -> None:
    table = published.table(2)
    names = {"TerraInc": "TerraIncognita"}
    marks = {"SWAD (ours)": "SWAD", "ERM (reproduced)": "ERM‡", "Mixstyle": "Mixstyle‡", "I-Mixup†": "I-Mixup"}
    for row in table.rows:
        for column, cell in zip(table.columns, row.values, strict=True):
            if column != "Avg." and isinstance(cell, Number):
                full = {entry.name: entry.average for entry in published.targets(names.get(column, column))}
                name = row.name + row.mark
                average = full[marks.get(name, name)]
                assert average is not None
                assert average.value == cell.value, (name, column)


def test_tables_repeat_each_other_but_for_one_misprint() -> None:
    second, fourth = published.table(2), published.table(4)
    differ = [
        column
        for ours, theirs, mark in (("ERM", "ERM", "†"), ("CORAL", "CORAL", "†"), ("ERM + SWAD", "SWAD (ours)", ""))
        for column in ("PACS", "VLCS", "OfficeHome", "TerraInc", "DomainNet", "Avg.")
        if _value(fourth.row(ours)[column]) != _value(second.row(theirs, mark)[column])
    ]
    assert differ == ["TerraInc"]
    eighth = published.table(8)
    for ours, theirs in (("SWAD", "ERM + SWAD"), ("SAM", "SAM"), ("SWA w/ const", "ERM + SWA w/ const")):
        assert list(eighth.row(ours).values()) == list(fourth.row(theirs).values())


def _value(cell: published.Printed) -> float:
    assert isinstance(cell, Number)
    return cell.value


def test_numbers_read_off_the_paper_by_eye() -> None:
    assert published.table(3).row("CutMix") == {"Out-of-domain": Number(83.8, 0.4), "In-domain": Number(97.6, 0.1)}
    ablation = published.table(5).row("SWAD fit-on-val")
    assert ablation["Configuration / t_s"] == "Val"
    assert ablation["In-domain / VLCS"] == Number(85.8, 0.3)
    assert published.table(6).row("SWA")["ImageNet-C (mCE) ↓"] == Number(56.8)
    assert published.table(7).row("learning rate")["DomainBed"] == "10^U(-5,-3.5)"
    mmd = published.targets("domain_net")[0]
    assert (mmd.name, mmd.cells["real"]) == ("MMD†", Number(32.7, 13.8))
    assert published.table(2).row("MASF")["VLCS"] is None


def test_domains_are_ours_and_an_unknown_name_lists_the_known() -> None:
    assert list(published.targets("terra_incognita")[0].cells) == [
        "location_100",
        "location_38",
        "location_43",
        "location_46",
    ]
    with pytest.raises(KeyError, match="tables 1 to 13, got 14"):
        published.table(14)
    with pytest.raises(KeyError, match="no row 'SGD': it has ERM, EMA"):
        published.table(3).row("SGD")
