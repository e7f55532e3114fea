"""Every item at the scale smoke, from one shared directory of runs."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

from swad.experiments.launchers.local import LocalLauncher
from swad.experiments.reproduce.config import PAPER_DATASETS, PaperConfig, make_config
from swad.experiments.reproduce.items import ITEMS, get_items
from swad.experiments.reproduce.run import INDEX, build_item, cost_of, item_costs, train_missing


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> PaperConfig:
    """All runs of all items."""
    config = make_config(scale="smoke", output=tmp_path_factory.mktemp("paper"), formats=("svg",))
    with LocalLauncher(jobs=1, device="cpu") as launcher:
        status = train_missing(list(ITEMS.values()), config, launcher)
    assert status.complete
    return config


@pytest.mark.slow
@pytest.mark.parametrize("name", ITEMS)
def test_item_is_built_from_shared_runs(smoke: PaperConfig, name: str, monkeypatch):
    monkeypatch.setattr("swad.training.loop._Run.run", lambda self: pytest.fail("nothing is missing"))
    item = ITEMS[name]
    cost = cost_of([item], smoke)
    assert cost.missing == 0
    report = build_item(item, smoke)
    for suffix in ("txt", "md", "tex", "csv"):
        assert smoke.output / name / f"{name}.{suffix}" in report.written
    assert all(path.stat().st_size for path in report.written if path.suffix != ".csv")
    text = (smoke.output / name / f"{name}.txt").read_text()
    index = (smoke.output / INDEX).read_text()
    assert all(f"]({path.relative_to(smoke.output)})" in index for path in report.written)
    if cost.total:
        assert "digits" in text
    # The digits have columns of their own: in the paper's columns only the paper has numbers.
    for row in csv.DictReader(io.StringIO((smoke.output / name / f"{name}.csv").read_text())):
        if any(dataset in row["column"] for dataset in ("PACS", "VLCS", "OfficeHome", "TerraInc", "DomainNet")):
            assert row["group"] == "paper" or name == "table7"


@pytest.mark.slow
def test_figure3_compares_five_methods_over_three_trainings(smoke: PaperConfig):
    report = build_item(ITEMS["figure3"], smoke)
    assert cost_of([ITEMS["figure3"]], smoke).total == 3
    drawn = (smoke.output / "figure3" / "figure3.svg").read_text()
    text = (smoke.output / "figure3" / "figure3.txt").read_text()
    page = (smoke.output / "figure3" / "report.html").read_text()
    assert smoke.output / "figure3" / "report.html" in report.written
    for name in ("ERM (best)", "SAM (best)", "SWA (cyclic)", "SWA", "SWAD"):
        assert f">{name}<" in drawn
        assert name in text
        assert name == "ERM (best)" or f"{name} against ERM (best)" in page


@pytest.mark.slow
def test_items_share_their_runs(smoke: PaperConfig):
    costs = item_costs(get_items(["all"]), smoke)
    together = costs.pop("all").total
    assert together == cost_of(get_items(["all"]), smoke).total
    assert costs["table2"].total == cost_of([ITEMS["table2"]], smoke).total
    assert together < sum(cost.total for cost in costs.values()) / 5
    assert len(list(smoke.output.glob("runs/*/*/*/*/done.json"))) == together


@pytest.mark.slow
def test_table_of_fit_on_val_is_stored(smoke: PaperConfig, monkeypatch):
    first = build_item(ITEMS["table5"], smoke)
    monkeypatch.setattr("swad.experiments.reproduce.fit_on_val.open_run", lambda *_: pytest.fail("already fitted"))
    assert build_item(ITEMS["table5"], smoke).tables == first.tables


def test_unknown_items_get_a_suggestion():
    with pytest.raises(ValueError, match="the paper has no item tabel2: did you mean 'table2'\\? choose from table1"):
        get_items(["tabel2"])


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
    assert not list(tmp_path.iterdir())
