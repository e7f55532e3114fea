import csv
import importlib.util
import logging
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from helpers import HELPERS
from helpers.forked import run_ranks
from helpers.states import assert_close, assert_equal
from helpers.torch_versions import NEEDS_FSDP2_ON_CPUS

pl = pytest.importorskip("lightning.pytorch")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

import swad  # noqa: E402
from helpers.lightning_parts import EVERY, OPTIONS, KeepAll, Net, loader  # noqa: E402
from swad.integrations.lightning import SWADCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore::FutureWarning")

START, END, STOP = 2 * EVERY, 5 * EVERY, 7 * EVERY


def fit(callbacks, model=None, max_epochs=8, ckpt_path=None, train=None, **options):
    pl.seed_everything(0, verbose=False)
    model = Net() if model is None else model
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    checkpointing = any(isinstance(c, ModelCheckpoint) for c in callbacks)
    trainer = pl.Trainer(
        max_epochs=max_epochs, callbacks=callbacks, enable_checkpointing=checkpointing, **{**quiet, **options}
    )
    trainer.fit(model, train or loader(), loader(1), ckpt_path=ckpt_path)
    return trainer, model


def every_epoch(folder, **options):
    return ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1, every_n_epochs=1, **options)


def test_leaves_the_mean_of_the_valley_in_the_module_and_stops():
    keep, callback = KeepAll(), SWADCallback(**OPTIONS)
    trainer, model = fit([keep, callback])
    status = callback.status
    assert (status.start_step, status.end_step, trainer.global_step) == (START, END, STOP)
    assert_close(model.state_dict(), keep.average(status.spans))
    assert_equal(callback.averaged_state(), model.state_dict())


def test_without_stopping_and_applying_the_module_stays_live():
    keep, callback = KeepAll(), SWADCallback(stop_training=False, apply_at_end=False, **OPTIONS)
    trainer, model = fit([keep, callback])
    assert trainer.global_step == 8 * EVERY
    assert_equal(model.state_dict(), keep.kept[trainer.global_step])
    assert_close(callback.averaged_state(), keep.average(callback.status.spans))


def test_average_parameters_serves_validate_and_restores():
    keep, callback = KeepAll(), SWADCallback(apply_at_end=False, **OPTIONS)
    trainer, model = fit([keep, callback])
    live = {k: v.clone() for k, v in model.state_dict().items()}
    before = callback.status
    (of_live,) = trainer.validate(model, loader(1), verbose=False)
    with callback.average_parameters():
        assert_close(model.state_dict(), keep.average(before.spans))
        (of_average,) = trainer.validate(model, loader(1), verbose=False)
    assert of_live["magnitude"] != of_average["magnitude"]
    assert callback.status == before
    assert_equal(model.state_dict(), live)


def test_the_sanity_check_is_not_observed():
    callback = SWADCallback(**OPTIONS)
    fit([callback], num_sanity_val_steps=2)  # its loss, 1e-9, would be the floor
    assert callback.status.start_step == START


def test_a_validation_outside_of_fit_is_not_observed():
    callback = SWADCallback(apply_at_end=False, **OPTIONS)
    trainer, model = fit([callback], max_steps=EVERY + 2)
    trainer.validate(model, loader(1), verbose=False)
    assert (callback.averager.step, callback.averager.trajectory.observed_step) == (EVERY + 2, EVERY)


def test_accumulation_counts_steps_and_validations_between_steps_are_passed_over():
    keep, callback = KeepAll(), SWADCallback(**OPTIONS)
    trainer, model = fit([keep, callback], Net(every=1), max_epochs=4, accumulate_grad_batches=2, val_check_interval=1)
    assert callback.averager.step == trainer.global_step == 7
    assert (callback.status.start_step, callback.status.end_step) == (2, 5)
    assert_close(model.state_dict(), keep.average(callback.status.spans))


