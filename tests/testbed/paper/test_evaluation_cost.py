import json
from pathlib import Path

import pytest

from helpers.configs import stored
from swad.testbed.paper.evaluation_cost import cost, measured_cost, model_cost
from swad.testbed.results.records import Record, RecordWriter


def write_run(folder: Path, seconds: dict[str, float], *, finished: bool = True, **config: str) -> None:
    """1,500 updates with 30 evaluations, and the timings given."""
    with RecordWriter(folder) as writer:
        writer.append(*(Record("photo-0", step, None, None, "valley_loss", 1.0) for step in range(50, 1501, 50)))
        writer.append(*(Record("photo-0", 1500, None, None, f"seconds_{k}", v) for k, v in seconds.items()))
    (folder / "config.json").write_text(json.dumps(stored({"target": "photo", "trial": 0, **config})))
    if finished:
        (folder / "done.json").write_text("{}")


@pytest.mark.parametrize(
    ("dataset", "printed", "sources"),
    [("PACS", 1.07, 1.05), ("VLCS", 1.18, 1.14), ("DomainNet", 1.27, 1.23)],
)
def test_the_papers_figures_and_what_they_are_with_sources_alone(dataset, printed, sources):
    everything, mean, *rows = cost(dataset)
    assert (everything.target, everything.counted, round(everything.ratio, 2)) == (None, "all", printed)
    assert (mean.target, mean.counted, round(mean.ratio, 2)) == (None, "sources", sources)
    assert mean.ratio == pytest.approx(sum(row.ratio for row in rows) / len(rows))


def test_one_target_by_hand():
    # Sources: 8,321 images of PACS without photo; 80 % of them in updates of 3 x 32 images.
    photo = next(row for row in cost("PACS") if row.target == "photo")
    epoch = 8321 * 0.8 / 96
    assert photo.epoch == pytest.approx(epoch)
    assert photo.ratio == pytest.approx((8 + epoch / 100) / (8 + epoch / 300))
    # An evaluation with the target: 8,321 / 5 validation images and 1,670 of the target.
    longer = (8321 / 5 + 1670) / (8321 / 5)
    assert photo.ratio_with_target == pytest.approx((8 + epoch / 100 * longer) / (8 + epoch / 300 * longer))


def test_the_model_against_a_count_of_image_passes():
    """A slow twin: one epoch, update by update, forward and backward one unit each."""
    counts, every, baseline = {"a": 4000, "b": 4000, "c": 4000}, 5, 25

    def passes(between: int) -> float:
        total, step = 0.0, 0
        while step * 2 * 32 < 6400:  # updates of 32 images of each of two sources
            step += 1
            total += 2 * 64
            total += 1600 if step % between == 0 else 0
        return total

    (row,) = (row for row in model_cost(counts, every, baseline) if row.target == "c")
    assert row.ratio == pytest.approx(passes(every) / passes(baseline))


def test_measured_costs_come_from_the_records(tmp_path):
    seconds = {"total": 700.0, "per_step": 0.4, "evaluation": 60.0}
    write_run(tmp_path / "a", seconds, dataset="PACS")
    write_run(tmp_path / "b", seconds, finished=False)
    (row,) = measured_cost(tmp_path)
    assert (row.run, row.updates, row.evaluations, row.seconds_total) == ("photo-0", 1500, 30, 700.0)
    # 600 s of steps; every 300 updates there would have been 5 of 30 evaluations: 10 s instead of 60.
    assert row.ratio == pytest.approx(660 / 610)
    # On DomainNet, every 1,000 updates, 1.5 of them: 3 s.
    write_run(tmp_path / "c", seconds, dataset="DomainNet")
    assert measured_cost(tmp_path / "c")[0].ratio == pytest.approx(660 / 603)


def test_rarer_evaluations_than_those_of_the_baseline_cost_nothing(tmp_path):
    with RecordWriter(tmp_path) as writer:
        writer.append(Record("photo-0", 1500, None, None, "valley_loss", 1.0))
        seconds = {"total": 700.0, "per_step": 0.4, "evaluation": 60.0}
        writer.append(*(Record("photo-0", 1500, None, None, f"seconds_{k}", v) for k, v in seconds.items()))
    (tmp_path / "config.json").write_text(json.dumps(stored({"target": "photo", "trial": 0, "dataset": "PACS"})))
    (tmp_path / "done.json").write_text("{}")
    assert measured_cost(tmp_path)[0].ratio == 1.0


def test_what_cannot_be_computed_is_said(tmp_path):
    with pytest.raises(ValueError, match="dataset folder has no fixed number of images"):
        cost("folder")
    write_run(tmp_path, {}, finished=False)
    with pytest.raises(ValueError, match="at least one finished run"):
        measured_cost(tmp_path)
