"""The tables of README and docs are those that benchmarks/tables.py writes from the records."""

import json
import statistics
from itertools import product

import pytest

import tables
from helpers.measured_runs import write_measured_run
from helpers.run_tree import PACS, make_tree, write_run
from keep_records import keep_accuracies
from parity import read_curves
from swad.testbed.results.measurement_rows import ROBUSTNESS, WINDOWS, RowFile
from swad.testbed.results.records import Record, RecordWriter
from swad.testbed.results.runs import find_runs
from swad.testbed.results.training_curves import source_curves

PAGES = tables.pages()


def test_pages_are_found():
    assert {"README.md", "docs/results.md", "docs/measurements/valley.md"} <= set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_every_table_is_written_from_the_records(name):
    text = (tables.ROOT / name).read_text()
    assert len(tables.BLOCK.findall(text)) == text.count("<!-- table:") > 0
    assert tables.MISSING not in text
    typed = text.replace("\n<!-- end -->", "\n81.0\n<!-- end -->")
    assert tables.write_blocks(typed, tables.ROOT / "benchmarks" / "results") == text != typed


def test_blocks_without_records_and_of_unknown_tables(tmp_path):
    text = "a\n<!-- table: flatness pacs -->\n0.5\n<!-- end -->\nb\n"
    assert tables.write_blocks(text, tmp_path) == text.replace("0.5", f"\n{tables.MISSING}\n")
    with pytest.raises(ValueError, match=r"must name one of the tables accuracies, .*; got 'flat'"):
        tables.write_blocks(text.replace("flatness", "flat"), tmp_path)


def test_a_note_stands_once_in_a_text(tmp_path):
    make_tree(tmp_path / "pacs", PACS)
    block = "<!-- table: differences pacs -->\n<!-- end -->\n"
    text = tables.write_blocks(block + block, tmp_path)
    assert text.count("| SWAD − ERM (best) |") == 2
    assert text.count("Intervals are not corrected.") == 1
    assert text.count("Records: `pacs`.") == 1


def test_what_a_note_repeats_is_left_out():
    shown = set()
    assert tables._new("Accuracy in %; one trial. p: exact.", shown) == "Accuracy in %; one trial. p: exact."
    assert tables._new("Accuracy in %; two trials. p: exact.", shown) == "Two trials."
    assert tables._new("Accuracy in %; p: by hand; one trial.", shown) == "p: by hand."
    assert tables._new("p: exact.", shown) == ""


def test_records_are_named_with_their_command_date_and_machine(tmp_path):
    content = {"command": "python benchmarks/x.py --n 2 --json y.json", "date": "2026-11-19", "gpu": None}
    (tmp_path / "x.json").write_text(json.dumps({**content, "cpu_count": 2}))
    (tmp_path / "y.json").write_text('{"command": "swad train", "gpu": "H200"}')
    assert tables.origin([tmp_path / "x.json", tmp_path / "y.json", tmp_path]) == (
        "Records: `x.json` (`python benchmarks/x.py --n 2`, 2026-11-19, 2 CPU cores); `y.json` (H200); "
        f"`{tmp_path.name}`."
    )
    results = tables.ROOT / "benchmarks" / "results"
    assert tables.origin([results / "office31-resnet50"]) == "Records: `benchmarks/results/office31-resnet50`."


def accuracy(run, average):
    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    return next(
        record["value"]
        for record in records
        if record["split"] == "in" and (record["metric"], record["average"]) == ("accuracy", average)
    )


@pytest.mark.parametrize("targets", [PACS, PACS[:2]])
def test_accuracies_and_differences_of_runs(tmp_path, targets):
    make_tree(tmp_path / "pacs", targets)
    table, compared = tables.accuracies(tmp_path / "pacs"), tables.differences(tmp_path / "pacs")
    runs = [tmp_path / "pacs" / target / f"trial-{trial}" for target in targets for trial in range(3)]
    mean = 100 * statistics.fmean(accuracy(run, "swa") for run in runs)
    row = next(row for row in table.rows if row.name == "SWA")
    assert row.cells[len(targets)].value == pytest.approx(mean)
    assert ("2 of 4 targets." in table.notes) == (len(targets) == 2)
    assert [row.name for row in compared.rows] == [
        f"SWAD − {name}" for name in ("ERM (best)", "ERM (last)", "EMA", "SWA")
    ]
    differences = [100 * (accuracy(run, "swad") - accuracy(run, "swa")) for run in runs]
    assert compared.rows[-1].cells[0].value == pytest.approx(statistics.fmean(differences))
    assert compared.rows[-1].cells[-1].text.startswith(f"{len(runs)} runs")
    assert (tables.flatness(tmp_path / "pacs"), tables.windows(tmp_path / "pacs")) == (None, None)
    assert tables.robustness(tmp_path / "pacs") is tables.robustness_differences(tmp_path / "pacs") is None
    assert any("lack the targets photo, sketch" in note for note in compared.notes) == (len(targets) == 2)


