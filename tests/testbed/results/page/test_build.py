import gzip
import os
import re
import sys
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from helpers.run_tree import write_run

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from helpers.pages import build_page
from swad.testbed.results.accuracy_table import results_table
from swad.testbed.results.diagnostics import find_problems
from swad.testbed.results.figures.training import shown_runs
from swad.testbed.results.measurement_rows import FLATNESS
from swad.testbed.results.page.build import write_page
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import find_runs
from swad.testbed.results.selection import collect_results
from swad.testbed.results.tables import PAPER


def test_the_page_needs_no_network(runs: list[RunData]) -> None:
    text = build_page(runs[:2])
    addresses = re.findall(r"""(?:src|href|action)=["']([^"'#]+)""", text)
    assert set(addresses) <= {"data:,"}
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_the_page_is_the_same_twice_and_written_whole(runs: list[RunData], tmp_path: Path) -> None:
    first = write_page(runs[:1], tmp_path / "deep" / "report.html")
    assert first.read_text(encoding="utf-8") == build_page(runs[:1])
    assert [path.name for path in first.parent.iterdir()] == ["report.html"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such a name")
def test_a_run_in_a_directory_whose_name_is_not_utf_8_is_shown(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    write_run(folder)
    assert r"caf\udce9" in write_page(folder, tmp_path / "report.html").read_text(encoding="utf-8")


def test_warnings_are_shown(faulty: list[RunData]) -> None:
    text = build_page(faulty)
    assert f"{len(find_problems(faulty))} warnings" in text
    assert all(escape(warning) in text for warning in find_problems(faulty))
    assert "never converged" in text
    assert "unfinished" in text


def test_runs_that_look_for_no_valley_show_none(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    assert "loss valley" in build_page(find_runs(tmp_path))
    records = tmp_path / "a" / "records.jsonl"
    kept = [line for line in records.read_text().splitlines(keepends=True) if '"swad"' not in line]
    records.write_text("".join(kept))
    text = build_page(find_runs(tmp_path))
    assert "Validation curves</h2>" in text
    assert "loss valley" not in text
    assert ">threshold<" not in text


def test_a_page_needs_a_run() -> None:
    with pytest.raises(ValueError, match="at least one run"):
        build_page([])


class Tags(HTMLParser):
    """Counts elements, to see that no text became one."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)


def test_everything_printed_is_escaped(tmp_path: Path) -> None:
    evil = "\"><img src=x onerror=alert(1)></script><script>alert(1)</script>'&"
    write_run(tmp_path / "a", dataset=evil, domains=(evil, "b" + evil, "c"), target=evil, algorithm=evil)
    write_run(tmp_path / "b", dataset=evil, domains=(evil, "b" + evil, "c"), target="c", algorithm=evil, finished=False)
    write_run(tmp_path / "c", dataset="plain", domains=("x", "y", "z"), target="x")
    text = build_page(find_runs(tmp_path), title=evil)
    tags = Tags()
    tags.feed(text)
    assert tags.open.count("img") == 0
    assert tags.open.count("script") == 4  # data of curves and of the sweep (two datasets), and our own code
    assert "alert(1)</script>" not in text


def test_paths_of_this_machine_stay_out(runs: list[RunData], tree: Path) -> None:
    assert str(tree) not in build_page(runs[:3])


def test_a_sweep_shows_one_run_for_each_target_and_trial(tmp_path: Path) -> None:
    for place, lr in enumerate((1e-5, 3e-5, 5e-5)):
        write_run(tmp_path / str(place), lr=lr)
    found = find_runs(tmp_path)
    (shown,) = shown_runs(collect_results(found)[0])
    text = build_page(found)
    assert text.count('class="trial"') == 1

    def validation(run: RunData) -> float:
        rows = run.frame
        rows = rows[(rows.weights == "swad") & (rows.metric == "accuracy") & (rows.domain != "photo")]
        return float(rows.value.sum())

    assert shown.path == max(found, key=validation).path


def test_the_page_names_skipped_and_selected_runs(tmp_path: Path) -> None:
    for name, lr in (("slow", 1e-5), ("fast", 5e-5)):
        write_run(tmp_path / name, lr=lr)
    write_run(tmp_path / "lost", target="sketch")
    (tmp_path / "lost" / "records.jsonl").unlink()
    text = build_page(find_runs(tmp_path, warn=False))
    assert "Not in the tables: lost: the run is finished, but its records.jsonl is missing" in text
    assert "No mean over targets" in text
    selected = text[text.index("Selected runs") : text.index("Copy the table")]
    assert ">lr<" in selected
    assert ">fast<" in selected or ">slow<" in selected


def test_the_page_claims_no_difference_from_one_trial(tmp_path: Path) -> None:
    domains = ("a", "b")
    for target in domains:
        write_run(tmp_path / target, dataset="D", domains=domains, target=target)
    text = build_page(find_runs(tmp_path))
    assert "One trial: no interval" in text
    assert "points more" not in text


def test_the_page_first_shows_the_rows_of_the_paper_that_the_report_prints(tmp_path: Path) -> None:
    write_run(tmp_path / "run", algorithm="dann")
    runs = find_runs(tmp_path)
    shown = re.findall(r'<tr class="paper key">\s*<th[^>]*>([^<]*)', build_page(runs))
    assert [name.strip() for name in shown] == [row.name for row in results_table(runs).rows if row.group == PAPER]
    assert shown[0].strip() == "DANN†"


def test_a_damaged_measurement_costs_its_sections_alone(measured_runs: list[RunData]) -> None:
    path = measured_runs[0].path / FLATNESS
    path.with_name(f"{FLATNESS}.gz").write_bytes(gzip.compress(b"no row\n"))
    path.unlink()
    with pytest.warns(UserWarning, match=r"the page lacks measurements: .*flatness\.jsonl\.gz, line 1 is damaged"):
        text = build_page(measured_runs)
    assert text.count("flatness.jsonl.gz, line 1 is damaged: ") == 1
    assert "flatness.jsonl.gz, line 1 is damaged: remove this line, or the file, and measure again" in text
    assert "F on PACS" not in text
    assert "Loss surfaces on PACS" in text


def test_the_headline_has_the_baseline_of_the_comparisons(runs: list[RunData]) -> None:
    text = build_page(runs, baseline="swa")
    assert re.search(r"SWAD reaches [\d.]+ % on average over 4 targets, and SWA [\d.]+ %", text)
    assert "and ERM (best)" not in text


def test_the_page_says_by_selection_how_the_target_is_used(runs: list[RunData]) -> None:
    unused = "The target is used neither for the range nor to select the run."
    assert unused in build_page(runs[:1])
    oracle = build_page(runs[:1], method="oracle")
    assert unused not in oracle
    assert "the run was selected by its accuracy there (oracle)" in oracle
