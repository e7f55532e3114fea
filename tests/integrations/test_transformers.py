import dataclasses
import importlib.util
import json
import logging
import shutil
import sys
import warnings

import pytest
import torch
from packaging.version import Version
from torch import nn

pytest.importorskip("transformers.trainer")

import transformers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

import swad
from helpers.states import assert_close, assert_equal
from swad.integrations.checkpoints import read_state
from swad.integrations.transformers import AverageCallback, SWADCallback

EVERY = 4  # steps per evaluation
LOSSES = [2.0, 1.0, 1.1, 1.2, 1.1, 3.0, 3.0, 3.0]  # the floor is the second; the end is the fifth, seen at the seventh
START, END, STOP, LAST = 2 * EVERY, 5 * EVERY, 7 * EVERY, 8 * EVERY
OPTIONS = {"n_converge": 3, "n_tolerance": 2}

TEXTS = [
    {"input_ids": row, "labels": int(row.sum()) % 2}
    for row in torch.randint(20, (40, 5), generator=torch.Generator().manual_seed(1))
]


def bert():
    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
    )
    return BertForSequenceClassification(config)


class Scripted(Trainer):
    """Trains on real gradients; its evaluation losses are scripted, by step, so that the window is known."""

    def evaluation_loop(self, *args, **kwargs):
        output = super().evaluation_loop(*args, **kwargs)
        done = self.state.global_step // EVERY
        prefix = kwargs.get("metric_key_prefix", "eval")
        output.metrics[f"{prefix}_loss"] = LOSSES[done - 1] if done and not prefix.endswith("other") else 1e-9
        return output


class KeepAll(TrainerCallback):
    """The slow twin: every weight after every step."""

    def __init__(self):
        self.kept = {}

    def on_step_end(self, args, state, control, model, **kwargs):
        self.kept[state.global_step] = {k: v.clone() for k, v in model.state_dict().items()}

    def average(self, spans):
        updates = [i for span in spans for i in span.updates]
        last = self.kept[updates[-1]]
        return {k: torch.stack([self.kept[i][k].double() for i in updates]).mean(0).to(last[k].dtype) for k in last}


def train(folder, *callbacks, resume=None, eval_dataset=TEXTS, trainer_class=Scripted, model=None, **options):
    set_seed(0)
    defaults = {
        "max_steps": LAST,
        "learning_rate": 0.01,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": 8,
        "eval_strategy": "steps",
        "eval_steps": EVERY,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "logging_strategy": "no",
    }
    args = TrainingArguments(str(folder), **{**defaults, **options})
    trainer = trainer_class(
        (model or bert)(), args, train_dataset=TEXTS, eval_dataset=eval_dataset, callbacks=list(callbacks)
    )
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return trainer


SAVED = {"save_strategy": "steps", "save_steps": 2}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """One training with a checkpoint every other step, and everything it held."""
    folder = tmp_path_factory.mktemp("unbroken")
    keep, callback = KeepAll(), SWADCallback(**OPTIONS)
    trainer = train(folder, keep, callback, **SAVED)
    return folder, keep, callback, trainer


def test_leaves_the_mean_of_the_valley_in_the_model_and_stops(unbroken):
    _, keep, callback, trainer = unbroken
    status = callback.status
    assert (status.start_step, status.end_step, trainer.state.global_step) == (START, END, STOP)
    assert_close(trainer.model.state_dict(), keep.average(status.spans))
    assert_equal(callback.averaged_state(), trainer.model.state_dict())


def test_checkpoints_have_live_weights_and_the_average_next_to_them(unbroken):
    from safetensors.torch import load_file

    folder, keep, _, _ = unbroken
    for step in (6, 12, STOP):
        checkpoint = folder / f"checkpoint-{step}"
        assert_equal(load_file(checkpoint / "model.safetensors"), keep.kept[step])
        assert (checkpoint / "swad.safetensors").is_file()
        assert not list(checkpoint.glob("*.partial"))


@pytest.mark.parametrize("step", [2, 8, 10, 18, 26])
def test_resumes_to_the_last_bit(unbroken, tmp_path, step):
    folder, _, whole, trainer = unbroken
    callback = SWADCallback(**OPTIONS)
    resumed = train(tmp_path, callback, resume=folder / f"checkpoint-{step}")  # an explicit path, elsewhere
    assert callback.status == whole.status
    assert_equal(resumed.model.state_dict(), trainer.model.state_dict())