def test_held_out_domains_of_several_datasets_are_units_of_one_test(tmp_path):
    domains = {"PACS": PACS, "office": ("amazon", "dslr", "webcam")}
    runs = {}
    for dataset, names in domains.items():
        for target, trial in product(names, (0, 1)):
            run = tmp_path / dataset / f"{target}-{trial}"
            write_run(run, dataset=dataset, domains=names, target=target, trial=trial)
            runs.setdefault((dataset, target), []).append(run)
    text = "<!-- table: domains PACS,office -->\n<!-- end -->\n"
    assert "7 targets" in tables.write_blocks(text, tmp_path)
    assert tables.write_blocks(text.replace(",", ",none,"), tmp_path).count(tables.MISSING) == 1
    table = tables.domains(tmp_path / "PACS", tmp_path / "office")
    row = next(row for row in table.rows if row.name == "SWAD − ERM (best)")
    points = [
        100 * statistics.fmean(accuracy(run, "swad") - accuracy(run, "best") for run in trials)
        for trials in runs.values()
    ]
    assert row.cells[0].value == pytest.approx(statistics.fmean(points))
    signs = list(product((-1, 1), repeat=7))
    far = [abs(sum(s * p for s, p in zip(sign, points, strict=True))) >= abs(sum(points)) - 1e-9 for sign in signs]
    assert row.cells[2].value == pytest.approx(sum(far) / len(signs)), "exact, whatever the number of comparisons"
    assert f"PACS/art_painting {points[0]:+.1f}" in table.notes[-1]
    assert f"office/webcam {points[-1]:+.1f}" in table.notes[-1]


def test_what_a_search_adds_is_the_difference_to_the_defaults(tmp_path):
    cells, kept = [(target, trial) for target in PACS for trial in (0, 1)], tmp_path / "kept"
    kept.mkdir()
    for name, lr in (("defaults", 5e-5), ("searched", 3e-5)):
        for target, trial in cells:
            write_run(tmp_path / name / f"{target}-{trial}", target=target, trial=trial, lr=lr)
        keep_accuracies(tmp_path / name, kept / f"{name}.json")
    row = next(row for row in tables.search(kept).rows if row.name == "SWA")
    means = [
        100 * statistics.fmean(accuracy(tmp_path / name / f"{target}-{trial}", "swa") for target, trial in cells)
        for name in ("defaults", "searched")
    ]
    assert [cell.value for cell in row.cells[:3]] == pytest.approx([*means, means[1] - means[0]])
    assert means[0] != means[1]


def test_gains_of_runs_and_of_their_kept_accuracies(tmp_path):
    cells = [(name, target, trial) for name in ("coral", "erm") for target in PACS for trial in (0, 1)]
    runs = {cell: tmp_path / "runs" / "-".join(map(str, cell)) for cell in cells}
    for (name, target, trial), run in runs.items():
        write_run(run, target=target, trial=trial, algorithm=name)
    table, kept = tables.gains(tmp_path / "runs"), tmp_path / "kept.json"
    assert [row.name for row in table.rows] == ["ERM", "CORAL"]
    alone, averaged, points, *_ = table.rows[1].cells
    means = [100 * statistics.fmean(accuracy(runs[c], weights) for c in cells[:8]) for weights in ("best", "swad")]
    assert [alone.value, averaged.value, points.value] == pytest.approx([*means, means[1] - means[0]])
    kept.write_text('{"command": "swad sweep", "dataset": "?"}')
    assert keep_accuracies(tmp_path / "runs", kept) == kept.stat().st_size
    assert json.loads(kept.read_text())["command"] == "swad sweep"
    assert tables.gains(kept).markdown() == table.markdown()
    assert tables.accuracies(kept).markdown() == tables.accuracies(tmp_path / "runs").markdown()


