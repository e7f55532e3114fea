import csv
import io
import math
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.python_process import start_python
from helpers.run_tree import PACS, make_tree, write_run
from swad.testbed.results.accuracy_table import PaperRows, accuracy_table, accuracy_tables, results_table
from swad.testbed.results.compare import lower_than_best
from swad.testbed.results.records import read_records
from swad.testbed.results.run_data import RunData
from swad.testbed.results.run_tables import ranges_table
from swad.testbed.results.runs import find_runs
from swad.testbed.results.selection import collect_results
from swad.testbed.results.tables import OURS, PAPER
from swad.testbed.results.unit_tables import TEST


def target_values(runs: list[RunData], target: str, average: str) -> list[float]:
    return [
        record.value
        for run in runs
        if run.targets == (target,)
        for record in read_records(run.path)
        if (record.domain, record.split, record.metric, record.average) == (target, "in", "accuracy", average)
    ]


def test_the_numbers_are_those_of_the_records(runs: list[RunData]) -> None:
    (table,) = accuracy_tables(runs)
    assert table.columns == (*PACS, "Avg.", "In-domain")
    rows = {row.name: row for row in table.rows if row.group == OURS}
    assert list(rows) == ["ERM (best)", "ERM (last)", "EMA", "SWA", "SWAD"]
    for name, average in (("SWAD", "swad"), ("ERM (best)", "best")):
        by_target = [target_values(runs, target, average) for target in PACS]
        for cell, (a, b) in zip(rows[name].cells, by_target, strict=False):
            assert cell.value == pytest.approx(100 * (a + b) / 2)
            assert cell.error == pytest.approx(100 * abs(a - b) / 2 / math.sqrt(2))
        first, second = (sum(values[trial] for values in by_target) / 4 for trial in (0, 1))
        assert rows[name].cells[4].value == pytest.approx(50 * (first + second))
        assert rows[name].cells[4].error == pytest.approx(100 * abs(first - second) / 2 / math.sqrt(2))


def test_the_papers_rows_stand_below_and_have_no_marks(runs: list[RunData]) -> None:
    (table,) = accuracy_tables(runs, paper="all")
    paper = [row for row in table.rows if row.group == PAPER]
    few = [row for row in accuracy_tables(runs)[0].rows if row.group == PAPER]
    assert [row.name for row in few] == ["ERM‡", "ERM†", "SWAD", "SWA w/ const"]
    assert len(paper) == 24 + 5
    assert not any(cell.best or cell.mark for row in paper for cell in row.cells)
    combined = next(row for row in paper if row.name == "CORAL + SWAD")  # of which the paper prints the mean alone
    assert [cell.printed for cell in combined.cells] == ["–", "–", "–", "–", "88.3 ± 0.1", "–"]
    assert accuracy_tables(runs, paper="none")[0].rows == table.rows[:5]


def test_runs_with_another_split_than_the_papers_rows_are_named(runs: list[RunData]) -> None:
    def has_note(runs: list[RunData], paper: PaperRows) -> bool:
        return any("80/20 splits" in note for note in accuracy_tables(runs, paper=paper)[0].notes)

    three_way = [replace(run, config={**run.config, "split": "60/20/20"}) for run in runs]
    assert has_note(three_way, "few")
    assert not has_note(three_way, "none")
    assert not has_note(runs, "few")


def test_runs_with_a_cyclic_learning_rate_are_named_as_in_figures(runs: list[RunData]) -> None:
    cyclic = [replace(run, config={**run.config, "lr_schedule": "cyclic"}) for run in runs]
    (table,) = accuracy_tables(cyclic)
    ours = [row.name for row in table.rows if row.group == OURS]
    assert ours == ["ERM (best, cyclic)", "ERM (last, cyclic)", "EMA (cyclic)", "SWA (cyclic)", "SWAD (cyclic)"]
    assert [row.name for row in table.rows if row.group == PAPER] == ["ERM‡", "ERM†", "SWAD", "SWA w/ cyclic"]
    assert {row.cells[0].text for row in ranges_table(cyclic).rows} == {"SWAD (cyclic)"}
    (mixed,) = accuracy_tables([*cyclic[:4], *runs[4:]], paper="none")  # selection takes schedules as hyperparameters
    assert [row.name for row in mixed.rows] == ["ERM (best)", "ERM (last)", "EMA", "SWA", "SWAD"]
    without = [replace(run, records=run.frame[run.frame.weights != "swa"]) for run in runs]
    (both,) = accuracy_tables([*cyclic, *without], paper="none")
    assert [row.name for row in both.rows] == ["ERM (best)", "ERM (last)", "EMA", "SWA (cyclic)", "SWAD"]


