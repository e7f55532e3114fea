"""`swad prune`."""

from __future__ import annotations

from helpers.run_tree import write_run
from swad.util.names import counted


def test_weights_of_other_runs_are_listed_then_removed(here, tmp_path):
    for lr in (1e-5, 2e-5, 3e-5, 4e-5, 5e-5, 6e-5):
        write_run(tmp_path / f"lr-{lr}", lr=lr)
        (tmp_path / f"lr-{lr}" / "weights" / "swad.safetensors").touch()
    before = set(tmp_path.rglob("*.safetensors"))
    tables = here("report", tmp_path, "--no-page").stdout
    text = here("prune", tmp_path).stdout
    assert set(tmp_path.rglob("*.safetensors")) == before
    listed = {tmp_path / line.split()[-1] for line in text.splitlines() if line.startswith("would remove")}
    assert f"--yes removes {counted(len(listed), 'weights file')} of runs that iid does not select" in text
    here("prune", tmp_path, "--yes")
    assert before - set(tmp_path.rglob("*.safetensors")) == listed
    assert listed
    assert here("report", tmp_path, "--no-page").stdout == tables
    assert "there are 0 weights files" in here("prune", tmp_path).stdout
