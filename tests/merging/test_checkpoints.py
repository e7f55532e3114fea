"""Checkpoints of real trainers, read by name, and files that are refused in one line."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from helpers.averages import Net
from swad.merging.checkpoints import CheckpointError, is_checkpoint_folder, opened

safetensors = pytest.importorskip("safetensors.torch")


def read(checkpoint):
    with opened(checkpoint) as tensors:
        return {name: tensor.clone() for name, tensor in tensors.items()}


def require_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].equal(tensor), name


@pytest.fixture
def state():
    torch.manual_seed(0)
    return Net().state_dict()


@pytest.mark.parametrize("key", ["", "state_dict", "model_state_dict", "model", "model_dict"])
def test_torch_files_with_a_state_dict_where_trainers_put_it(tmp_path, state, key):
    torch.save({"epoch": 3, key: state, "optimizer": {"lr": 0.1}} if key else state, tmp_path / "last.pth")
    require_equal(read(tmp_path / "last.pth"), state)


def test_a_safetensors_file_and_a_state_dict_in_memory(tmp_path, state):
    safetensors.save_file(state, tmp_path / "a.safetensors")
    require_equal(read(str(tmp_path / "a.safetensors")), state)
    require_equal(read(state), state)


def test_names_lack_what_wrappers_add(tmp_path, state):
    model = Net()
    model.load_state_dict(state)
    parallel = nn.DataParallel(model).state_dict()
    assert "module.head.weight" in parallel
    torch.save(parallel, tmp_path / "parallel.pt")
    require_equal(read(tmp_path / "parallel.pt"), state)
    compiled = {f"_orig_mod.{name}": tensor for name, tensor in state.items()}  # as torch.compile names them
    safetensors.save_file(compiled, tmp_path / "compiled.safetensors")
    require_equal(read(tmp_path / "compiled.safetensors"), state)


def test_a_model_whose_names_share_their_first_part_keeps_it_unless_lightning_wrote_it(tmp_path):
    state = {"body.0.weight": torch.ones(2), "body.0.bias": torch.ones(2)}
    torch.save(state, tmp_path / "a.pt")
    require_equal(read(tmp_path / "a.pt"), state)


@pytest.mark.slow
def test_a_lightning_checkpoint(tmp_path):
    pl = pytest.importorskip("lightning.pytorch")
    from helpers.lightning_parts import Net as LightningNet
    from helpers.lightning_parts import loader

    module = LightningNet()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(max_steps=3, accelerator="cpu", enable_checkpointing=False, **quiet)
    trainer.fit(module, loader(), loader())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    assert "net.0.weight" in torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    require_equal(read(tmp_path / "last.ckpt"), module.net.state_dict())
    module.extra = nn.Linear(1, 1)  # tensors beside the network, so that nothing is common to all names
    trainer.strategy._lightning_module = module
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    require_equal(read(tmp_path / "two.ckpt"), module.state_dict())


@pytest.fixture(scope="module")
def gpt2():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))


@pytest.mark.parametrize("options", [{}, {"max_shard_size": "5KB"}], ids=["one file", "shards"])
def test_folders_of_hugging_face(tmp_path, gpt2, options):
    gpt2.save_pretrained(tmp_path, **options)
    assert (tmp_path / "model.safetensors.index.json").exists() == bool(options)
    found = read(tmp_path)
    state = gpt2.state_dict()
    tied = {name for name in state if name not in found}
    assert tied == {"lm_head.weight"}
    require_equal(found, {name: tensor for name, tensor in state.items() if name not in tied})
    assert is_checkpoint_folder(tmp_path)
    assert not is_checkpoint_folder(tmp_path.parent)


def test_a_folder_with_a_torch_file(tmp_path, gpt2):
    torch.save(gpt2.state_dict(), tmp_path / "pytorch_model.bin")
    require_equal(read(tmp_path), gpt2.state_dict())


class Attack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def refused(path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_pickle_that_runs_code_is_refused_before_it_runs(tmp_path):
    proof = tmp_path / "proof"
    torch.save({"state_dict": {"weight": torch.ones(1)}, "args": Attack(proof)}, tmp_path / "zip.pt")
    assert "unpickling that could run any code: save only its state dict" in refused(tmp_path / "zip.pt")
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps(Attack(proof)))
    assert "not in the format that torch.save writes since 1.6" in refused(tmp_path / "plain.pkl")
    torch.save(Net(), tmp_path / "module.pt")
    assert "save only its state dict" in refused(tmp_path / "module.pt")
    assert not proof.exists()


def test_files_that_are_no_checkpoints(tmp_path, state):
    assert refused(tmp_path / "none.pt") == f"there is no {tmp_path / 'none.pt'}: check the path"
    assert refused(tmp_path / "none.safetensors").startswith("there is no ")
    assert "holds no checkpoint (model.safetensors.index.json, " in refused(tmp_path)
    safetensors.save_file(state, tmp_path / "a.safetensors")
    content = (tmp_path / "a.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(content[:-5])
    assert f"cannot read {tmp_path / 'cut.safetensors'} as safetensors: " in refused(tmp_path / "cut.safetensors")
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert "not in the format that torch.save writes since 1.6" in refused(tmp_path / "old.pt")
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
        archive.writestr("readme", "no weights")
    assert "as a file of torch.save" in refused(tmp_path / "other.pt")
    torch.save({"optimizer": {}, "epoch": 1}, tmp_path / "keys.pt")
    assert "got the keys optimizer, epoch: save model.state_dict()" in refused(tmp_path / "keys.pt")
    torch.save([torch.ones(1)], tmp_path / "list.pt")
    assert "got a list" in refused(tmp_path / "list.pt")


def test_an_index_that_lists_missing_or_foreign_files(tmp_path, gpt2):
    gpt2.save_pretrained(tmp_path, max_shard_size="5KB")
    index = tmp_path / "model.safetensors.index.json"
    shard = sorted(tmp_path.glob("model-0*.safetensors"))[0]
    shutil.move(shard, tmp_path / "moved.safetensors")
    assert refused(tmp_path) == f"there is no {shard}: check the path"
    index.write_text(json.dumps({"weight_map": {"a": "../moved.safetensors"}}))
    assert "it names files outside of its folder" in refused(tmp_path)
    index.write_text("{}")
    assert "cannot read" in refused(tmp_path)
