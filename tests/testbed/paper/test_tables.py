"""The tables of runs whose accuracies are stated: numbers, differences, bold and arrows have known answers."""

import csv
from pathlib import Path

import pytest

from helpers.stated_runs import write_stated_runs
from swad.testbed.paper.items import ITEMS
from swad.testbed.paper.methods import PaperMethod, row_name
from swad.testbed.paper.paper_config import PAPER_DATASETS, PaperConfig
from swad.testbed.paper.reproduce import build_item, cost_of
from swad.testbed.paper.reproduction import PaperRuns, Reproduction
from swad.testbed.paper.trainings import Training
from swad.testbed.paper.with_swad import swad_tables
from swad.testbed.results import published
from swad.testbed.results.tables import Table
from swad.testbed.training.config import RunConfig

LEVEL = dict(zip(PAPER_DATASETS, (0.8, 0.7, 0.6, 0.4, 0.3), strict=True))
TRIALS = (-0.02, 0.0, 0.02)
"""What each trial adds. The standard error of the mean is sqrt(2/3) 0.02 / sqrt(3) = 0.0094."""


def stated(config: RunConfig, weights: str) -> float:
    """SWAD is 5 points above ERM, SWA 1 point; CORAL is 2 points above ERM and I-Mixup 3 below, with noise."""
    methods = {"coral": 0.02, "i_mixup": -0.03, "cutmix": -0.04}
    # A little noise between runs, so that differences have a spread.
    noise = 0.001 * ((hash_of(config, weights) % 7) - 3)
    gain = {"swad": 0.05, "swa": 0.01}.get(weights, 0.0)
    base = LEVEL[config.dataset] + TRIALS[config.trial]
    return base + methods.get(config.algorithm, 0.0) + gain + noise


def hash_of(config: RunConfig, weights: str) -> int:
    return sum(map(ord, f"{config.algorithm}{weights}{config.target}{config.trial}"))


def build(name: str, config: PaperConfig) -> tuple[Table, dict[tuple[str, str, str], dict[str, str]]]:
    """Write the runs of an item, build it, and return its first table and the table's rows of its CSV file."""
    write_stated_runs([ITEMS[name]], config, stated)
    report = build_item(ITEMS[name], PaperRuns(config))
    table = report.tables[0]
    assert isinstance(table, Table)
    return table, csv_rows(config, name, table.title)


def csv_rows(config: PaperConfig, name: str, title: str) -> dict[tuple[str, str, str], dict[str, str]]:
    """Read the rows of a table from the CSV file of an item, by group, method and column."""
    with (config.output / name / f"{name}.csv").open() as file:
        read = [row for row in csv.DictReader(file) if row["table"] == title]
    return {(row["group"], row["method"], row["column"]): row for row in read}


@pytest.fixture
def whole(tmp_path: Path) -> PaperConfig:
    """All five datasets at hand, without a search."""
    return PaperConfig(tmp_path / "paper", datasets=PAPER_DATASETS, data=tmp_path, protocol="defaults")


def test_table4_has_our_numbers_the_papers_and_the_difference(whole: PaperConfig):
    table, rows = build("table4", whole)
    ours, paper = rows["ours", "ERM + SWAD", "PACS"], published.table(4).row("ERM + SWAD")
    assert float(ours["value"]) == pytest.approx(85, abs=0.2)
    assert float(ours["error"]) == pytest.approx(0.94, abs=0.05)
    assert float(rows["paper", "ERM + SWAD", "PACS"]["value"]) == paper["PACS"].value == 88.1
    difference = rows["ours − paper", "ERM + SWAD", "PACS"]
    assert float(difference["value"]) == pytest.approx(float(ours["value"]) - 88.1)
    assert float(difference["error"]) == pytest.approx((float(ours["error"]) ** 2 + 0.1**2) ** 0.5)
    columns = ("PACS", "VLCS", "OfficeHome", "TerraInc", "DomainNet")
    mean = sum(float(rows["ours", "ERM", column]["value"]) for column in columns) / 5
    assert float(rows["ours", "ERM", "Avg."]["value"]) == pytest.approx(mean)
    assert float(rows["ours", "ERM + SWAD", "Δ"]["value"]) == pytest.approx(5, abs=0.2)
    assert table.rows[2].cells[-1].printed == "+5.0"
    # The paper's gains are printed as 2.3, 3.6, 2.8 and 1.0.
    gains = [row.cells[-1].printed for row in table.rows if row.group == "paper" and row.cells[-1].value is not None]
    assert gains == ["+2.3", "+3.6", "+2.8", "+1.0"]
    assert not any("Not found" in note for note in table.notes)


