"""Averaged weights out of checkpoints. Those that the trainers write are read in the tests of each."""

import argparse
import os

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import swad
from helpers.states import assert_equal
from swad.integrations.checkpoints import read_state, write_state


def averages(n=3):
    model = nn.BatchNorm1d(2)
    group = swad.AverageGroup(model, {"sma": swad.SMA(model, start=0), "ema": swad.EMA(model, decay=0.5)})
    for value in range(1, n + 1):
        model.weight.data.fill_(value)
        group.update_parameters(model)
    return group


@pytest.fixture
def ema():
    model = nn.BatchNorm1d(2)
    average = swad.EMA(model, decay=0.5)
    for value in (1.0, 3.0):
        model.weight.data.fill_(value)
        average.update_parameters(model)
    return average


def test_a_state_is_found_wherever_a_script_put_it(ema, tmp_path):
    want = ema.averaged_state()
    assert want["weight"].tolist() == [2, 2]
    for content in (ema.state_dict(), {"epoch": 3, "nested": {"ema": ema.state_dict()}}):
        assert_equal(swad.averaged_weights(content), want)
        torch.save(content, tmp_path / "checkpoint.pt")
        assert_equal(swad.averaged_weights(str(tmp_path / "checkpoint.pt")), want)
    write_state(tmp_path / "ema.safetensors", ema.state_dict(), "identity")
    assert_equal(swad.averaged_weights(tmp_path / "ema.safetensors"), want)
    assert_equal(swad.averaged_weights(tmp_path, "ema"), want)


def test_a_written_state_resumes_as_the_one_in_memory_does(ema, tmp_path):
    write_state(tmp_path / "ema.safetensors", ema.state_dict(), "identity")
    again = swad.EMA(nn.BatchNorm1d(2), decay=0.5)
    again.load_state_dict(read_state(tmp_path / "ema.safetensors"))
    assert_equal(again.averaged_state(), ema.averaged_state())


def test_of_several_averages_one_is_named(ema):
    group = averages()
    state = {"group": group.state_dict(), "callbacks": {"AverageCallback[mine]": {"average": ema.state_dict()}}}
    with pytest.raises(ValueError, match="choose one average of this mapping, got None: pass one of sma, ema, mine"):
        swad.averaged_weights(state)
    with pytest.raises(ValueError, match="got 'swad': pass one of sma, ema, mine"):
        swad.averaged_weights(state, "swad")
    for name, average in {**group, "mine": ema}.items():
        assert_equal(swad.averaged_weights(state, name), average.averaged_state())


def test_timm_checkpoints_have_averaged_weights_also_of_its_own_average(tmp_path):
    weights = {"weight": torch.ones(2)}
    content = {"state_dict": {"weight": torch.zeros(2)}, "state_dict_ema": weights, "args": argparse.Namespace(lr=1)}
    torch.save(content, tmp_path / "last.pth.tar")
    assert_equal(swad.averaged_weights(tmp_path / "last.pth.tar"), weights)


class Runs:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_foreign_files_are_refused_in_a_line_and_run_no_code(tmp_path):
    (tmp_path / "text.ckpt").write_text("no checkpoint")
    (tmp_path / "empty.ckpt").write_bytes(b"")
    torch.save({"state_dict": {}, "x": Runs(tmp_path / "made")}, tmp_path / "code.ckpt")
    torch.save({"state_dict": {"weight": torch.ones(1)}, "epoch": 1}, tmp_path / "live.ckpt")
    torch.save([1, 2], tmp_path / "list.ckpt")
    save_file({"weight": torch.ones(1)}, tmp_path / "model.safetensors")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "swad.safetensors").write_bytes(b"torn")
    for name, problem in {
        "text.ckpt": "file of tensors and plain values, which this is not",
        "empty.ckpt": "file of tensors and plain values, which this is not",
        "code.ckpt": "file of tensors and plain values, which this is not",
        "live.ckpt": "has only state_dict, epoch: pass one that was saved while an average was followed",
        "list.ckpt": "has only nothing",
        "model.safetensors": "has only nothing",
        "": "has only nothing",
        "torn": "is damaged",
        "gone.ckpt": "there is no checkpoint at",
    }.items():
        with pytest.raises((ValueError, FileNotFoundError), match=problem) as error:
            swad.averaged_weights(tmp_path / name)
        assert "\n" not in str(error.value)
    assert not (tmp_path / "made").exists()


def test_a_state_without_an_average_yet_says_so(ema):
    empty = swad.SMA(nn.BatchNorm1d(2), start=5)
    with pytest.raises(ValueError, match="there is nothing to average yet: the first averaged update is 6"):
        swad.averaged_weights({"swad": empty.state_dict()})
    state = ema.state_dict()
    del state["average"]
    with pytest.raises(ValueError, match="'own' of 'average' is missing"):
        swad.averaged_weights(state)