def test_checkpoints_hold_live_weights_and_the_average_apart(tmp_path):
    keep, callback = KeepAll(), SWADCallback(**OPTIONS)
    _, model = fit([keep, callback, every_epoch(tmp_path, save_last=True)])
    files = sorted(tmp_path.glob("*.ckpt"))
    assert len(files) == 8  # seven epochs and the last
    for file in files:
        saved = torch.load(file, weights_only=True)
        assert_equal(saved["state_dict"], keep.kept[saved["global_step"]])
        assert set(saved["callbacks"][callback.state_key]["average"]) == {"header", "trajectory", "average"}
    last = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert last["global_step"] == STOP
    assert any(not torch.equal(v, model.state_dict()[k]) for k, v in last["state_dict"].items())


def test_a_checkpoint_written_when_training_ends_holds_live_weights_too(tmp_path):
    keep, callback = KeepAll(), SWADCallback(**OPTIONS)

    class SaveAtTheEnd(ModelCheckpoint):
        def on_train_end(self, trainer, module):
            trainer.save_checkpoint(tmp_path / "end.ckpt")

    fit([keep, callback, SaveAtTheEnd(tmp_path)])
    assert_equal(torch.load(tmp_path / "end.ckpt", weights_only=True)["state_dict"], keep.kept[STOP])


@pytest.mark.parametrize("epoch", [0, 1, 3, 5])
def test_resumes_to_the_last_bit(tmp_path, epoch):
    unbroken = SWADCallback(**OPTIONS)
    _, whole = fit([unbroken, every_epoch(tmp_path)], Net(dropout=0))
    resumed = SWADCallback(**OPTIONS)
    _, parts = fit([resumed], Net(dropout=0), ckpt_path=tmp_path / f"epoch={epoch}.ckpt")
    assert resumed.status == unbroken.status
    assert_equal(parts.state_dict(), whole.state_dict())


class Resumable(DataLoader):
    """A loader that says where it is, as Lightning asks for resuming inside an epoch."""

    begin = at = 0

    def __iter__(self):
        self.at = begin = self.begin
        self.begin = 0
        for index, batch in enumerate(super().__iter__()):
            if index >= begin:
                self.at = index + 1
                yield batch

    def state_dict(self):
        return {"at": self.at % len(self)}

    def load_state_dict(self, state):
        self.begin = state["at"]


@pytest.mark.parametrize("step", [6, 10, 19, 26])
def test_resumes_inside_an_epoch_to_the_last_bit(tmp_path, step):
    def run(*more, ckpt_path=None):
        callback = SWADCallback(**OPTIONS)
        train = Resumable(loader().dataset, batch_size=4)
        _, model = fit([callback, *more], Net(dropout=0), train=train, ckpt_path=ckpt_path)
        return callback.status, model.state_dict()

    saver = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    status, weights = run(saver)
    again, resumed = run(ckpt_path=tmp_path / f"step={step}.ckpt")
    assert again == status
    assert_equal(resumed, weights)


def test_resuming_after_the_valley_has_ended_trains_no_further(tmp_path):
    fit([SWADCallback(**OPTIONS), every_epoch(tmp_path)])
    callback = SWADCallback(**OPTIONS)
    trainer, _ = fit([callback], ckpt_path=tmp_path / "epoch=6.ckpt")
    assert (trainer.global_step, callback.status.end_step) == (STOP, END)


def test_a_checkpoint_without_an_average_is_refused_unless_allowed_to_start(tmp_path):
    fit([every_epoch(tmp_path)], max_epochs=1)
    file = tmp_path / "epoch=0.ckpt"
    with pytest.raises(ValueError, match=r"needs its state.*missing_state='start'"):
        fit([SWADCallback(**OPTIONS)], ckpt_path=file)
    callback = SWADCallback(missing_state="start", **OPTIONS)
    fit([callback], ckpt_path=file)
    assert callback.status.start_step == START - EVERY  # updates are counted from the first one averaged


