import csv
import importlib.util
import logging
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint
from torch.utils.data import DataLoader

from helpers import HELPERS
from helpers.forked import run_ranks
from helpers.states import assert_close, assert_equal
from helpers.torch_versions import NEEDS_FSDP2_ON_CPUS

pl = pytest.importorskip("lightning.pytorch")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

import swad  # noqa: E402
from helpers.lightning_parts import EVERY, OPTIONS, KeepAll, Net, loader  # noqa: E402
from swad.integrations.lightning import AverageCallback, SWADCallback  # noqa: E402

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
        fit([AverageCallback(swad.EMA)], max_epochs=1, limit_val_batches=0)
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
    with pytest.raises(ValueError, match=r"the module has 2; got optimizer_index=None: pass the one that steps last"):
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
    first, second = SWADCallback(**OPTIONS), AverageCallback(swad.EMA, decay=0.9, apply_at_end=False)
    fit([first, second, every_epoch(tmp_path)])
    saved = torch.load(tmp_path / "epoch=0.ckpt", weights_only=True)["callbacks"]
    assert {"SWADCallback[swad]", "AverageCallback[ema]"} <= set(saved)
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


# -- averages of every kind, and evaluations of the average ----------------------------------------------------------


class Curved(Net):
    """Validates what it holds, so that the metric tells live weights from averaged ones."""

    def __init__(self):
        torch.manual_seed(1)
        super().__init__(dropout=0, norm=False)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.net(batch[0]).sub(1).square().mean())
        self.log("first", self.net[0].weight.sum())

    test_step = validation_step


class KeepMetrics(pl.Callback):
    def __init__(self):
        self.first, self.inside = [], []

    def on_validation_epoch_end(self, trainer, module):
        self.inside.append({k: v.clone() for k, v in module.state_dict().items()})

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            self.first.append(float(trainer.callback_metrics["first"]))


def ema(kept, decay, last):
    """The slow twin: m <- decay * m + (1 - decay) * theta."""
    mean = {k: v.double() for k, v in kept[1].items()}
    for step in range(2, last + 1):
        mean = {k: decay * mean[k] + (1 - decay) * v.double() for k, v in kept[step].items()}
    return {k: v.float() for k, v in mean.items()}


def best_and_all(folder, **options):
    return ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1, monitor="val_loss", **options)


def test_the_average_is_validated_and_saved_and_the_live_weights_train_as_before(tmp_path):
    twin = KeepAll()
    fit([twin], Curved(), max_epochs=4)
    keep, seen, callback = KeepAll(), KeepMetrics(), AverageCallback(swad.EMA, decay=0.8, evaluate="average")
    saver = best_and_all(tmp_path)
    trainer, model = fit([keep, callback, seen, saver], Curved(), max_epochs=4)
    for step in twin.kept:
        assert_equal(keep.kept[step], twin.kept[step])
    for epoch in range(4):
        step = (epoch + 1) * EVERY
        want = ema(keep.kept, 0.8, step)
        saved = torch.load(tmp_path / f"epoch={epoch}.ckpt", weights_only=True)
        assert_close(saved["state_dict"], want)
        assert_equal(saved["callbacks"][callback.state_key]["average"]["live"], keep.kept[step])
        assert seen.first[epoch] == pytest.approx(float(want["net.0.weight"].sum()), rel=1e-5)
        assert_equal(swad.averaged_weights(tmp_path / f"epoch={epoch}.ckpt"), saved["state_dict"])
    assert_equal(model.state_dict(), callback.averaged_state())
    best = torch.load(saver.best_model_path, weights_only=True)["state_dict"]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*live weights in that checkpoint")
        (scored,) = trainer.test(model, loader(1), ckpt_path="best", verbose=False)
    assert scored["first"] == pytest.approx(float(best["net.0.weight"].sum()), rel=1e-5)


@pytest.mark.parametrize(
    ("average", "options"), [(swad.EMA, {"decay": 0.8}), (swad.LAWA, {"k": 2}), (swad.SMA, {"start": 6})]
)
@pytest.mark.parametrize("epoch", [0, 2])
def test_a_training_that_saves_the_average_resumes_to_the_last_bit(tmp_path, average, options, epoch):
    def run(*more, ckpt_path=None):
        keep, callback = KeepAll(), AverageCallback(average, evaluate="average", apply_at_end=False, **options)
        trainer, _ = fit([keep, callback, *more], Curved(), max_epochs=5, ckpt_path=ckpt_path)
        return keep.kept, callback.averaged_state(), trainer.optimizers[0].state_dict()["state"]

    live, averaged, momenta = run(best_and_all(tmp_path))
    path = tmp_path / f"epoch={epoch}.ckpt"
    weights, resumed, again = run(ckpt_path=path)
    assert min(weights) == (epoch + 1) * EVERY + 1
    for step in weights:
        assert_equal(weights[step], live[step])
    assert_equal(resumed, averaged)
    for key, state in momenta.items():
        assert torch.equal(state["momentum_buffer"], again[key]["momentum_buffer"])
    # A training that evaluates the live model continues from such a checkpoint, too.
    plain, callback = KeepAll(), AverageCallback(average, apply_at_end=False, **options)
    fit([plain, callback], Curved(), max_epochs=5, ckpt_path=path)
    assert_equal(callback.averaged_state(), averaged)


