import io
import warnings

import pytest
import torch
from torch import nn

import swad
from helpers.states import assert_equal
from swad.integrations.timm import ModelSwad

LOSSES = [2.0, 1.0, 1.1, 1.2, 1.1, 3.0, 3.0]  # the floor is the second; the last two are past r * mean


class Loop:
    """A tiny timm-like loop that also keeps every weight, for the slow twin."""

    def __init__(self, **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.swad = ModelSwad(self.model, n_converge=3, n_tolerance=2, **options)
        self.kept = {}

    def step(self, n):
        generator = torch.Generator().manual_seed(n)
        self.model.train()
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 3, generator=generator)).square().mean().backward()
        self.optimizer.step()
        self.swad.update(self.model, step=n)
        self.kept[n] = {k: v.clone() for k, v in self.model.state_dict().items()}

    def run(self, first=1, last=21):
        for n in range(first, last + 1):
            self.step(n)
            if n % 3 == 0:
                self.swad.observe(LOSSES[n // 3 - 1])
        return self

    def twin(self):
        spans = self.swad.status.spans
        updates = [i for span in spans for i in span.updates]
        mean = {
            k: torch.stack([self.kept[i][k].double() for i in updates]).mean(0)
            for k, _ in self.model.named_parameters()
        }
        buffers = {k: self.kept[updates[-1]][k] for k, _ in self.model.named_buffers()}
        return {**mean, **buffers}


def assert_same(ours, twin):
    assert ours.keys() == twin.keys()
    for name in twin:
        torch.testing.assert_close(ours[name].double(), twin[name].double(), rtol=1e-6, atol=1e-7)


def test_module_holds_the_mean_of_the_averaged_updates():
    loop = Loop().run()
    assert (loop.swad.status.start_step, loop.swad.status.end_step) == (6, 15)
    assert_same(loop.swad.module.state_dict(), loop.twin())


def test_module_is_the_average_as_if_training_ended_now():
    loop = Loop().run(last=17)
    assert loop.swad.status.end_step == 17
    assert_same(loop.swad.module.state_dict(), loop.twin())
    loop.step(18)
    assert_same(loop.swad.module.state_dict(), loop.twin())


def test_module_is_an_evaluating_copy_without_gradients():
    loop = Loop().run()
    live = {k: v.clone() for k, v in loop.model.state_dict().items()}
    module = loop.swad.module
    assert module is loop.swad.module
    assert not module.training
    assert not any(p.requires_grad for p in module.parameters())
    assert all(torch.equal(v, live[k]) for k, v in loop.model.state_dict().items())
    x = torch.randn(2, 3)
    assert torch.equal(loop.swad(x), module(x))


def test_module_is_refreshed_only_when_the_average_changed(monkeypatch):
    loop = Loop().run(last=14)
    copies = []
    copy_to = swad.SWAD.copy_to
    monkeypatch.setattr(swad.SWAD, "copy_to", lambda self, model: (copies.append(1), copy_to(self, model)))
    _ = loop.swad.module, loop.swad.module
    assert len(copies) == 1
    loop.run(15, 21)  # the valley ends here
    _ = loop.swad.module, loop.swad.module
    assert len(copies) == 2
    loop.step(22)  # past the end: nothing can change
    _ = loop.swad.module
    assert len(copies) == 2


def test_misspelt_options_name_the_choices():
    with pytest.raises(TypeError, match=r"SWAD takes n_converge, .*'n_converged': did you mean 'n_converge'"):
        ModelSwad(nn.Linear(1, 1), n_converged=3)


def test_before_training_it_holds_the_initial_weights_and_before_convergence_it_warns():
    loop = Loop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(torch.equal(v, loop.model.state_dict()[k]) for k, v in loop.swad.module.state_dict().items())
    loop.run(last=3)
    with pytest.warns(swad.NeverConvergedWarning):
        assert_same(loop.swad.module.state_dict(), loop.twin())


@pytest.mark.parametrize("at", [4, 10, 16])
def test_resumes_to_the_last_bit(at):
    unbroken = Loop().run()
    broken = Loop().run(last=at)
    file = io.BytesIO()
    state = {"model": broken.model, "optimizer": broken.optimizer, "swad": broken.swad}
    torch.save({k: v.state_dict() for k, v in state.items()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)

    resumed = Loop()
    for name, part in {"model": resumed.model, "optimizer": resumed.optimizer, "swad": resumed.swad}.items():
        part.load_state_dict(saved[name])
    resumed.run(first=at + 1)
    assert resumed.swad.status == unbroken.swad.status
    ours, theirs = resumed.swad.module.state_dict(), unbroken.swad.module.state_dict()
    assert all(torch.equal(ours[k], theirs[k]) for k in theirs)


def test_loading_brings_the_module_up_to_date():
    first, second = Loop().run(), Loop()
    with torch.no_grad():
        second.model[0].weight.mul_(2)  # another trajectory with the same averaged updates
    _ = second.run().swad.module
    second.swad.load_state_dict(first.swad.state_dict())
    assert_same(second.swad.module.state_dict(), first.twin())


def test_follows_a_compiled_model_and_other_averages():
    loop = Loop()
    loop.swad.update(torch.compile(loop.model), step=1)
    assert loop.swad.averager.step == 1
    ema = ModelSwad(loop.model, average=swad.EMA, decay=0.5, device="cpu")
    ema.update(loop.model)
    assert all(torch.equal(v, loop.model.state_dict()[k]) for k, v in ema.module.state_dict().items())


def test_is_compiled_once_as_timm_compiles_model_ema():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model, x = nn.Linear(3, 2), torch.ones(4, 3)
    average = ModelSwad(model, average=swad.EMA)
    compiled = torch.compile(average, backend=backend)
    with torch.no_grad():
        for _ in range(10):  # more than torch's limit of compilations
            model.weight += 1
            compiled.update(model)
            assert torch.equal(compiled(x), average.module(x))
    assert len(graphs) == 1


def test_fits_where_timm_expects_model_ema(tmp_path):
    timm = pytest.importorskip("timm")
    from timm.utils import CheckpointSaver, get_state_dict, unwrap_model

    model = timm.create_model("test_vit", pretrained=False, in_chans=1, num_classes=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model_swad = ModelSwad(model)
    for step in range(1, 5):
        model(torch.randn(2, 1, 160, 160)).sum().backward()
        optimizer.step()
        model_swad.update(model, step=step)
        model_swad.observe(float(step))
    assert unwrap_model(model_swad) is model_swad.module
    averaged = model_swad.averager.averaged_state()
    assert all(torch.equal(v, averaged[k]) for k, v in get_state_dict(model_swad).items())
    saver = CheckpointSaver(model, optimizer, model_ema=model_swad, checkpoint_dir=str(tmp_path))
    saver.save_checkpoint(0, metric=1.0)
    saved = torch.load(tmp_path / "last.pth.tar", weights_only=True)
    assert all(torch.equal(v, averaged[k]) for k, v in saved["state_dict_ema"].items())
    assert any(not torch.equal(v, averaged[k]) for k, v in saved["state_dict"].items())


# -- timm's own checkpoints ------------------------------------------------------------------------------------------


class Script:
    """The lines of timm's `train.py` around the average: with a task, a saver, and `--resume`."""

    def __init__(self, folder, *, resume=None, follow=True, built_last=False, lookahead=False, **options):
        optim, utils, tasks = (pytest.importorskip(f"timm.{name}") for name in ("optim", "utils", "task"))
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.optimizer = optim.create_optimizer_v2(model, opt="lookahead_momentum" if lookahead else "momentum", lr=0.1)
        self.task = tasks.ClassificationTask(model, criterion=nn.CrossEntropyLoss(), verbose=False)
        build = {"n_converge": 3, "n_tolerance": 2, **options}

        def model_swad():
            return ModelSwad(model, optimizer=self.optimizer if follow else None, **build)

        self.epoch = 0
        if not built_last:
            self.swad = model_swad()
        if resume is not None:
            self.epoch = tasks.resume_task_checkpoint(self.task, str(resume), self.optimizer)
        if built_last:
            self.swad = model_swad()
        self.task.trainable_module_ema = self.swad
        if resume is not None:
            tasks.load_task_ema_checkpoint(self.task, str(resume))
        self.saver = utils.CheckpointSaver(
            model, self.optimizer, task=self.task, checkpoint_dir=str(folder), max_history=99
        )
        self.kept = {}

    def run(self, epochs=7):
        for epoch in range(self.epoch, epochs):
            for n in range(3 * epoch + 1, 3 * epoch + 4):
                generator = torch.Generator().manual_seed(n)
                self.task.train()
                self.optimizer.zero_grad()
                x, y = torch.randn(8, 3, generator=generator), torch.randint(2, (8,), generator=generator)
                self.task(x, y)["loss"].backward()
                self.optimizer.step()
                self.task.update_ema(step=n)
                self.kept[n] = {k: v.clone() for k, v in self.task.trainable_module.state_dict().items()}
            self.swad.observe(LOSSES[epoch])
            self.task.get_eval_model(ema=True)(torch.randn(2, 3))
            self.saver.save_checkpoint(epoch, metric=float(epoch))
        return self


@pytest.mark.parametrize("lookahead", [False, True])
def test_timms_resume_restores_the_average_to_the_last_bit(tmp_path, lookahead):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", swad.NeverConvergedWarning)
        whole = Script(tmp_path, lookahead=lookahead).run()
        for epoch in (0, 3):
            path = tmp_path / f"checkpoint-{epoch}.pth.tar"
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=".*starts again")
                again = Script(tmp_path / "again", resume=path, lookahead=lookahead)
            (tmp_path / "again").mkdir(exist_ok=True)
            saved = torch.load(path, weights_only=True)["state_dict_ema"]
            assert_equal(again.swad.module.state_dict(), saved)
            assert_equal(swad.averaged_weights(path), saved)
            again.run()
            assert_equal(again.kept[21], whole.kept[21])
            assert again.swad.status == whole.swad.status
            assert_equal(again.swad.module.state_dict(), whole.swad.module.state_dict())


@pytest.mark.filterwarnings("ignore::swad.averaging.swad.NeverConvergedWarning")
@pytest.mark.parametrize("wrong", [{"follow": False}, {"built_last": True}])
def test_an_average_that_timm_cannot_restore_is_warned_of(tmp_path, wrong):
    Script(tmp_path).run(epochs=1)
    path = tmp_path / "last.pth.tar"
    with pytest.warns(
        UserWarning, match=r"starts again: build ModelSwad\(model, optimizer=optimizer\) before"
    ) as caught:
        resumed = Script(tmp_path, resume=path, **wrong)
    assert len([warning for warning in caught if "starts again" in str(warning.message)]) == 1
    assert resumed.swad.averager.step == 0
    # Without its state, the average that timm calls so is what the checkpoint has.
    resumed.run(epochs=2)
    content = torch.load(path, weights_only=True)
    if "swad" not in content["optimizer"]:
        assert_equal(swad.averaged_weights(path), content["state_dict_ema"])


def test_weights_loaded_into_the_module_do_not_replace_an_average():
    loop = Loop().run()
    want = {k: v.clone() for k, v in loop.swad.module.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop.swad.module.load_state_dict(loop.model.state_dict())
    assert_equal(loop.swad.module.state_dict(), want)


def test_an_average_that_has_not_converged_is_warned_of_once(tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Script(tmp_path).run()
    assert [str(w.message)[:39] for w in caught if w.category is swad.NeverConvergedWarning] == [
        "the validation loss has not converged ("
    ]