@pytest.mark.parametrize("method", ["lr_find", "scale_batch_size"])
def test_the_tuner_restores_its_checkpoint_from_before_training(tmp_path, method):
    model, callback = Net(), SWADCallback(**OPTIONS)
    model.lr, model.batch_size = 0.1, 2
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    trainer = pl.Trainer(max_epochs=8, callbacks=[callback], default_root_dir=tmp_path, **quiet)
    options = {"num_training": 4} if method == "lr_find" else {"max_trials": 1, "steps_per_trial": 1}
    model.train_dataloader, model.val_dataloader = loader, lambda: loader(1)
    getattr(pl.tuner.Tuner(trainer), method)(model, **options)
    trainer.fit(model)
    assert (callback.status.start_step, callback.status.end_step) == (START, END)


def test_a_checkpoint_of_the_averaged_module_is_not_resumed(tmp_path):
    trainer, model = fit([SWADCallback(**OPTIONS)])
    trainer.save_checkpoint(tmp_path / "final.ckpt")
    assert_equal(torch.load(tmp_path / "final.ckpt", weights_only=True)["state_dict"], model.state_dict())
    callback = SWADCallback(apply_at_end=False, **OPTIONS)
    trainer, _ = fit([callback])
    with callback.average_parameters():
        trainer.save_checkpoint(tmp_path / "swapped.ckpt")
    for name in ("final", "swapped"):
        with pytest.raises(ValueError, match="the average in their place: resume from one that was saved during fit"):
            fit([SWADCallback(**OPTIONS)], ckpt_path=tmp_path / f"{name}.ckpt")


def test_changed_settings_are_refused_on_resume(tmp_path):
    fit([SWADCallback(**OPTIONS), every_epoch(tmp_path)], max_epochs=4)
    with pytest.raises(ValueError, match="n_tolerance 2 in the state, 3 here"):
        fit([SWADCallback(n_converge=3, n_tolerance=3)], ckpt_path=tmp_path / "epoch=3.ckpt")


def test_validating_a_checkpoint_leaves_nothing_for_the_next_fit(tmp_path):
    callback = SWADCallback(**OPTIONS)
    trainer, model = fit([callback, every_epoch(tmp_path)], max_epochs=5)
    held = callback.averager
    trainer.validate(model, loader(1), ckpt_path=tmp_path / "epoch=4.ckpt", verbose=False)
    assert callback.averager is held
    fit([callback], max_epochs=4)
    assert callback.averager.step == 4 * EVERY


def test_a_missing_monitor_lists_what_is_logged():
    with pytest.raises(ValueError, match=r"'valid_loss' is not; got .*'val_loss'"):
        fit([SWADCallback(monitor="valid_loss")])


@pytest.mark.filterwarnings("ignore::swad.averaging.swad.NeverConvergedWarning")
def test_a_training_without_validation_is_warned_of_at_the_start():
    with pytest.warns(UserWarning, match="has no validation: pass a validation dataloader"):
        fit([SWADCallback()], max_epochs=1, limit_val_batches=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit([SWADCallback(average=swad.EMA)], max_epochs=1, limit_val_batches=0)
    assert not [warning for warning in caught if "SWAD" in str(warning.message)]


def test_misspelt_options_fail_before_training():
    with pytest.raises(TypeError, match=r"SWAD takes n_converge, .*'n_converged': did you mean 'n_converge'") as error:
        SWADCallback(n_converged=3)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="one of paper, text, reference, got 'papper': did you mean 'paper'"):
        SWADCallback(semantics="papper")
    with pytest.raises(ValueError, match="missing_state must be one of"):
        SWADCallback(missing_state="ignore")
    with pytest.raises(RuntimeError, match="train first"):
        _ = SWADCallback().status


