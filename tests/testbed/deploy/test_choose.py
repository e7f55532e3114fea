"""The weights to ship are chosen by the validation images of the sources, never by the held-out domain."""

from __future__ import annotations

import json
import shutil
from statistics import fmean

import pytest

from helpers import ROOT
from swad.testbed.deploy.choose import find_weights, validation_scores
from swad.testbed.results.records import DONE
from swad.testbed.results.runs import result_checksum
from swad.testbed.training.run_dir import RunError


def changed(run, to, change):
    """Copy a run and change its scores."""
    shutil.copytree(run, to)
    done = json.loads((to / DONE).read_text())
    for domains in done["scores"].values():
        change(domains)
    done["checksums"][DONE] = result_checksum(done)
    (to / DONE).write_text(json.dumps(done))
    return to


def test_the_lowest_loss_on_validation_images_of_the_sources_wins(tiny_run):
    scores = json.loads((tiny_run / DONE).read_text())["scores"]
    losses = {
        name: fmean(splits["out"]["loss"] for domain, splits in domains.items() if domain != "paper")
        for name, domains in scores.items()
    }
    file, candidates = find_weights(tiny_run)
    assert [candidate.name for candidate in candidates] == sorted(losses, key=losses.__getitem__)
    assert [candidate.loss for candidate in candidates] == pytest.approx(sorted(losses.values()))
    assert file == candidates[0].file == tiny_run / "weights" / f"{min(losses, key=losses.__getitem__)}.safetensors"


def test_the_held_out_domain_changes_nothing(tiny_run, tmp_path):
    def worsen(domains):
        for split in domains["paper"].values():
            split.update(loss=float("inf"), accuracy=0.0)

    def confuse(domains):
        domains["board"]["out"]["loss"] = float("nan")

    def first(run):
        return [candidate[:3] for candidate in validation_scores(run)]

    assert first(changed(tiny_run, tmp_path / "worse", worsen)) == first(tiny_run)
    assert len(first(changed(tiny_run, tmp_path / "nan", confuse))) == len(first(tiny_run))


def test_weights_that_were_removed_are_not_chosen(tiny_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    names = [candidate.name for candidate in find_weights(run)[1]]
    for name, following in zip(names, [*names[1:], None], strict=True):
        (run / "weights" / f"{name}.safetensors").unlink()
        if following:
            assert find_weights(run)[0].stem == following
    with pytest.raises(RunError, match=r"no weights of .* are left: restore .*\.safetensors or another, or train"):
        find_weights(run)


def test_weights_can_be_named(tiny_run):
    last = tiny_run / "weights" / "last.safetensors"
    assert find_weights(tiny_run, "last") == find_weights(last) == (last, [])
    with pytest.raises(RunError, match="has no weights 'emma'; it has best, last, swad, swa"):
        find_weights(tiny_run, "emma")
    with pytest.raises(ValueError, match="is one file: leave it out"):
        find_weights(last, "swad")
    with pytest.raises(RunError, match="holds no run: give the directory of a run"):
        find_weights(tiny_run.parent)


@pytest.mark.parametrize(
    ("folder", "chosen", "swad", "best"),
    [("pacs-resnet50/PACS", 84.2, 84.3, 81.5), ("pacs-resnet50-dann/PACS", 80.4, 45.7, 78.8)],
)
def test_the_choice_on_the_kept_runs_is_that_of_the_page(folder, chosen, swad, best):
    accuracies = {"chosen": [], "swad": [], "best": []}
    for done in sorted((ROOT / "benchmarks" / "results" / folder).glob("*/*/done.json")):
        scores, target = json.loads(done.read_text())["scores"], done.parent.name.rpartition("-")[0]
        for name, weights in (("chosen", validation_scores(done.parent)[0].name), ("swad", "swad"), ("best", "best")):
            accuracies[name].append(100 * scores[weights][target]["in"]["accuracy"])
    assert {name: round(fmean(values), 1) for name, values in accuracies.items()} == {
        "chosen": chosen,
        "swad": swad,
        "best": best,
    }
