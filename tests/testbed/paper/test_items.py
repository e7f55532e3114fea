"""Every item at the scale smoke, from one shared directory of runs."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")


from swad.testbed.paper.items import ITEMS, get_items
from swad.testbed.paper.paper_config import PAPER_DATASETS, PaperConfig, make_config
from swad.testbed.paper.reproduce import INDEX, RunCounts, build_item, cost_of, item_costs, train_missing
from swad.testbed.paper.reproduction import PaperRuns, Reproduction, each_dataset
from swad.testbed.results.report import Report
from swad.testbed.workers.work import work


@pytest.mark.parametrize(
    ("datasets", "stems", "notes"),
    [
        (("PACS",), ["item"], ["Not found, so not trained: VLCS."]),
        (
            ("PACS", "digits", "VLCS"),
            ["item-digits", "item-PACS", "item-VLCS"],
            ["Not in the paper, so without printed numbers to compare with: digits."],
        ),
    ],
)
def test_figures_of_several_datasets_have_names_of_their_own(tmp_path, datasets, stems, notes):
    def build(paper_runs, dataset, names):
        path = paper_runs.folder("item") / "-".join(["item", *names])
        return Report((f"table of {dataset}",), (path,), (tmp_path / dataset,))

    paper_runs = PaperRuns(PaperConfig(tmp_path, "full", datasets))
    report = each_dataset(build, ["PACS", "VLCS"])(paper_runs)
    measured = paper_runs.config.measured_datasets(["PACS", "VLCS"])
    assert list(report.tables) == [*(f"table of {name}" for name in measured), *notes]
    assert [path.name for path in report.written] == stems
    assert [path.name for path in report.row_files] == list(measured)


@pytest.mark.slow
def test_every_item_is_built_from_shared_runs(tmp_path: Path, monkeypatch, quick_workers):
    """One test, because test processes would train the shared runs once each."""
    config = make_config(scale="smoke", output=tmp_path / "paper", formats=("svg",))
    status = train_missing(list(ITEMS.values()), config, work)
    assert status.complete
    costs = item_costs(get_items(["all"]), config)
    require_shared_runs(config, costs)
    # A second training, and a second search for the best window, would be a waste.
    monkeypatch.setattr("swad.testbed.sweep.run.run_sweep", lambda *_, **__: pytest.fail("nothing is missing"))
    for item in ITEMS.values():
        assert costs[item.name].missing == 0, item.name
        report = build_item(item, PaperRuns(config))
        require_files(item, config, report)
        require_own_columns(item, config)
        if costs[item.name].total:
            assert "digits" in (config.output / item.name / f"{item.name}.txt").read_text(), item.name
        if item.name == "table5":
            monkeypatch.setattr("swad.testbed.paper.fit_on_val.open_run", lambda *_: pytest.fail("fitted"))
            assert build_item(item, PaperRuns(config)).tables == report.tables
    require_five_methods(config.output / "figure3")
    assert (config.output / "figure1" / "figure1.svg").stat().st_size  # SWAD is not the last weights


def require_shared_runs(config: PaperConfig, costs: dict[str, RunCounts]) -> None:
    """Items share runs, and each run was trained once."""
    together = costs["all"].total
    assert together == cost_of(get_items(["all"]), config).total
    assert costs["table2"].total == cost_of([ITEMS["table2"]], config).total
    assert together < sum(cost.total for name, cost in costs.items() if name != "all") / 4
    assert len(list(config.output.glob("runs/*/*/*/*/done.json"))) == together


def require_files(item: Reproduction, config: PaperConfig, report: Report) -> None:
    """The item is written in every format, and the index links all files."""
    for suffix in ("txt", "md", "tex", "csv"):
        assert config.output / item.name / f"{item.name}.{suffix}" in report.written
    assert all(path.stat().st_size for path in report.written if path.suffix != ".csv")
    index = (config.output / INDEX).read_text()
    assert all(f"]({path.relative_to(config.output)})" in index for path in report.written)


def require_own_columns(item: Reproduction, config: PaperConfig) -> None:
    """The digits have columns of their own: in the paper's columns only the paper has numbers."""
    text = (config.output / item.name / f"{item.name}.csv").read_text()
    for row in csv.DictReader(io.StringIO(text)):
        if any(dataset in row["column"] for dataset in ("PACS", "VLCS", "OfficeHome", "TerraInc", "DomainNet")):
            assert row["group"] == "paper", row


def require_five_methods(folder: Path) -> None:
    """Figure 3 compares five methods, three of which are of one training."""
    drawn, text, page = ((folder / name).read_text() for name in ("figure3.svg", "figure3.txt", "report.html"))
    for name in ("ERM (best)", "SAM (best)", "SWA (cyclic)", "SWA", "SWAD"):
        assert f">{name}<" in drawn
        assert name in text
        assert name == "ERM (best)" or f">{name}, γ = 5<" in page
    assert "Compared with ERM (best): digits, unseen" in page


def test_the_cost_of_the_whole_paper_is_known_without_its_data(tmp_path: Path):
    config = PaperConfig(tmp_path, datasets=PAPER_DATASETS, data=tmp_path, trials=(0, 1, 2))
    default = replace(config, protocol="defaults")
    assert cost_of([ITEMS["table4"]], default).total == 3 * 22 * 3  # ERM, CORAL and SAM on 22 targets
    # ERM and CORAL by DomainBed's search, whose first draw is the defaults; SAM on the grid. SWAD needs the defaults
    # of all three. Those of ERM's trial 0 keep snapshots, and on DomainNet DomainBed trains for fewer steps.
    shared_coral, shared_erm = 16 * 3, 16 * 2
    assert cost_of([ITEMS["table4"]], config).total == (
        2 * 20 * 3 * 22 + (18 * 22 + 2 * 22) + 3 * 22 * 3 - shared_coral - shared_erm
    )
    # Figures 1, 2, 4 and 5 measure the first trial on PACS.
    assert (
        cost_of([ITEMS["figure5"]], default).total == cost_of([ITEMS["figure1"], ITEMS["figure4"]], default).total == 4
    )
    for name in ("table3", "table5"):
        assert {spec.options["split"] for spec in ITEMS[name].specs(default)} == {"60/20/20"}
    assert not list(tmp_path.iterdir())