def test_batch_norm_statistics_are_recomputed_for_the_average():
    def forward(module, batch):
        return module.net(batch[0])

    with pytest.warns(UserWarning, match="statistics belong to the last averaged update.*update_bn=True") as warned:
        _, plain = fit([SWADCallback(**OPTIONS)])
    assert len([warning for warning in warned if "update_bn" in str(warning.message)]) == 1
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*batch-norm statistics")
        _, recomputed = fit([SWADCallback(update_bn=forward, **OPTIONS)])
    assert not torch.equal(plain.net[1].running_mean, recomputed.net[1].running_mean)
    swad.update_bn(loader(), plain, forward_fn=forward)
    assert_equal(recomputed.state_dict(), plain.state_dict())


def test_a_module_replaced_during_training_is_refused():
    class Replacing(Net):
        def on_train_epoch_end(self):
            self.net[3] = torch.nn.Linear(8, 1)

    with pytest.raises(ValueError, match=r"replaced net\.3\.weight, net\.3\.bias: build the average after"):
        fit([SWADCallback(**OPTIONS)], Replacing())


def test_update_bn_calls_the_forward_of_the_module():
    class WithForward(Net):
        def forward(self, x):
            return self.net(x)

    model = WithForward()
    fit([SWADCallback(update_bn=True, **OPTIONS)], model)
    assert model.net[1].num_batches_tracked == EVERY
    with pytest.raises(ValueError, match="Net defines no forward: define it, or pass a function"):
        fit([SWADCallback(update_bn=True)])


def test_update_bn_prepares_batches_as_the_training_does():
    class Shifting(Net):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            return [batch[0] + 100]

    def forward(module, batch):
        return module.net(batch[0])

    model = Shifting()
    fit([SWADCallback(update_bn=forward, **OPTIONS)], model, precision="64-true")  # converts the batches too
    inputs = torch.cat([batch for (batch,) in loader()]).double() + 100
    torch.testing.assert_close(model.net[1].running_mean, model.net[0](inputs).mean(0))


def test_frozen_statistics_are_not_stale():
    class Frozen(Net):
        def on_train_batch_start(self, *_):
            self.net[1].eval()

    for model in (Net(norm=False), Frozen()):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*batch-norm statistics")
            fit([SWADCallback(**OPTIONS)], model)


def test_the_end_of_training_is_logged_with_its_reason(caplog):
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addHandler(caplog.handler)
    logger.setLevel(logging.INFO)
    fit([SWADCallback(**OPTIONS)])
    assert f"swad stops training at step {STOP}: 2 evaluations in a row above the threshold 1.43" in caplog.text


class TwoOptimizers(Net):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.net(batch[0]).square().mean())
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.net[0], self.net[3])]


def test_with_several_optimizers_one_must_be_chosen():
    with pytest.raises(ValueError, match=r"the module has 2; got optimizer_index=None"):
        fit([SWADCallback()], TwoOptimizers())
    callback = SWADCallback(optimizer_index=1)
    with pytest.warns(swad.NeverConvergedWarning):
        fit([callback], TwoOptimizers(), max_epochs=1)
    assert callback.averager.step == EVERY


def test_logs_where_the_valley_is(tmp_path):
    logger = pl.loggers.CSVLogger(tmp_path)
    trainer, _ = fit([SWADCallback(**OPTIONS)], logger=logger)
    assert trainer.callback_metrics["swad/n_averaged"] == END - START + 1
    with open(Path(logger.log_dir, "metrics.csv")) as file:
        rows = [row for row in csv.DictReader(file) if row.get("swad/phase")]
    assert [float(row["swad/phase"]) for row in rows] == [0, 0, 0, 1, 1, 1, 2]
    assert float(rows[-1]["swad/threshold"]) == pytest.approx(1.3 * 1.1)