@pytest.mark.parametrize(("second", "is_clear"), [((1.5, 2.2), False), ((1.00312, 2.00421), True)])
def test_flatness_over_trials(tmp_path, monkeypatch, second, is_clear):
    monkeypatch.setattr(tables, "RADII", (5.0, 10.0))
    factors = {("art", 0): 1.0, ("art", 1): second[0], ("photo", 0): 2.0, ("photo", 1): second[1]}
    for (target, trial), factor in factors.items():
        write_measured_run(tmp_path / f"{target}-{trial}", target, trial, factor)
    table = tables.flatness(tmp_path)
    assert [row.name for row in table.rows] == ["SWAD", "SWA", "ERM (best)", "SWAD − SWA", "SWAD − ERM (best)"]
    # F is factor x steepness x radius², twice that on unseen images; SWAD 1, SWA 2, best 3.
    by_trial = [statistics.fmean(f for (_, t), f in factors.items() if t == trial) for trial in (0, 1)]
    mean, half = statistics.fmean(by_trial), 12.7062 * statistics.stdev(by_trial) / 2**0.5
    for scale, cell in zip((25, 100, 50, 200), table.rows[-1].cells, strict=True):
        values = (-2 * scale * mean, -2 * scale * (mean + half), -2 * scale * (mean - half))
        assert cell.text == "{:+.3f} ({:+.3f} to {:+.3f})".format(*values)
        assert cell.best == is_clear
    assert table.rows[0].cells[0].value == pytest.approx(25 * mean)
    assert "corrected for the 8 differences" in table.notes[1]
    assert "mean over 2 targets and 2 trials" in table.notes[0]
    write_measured_run(tmp_path / "photo-2", "photo", 2, 99.0)  # a trial that the other target lacks
    assert tables.flatness(tmp_path) == table
    one = tables.flatness(tmp_path / "art-0")
    assert one.rows[-1].cells[0].text == "-50.000"
    assert "no difference is claimed" in one.notes[1]


def test_windows_and_errors_are_those_of_the_unseen_domain(tmp_path):
    for trial in (0, 1):
        run = tmp_path / f"photo-{trial}"
        write_measured_run(run, trial=trial)
        for accuracy in (0.1, 0.5):  # the last measurement counts
            with RowFile(run, WINDOWS) as file:
                key = file.add_settings({"every": 1, "images": 5, "seed": accuracy})
                for side, add in (("unseen", 0.0), ("seen", 0.3)):
                    row = {"key": key, "kind": "measured", "fingerprint": "f", "domain": "photo", "side": side}
                    value = accuracy + add + trial / 100
                    file.append({**row, "weights": "swad", "first": 1, "last": 20, "accuracy": value})
                    for first, last, more in ((1, 10, 0), (1, 20, 0), (11, 20, 0.02 + trial / 500)):
                        window = {"weights": f"{first}-{last}", "first": first, "last": last}
                        file.append({**row, **window, "accuracy": value + more})
                names = ["swad", "1-10", "1-20", "11-20"]
                file.mark_shown(key, weights=names, fingerprints=["f"] * len(names))
        with RowFile(run, ROBUSTNESS) as file:
            key = file.add_settings({"images": 5, "seed": 0})
            for weights, side, case in product(("best", "swad"), ("seen", "unseen"), (("none", 0), ("fog", 5))):
                error = 0.1 + 0.2 * (side == "unseen") + 0.04 * case[1] - 0.05 * (weights == "swad") + trial / 100
                row = {"weights": weights, "fingerprint": "f", "side": side, "error": error}
                row["domain"] = "photo" if side == "unseen" else "sketch"
                file.append({"key": key, "kind": "error", **row, "corruption": case[0], "severity": case[1]})
            file.mark_shown(key, weights=["best", "swad"], fingerprints=["f", "f"])
    assert tables.windows(tmp_path).rows[0].cells[1].value == pytest.approx(50.5)
    choices = tables.window_choices(tmp_path)
    assert choices.columns == ("PACS, target", "PACS, validation")
    texts = {row.name: [cell.text for cell in row.cells] for row in choices.rows}
    assert texts["SWAD"] == ["50.5 %", "80.5 %"]
    assert texts["all steps"] == ["+0.0"] * 2
    assert texts["last segment"] == ["+2.1 [+0.8, +3.4]"] * 2
    assert texts["best on the target (oracle)"] == ["(+2.1)", "+2.1 [+0.8, +3.4]"]
    assert [row.cells[1].value for row in tables.robustness(tmp_path).rows] == pytest.approx([50.5, 45.5])
    assert [row.cells[1].value for row in tables.robustness_seen(tmp_path).rows] == pytest.approx([30.5, 25.5])
    assert tables.robustness_differences_seen(tmp_path).title == "Compared with ERM (best): PACS, seen"
    compared = tables.robustness_differences(tmp_path).rows
    assert [(row.name, row.cells[0].value) for row in compared][-1] == ("SWAD, Corrupted", pytest.approx(-5))