def test_before_the_average_begins_the_live_weights_are_validated_and_saved(tmp_path):
    keep, callback = KeepAll(), AverageCallback(swad.SMA, start=EVERY, evaluate="average")
    fit([keep, callback, best_and_all(tmp_path)], Curved(), max_epochs=2)
    assert_equal(torch.load(tmp_path / "epoch=0.ckpt", weights_only=True)["state_dict"], keep.kept[EVERY])
    second = torch.load(tmp_path / "epoch=1.ckpt", weights_only=True)["state_dict"]
    assert_close(second, keep.average([swad.Span(EVERY + 1, 2 * EVERY)]))


def test_a_checkpoint_saved_inside_a_validation_or_between_two_has_both_weights(tmp_path):
    class Inside(pl.Callback):
        def on_validation_epoch_end(self, trainer, module):
            if not trainer.sanity_checking:
                trainer.save_checkpoint(tmp_path / "inside.ckpt")

        def on_train_batch_end(self, trainer, module, *_):
            trainer.save_checkpoint(tmp_path / f"step={trainer.global_step}.ckpt")

    keep, callback = KeepAll(), AverageCallback(swad.EMA, decay=0.8, evaluate="average")
    fit([keep, callback, Inside()], Curved(), max_epochs=1)
    for name, step in {"inside": EVERY, "step=2": 2}.items():
        saved = torch.load(tmp_path / f"{name}.ckpt", weights_only=True)
        assert_close(saved["state_dict"], ema(keep.kept, 0.8, step))
        assert_equal(saved["callbacks"][callback.state_key]["average"]["live"], keep.kept[step])


def test_an_average_of_the_weights_at_evaluations_takes_them(tmp_path):
    for evaluate in ("live", "average"):
        keep, callback = KeepAll(), AverageCallback(swad.LAWA, k=2, evaluate=evaluate, apply_at_end=False)
        fit([keep, callback], Curved(), max_epochs=3)
        spans = [swad.Span(2 * EVERY, 2 * EVERY), swad.Span(3 * EVERY, 3 * EVERY)]
        assert list(callback.status.spans) == spans
        assert_close(callback.averaged_state(), keep.average(spans))


def test_an_average_may_be_any_function_of_the_module_and_a_rule_may_watch_the_loss():
    callback = AverageCallback(partial(swad.EMA, decay=0.5), name="half")
    fit([callback], Curved(), max_epochs=1)
    assert callback.averager.rule.decay == 0.5
    watching = AverageCallback(lambda module: swad.SWAD(module, **OPTIONS), monitor="val_loss", name="late")
    trainer, _ = fit([watching], Net())
    assert (watching.status.end_step, trainer.global_step) == (END, 8 * EVERY)
    assert trainer.callback_metrics["late/phase"] == 2


def test_what_cannot_be_evaluated_is_refused_in_words(tmp_path):
    for build in (
        lambda: SWADCallback(evaluate="average"),
        lambda: AverageCallback(swad.SWAD, monitor="val_loss", evaluate="average"),
    ):
        with pytest.raises(ValueError, match=r"second validation: validate inside .*AverageCallback\(swad.EMA"):
            build()
    with pytest.raises(ValueError, match="use SWADCallback, which monitors it"):
        AverageCallback(swad.SWAD)
    with pytest.raises(ValueError, match="use SWADCallback, which monitors it"):
        fit([AverageCallback(lambda module: swad.SWAD(module))], Curved())
    with pytest.raises(ValueError, match="leave one out"):
        AverageCallback(swad.EMA, evaluate="average", monitor="val_loss")
    with pytest.raises(ValueError, match="pass buffers='average' instead of update_bn"):
        AverageCallback(swad.EMA, evaluate="average", update_bn=True)
    with pytest.raises(ValueError, match="evaluate must be one of live, average, got 'averag'"):
        AverageCallback(swad.EMA, evaluate="averag")
    of_average = {"average": swad.EMA, "evaluate": "average"}
    others = [
        lambda: SWADCallback(),
        lambda: AverageCallback(swad.LAWA),
        lambda: AverageCallback(**of_average, name="swad"),
    ]
    for order in (1, -1):
        for other in others:
            with pytest.raises(
                ValueError, match=r"'(ema|swad)' has, but '(ema|swad|lawa)' needs its own, or the live model"
            ):
                fit([AverageCallback(**of_average), other()][::order], Curved(), max_epochs=1)
    fit([AverageCallback(**of_average), AverageCallback(swad.EMA, name="other")], Curved(), max_epochs=1)
    with pytest.raises(ValueError, match="leave save_weights_only out"):
        saver = best_and_all(tmp_path, save_weights_only=True)
        fit([AverageCallback(swad.EMA, evaluate="average"), saver], Curved(), max_epochs=1)