def test_bold_is_the_highest_mean_and_arrows_mark_what_is_lower(runs: list[RunData], tmp_path: Path) -> None:
    (results,) = collect_results(runs)
    table = accuracy_table(results, "none")
    cells = {row.name: row.cells for row in table.rows}
    columns = [*(results.units.loc[[target]] for target in PACS), results.units, results.source_units]
    for number, column in enumerate(columns):
        means = {name: own[number].value or 0.0 for name, own in cells.items()}
        best = max(means, key=means.__getitem__)
        assert {name for name, own in cells.items() if own[number].best} == {best}
        assert {name for name, own in cells.items() if own[number].mark == "↓"} == lower_than_best(column, best)
    assert cells["SWAD"][4].best
    assert cells["ERM (last)"][4].mark == "↓"  # 3.4 points below, with a spread of half a point
    assert table.notes[1] == f"Bold: the highest mean in the column; ↓: significantly below it ({TEST})."
    assert accuracy_table(results).notes[1].startswith("Bold: our highest mean in the column; ↓:")
    for form in (table.markdown(), table.latex(), table.csv()):
        assert ("**" in form) + (r"\textbf" in form) + (",bold" in form) == 1
        assert "↓" in form or r"$\downarrow$" in form
    assert ",Avg.," in table.csv()


def test_one_trial_has_no_arrows_and_says_why(runs: list[RunData]) -> None:
    (table,) = accuracy_tables([run for run in runs if run.trial == 0], paper="none")
    assert not any(cell.mark for row in table.rows for cell in row.cells)
    assert (
        table.notes[1] == "Bold: the highest mean in the column; without a second trial, no difference can be tested."
    )


def test_without_scipy_nothing_is_tested_and_the_note_says_so(tmp_path: Path) -> None:
    for trial in range(2):
        write_run(tmp_path / str(trial), trial=trial)
    code = f"""import sys; sys.modules["scipy"] = sys.modules["scipy.special"] = None
import swad
print(swad.testbed.results.results_table(swad.testbed.results.find_runs({str(tmp_path)!r}), paper="none").markdown())"""
    text, errors = start_python(code).communicate()
    assert not errors
    assert "↓" not in text
    assert "**" in text
    assert "Differences are not tested: confidence intervals need scipy: pip install" in text


def test_fewer_targets_take_the_papers_average_away(runs: list[RunData]) -> None:
    (table,) = accuracy_tables([run for run in runs if run.targets[0] in ("photo", "sketch")])
    assert table.columns == ("photo", "sketch", "Avg.", "In-domain")
    assert table.rows[-1].name == "SWAD"
    assert table.rows[-1].cells[2].value is None


def test_a_mean_over_some_targets_is_not_given(faulty: list[RunData]) -> None:
    (table,) = accuracy_tables(faulty)
    row = next(row for row in table.rows if row.name == "SWAD")
    printed = dict(zip(table.columns, [cell.printed for cell in row.cells], strict=True))
    assert printed["photo"] == printed["Avg."] == "–"
    assert "±" in printed["cartoon"]
    assert "up to 2 trials" in table.notes[0]