def test_parity_reads_our_runs_and_those_of_the_published_code(tmp_path):
    ours = tmp_path / "ours"
    write_run(ours, target="photo")
    (run,) = find_runs(ours)
    with pytest.raises(SystemExit, match="did not evaluate the target: train it with --target-every-evaluation"):
        read_curves(run)
    with RecordWriter(ours) as writer:
        writer.append(*(Record("photo-0", step, "photo", "in", "accuracy", step / 1e4) for step in (100, 350, 875)))
    (run,) = find_runs(ours)
    curves = read_curves(run)
    assert (curves["steps"], curves["target"]) == ([100, 350], [1.0, 3.5])  # no validation at step 875
    by_domain = [list(zip(*curve.items(), strict=True)) for curve in source_curves([run], "accuracy")[0].values()]
    at_100 = [dict(zip(*series, strict=True))[100] for series in by_domain]
    assert curves["sources"][0] == pytest.approx(100 * statistics.fmean(at_100), abs=1e-3)

    published = tmp_path / "published"
    published.mkdir()
    args = {"dataset": "PACS", "algorithm": "ERM", "trial_seed": 0, "test_envs": [[0], [2]], "real_test_envs": [2]}
    lines = [
        {
            "args": args,
            "step": step,
            **{f"env{i}_{split}": (i + step / 100) / 10 for i in range(4) for split in ("in", "out")},
        }
        for step in (0, 100)
    ]
    (published / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run,) = find_runs(published)
    curves = read_curves(run)
    assert curves == {"steps": [1, 101], "target": [20, 30], "sources": [pytest.approx(13.333), pytest.approx(23.333)]}


def test_parity_compares_at_common_steps(tmp_path):
    curves = {
        "published code": {
            "art-0": {"steps": [1, 101, 201, 301], "target": [50, 70, 60, 64], "sources": [99, 95, 90, 80]}
        },
        "ours": {
            "art-0": {"steps": [1, 201, 301, 401], "target": [40, 62, 58, 99], "sources": [99, 85, 95, 99]},
            "photo-1": {"steps": [1, 201, 301], "target": [1, 2, 3], "sources": [1, 3, 2]},
        },
    }
    (tmp_path / "parity.json").write_text(json.dumps({"curves": curves}))
    table = tables.parity(tmp_path / "parity.json")
    which = ("best", "last", "mean")
    assert table.columns == tuple(f"{target}, {each}" for target in ("art", "photo") for each in which)
    assert {row.name: [cell.value for cell in row.cells] for row in table.rows} == {
        "published code: trial 0": [60, 64, 62, None, None, None],
        "ours: trial 0": [58, 58, 60, None, None, None],
        "ours: trial 1": [None, None, None, 2, 3, 2.5],
    }
    assert "after 301 steps. Mean: over the 2 evaluations" in table.notes[0]


def test_costs_are_those_of_a_file_with_the_cheapest_first(tmp_path):
    erm = {"graph_ms": 10.0, "graph_x_erm": 1.0, "peak_mib": 512.0, "peak_x_erm": 1.0}
    other = {"graph_ms": 5.0, "graph_x_erm": 0.5, "peak_mib": 1024.0, "peak_x_erm": 2.0}
    slow = {"graph_ms": 30.0, "graph_x_erm": 3.0, "peak_mib": 512.0, "peak_x_erm": 1.0}
    (tmp_path / "costs.json").write_text(json.dumps({"cuda": {"slow": slow, "erm": erm, "dann": other}}))
    table = tables.costs(tmp_path / "costs.json")
    assert table.columns == ("graph, ms", "× ERM", "peak, GiB", "× ERM")
    assert {row.name: [cell.value for cell in row.cells] for row in table.rows} == {
        "erm": [10.0, 1.0, 0.5, 1.0],
        "dann": [5.0, 0.5, 1.0, 2.0],
        "slow": [30.0, 3.0, 0.5, 1.0],
    }
    assert [row.name for row in table.rows] == ["erm", "dann", "slow"]


