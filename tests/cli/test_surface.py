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
    result = here("measure", "surface", folder, *quick)
    assert "mean of the corners" in result.stdout
    assert "ERM (step 20)" in result.stdout
    assert (folder / "figures" / "surface.svg").exists()
    here("measure", "surface", folder, "--corners", "best,30,10", *quick)
    line = here("measure", "surface", folder, "--corners", "best,swad", *quick).stdout
    assert "mean of the two" in line
    assert "corners" not in line
    assert (folder / "figures" / "line.svg").exists()
    (folder / "figures" / "line.svg").unlink()
    bare = copied(tiny_run, tmp_path / "bare")
    stored = here(
        "measure", "surface", folder, bare, tmp_path / "run", "--stored", "-o", tmp_path / "drawn", *quick[4:6]
    )
    assert f"note: {bare} skipped: it has no surface.jsonl" in stored.stdout.replace("\n", " ")
    assert stored.stdout.count("paper, ERM (best)") == 2, "the plane measured last and the line, each once"
    assert (tmp_path / "drawn" / "line.svg").exists()
    assert not (folder / "figures" / "line.svg").exists()
    here("report", folder, "--output", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "Loss surfaces on digits" in text
    assert text.count('class="plot" style="max-width') == 2  # the plane measured last, and the line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["surface", "RUN", "--margin", "nan"], "margin must be a number of at least 0, got nan"),
        (["surface", "OPEN"], "OPEN skipped: unfinished"),
        (["surface", "RUN", "--corners", "swad"], "corners must be three different weights for a plane, or two for a"),
        (["surface", "RUN", "--corners", "swad,swa,11"], "has no weights '11'"),
        (["surface", "RUN", "--corners", "swad,x"], "has no weights 'x'"),
        (["surface", "RUN", "--steps", "1"], "steps must be a whole number from 2 to 1000, got 1"),
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
    result = here("measure", *arguments, code=1)
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
