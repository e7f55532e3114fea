"""`swad log`."""

from __future__ import annotations

from helpers.run_tree import write_run


def test_records_are_sent_to_a_tracker_later(here, tmp_path):
    write_run(tmp_path / "runs" / "one")
    result = here("log", tmp_path / "runs", "--to", "tensorboard")
    assert "sent the records of 1 run to tensorboard" in result.stdout
    assert list((tmp_path / "runs" / "one" / "tensorboard").iterdir())


def test_unknown_trackers_are_refused_before_anything_is_sent(here, tmp_path):
    write_run(tmp_path / "one")
    errors = here("log", tmp_path, "--to", "tensorboard,tensorbord,wandbb", code=1).stderr
    assert errors.count("did you mean") == 2
    assert not (tmp_path / "one" / "tensorboard").exists()
    assert "--to must name one or several of wandb, mlflow, tensorboard" in here("log", tmp_path, code=1).stderr