def test_speeds_are_those_of_a_file(tmp_path):
    row = {"swad_images_per_s": 5.0, "plain_bytes_images_per_s": 4.0, "plain_ready_images_per_s": 6.0}
    content = {
        "steps": {
            "a": {**row, "accumulated": {"images_per_s": 7.0}},
            "b": {**row, "accumulated": {"images_per_s": 1.0}},
        },
        "corruptions_images_per_s": {"fog": 1.0, "snow": 2000.0},
    }
    (tmp_path / "speeds.json").write_text(json.dumps(content))
    steps = tables.imagenet_steps(tmp_path / "speeds.json")
    assert steps.columns == ("a, images/s", "b, images/s")
    assert [[cell.value for cell in row.cells] for row in steps.rows] == [[5, 5], [7, 1], [4, 4], [6, 6]]
    speeds = tables.corruption_speeds(tmp_path / "speeds.json")
    assert [(row.name, row.cells[0].printed) for row in speeds.rows] == [("snow", "2,000"), ("fog", "1")]


def test_costs_of_steps_updates_and_evaluations(tmp_path):
    def written(content):
        (tmp_path / "file.json").write_text(json.dumps(content))
        return tmp_path / "file.json"

    def values(table):
        return {row.name: [cell.text or cell.value for cell in row.cells] for row in table.rows}

    parts = {"step_ms": 3.0, "data_ms": 1.0, "network_ms": 1.5, "averages_ms": 0.1, "evaluation_ms": 9.0}
    rows = {"fast images": {**parts, "optimiser_ms": 0.2}, "new": {**parts, "optimizer_ms": 0.3, "first_step_s": 5.0}}
    assert values(tables.step_parts(written({"rows": rows}))) == {
        "gpu input pipeline": [3, 1, 1.5, 0.2, 0.1, 9, None],
        "new": [3, 1, 1.5, 0.3, 0.1, 9, 5],
    }
    curves = {"size": [{"size": 112, "step_ms": 5.06}, {"size": 224, "step_ms": 13.0}]}
    assert values(tables.step_sizes(written({"curves": curves}))) == {"image size": ["112: 5.1, 224: 13.0"]}
    whole = {"cold_s": 9.0, "warm_s": 8.0, "warm_seconds_evaluation": 1.0, "image_cache_s": 4.0}
    assert [row[0] for row in values(tables.whole_run(written({"whole": whole}))).values()] == [9, 8, 1, 4]
    loops = {"+ one CUDA graph": {"step_ms": 2.0}, "plain PyTorch: bf16, compiled": {"step_ms": 5.0}}
    assert values(tables.plain_loops(written({"network": "vit", "rows": loops}))) == {"vit": [5, "default", 2]}
    loops |= {"plain PyTorch: bf16, reduce-overhead": {"step_ms": 3.0}, "plain PyTorch: bf16, eager": {"step_ms": 9.0}}
    assert values(tables.plain_loops(written({"network": "vit", "rows": loops}))) == {"vit": [3, "reduce-overhead", 2]}
    on_cpu = {"swad.SegmentFeed, five averages": {"ms": 4.0, "x_lerp": 0.8}}
    on_gpu = {"swad.SegmentFeed, five averages": {"ms": 0.2, "synchronisations": 2.0, "peak_mib": 201.0}}
    name = "swad.AverageGroup, five averages"
    assert values(tables.updates(written({"cpu": on_cpu, "cuda": on_gpu}))) == {name: [0.2, 2, 201, 4, 0.8]}
    assert values(tables.updates(written({"cpu": on_cpu}))) == {name: [4, 0.8]}
    local = {"swad.flatness.local": {"ms": 39.0, "times_faster": 6.2, "forward_share": 0.97, "peak_mib": None}}
    assert values(tables.perturbed(written({"rows": local}))) == {"swad.flatness.local": [39, 6.2, 0.97, None]}