def test_statistics_of_validated_averages_are_warned_of_once():
    with pytest.warns(UserWarning, match="statistics belong to .*pass buffers='average'") as warned:
        fit([AverageCallback(swad.EMA, evaluate="average")], max_epochs=3)
    assert len([warning for warning in warned if "batch-norm" in str(warning.message)]) == 1
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*batch-norm statistics")
        fit([AverageCallback(swad.EMA, evaluate="average", buffers="average")], max_epochs=2)


def test_the_live_weights_are_back_after_a_validation_that_fails():
    class Breaks(Curved):
        def validation_step(self, batch, batch_idx):
            if self.global_step:
                raise RuntimeError("broken")

    keep, model = KeepAll(), Breaks()
    with pytest.raises(RuntimeError, match="broken"):
        fit([keep, AverageCallback(swad.EMA, decay=0.5, evaluate="average")], model)
    assert_equal(model.state_dict(), keep.kept[EVERY])


# -- the end of a script ---------------------------------------------------------------------------------------------


class Scored(Net):
    def test_step(self, batch, batch_idx):
        self.log("magnitude", self.net(batch[0]).abs().mean())


@pytest.mark.parametrize("update_bn", [False, lambda module, batch: module.net(batch[0])])
def test_testing_the_best_checkpoint_says_that_it_is_live_and_leaves_the_average(tmp_path, update_bn):
    keep, callback = KeepAll(), SWADCallback(update_bn=update_bn, **OPTIONS)
    saver = ModelCheckpoint(tmp_path, filename="{epoch}", monitor="val_loss", save_top_k=1)
    trainer, model = fit([keep, callback, saver], Scored())
    average = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.warns(
        UserWarning, match=r"trainer.test\(ckpt_path=...\) evaluates the live weights .* trainer.test\(m"
    ):
        (of_best,) = trainer.test(model, loader(1), ckpt_path="best", verbose=False)
    assert_equal(model.state_dict(), average)
    (of_average,) = trainer.test(model, loader(1), verbose=False)
    live = Scored()
    live.load_state_dict(keep.kept[START])
    (twin,) = trainer.test(live, loader(1), verbose=False)
    assert of_best == twin != of_average
    afresh = pl.Trainer(callbacks=[SWADCallback()], logger=False, enable_progress_bar=False, accelerator="cpu")
    with pytest.warns(UserWarning, match=r"evaluates the live weights .*: load swad.averaged_weights\(path\) into"):
        (of_best,) = afresh.test(Scored(), loader(1), ckpt_path=saver.best_model_path, verbose=False)
    assert of_best == twin


def test_a_false_start_is_warned_of_once_with_what_to_pass():
    losses = [5.0, 4.0, 4.1, 4.2, 1.0, 1.0, 1.0, 1.0, 1.0]

    class Falls(Net):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", losses[self.global_step // EVERY])

    with pytest.warns(swad.FalseStartWarning) as warned:
        fit([SWADCallback(**OPTIONS)], Falls(norm=False))
    (warning,) = [str(w.message) for w in warned if w.category is swad.FalseStartWarning]
    assert warning.startswith("swad at step 24: the average began at update 4")
    assert warning.endswith("e.g. SWADCallback(valley=swad.LossValley(start=24))")


@pytest.mark.slow
@pytest.mark.distributed
@NEEDS_FSDP2_ON_CPUS
def test_two_processes(tmp_path):
    """DDP and FSDP2 average alike on both ranks and resume exactly, also if the average is what FSDP2 validates and
    saves, and a loss that is not synced is refused."""
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
        whole, resumed = held["ema"], held["ema resumed"]
        for step in resumed["kept"]:
            assert_equal(resumed["kept"][step], whole["kept"][step])
        assert_equal(resumed["averaged"], whole["averaged"])
        assert_close(whole["validated"], ema(whole["kept"], 0.8, 3 * EVERY))
        assert_close(whole["averaged"], whole["validated"])
    path = tmp_path / "ema" / "epoch=1.ckpt"  # a folder: each rank writes its shards, and rank 0 the rest
    callbacks = torch.load(path / "meta.pt", weights_only=True)["callbacks"]
    assert_equal(callbacks["AverageCallback[ema]"]["average"]["live"], first["ema"]["kept"][2 * EVERY])
    assert_close(swad.averaged_weights(path), ema(first["ema"]["kept"], 0.8, 2 * EVERY))
    saved = {"state_dict": {k: torch.zeros_like(v) for k, v in first["ema"]["averaged"].items()}}
    torch.distributed.checkpoint.load(saved, checkpoint_id=path, no_dist=True)
    assert_close(saved["state_dict"], ema(first["ema"]["kept"], 0.8, 2 * EVERY))
    for held in (first, second):
        assert "every rank must observe the same validation loss" in held["unsynced"]
        assert "sync_dist=True" in held["unsynced"]