def test_bold_is_the_highest_mean_of_ours(whole: PaperConfig):
    table, _ = build("table4", whole)
    bold = [row.name for row in table.rows if row.group == "ours" and row.cells[0].best]
    assert bold == ["CORAL + SWAD"]  # 2 points above SWAD in every run
    lower = [row.name for row in table.rows if row.group == "ours" and row.cells[0].mark == "↓"]
    assert lower == [row.name for row in table.rows if row.group == "ours" and row.name not in bold]
    assert any(note.startswith("Bold: our highest mean in the column; ↓: sig") for note in table.notes)


def test_table2_lacks_what_is_not_at_hand(tmp_path: Path):
    config = PaperConfig(tmp_path / "paper", datasets=("VLCS",), data=tmp_path, protocol="defaults")
    table, rows = build("table2", config)
    assert {column for group, _, column in rows if group == "ours"} == {"VLCS"}  # and no average
    assert {column for group, _, column in rows if group == "ours − paper"} == {"VLCS"}
    assert float(rows["paper", "SWAD", "PACS"]["value"]) == 88.1
    # The paper has no number of a quoted method here, so there is none to subtract.
    assert ("ours", "MASF", "VLCS") in rows
    assert ("ours − paper", "MASF", "VLCS") not in rows
    assert ("paper", "MASF", "PACS") in rows
    assert {name for group, name, _ in rows if group == "ours"} == {row_name(row) for row in published.table(2).rows}
    assert any(
        note.startswith("MASF, DMG, MetaReg, ER, pAdaIN, EISNet, DSON: quoted by the paper") for note in table.notes
    )
    assert "Not found, so not trained: PACS, OfficeHome, TerraIncognita, DomainNet." in table.notes
    assert "ERM† and ERM (reproduced) are the same runs." in table.notes

    with_swad = csv_rows(config, "table2", "Table 2 with SWAD on top: VLCS")
    same_runs = {"ERM (reproduced)", "SWAD"}  # as ERM†, alone and with SWAD
    names = [row_name(row) for row in published.table(2).rows]
    assert list(dict.fromkeys(name for _, name, _ in with_swad)) == [name for name in names if name not in same_runs]
    coral = {column: row for (_, name, column), row in with_swad.items() if name == "CORAL†"}
    assert list(coral) == ["Alone", "+ SWAD", "Points", "95 % interval", "p", "Corrected p", "n"]
    assert coral["Alone"]["value"] == rows["ours", "CORAL†", "VLCS"]["value"]
    assert float(coral["+ SWAD"]["value"]) == pytest.approx(77, abs=0.2)
    units = [f"{target}{trial}" for target in ("Caltech101", "LabelMe", "SUN09", "VOC2007") for trial in range(3)]
    noise = {weights: [sum(map(ord, f"coral{weights}{unit}")) % 7 for unit in units] for weights in ("best", "swad")}
    gain = 5 + 0.1 * (sum(noise["swad"]) - sum(noise["best"])) / len(units)
    assert float(coral["Points"]["value"]) == pytest.approx(gain)
    assert coral["Points"]["mark"] == "↑"
    assert coral["n"]["value"] == "12 runs"
    assert coral["p"]["value"] == "0.0005"  # 2 / 2^12, the same for all 22 methods
    assert coral["Corrected p"]["value"] == "0.011"


def test_swad_on_top_is_that_of_the_selected_run(tmp_path: Path):
    config = PaperConfig(tmp_path / "paper", datasets=("PACS",), data=tmp_path, targets=("photo",), trials=(0,))
    training = Training("coral", search="domainbed")
    item = Reproduction("coral", "", lambda config: [training], ITEMS["table2"].build, ("PACS",))
    rates = set()

    def accuracy(run: RunConfig, weights: str) -> float:
        lr = run.hyperparameters.get("lr", 5e-5)
        rates.add(lr)
        return 0.5 + (lr if weights == "best" else -lr)

    assert write_stated_runs([item], config, accuracy) == 20
    methods = [PaperMethod("CORAL", training), PaperMethod("CORAL + SWAD", training, "swad")]
    [table] = swad_tables(PaperRuns(config), "Table", methods, ("PACS",))
    [row] = table.rows
    assert [cell.value for cell in row.cells[:2]] == pytest.approx([50 + 100 * max(rates), 50 - 100 * max(rates)])
    assert row.cells[3].value is None  # one trial has no interval
    assert (
        "On PACS, the comparisons lack the targets art_painting, cartoon, sketch, which have no results." in table.notes
    )