def test_costs_of_sweeps_and_reports(tmp_path):
    content = {
        "plan": {"runs": 5280, "expand_s": 0.3, "summarise_s": 0.04},
        "overhead": {"runs": 20, "sweep_s": 446.5, "runs_s": 446.0},
        "table": {"500": {"tabulate_s": 0.1}, "5000": {"tabulate_s": 1.5}},
        "cluster": {"workers": 1000, "runs": 100000, "run_s": 6.0, "total_s": 676.0, "resume_finished_sweep_s": 60.0},
    }
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    rows = tables.sweep_costs(tmp_path / "sweep.json").rows
    assert [row.cells[0].value for row in rows] == [0.5, 0.3, 0.04, 1.5, 676, 60]
    assert rows[3].name == "tabulate 5,000 finished runs"
    run = {"runs": 5000, "tables": [17.0, 3.7], "page": [47.0, 8.3], "mb": 5.0}
    (tmp_path / "report.json").write_text(json.dumps({"runs": [run]}))
    (row,) = tables.report_costs(tmp_path / "report.json").rows
    assert (row.name, [cell.value for cell in row.cells]) == ("5,000", [3.7, 8.3, 5])


def test_false_starts_are_those_of_a_file(tmp_path):
    names = ("share of bad updates", "evaluations averaged", "restarts", "share warned of")
    by_rule = {"paper": dict(zip(names, (0.2, 34.0, 0.0, 0.9), strict=True))}
    by_rule["restart"] = dict(zip(names, (0.0, 12.0, 1.4, 0.1), strict=True))
    recorded = {"trainings on PACS": 24, "warned of": 0, "restarted": 2}
    recorded["averaged evaluations"] = {"lora": {"paper": [2, 19], "restart": [13, 19]}}
    (tmp_path / "starts.json").write_text(json.dumps({"simulated": {"slow": by_rule}, "recorded": recorded}))
    table = tables.false_starts(tmp_path / "starts.json")
    assert table.columns == names
    assert {row.name: [cell.value for cell in row.cells] for row in table.rows} == {
        "slow: paper's rule": [0.2, 34, 0, 0.9],
        "slow: restart": [0, 12, 1.4, 0.1],
    }
    assert [[cell.text for cell in row.cells] for row in tables.recorded_starts(tmp_path / "starts.json").rows] == [
        ["2 to 19", "13 to 19"],
        ["0 warned of", "2 restarted"],
    ]


def test_tables_of_the_paper_take_each_row_from_its_own_runs(tmp_path):
    runs = {(schedule, target): tmp_path / schedule / target for schedule in ("constant", "cyclic") for target in PACS}
    for number, ((schedule, target), run) in enumerate(runs.items()):
        write_run(run, target=target, lr=number, split="60/20/20", lr_schedule=schedule)  # lr: other accuracies
        window = {"first": 1, "last": 50, "validation": 1.0, "out_of_domain": 0.5 + 0.1 * number, "in_domain": 0.9}
        (run / "fit_on_val.json").write_text(json.dumps(window))
    write_run(tmp_path / "80-20", target="photo", split="80/20")
    cells = {row.name: row.cells for row in tables.table5(tmp_path).rows if row.group == "ours"}
    assert tables.table5(tmp_path).columns == ("t_s", "t_e", "lr", "interval", "Out: PACS", "In: PACS")
    assert not any("VLCS" in note for note in tables.table5(tmp_path).notes)  # its columns are left out
    means = {
        schedule: 100 * statistics.fmean(accuracy(runs[schedule, target], "swa") for target in PACS)
        for schedule in ("constant", "cyclic")
    }
    assert cells["SWA w/ const"][4].value == pytest.approx(means["constant"])
    assert cells["SWA w/ cyclic"][4].value == pytest.approx(means["cyclic"]) != pytest.approx(means["constant"])
    assert [cell.value for cell in cells["SWAD fit-on-val"][4:]] == pytest.approx([65, 90])
    table = tables.table3(tmp_path)
    assert table.columns == ("Out-of-domain: PACS", "In-domain: PACS")
    assert next(row for row in table.rows if row.name == "SWA").cells[0].value == pytest.approx(means["cyclic"])
