import re
from xml.etree import ElementTree

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from helpers.measured_runs import RADII, write_measured_run
from helpers.pages import build_page
from swad.testbed.results.flatness_runs import read_flatness
from swad.testbed.results.flatness_tables import curvature_table, worst_case_table
from swad.testbed.results.measurement_rows import FLATNESS, SURFACE, RowFile, read_rows
from swad.testbed.results.page.flatness import flatness_sections


@pytest.mark.slow
def test_the_page_shows_what_was_measured(measured_runs):
    text = build_page(measured_runs)
    assert "Flatness on PACS" in text
    assert "mean over targets" in text
    assert text.count("minus ERM (best): below 0 is flatter") == 6  # the mean and two targets
    assert "Loss surfaces on PACS" in text
    assert "ERM after 50, 70, 90 steps" in text
    assert "SWAD, 0.5 from the plane" in text
    assert "Loss on the plane through step-000050, step-000070, step-000090, photo as target, trial 0, seen" in text
    assert text.count("-1.00 to +1.00, which excludes nothing, with 3 methods, p = 0.33), Kendall +1.00") == 2
    for svg in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL):
        ElementTree.fromstring(svg)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def replace_rows(run_dir, rows):
    (run_dir / FLATNESS).unlink()
    with RowFile(run_dir, FLATNESS) as file:
        file.append(*rows)


@pytest.mark.slow
def test_a_groups_legend_lists_what_it_draws(tmp_path):
    one, two = write_measured_run(tmp_path / "a"), write_measured_run(tmp_path / "b", target="art")
    replace_rows(two.path, [row for row in read_rows(two.path, FLATNESS) if row.get("weights") != "swa"])
    text = build_page([one, two])
    heads = {"mean over targets": 2, "art": 2, "photo": 3}
    for title, count in heads.items():
        legend = text.split(f"<h3>{title}</h3>")[1].split("</ul>")[0]
        assert legend.count("<li>") == count, title
    assert ">SWA<" not in re.sub(r"\s*", "", text.split("<h3>art</h3>")[1].split("</ul>")[0])


def test_algorithms_with_and_without_groups_of_images_share_a_section(tmp_path):
    runs = [write_measured_run(tmp_path / name, algorithm=name) for name in ("erm", "arm")]
    groups = {"settings": {"mixed_groups": 8}}
    rows = [{**row, **groups.get(row["kind"], {}), "key": "arm's"} for row in read_rows(runs[1].path, FLATNESS)]
    replace_rows(runs[1].path, rows)
    assert [len(section.figures[-1].legend) for section in flatness_sections(runs)] == [6]


@pytest.mark.slow
def test_the_page_shows_worst_case_and_curvature_of_every_domain(tmp_path):
    run = write_measured_run(tmp_path / "a")
    with RowFile(run.path, FLATNESS) as file:
        key = file.add_settings({"worst_radii": [0.1]})
        row = {"key": key, "kind": "worst_case", "weights": "swad", "radius": 0.1, "loss": 0.25}
        file.append(*({**row, "measure": m, "lower_bound": 0.75} for m in ("loss", "error")))
        file.mark_shown(key)
        key = file.add_settings({"curvature": 2})
        row = {"key": key, "kind": "curvature", "weights": "swad", "trace": 9.5, "trace_error": 0.5}
        domains = ("art", "cartoon", "seen", "photo", "unseen")
        file.append(*({**row, "domain": domain, "eigenvalues": [4.25, 1.5]} for domain in domains))
        file.mark_shown(key)
    found = read_flatness(run)
    assert [row.name for row in worst_case_table([found]).rows] == [
        "photo, trial 0: SWAD, cross entropy", "photo, trial 0: SWAD, 0-1 error",
    ]  # fmt: skip
    names = [row.name.split(", ")[-1] for row in curvature_table([found]).rows]
    assert names == ["art", "cartoon", "seen", "photo"]  # one target is its own mean
    assert [row.name.split(", ")[-1] for row in curvature_table([found], ("unseen",)).rows] == ["unseen"]
    text = build_page([run])
    for words in ("Worst case on seen domains", "photo, trial 0: SWAD, 0-1 error", "photo, trial 0: SWAD, cartoon"):
        assert words in text
    assert "Curvature" not in build_page([write_measured_run(tmp_path / "b")])


@pytest.mark.slow
def test_runs_measured_in_other_ways_are_not_averaged(measured_runs):
    with RowFile(measured_runs[1].path, FLATNESS) as file:
        key = file.add_settings({"radii": list(RADII), "images": 10, "normalize": "filter"})
        rows = [row for row in file.rows if row["kind"] == "row"]
        file.append(*({**row, "key": key} for row in rows))
        file.mark_shown(key)
    text = build_page(measured_runs)
    assert "mean over 2 targets" not in text
    assert "Flatness on PACS<" in text
    assert "Flatness on PACS, setting 2<" in text
    assert "directions normalized by filter" in text


def test_a_page_without_measurements_has_no_such_section(tmp_path):
    run = write_measured_run(tmp_path / "a")
    (run.path / FLATNESS).unlink()
    (run.path / SURFACE).unlink()
    text = build_page([run])
    assert "Flatness on" not in text
    assert "Loss surfaces" not in text


def test_names_in_the_page_are_escaped(tmp_path):
    evil = "<img src=x onerror=alert(1)>"
    text = build_page([write_measured_run(tmp_path / "a", target=evil, dataset=evil)])
    assert "<img" not in text
