import json
from pathlib import Path

import pytest

from helpers.configs import stored
from swad.testbed.data import benchmarks
from swad.testbed.paper.cost import baseline_every, overhead, timing
from swad.testbed.results.records import Record, RecordWriter
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import load_run


def write_run(folder: Path, dataset: str, steps: range = range(50, 1501, 50)) -> RunData:
    """1,500 updates of 0.4 s, with 60 s of evaluations."""
    with RecordWriter(folder) as writer:
        writer.append(*(Record("photo-0", step, None, None, "valley_loss", 1.0) for step in steps))
        seconds = {"total": 700.0, "per_step": 0.4, "evaluation": 60.0}
        writer.append(*(Record("photo-0", 1500, None, None, f"seconds_{k}", v) for k, v in seconds.items()))
    (folder / "config.json").write_text(json.dumps(stored({"target": "photo", "trial": 0, "dataset": dataset})))
    (folder / "done.json").write_text("{}")
    return load_run(folder)


@pytest.mark.parametrize(
    ("dataset", "printed", "sources"),
    [("PACS", 1.07, 1.05), ("VLCS", 1.18, 1.14), ("DomainNet", 1.27, 1.23)],
)
def test_the_papers_figures_and_what_they_are_with_sources_alone(dataset, printed, sources):
    benchmark = benchmarks.get(dataset)
    modeled = overhead(benchmark.counts, benchmark.defaults.evaluate_every, baseline_every(dataset))
    assert (round(modeled.printed, 2), round(modeled.sources, 2)) == (printed, sources)


def test_the_formula_by_hand():
    # 80 % of 40 images are one update of 32. It is evaluated after every update, in the baseline after every other.
    modeled = overhead({"a": 40, "b": 40}, 1, 2)
    assert modeled.sources == pytest.approx((8 + 1) / (8 + 0.5))
    # An evaluation with the target: 40 / 5 validation images and 40 of the target.
    longer = (8 + 40) / 8
    assert modeled.with_target == pytest.approx((8 + longer) / (8 + 0.5 * longer))
    assert modeled.printed == pytest.approx((8 + 2) / (8 + 1))


def test_the_model_against_a_count_of_image_passes():
    """A slow twin: one epoch, update by update, forward and backward one unit each."""

    def passes(between: int) -> float:
        total, step = 0.0, 0
        while step * 2 * 32 < 6400:  # updates of 32 images of each of two sources
            step += 1
            total += 2 * 64
            total += 1600 if step % between == 0 else 0
        return total

    modeled = overhead({"a": 4000, "b": 4000, "c": 4000}, 5, 25)
    assert modeled.sources == pytest.approx(passes(5) / passes(25))


def test_measured_costs_come_from_the_records(tmp_path):
    measured = timing(write_run(tmp_path / "a", "PACS"))
    # 600 s of steps; every 300 updates there would have been 5 of 30 evaluations: 10 s instead of 60.
    assert measured[:3] == pytest.approx((600, 0.4, 60))
    assert measured.overhead == pytest.approx(660 / 610)
    # On DomainNet, every 1,000 updates, 1.5 of them: 3 s.
    assert timing(write_run(tmp_path / "b", "DomainNet")).overhead == pytest.approx(660 / 603)
    # Rarer evaluations than those of the baseline cost nothing.
    assert timing(write_run(tmp_path / "c", "PACS", range(1500, 1501))).overhead == 1.0