def test_algorithms_and_datasets_have_their_own_rows_and_tables(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("two")
    write_run(root / "a", algorithm="coral")
    write_run(root / "b", algorithm="erm")  # stands first all the same
    write_run(root / "c", dataset="digits", domains=("ink", "outline"), target="ink")
    pacs, digits = accuracy_tables(find_runs(root))
    assert [row.name for row in pacs.rows if row.group == OURS][-2:] == ["CORAL + SWA", "CORAL + SWAD"]
    assert {row.group for row in digits.rows} == {OURS}
    assert "one trial" in digits.notes[0]


def test_a_missing_target_is_noted_and_takes_the_mean_away(tmp_path: Path) -> None:
    for target in PACS:
        write_run(tmp_path / target, target=target)
    (tmp_path / "photo" / "records.jsonl").write_text("")
    runs = find_runs(tmp_path, warn=False)
    (table,) = accuracy_tables(runs, paper="none")
    assert all(row.cells[-2].printed == row.cells[-1].printed == "–" for row in table.rows)
    notes = "\n".join(table.notes)
    assert "Not in the table: photo: the run is finished, but its records.jsonl is empty" in notes
    assert "No mean over targets, because photo has no result as target: `swad report --allow-missing-targets" in notes

    (allowed,) = accuracy_tables(runs, paper="none", allow_missing_targets=True)
    swad = next(row for row in allowed.rows if row.name == "SWAD")
    assert swad.cells[3].value == pytest.approx(sum(cell.value or 0 for cell in swad.cells[:3]) / 3)
    assert swad.cells[3].printed.endswith("*")
    assert not swad.cells[3].best
    assert "* The mean over targets lacks photo: do not compare it with other means." in allowed.notes
    marked = [row for row in csv.DictReader(io.StringIO(allowed.csv())) if row["mark"] == "*"]
    assert {row["column"] for row in marked} == {"Avg.", "In-domain"}
    assert "*" in allowed.latex()


def test_a_mean_that_lacks_a_target_takes_bold_from_no_other_mean(tmp_path: Path) -> None:
    for trial in (0, 1):
        for target in PACS:
            write_run(tmp_path / f"{target}-{trial}", target=target, trial=trial)
        # The easiest target alone, so the highest mean.
        write_run(tmp_path / f"coral-{trial}", target=PACS[0], trial=trial, algorithm="coral")
    (table,) = accuracy_tables(find_runs(tmp_path), paper="none", allow_missing_targets=True)
    means = {row.name: row.cells[len(PACS)] for row in table.rows}
    assert means["CORAL + SWAD"].mark
    assert max(means, key=lambda name: means[name].value or 0.0) == "CORAL + SWAD"
    assert means["SWAD"].best
    assert not any(cell.best for name, cell in means.items() if "CORAL" in name)


def test_a_missing_trial_of_one_method_is_noted(tmp_path: Path) -> None:
    make_tree(tmp_path, trials=2)
    path = tmp_path / "photo" / "trial-1" / "records.jsonl"
    path.write_text("".join(f"{line}\n" for line in path.read_text().splitlines() if '"swad"' not in line))
    (table,) = accuracy_tables(find_runs(tmp_path))
    assert "Without trial 1 on photo: SWAD: the run trial-1 has no accuracy of these weights." in table.notes
    assert "Means over targets of SWAD have no ±, because photo lacks trial 1." in table.notes
    # Every target counts once, however many trials it has.
    swad = next(row.cells for row in table.rows if row.name == "SWAD" and row.group == OURS)
    assert swad[4].value == pytest.approx(sum(cell.value or 0 for cell in swad[:4]) / 4)
    assert swad[4].error is None
    some = [run for run in find_runs(tmp_path) if run.target != "sketch"]
    assert "no ±" in "".join(accuracy_tables(some, allow_missing_targets=True)[0].notes)
    assert "no ±" not in "".join(accuracy_tables(some)[0].notes)  # there are no means


def test_a_split_that_no_run_has_is_noted_once(tmp_path: Path) -> None:
    make_tree(tmp_path, trials=1)
    (table,) = accuracy_tables(find_runs(tmp_path), split="test")
    methods = "ERM (best), ERM (last), EMA, SWA, SWAD"
    assert f"Not shown: {methods}: the split 'test' of the target was not evaluated" in "".join(table.notes)


@pytest.mark.parametrize(
    ("split", "layout", "words"),
    [
        ("in", "80/20", "on the in split (80 %) of the held-out domain,"),
        ("in", "60/20/20", "on the in split (60 %) of the held-out domain,"),
        ("out", "80/20", "on the out split (20 %) of the held-out domain,"),
        ("full", "80/20", "on the whole held-out domain,"),
    ],
)
def test_the_caption_names_the_split(runs: list[RunData], split: str, layout: str, words: str) -> None:
    changed = [replace(run, config={**run.config, "split": layout}) for run in runs]
    assert words in accuracy_tables(changed, split=split)[0].notes[0]


def test_a_table_of_an_oracle_says_that_the_target_was_used(runs: list[RunData]) -> None:
    assert not any("looks at the held-out domain" in note for note in accuracy_tables(runs)[0].notes)
    assert any("looks at the held-out domain" in note for note in accuracy_tables(runs, "oracle")[0].notes)


def test_results_table_needs_one_dataset(runs: list[RunData]) -> None:
    assert results_table(runs) == accuracy_tables(runs)[0]
    other = replace(runs[0], config={**runs[0].config, "dataset": "VLCS"})
    with pytest.raises(ValueError, match="needs runs on one dataset, got PACS, VLCS"):
        results_table([*runs, other])