def test_table1_takes_the_best_competitor_of_every_dataset(tmp_path: Path):
    config = PaperConfig(tmp_path / "p", datasets=("PACS",), data=tmp_path, protocol="defaults", trials=(0, 2))
    _, rows = build("table1", config)
    competitor = rows["ours", "Best SOTA competitor", "PACS"]
    assert float(competitor["value"]) == pytest.approx(82, abs=0.2)  # CORAL
    assert competitor["error"] == ""
    assert float(rows["ours", "Previous SOTA + SWAD", "PACS"]["value"]) == pytest.approx(87, abs=0.2)


def test_arrows_of_table3_are_computed(tmp_path: Path):
    config = PaperConfig(tmp_path / "paper", datasets=("PACS",), data=tmp_path)
    table, _ = build("table3", config)
    ours = {row.name: row.cells[0].mark.strip() for row in table.rows if row.group == "ours"}
    assert ours["SWAD"] == "↑"
    assert ours["CutMix"] == "↓"
    assert ours["SAM"] == "–"
    assert ours["ERM"] == ""
    assert "Bold: our highest mean in the column." in table.notes  # and no arrows but those against ERM
    paper = {row.name: row.cells[0].mark.strip() for row in table.rows if row.group == "paper"}
    assert (paper["SWAD"], paper["CutMix"], paper["SAM"]) == ("↑", "↓", "–")  # as printed
    in_domain = {row.name: row.cells[1].printed for row in table.rows if row.group == "ours"}
    assert in_domain["ERM"].startswith("90.0 ± ")
    one_trial = PaperConfig(tmp_path / "one", datasets=("PACS",), data=tmp_path, trials=(0,))
    table, _ = build("table3", one_trial)
    assert not any(row.cells[0].mark for row in table.rows if row.group == "ours")


def test_swa_of_table3_has_the_cyclic_learning_rate(tmp_path: Path):
    config = PaperConfig(tmp_path, datasets=("PACS",), data=tmp_path, trials=(0,))
    write_stated_runs([ITEMS["table3"]], config, lambda run, _: 0.7 if run.lr_schedule == "cyclic" else 0.6)
    table = build_item(ITEMS["table3"], PaperRuns(config)).tables[0]
    assert isinstance(table, Table)
    ours = {row.name: row.cells[0].value for row in table.rows if row.group == "ours"}
    assert ours == pytest.approx({name: 70 if name == "SWA" else 60 for name in ours})


def test_table9_has_a_column_for_every_target(tmp_path: Path):
    config = PaperConfig(tmp_path / "paper", datasets=("PACS",), data=tmp_path, protocol="defaults")
    table, rows = build("table9", config)
    assert table.columns == ("A", "C", "P", "S", "Avg.")
    for column in table.columns:
        assert float(rows["ours", "SWAD", column]["value"]) == pytest.approx(85, abs=0.4)
    assert float(rows["ours − paper", "SWAD", "S"]["value"]) == pytest.approx(85 - 82.5, abs=0.4)


def test_some_targets_give_a_marked_mean_and_no_difference(tmp_path: Path):
    config = PaperConfig(tmp_path / "p", datasets=("PACS",), data=tmp_path, protocol="defaults", targets=("photo",))
    table, rows = build("table8", config)
    assert table.rows[0].cells[0].mark == "*"
    assert not any(group == "ours − paper" for group, _, _ in rows)
    assert not any(row.cells[0].best for row in table.rows if row.group == "ours")


def test_the_papers_search_is_chosen_on_trial_0_and_used_for_the_others(tmp_path: Path):
    config = PaperConfig(tmp_path / "paper", datasets=("PACS",), data=tmp_path, protocol="paper", trials=(0, 1))
    item = ITEMS["table8"]

    def accuracy(run: RunConfig, weights: str) -> float:
        return 0.5 + 1000 * run.hyperparameters.get("lr", 0) + 0.1 * (weights == "swad")

    # ERM and SAM are searched; SWA with either learning rate and SWAD have defaults.
    assert cost_of([item], config).total == 2 * (18 * 4 + 4) + 2 * 4 * 2
    write_stated_runs([item], config, accuracy)
    assert cost_of([item], config).missing == 2 * 4  # the choice is known now, and its runs are missing
    write_stated_runs([item], config, accuracy)
    assert cost_of([item], config).missing == 0
    table = build_item(item, PaperRuns(config)).tables[0]
    assert isinstance(table, Table)
    cells = {row.name: row.cells for row in table.rows if row.group == "ours"}
    # 5e-5 is the default and is not stated; of the others, 3e-5 is the best. Its standard error over trials is 0.
    assert cells["SAM"][0].printed == "53.0 ± 0.0"
    assert cells["SWAD"][0].printed == "60.0 ± 0.0"