@pytest.mark.slow
def test_resumes_from_a_checkpoint_of_a_resumed_training(unbroken, tmp_path):
    folder, _, whole, trainer = unbroken
    train(tmp_path, SWADCallback(**OPTIONS), resume=folder / "checkpoint-10", **{**SAVED, "save_steps": 16})
    callback = SWADCallback(**OPTIONS)
    resumed = train(tmp_path, callback, resume=tmp_path / "checkpoint-16")
    assert callback.status == whole.status
    assert_equal(resumed.model.state_dict(), trainer.model.state_dict())


@pytest.mark.slow
def test_a_moved_checkpoint_is_passed_as_resume_from(unbroken, tmp_path):
    folder, _, whole, _ = unbroken
    state = json.loads((folder / "checkpoint-10" / "trainer_state.json").read_text())
    moved = tmp_path / "moved"
    shutil.copytree(folder / "checkpoint-10", moved)
    state["stateful_callbacks"]["swad"]["output_dir"] = str(tmp_path / "gone")
    (moved / "trainer_state.json").write_text(json.dumps(state))
    # A file of the same step, but of another training, must not be taken for it.
    decoy = tmp_path / "out" / "checkpoint-10"
    train(tmp_path / "out", SWADCallback(stop_training=False, apply_at_end=False), max_steps=10, **SAVED)
    assert (decoy / "swad.safetensors").is_file()
    with pytest.raises(FileNotFoundError, match=r"that of step 10 is not at .*resume_from"):
        train(tmp_path / "out", SWADCallback(**OPTIONS), resume=moved)
    callback = SWADCallback(resume_from=moved, **OPTIONS)
    train(tmp_path / "out", callback, resume=moved)
    assert callback.status == whole.status
    (moved / "swad.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match=r"swad.safetensors is damaged .*: use another checkpoint"):
        train(tmp_path / "out", SWADCallback(resume_from=moved, **OPTIONS), resume=moved)


@pytest.mark.slow
def test_a_checkpoint_without_an_average_is_refused_unless_allowed_to_start(tmp_path):
    train(tmp_path, max_steps=4, **SAVED)
    resume = tmp_path / "checkpoint-4"
    with pytest.raises(ValueError, match=r"saved without this callback: pass missing_state='start'"):
        train(tmp_path, SWADCallback(**OPTIONS), resume=resume)
    callback = SWADCallback(missing_state="start", **OPTIONS)
    train(tmp_path, callback, resume=resume)
    assert callback.status.start_step == START - EVERY  # updates are counted from the first one averaged


def test_without_stopping_and_applying_the_model_stays_live(tmp_path):
    keep, callback = KeepAll(), SWADCallback(stop_training=False, apply_at_end=False, **OPTIONS)
    trainer = train(tmp_path, keep, callback)
    assert trainer.state.global_step == LAST
    assert_equal(trainer.model.state_dict(), keep.kept[LAST])
    before = callback.status
    trainer.evaluate()  # outside training: nothing is observed
    with callback.average_parameters():
        assert_close(trainer.model.state_dict(), keep.average(before.spans))
        trainer.evaluate()
    assert callback.status == before
    assert_equal(trainer.model.state_dict(), keep.kept[LAST])


class EvaluateAverage(TrainerCallback):
    """Evaluate the average during training, as the docstring of `SWADCallback` shows."""

    def __init__(self, callback):
        self.callback, self.kept = callback, {}

    def on_step_end(self, args, state, control, model, **kwargs):
        if state.global_step in (EVERY, START + 2):
            with self.callback.average_parameters():
                self.evaluate()
                self.kept[state.global_step] = {k: v.clone() for k, v in model.state_dict().items()}


def test_the_average_is_evaluated_during_training_and_not_observed(unbroken, tmp_path):
    _, keep, whole, _ = unbroken
    callback = SWADCallback(**OPTIONS)
    evaluating = EvaluateAverage(callback)

    class Evaluated(Scripted):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            evaluating.evaluate = self.evaluate

    with pytest.warns(swad.NeverConvergedWarning):
        train(tmp_path, callback, evaluating, trainer_class=Evaluated)
    assert callback.status == whole.status
    assert_close(evaluating.kept[START + 2], keep.average([swad.Span(START, START + 2)]))


def test_accumulation_counts_steps_not_batches(tmp_path):
    keep, callback = KeepAll(), SWADCallback(**OPTIONS)
    trainer = train(tmp_path, keep, callback, gradient_accumulation_steps=3)
    assert callback.averager.step == trainer.state.global_step == STOP
    assert_close(trainer.model.state_dict(), keep.average(callback.status.spans))


def test_the_evaluation_before_the_first_step_is_not_observed(unbroken, tmp_path):
    folder, _, whole, _ = unbroken
    # A loss of 1e-9 would be the floor; update 10 was not evaluated in the training that is resumed.
    for resume in (None, folder / "checkpoint-10"):
        callback = SWADCallback(**OPTIONS)
        train(tmp_path, callback, resume=resume, eval_on_start=True)
        assert callback.status == whole.status


def test_the_average_wins_over_the_best_model(tmp_path):
    keep, callback = KeepAll(), SWADCallback(**OPTIONS)
    best = {"load_best_model_at_end": True, "save_strategy": "steps", "save_steps": EVERY, "save_total_limit": 1}
    trainer = train(tmp_path, keep, callback, **best)
    assert_close(trainer.model.state_dict(), keep.average(callback.status.spans))
    (kept,) = tmp_path.glob("checkpoint-*")
    assert (kept / "swad.safetensors").is_file()


def test_one_of_several_evaluation_sets_is_monitored(tmp_path):
    callback = SWADCallback(monitor="eval_target_loss", **OPTIONS)
    train(tmp_path, callback, eval_dataset={"other": TEXTS, "target": TEXTS})
    assert (callback.status.start_step, callback.status.end_step) == (START, END)


def test_a_missing_monitor_lists_the_metrics(tmp_path):
    with pytest.raises(ValueError, match=r"'eval_los' is not; got 'eval_loss': set monitor to one of them"):
        train(tmp_path, SWADCallback(monitor="eval_los"))


def test_evaluation_data_without_labels_is_told_apart_from_a_wrong_monitor(tmp_path):
    without = [{"input_ids": row["input_ids"]} for row in TEXTS]
    with pytest.raises(ValueError, match=r"'eval_loss' is not; got no loss: give the evaluation dataset labels"):
        train(tmp_path, SWADCallback(), eval_dataset=without, trainer_class=Trainer)


@pytest.mark.filterwarnings("ignore::swad.averaging.swad.NeverConvergedWarning")
def test_defaults_of_the_trainer_that_do_not_suit_swad_are_warned_of_at_the_start(tmp_path):
    short = {"max_steps": 1, "eval_strategy": "no"}
    with pytest.warns(UserWarning, match="eval_strategy='no' never evaluates: set eval_strategy='steps'"):
        train(tmp_path, SWADCallback(), **short)
    for decaying in ("linear", "cosine"):
        with pytest.warns(UserWarning, match="decays to zero: set lr_scheduler_type='constant'"):
            train(tmp_path, SWADCallback(), **short, lr_scheduler_type=decaying)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(tmp_path, AverageCallback(swad.EMA), **short, lr_scheduler_type="linear")
        train(tmp_path, SWADCallback(**OPTIONS), lr_scheduler_type="constant_with_warmup", warmup_steps=2)
    assert not [warning for warning in caught if "SWAD" in str(warning.message)]


def test_two_callbacks_of_one_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match="need different names, got 'swad' twice: set name"):
        train(tmp_path, SWADCallback(), AverageCallback(swad.EMA, name="swad"))


