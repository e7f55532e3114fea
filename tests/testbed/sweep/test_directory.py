from __future__ import annotations

import dataclasses
import json
import shutil
import threading

import pytest
from PIL import Image

from helpers.fake_train import fake_train
from helpers.special_files import SPECIAL, at_most, replace_by
from helpers.stated_runs import write_stated_run
from swad.testbed.results.records import Record, RecordWriter
from swad.testbed.sweep.directory import SweepDir
from swad.testbed.sweep.spec import SweepSpec
from swad.testbed.training.config import ConfigError
from swad.testbed.workers.work import State
from swad.util.files import FileLock

SPEC = SweepSpec(datasets=("digits",), trials=(0,), targets=("paper",), averages=("swad",))


def test_requests_are_kept_in_order_and_once(tmp_path):
    sweep = SweepDir(tmp_path / "sweep")
    assert sweep.specs == ()
    more = dataclasses.replace(SPEC, trials=(0, 1))
    for spec in (SPEC, more, SPEC):
        sweep.add(spec)
    assert sorted(spec.trials for spec in sweep.specs) == [(0,), (0, 1)]
    assert len(sweep.plan().runs) == 2


@pytest.mark.parametrize("kind", SPECIAL)
def test_a_sweep_file_that_cannot_be_read_to_its_end_is_one_problem(tmp_path, kind):
    replace_by(kind, tmp_path / "sweep.json")
    with at_most(5), pytest.raises(ConfigError, match=r"cannot read .*sweep.json \(.*\): restore it") as refused:
        _ = SweepDir(tmp_path).specs
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "change",
    [
        {"options": {"output": "x"}},
        {"options": {"foo": 1}},
        {"options": {"dataset": "PACS"}},
        {"selected": {"digits/erm/paper/0": 5}},
        5,
        [],
    ],
)
def test_an_edited_sweep_file_is_one_problem(tmp_path, change):
    sweep = SweepDir(tmp_path)
    sweep.add(SPEC)
    content = json.loads((tmp_path / "sweep.json").read_text())
    content["specs"] = [content["specs"][0] | change if isinstance(change, dict) else change]
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"sweep.json.*: ") as refused:
        sweep.plan()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/../../../x", "..", "a\nb", "\x1b[2J", 5])
@pytest.mark.parametrize("key", ["targets", "domains"])
def test_a_target_that_leads_outside_of_the_sweep_is_refused_before_a_folder_is_made(tmp_path, key, name):
    sweep = SweepDir(tmp_path / "sweep")
    domains = {"folder": ("east", "west", "north")}
    sweep.add(dataclasses.replace(SPEC, datasets=("folder",), data=tmp_path, targets=("east",), domains=domains))
    content = json.loads((sweep.path / "sweep.json").read_text())
    content["specs"][0]["targets"] = ["east", *([name] if key == "targets" else [])]
    content["specs"][0]["domains"]["folder"].append(name)
    (sweep.path / "sweep.json").write_text(json.dumps(content))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=rf"sweep.json: .*(a name in {key} must be|targets must be)"):
        sweep.plan()
    assert sorted(tmp_path.rglob("*")) == before


def test_settings_of_the_machine_replace_the_earlier_ones(tmp_path):
    sweep = SweepDir(tmp_path)
    sweep.add(dataclasses.replace(SPEC, options={"steps": 5, "device": "cuda:0"}))
    sweep.add(dataclasses.replace(SPEC, options={"steps": 5, "device": "cpu", "workers": 2}, data="/elsewhere"))
    (spec,) = sweep.specs
    assert spec.options == {"steps": 5, "device": "cpu", "workers": 2}
    assert str(sweep.plan().runs[0].config.data_dir) == "/elsewhere"
    # Two requests may share a run: the later one says where the data is.
    sweep.add(dataclasses.replace(spec, trials=(0, 1), data="/moved"))
    assert {str(run.config.data_dir) for run in sweep.plan().runs} == {"/moved"}


