import json
import subprocess
from collections.abc import Callable

import pytest

from helpers.tiny_runs import copied
from swad.testbed.results.runs import result_checksum

pytest.importorskip("matplotlib")

Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.slow
def test_surface_and_line(here: Call, tiny_run, tmp_path):
    folder = copied(tiny_run, tmp_path / "run")
    quick = ["--steps", "3", "--images", "12", "--figure-formats", "svg", "--device", "cpu"]
    result = here("surface", folder, *quick)
    assert "mean of the corners" in result.stdout
    assert "ERM (step 20)" in result.stdout
    assert (folder / "figures" / "surface.svg").exists()
    here("surface", folder, "--corners", "best,30,10", *quick)
    line = here("surface", folder, "--line", "best,swad", *quick).stdout
    assert "mean of the two" in line
    assert "corners" not in line
    assert (folder / "figures" / "line.svg").exists()
    (folder / "figures" / "line.svg").unlink()
    bare = copied(tiny_run, tmp_path / "bare")
    stored = here("surface", folder, bare, tmp_path / "run", "--stored", *quick[4:6], "-o", folder / "figures")
    assert f"note: {bare} skipped: it has no surface.jsonl" in stored.stdout.replace("\n", " ")
    assert stored.stdout.count("paper, ERM (best)") == 2, "the plane measured last and the line, each once"
    assert (folder / "figures" / "line.svg").exists()
    here("report", folder, "--output", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "Loss surfaces on digits" in text
    assert text.count(">paper as target, trial 0<") == 2  # the plane measured last, and the line
    assert "1: ERM (best), 2: ERM (step 30), 3: ERM (step 10)" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["surface", "RUN", "--margin", "nan"], "--margin must be a number of 0 or more, got nan"),
        (["surface", "OPEN"], "OPEN skipped: unfinished"),
        (
            ["surface", "RUN", "--corners", "swad,swa"],
            "--corners takes three weights such as 2500,3500,4500",
        ),
        (["surface", "RUN", "--corners", "swad,swa,10", "--line", "swad,swa"], "--corners is for a plane"),
        (["surface", "RUN", "--corners", "swad,swa,11"], "has no weights '11'"),
        (["surface", "RUN", "--line", "swad,x"], "has no weights 'x'"),
        (["surface", "RUN", "--line", "swad", "x"], "--line takes two weights such as best,swad, got swad"),
        (["surface", "RUN", "--steps", "1"], "--steps must be 2 or more, got 1"),
        (["surface", "BARE"], "saved no snapshots, but a plane needs three weights: train with --snapshots 20,28,36"),
    ],
)
def test_wrong_inputs_get_one_line(here: Call, tiny_run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    if "RUN" in arguments:
        copied(tiny_run, tmp_path / "RUN")
    if "OPEN" in arguments:
        (copied(tiny_run, tmp_path / "OPEN") / "done.json").unlink()
    if "BARE" in arguments:
        done = json.loads((copied(tiny_run, tmp_path / "BARE") / "done.json").read_text())
        done["weights"] = {name: path for name, path in done["weights"].items() if not name.startswith("step-")}
        done["checksums"]["done.json"] = result_checksum(done)
        (tmp_path / "BARE" / "done.json").write_text(json.dumps(done))
    result = here(*arguments, code=1)
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