class Normed(nn.Module):
    """A classifier with batch norm, as the Trainer calls it."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(20, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, input_ids, labels):
        logits = self.head(self.norm(self.embed(input_ids).mean(1)))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.slow
@pytest.mark.parametrize("update_bn", [True, lambda model, batch: model(**batch)])
def test_batch_norm_statistics_are_recomputed_for_the_average(tmp_path, update_bn):
    with pytest.warns(UserWarning, match="statistics belong to the last averaged update.*update_bn=True"):
        plain = train(tmp_path, SWADCallback(**OPTIONS), model=Normed)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*batch-norm statistics")
        recomputed = train(tmp_path, SWADCallback(update_bn=update_bn, **OPTIONS), model=Normed)
    swad.update_bn(plain.get_train_dataloader(), plain.model)
    assert recomputed.model.norm.num_batches_tracked == 5
    ours, twin = recomputed.model.state_dict(), plain.model.state_dict()
    assert torch.equal(ours["head.weight"], twin["head.weight"])
    # The batches are other ones, of the same examples.
    torch.testing.assert_close(ours["norm.running_mean"], twin["norm.running_mean"])


PHASES = [0, 0, 0, 1, 1, 1, 2]


def test_the_status_is_logged_and_the_end_of_training_explained(tmp_path, caplog):
    logger = logging.getLogger("transformers.swad")
    logger.addHandler(caplog.handler)
    trainer = train(tmp_path, SWADCallback(**OPTIONS))
    rows = [row for row in trainer.state.log_history if "swad/phase" in row]
    assert [row["swad/phase"] for row in rows] == PHASES
    assert [row["step"] for row in rows] == list(range(EVERY, STOP + 1, EVERY))
    assert rows[-1]["swad/threshold"] == pytest.approx(1.3 * 1.1)
    assert rows[-1]["swad/n_averaged"] == END - START + 1
    assert f"swad stops training at step {STOP}: 2 evaluations in a row above the threshold 1.43" in caplog.text


def test_the_status_reaches_the_loggers_of_the_trainer(tmp_path):
    seen = []

    class Logger(TrainerCallback):
        def on_log(self, args, state, control, logs, **kwargs):
            seen.append(dict(logs))

    class Bound(Scripted):
        def train(self, **options):
            callback.log_with(self)
            return super().train(**options)

    callback = SWADCallback(**OPTIONS)
    trainer = train(tmp_path, Logger(), callback, trainer_class=Bound)
    assert [logs["swad/phase"] for logs in seen if "swad/phase" in logs] == PHASES
    assert [row["swad/phase"] for row in trainer.state.log_history if "swad/phase" in row] == PHASES


def test_misspelt_options_name_the_choices():
    with pytest.raises(TypeError, match=r"SWAD takes n_converge, .*'n_converged': did you mean 'n_converge'"):
        SWADCallback(n_converged=3)
    with pytest.raises(ValueError, match="one of paper, text, reference, got 'papper': did you mean 'paper'"):
        SWADCallback(semantics="papper")
    with pytest.raises(TypeError, match=r"must be a class such as swad.EMA, got 'ema'"):
        AverageCallback("ema")


@pytest.mark.slow
def test_each_training_starts_a_new_average_and_removes_its_hook(tmp_path):
    callback = SWADCallback(**OPTIONS)
    trainer = train(tmp_path, callback)
    inner = trainer.optimizer.optimizer
    assert not inner._optimizer_step_post_hooks
    trainer.train()
    assert (callback.averager.step, callback.status.end_step) == (STOP, END)


def test_trials_of_a_search_save_no_average(unbroken, tmp_path):
    _, _, callback, trainer = unbroken
    state = dataclasses.replace(trainer.state, is_hyper_param_search=True)
    callback.on_save(TrainingArguments(str(tmp_path), use_cpu=True), state, trainer.control)
    assert not list(tmp_path.iterdir())


def test_only_the_process_that_saves_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingArguments, "should_save", property(lambda self: False))
    callback = SWADCallback(stop_training=False, **OPTIONS)
    train(tmp_path, callback, **SAVED)
    assert not list(tmp_path.rglob("swad.safetensors"))


@pytest.mark.slow
def test_other_averages_resume_too(tmp_path):
    callback = AverageCallback(swad.SMA, start=10)
    keep = KeepAll()
    trainer = train(tmp_path, keep, callback, save_strategy="steps", save_steps=20)
    assert callback.status.start_step == 11
    assert_close(trainer.model.state_dict(), keep.average(callback.status.spans))
    again = AverageCallback(swad.SMA, start=10)
    resumed = train(tmp_path, again, resume=tmp_path / "checkpoint-20")
    assert_equal(resumed.model.state_dict(), trainer.model.state_dict())


def test_an_unconverged_loss_is_said(tmp_path):
    with pytest.warns(swad.NeverConvergedWarning, match="has not converged"):
        train(tmp_path, SWADCallback(), max_steps=2 * EVERY)


def test_the_real_evaluation_loss_is_what_is_watched(tmp_path):
    seen = []

    class Watch(SWADCallback):
        def _observe_once(self, loss, step):
            seen.append(loss)
            return super()._observe_once(loss, step)

    trainer = train(tmp_path, Watch(apply_at_end=False), trainer_class=Trainer)
    logged = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
    assert seen == logged


# -- averages of every kind, and evaluations of the average ----------------------------------------------------------


class KeepEvaluated(TrainerCallback):
    """Keeps the weights that were evaluated."""

    def __init__(self):
        self.evaluated = {}

    def on_evaluate(self, args, state, control, model, **kwargs):
        self.evaluated[state.global_step] = {k: v.clone() for k, v in model.state_dict().items()}


def ema(kept, decay, last):
    """The slow twin: m <- decay * m + (1 - decay) * theta."""
    mean = {k: v.double() for k, v in kept[1].items()}
    for step in range(2, last + 1):
        mean = {k: decay * mean[k] + (1 - decay) * v.double() for k, v in kept[step].items()}
    return {k: v.float() for k, v in mean.items()}


EVALUATED = {"average": swad.EMA, "decay": 0.8, "evaluate": "average"}
SAVED_TOGETHER = {"save_strategy": "steps", "save_steps": EVERY, "max_steps": 4 * EVERY, "trainer_class": Trainer}


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """One training that evaluates and saves its EMA."""
    folder = tmp_path_factory.mktemp("evaluated")
    keep, seen, callback = KeepAll(), KeepEvaluated(), AverageCallback(**EVALUATED)
    trainer = train(folder, keep, callback, seen, **SAVED_TOGETHER)
    return folder, keep.kept, seen.evaluated, callback, trainer


def test_the_average_is_evaluated_and_saved_and_the_live_weights_train_as_before(evaluated, tmp_path):
    from safetensors.torch import load_file

    folder, kept, seen, callback, trainer = evaluated
    twin = KeepAll()
    train(tmp_path, twin, **SAVED_TOGETHER)
    for step in twin.kept:
        assert_equal(kept[step], twin.kept[step])
    for step in range(EVERY, 4 * EVERY + 1, EVERY):
        want = ema(kept, 0.8, step)
        assert_close(seen[step], want)
        saved = load_file(folder / f"checkpoint-{step}" / "model.safetensors")
        assert_close(saved, want)
        assert_equal(swad.averaged_weights(folder / f"checkpoint-{step}"), saved)
        assert_equal(read_state(folder / f"checkpoint-{step}" / "ema.safetensors")["live"], kept[step])
    assert_equal(trainer.model.state_dict(), callback.averaged_state())


def test_the_sums_next_to_live_weights_become_an_average_in_one_call(unbroken):
    folder, keep, _, _ = unbroken
    assert_close(swad.averaged_weights(folder / "checkpoint-18"), keep.average([swad.Span(START, 18)]))


@pytest.mark.parametrize("step", [EVERY, 3 * EVERY])
def test_a_training_that_saves_the_average_resumes_to_the_last_bit(evaluated, tmp_path, step):
    folder, kept, _, whole, _ = evaluated
    keep, callback = KeepAll(), AverageCallback(**EVALUATED)
    trainer = train(tmp_path, keep, callback, resume=folder / f"checkpoint-{step}", **SAVED_TOGETHER)
    assert min(keep.kept) == step + 1
    for number in keep.kept:
        assert_equal(keep.kept[number], kept[number])
    assert_equal(callback.averaged_state(), whole.averaged_state())
    assert trainer.state.global_step == 4 * EVERY


@pytest.mark.parametrize("evaluate", ["live", "average"])
def test_an_average_of_the_weights_at_evaluations_takes_them_and_resumes(tmp_path, evaluate):
    options = {**SAVED_TOGETHER, "save_steps": 3 * EVERY, "max_steps": 5 * EVERY}
    keep, callback = KeepAll(), AverageCallback(swad.LAWA, k=3, evaluate=evaluate)
    trainer = train(tmp_path / "whole", keep, callback, **options)
    assert_close(trainer.model.state_dict(), keep.average([swad.Span(n * EVERY, n * EVERY) for n in (3, 4, 5)]))
    again = AverageCallback(swad.LAWA, k=3, evaluate=evaluate)
    resumed = train(tmp_path, again, resume=tmp_path / "whole" / f"checkpoint-{3 * EVERY}", **options)
    assert_equal(resumed.model.state_dict(), trainer.model.state_dict())


def test_saving_between_evaluations_and_by_epoch_saves_the_average_too(tmp_path):
    from safetensors.torch import load_file

    for strategy, steps in {"steps": [6, 12], "epoch": [5, 10, 12]}.items():
        keep, seen, folder = KeepAll(), KeepEvaluated(), tmp_path / strategy
        options = {"save_strategy": strategy, "save_steps": 6, "eval_strategy": strategy, "trainer_class": Trainer}
        train(folder, keep, AverageCallback(**EVALUATED), seen, max_steps=12, **options)
        for step in steps:
            assert_close(load_file(folder / f"checkpoint-{step}" / "model.safetensors"), ema(keep.kept, 0.8, step))
        for step, weights in seen.evaluated.items():
            assert_close(weights, ema(keep.kept, 0.8, step))
        assert seen.evaluated


RECORDS_BEST = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.4"),
    reason="with save_strategy='best' an older Trainer does not record which checkpoint is the best",
)


@pytest.mark.parametrize(
    ("save_strategy", "eval_strategy", "best"),
    [
        ("steps", "steps", 8),
        pytest.param("best", "steps", 8, marks=RECORDS_BEST),
        pytest.param("best", "epoch", 10, marks=RECORDS_BEST),
    ],
)
def test_the_best_average_is_kept_at_the_end(tmp_path, save_strategy, eval_strategy, best):
    class Scores(Trainer):
        def evaluation_loop(self, *args, **kwargs):
            output = super().evaluation_loop(*args, **kwargs)
            output.metrics["eval_loss"] = abs(self.state.global_step - 9)
            return output

    keep, seen = KeepAll(), KeepEvaluated()
    options = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": False}
    options |= {"save_strategy": save_strategy, "eval_strategy": eval_strategy, "save_steps": EVERY, "max_steps": 15}
    trainer = train(tmp_path, keep, AverageCallback(**EVALUATED), seen, trainer_class=Scores, **options)
    assert_equal(trainer.model.state_dict(), seen.evaluated[best])
    assert_close(trainer.model.state_dict(), ema(keep.kept, 0.8, best))


def test_an_evaluation_at_the_start_of_a_resumed_training_is_of_the_average(evaluated, tmp_path):
    folder, kept, _, whole, _ = evaluated
    seen, callback = KeepEvaluated(), AverageCallback(**EVALUATED)
    train(tmp_path, callback, seen, resume=folder / f"checkpoint-{EVERY}", eval_on_start=True, **SAVED_TOGETHER)
    assert_close(seen.evaluated[EVERY], ema(kept, 0.8, EVERY))
    assert_equal(callback.averaged_state(), whole.averaged_state())


def test_a_training_that_failed_with_the_average_in_the_model_is_not_resumed(evaluated, tmp_path):
    folder, *_ = evaluated
    broken = [True]

    class Breaks(Trainer):
        def evaluation_loop(self, *args, **kwargs):
            if broken:
                raise RuntimeError("broken")
            return super().evaluation_loop(*args, **kwargs)

    callback = AverageCallback(**EVALUATED)
    held = []

    class Hold(TrainerCallback):
        def on_train_begin(self, args, state, control, model, **kwargs):
            held.append(model)

    with pytest.raises(RuntimeError, match="broken"):
        train(tmp_path, Hold(), callback, **{**SAVED_TOGETHER, "trainer_class": Breaks})
    with pytest.raises(RuntimeError, match="failed while the model had the average: resume with a new Trainer"):
        train(tmp_path, callback, resume=folder / f"checkpoint-{EVERY}", model=lambda: held[0], **SAVED_TOGETHER)


def test_what_cannot_be_evaluated_is_refused_in_words():
    with pytest.raises(ValueError, match=r"second validation: validate inside .*AverageCallback\(swad.EMA"):
        SWADCallback(evaluate="average")
    with pytest.raises(ValueError, match="use SWADCallback, which monitors it"):
        AverageCallback(swad.SWAD)


def test_a_false_start_is_warned_of_once_with_what_to_pass(tmp_path):
    class Falls(Trainer):
        losses = (4.0, 4.1, 4.2, 1.0, 1.0, 1.0, 1.0, 1.0)

        def evaluation_loop(self, *args, **kwargs):
            output = super().evaluation_loop(*args, **kwargs)
            output.metrics["eval_loss"] = self.losses[self.state.global_step // EVERY - 1]
            return output

    with pytest.warns(swad.FalseStartWarning) as warned:
        train(tmp_path, SWADCallback(**OPTIONS), trainer_class=Falls)
    (warning,) = [str(w.message) for w in warned if w.category is swad.FalseStartWarning]
    assert warning.startswith("swad at step 24: the average began at update 4")
    assert warning.endswith("e.g. SWADCallback(valley=swad.LossValley(start=24))")


def test_without_transformers_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    spec = importlib.util.spec_from_file_location("elsewhere", sys.modules[SWADCallback.__module__].__file__)
    with pytest.raises(ImportError, match=r'pip install "swad\[transformers\]"'):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