def test_several_averages_of_one_training(tmp_path):
    first, second = SWADCallback(**OPTIONS), SWADCallback(name="ema", average=swad.EMA, decay=0.9, apply_at_end=False)
    fit([first, second, every_epoch(tmp_path)])
    saved = torch.load(tmp_path / "epoch=0.ckpt", weights_only=True)["callbacks"]
    assert {"SWADCallback[swad]", "SWADCallback[ema]"} <= set(saved)
    assert second.averager.step == STOP


def test_the_hook_is_removed_when_training_fails():
    class Breaks(Net):
        def training_step(self, batch, batch_idx):
            if self.global_step == 3:
                raise RuntimeError("broken")
            return super().training_step(batch, batch_idx)

    callback, model = SWADCallback(), Breaks()
    with pytest.raises(RuntimeError, match="broken"):
        fit([callback], model)
    assert callback._hook is None
    assert callback.averager.step == 3


def test_an_average_of_a_fabric_module_has_the_names_of_its_model():
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    wrapped, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
    average = swad.SMA(wrapped, start=0)
    average.attach(optimizer)
    fabric.backward(wrapped(torch.randn(8, 3)).square().mean())
    optimizer.step()
    wrapped.load_state_dict(average.averaged_state(), strict=True)


def test_without_lightning_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    spec = importlib.util.spec_from_file_location("elsewhere", sys.modules[SWADCallback.__module__].__file__)
    with pytest.raises(ImportError, match=r'pip install "swad\[lightning\]"'):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings(
    "ignore::swad.averaging.swad.NeverConvergedWarning"
)  # how many steps are left is the scaler's
@pytest.mark.parametrize("fused", [False, True])
def test_steps_a_scaler_skips_do_not_count_and_the_average_outlives_the_move_to_the_host(fused):
    class Overflows(Net):
        def training_step(self, batch, batch_idx):
            overflow = self.current_epoch == 0 and batch_idx == 2
            return super().training_step(batch, batch_idx) * (float("inf") if overflow else 1)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, fused=fused)

    class KeepChanged(KeepAll):
        def on_train_start(self, trainer, module):
            self.last = module.net[0].weight.detach().clone()

        def on_train_batch_end(self, trainer, module, *_):
            now = module.net[0].weight.detach().clone()
            if not torch.equal(now, self.last):
                self.kept[len(self.kept) + 1] = {k: v.cpu().clone() for k, v in module.state_dict().items()}
            self.last = now

    keep, callback = KeepChanged(), SWADCallback(apply_at_end=False, **OPTIONS)
    trainer, model = fit([keep, callback], Overflows(), accelerator="gpu", devices=1, precision="16-mixed")
    assert callback.averager.step == len(keep.kept) < STOP  # the scaler itself may overflow once or twice more
    live = {k: v.clone() for k, v in model.state_dict().items()}
    with callback.average_parameters():  # on the host here, moved to the GPU and back by validate
        assert_close(model.state_dict(), keep.average(callback.status.spans))
        trainer.validate(model, loader(1), verbose=False)
    assert_equal(model.state_dict(), live)


@pytest.mark.slow
@pytest.mark.distributed
@NEEDS_FSDP2_ON_CPUS
def test_two_processes(tmp_path):
    """DDP and FSDP2 average alike on both ranks, resume exactly, and a loss that is not synced is refused."""
    run_ranks([HELPERS / "lightning_processes.py", tmp_path])
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    for strategy in ("ddp", "fsdp2"):
        for held in (first, second):
            assert held[strategy]["range"] == held[f"{strategy} resumed"]["range"] == [START, END]
            assert_equal(held[strategy]["model"], held[f"{strategy} resumed"]["model"])
        assert_equal(first[strategy]["model"], second[strategy]["model"])
        # Of the first rank: DDP hands its buffers to the others at every forward, between the twin's look and ours.
        assert_close(first[strategy]["model"], first[strategy]["twin"])
    for held in (first, second):
        assert "every rank must observe the same validation loss" in held["unsynced"]
        assert "sync_dist=True" in held["unsynced"]