def test_many_writers_lose_no_request(tmp_path):
    specs = [dataclasses.replace(SPEC, trials=(number,)) for number in range(8)]
    threads = [threading.Thread(target=SweepDir(tmp_path).add, args=(spec,)) for spec in specs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(spec.trials[0] for spec in SweepDir(tmp_path).specs) == list(range(8))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot read"),
        ("[]", "was not written by this version"),
        ('{"format": 99, "specs": []}', "was not written by this version"),
        ('{"format": 1}', "was not written by this version"),
        ('{"format": 1, "specs": [{"trails": [0]}]}', "did you mean 'trials'?"),
    ],
)
def test_a_damaged_sweep_is_one_line_with_its_name(tmp_path, content, words):
    (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(ConfigError, match=r"sweep\.json") as error:
        _ = SweepDir(tmp_path).specs
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "sweep").write_text("")
    with pytest.raises(ConfigError, match="is a file: choose a directory"):
        SweepDir(tmp_path / "sweep").add(SPEC)
    with pytest.raises(ConfigError, match="contains no sweep"):
        SweepDir(tmp_path / "other").require()


def test_a_sweep_can_be_moved(tmp_path):
    sweep = SweepDir(tmp_path / "here")
    sweep.add(SPEC)
    (run,) = sweep.plan().runs
    fake_train(lambda config: 0.5)(run.config)
    assert sweep.state(run) is State.DONE
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert list(SweepDir(tmp_path / "there").states().values()) == [State.DONE]


def test_the_domains_of_a_folder_are_stored_with_the_request(tmp_path):
    data = tmp_path / "mine"
    for domain in ("east", "north", "south"):
        for label in ("cat", "dog"):
            (data / domain / label).mkdir(parents=True)
            Image.new("RGB", (16, 16)).save(data / domain / label / "1.png")
    sweep = SweepDir(tmp_path / "sweep")
    sweep.add(SweepSpec(datasets=("folder",), data=data, trials=(0,)))
    runs = sweep.plan().runs
    names = {run.config.target for run in runs}
    assert names == {"east", "north", "south"}
    assert all(run.config.output.parts[-4] == "mine" for run in runs)
    shutil.rmtree(data)  # the status of the sweep can still be read, also on another machine
    assert len(SweepDir(tmp_path / "sweep").plan().runs) == len(runs)


def test_the_state_of_a_run_is_what_its_directory_says(tmp_path):
    sweep = SweepDir(tmp_path)
    sweep.add(SPEC)
    (run,) = sweep.plan().runs
    assert sweep.state(run) is State.PENDING
    run.config.output.mkdir(parents=True)
    (run.config.output / "records.jsonl").write_text("")
    (run.config.output / "run.lock").write_text("1\n")  # left behind by a process that was killed
    assert sweep.state(run) is State.PENDING
    (run.config.output / "failure.json").write_text("{}")
    assert sweep.state(run) is State.FAILED
    with FileLock(run.config.output / "run.lock"):
        assert sweep.state(run) is State.RUNNING  # it is being retried
    (run.config.output / "done.json").write_text(json.dumps({"seconds": 3}))
    assert sweep.state(run) is State.DONE
    assert sweep.seconds(run) == 3.0


@pytest.mark.parametrize(("metric", "chosen"), [("accuracy", 0.02), ("auc", 0.01)])
def test_a_search_chooses_by_the_metric_of_its_runs(tmp_path, metric, chosen):
    sweep = SweepDir(tmp_path)
    sweep.add(
        dataclasses.replace(
            SPEC,
            protocol="paper",
            trials=(0, 1),
            grid={"lr": (0.01, 0.02)},
            options={"select_by": metric, "metrics": ("auc",)},
        )
    )
    (search,) = sweep.plan().searches
    for run in search.runs:
        lr = run.config.hyperparameters["lr"]
        write_stated_run(run.config, lambda *_, lr=lr: lr)  # so accuracy is higher for the larger rate
        with RecordWriter(run.config.output) as writer:
            for source in ("board", "clutter", "outline"):
                for name in ("best", "last", "swad"):
                    writer.append(Record(run.config.name, 100, source, "out", "auc", 1 - lr, name))
    assert sweep.choose(search)["lr"] == chosen
