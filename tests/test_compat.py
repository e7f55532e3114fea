"""The published classes over our core: the same weights, and none of their mistakes."""

from __future__ import annotations

import copy
import io
import os
import pickle
import warnings

import pytest
import torch
from torch import nn

import swad
from helpers.published_valley import Kept, SlowValley, Walk, curve
from swad.compat import AveragedModel, LossValley, update_bn

NEVER_CONVERGED = pytest.mark.filterwarnings(
    "ignore::swad.NeverConvergedWarning", "ignore::swad.FalseStartWarning", "ignore:the first 4 validation losses"
)
N_CURVES = int(os.environ.get("SWAD_TEST_CURVES", "200"))
LOSSES = [1.9, 0.6, 0.5, 0.45, 0.4, 0.43, 0.44, 0.5, 0.51, 0.53, 0.54, 0.56, 0.5, 0.53, 0.57, 0.6, 0.61, 0.62, 0.63]
"""With the settings (3, 6, .3) the valley is confirmed at the seventh and has not ended at the last."""


def assert_equal(ours, theirs):
    """Equal in every bit, whatever is nested in them."""
    if isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs)
    elif isinstance(ours, dict):
        assert_equal(list(ours), list(theirs))
        assert_equal(list(ours.values()), list(theirs.values()))
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_equal(one, other)
    else:
        assert ours == theirs


def play(seed, after=lambda valley: None):
    """Train both on one curve; `after` gets ours after each evaluation and may return another to continue with."""
    losses, lengths, (N_s, N_e, ratio) = curve(seed)
    torch.manual_seed(seed)
    model, step = Walk(), 100
    ours, twin = LossValley(None, N_s, N_e, ratio), SlowValley(N_s, N_e, ratio)
    for loss, length in zip(losses, lengths, strict=True):
        segment, buffer, weights = AveragedModel(model), int(model.updates), []
        for _ in range(length):
            model.step()
            step += 1
            segment.update_parameters(model, step=step)
            weights.append(model.flat())
        twin.evaluate(Kept(torch.stack(weights).mean(0), buffer, step - length + 1, step, loss))
        ours.update_and_evaluate(segment, 0.5, loss, print)
        ours = after(ours) or ours
        assert ours.dead_valley == twin.dead
        if twin.dead:
            break
    return ours, twin


def assert_same(ours, twin):
    final, (averaged, lowest) = ours.get_final_model(), twin.final()
    torch.testing.assert_close(
        final.module.flat(), torch.stack([kept.weights for kept in averaged]).mean(0), atol=1e-5, rtol=1e-6
    )
    assert final.n_averaged == (lowest.end - lowest.start + 1 if twin.lowest is None else len(averaged))
    assert (final.start_step, final.end_step) == (min(k.start for k in averaged), max(k.end for k in averaged))
    assert (ours.is_converged, ours.threshold) == (twin.lowest is not None, pytest.approx(twin.threshold))
    assert ours.converge_step == (None if twin.lowest is None else lowest.end)


@NEVER_CONVERGED
@pytest.mark.parametrize("part", range(4))
def test_weights_are_those_of_the_slow_twin_on_random_curves(part):
    for seed in range(N_CURVES * part // 4, N_CURVES * (part + 1) // 4):
        assert_same(*play(seed))


@NEVER_CONVERGED
def test_reading_at_every_evaluation_changes_nothing():
    def read(valley):
        for _ in range(2):
            valley.get_final_model().requires_grad_(False).zero_grad()
            with torch.no_grad():
                valley.get_final_model().module.scale.fill_(torch.nan)  # the caller may do with it what it wants

    for seed in range(15):
        often, twin = play(seed, read)
        once, _ = play(seed)
        assert_same(often, twin)
        assert_equal(often.state_dict(), once.state_dict())


def reloaded(valley):
    file = io.BytesIO()
    torch.save(valley.state_dict(), file)
    file.seek(0)
    fresh = LossValley(None, valley.n_converge, valley.n_tolerance, valley.tolerance_ratio)
    with torch.random.fork_rng():
        segment = AveragedModel(Walk())
    fresh.load_state_dict(torch.load(file, weights_only=True), segment)
    return fresh


@NEVER_CONVERGED
@pytest.mark.parametrize("through", [reloaded, copy.deepcopy, lambda valley: pickle.loads(pickle.dumps(valley))])
def test_resuming_after_each_evaluation_changes_no_bit(through):
    for seed in range(12):
        resumed, twin = play(seed, through)
        straight, _ = play(seed)
        assert_same(resumed, twin)
        assert_equal(resumed.state_dict(), straight.state_dict())
        assert torch.equal(resumed.get_final_model().module.flat(), straight.get_final_model().module.flat())


def test_the_state_before_the_first_evaluation_is_empty():
    fresh = LossValley()
    fresh.load_state_dict(LossValley().state_dict(), AveragedModel(Walk()))
    with pytest.raises(RuntimeError, match="nothing to average yet: call update_and_evaluate"):
        fresh.get_final_model()


def test_a_state_with_other_settings_is_refused():
    valley = trained_valley(Walk(), LOSSES)
    with pytest.raises(ValueError, match="n_tolerance 6 in the state, 5 here"):
        LossValley(None, 3, 5, 0.3).load_state_dict(valley.state_dict(), AveragedModel(Walk()))


def trained_valley(model, losses, valley=None, step=None, updates=2):
    valley = valley or LossValley(None, 3, 6, 0.3)
    for loss in losses:
        segment = AveragedModel(model)
        for _ in range(updates):
            (step or model.step)()
            segment.update_parameters(model)
        valley.update_and_evaluate(segment, None, loss)
    return valley


# -- segments ---------------------------------------------------------------------------------------------


def test_a_segment_resumes_in_the_middle():
    def train(interrupt):
        torch.manual_seed(0)
        model = Walk()
        segment = AveragedModel(model)
        for step in range(40):
            if step == 20 and interrupt:
                file = io.BytesIO()
                torch.save(segment.state_dict(), file)
                file.seek(0)
                segment = AveragedModel(model)
                segment.load_state_dict(torch.load(file, weights_only=True))
            model.step()
            segment.update_parameters(model, step=step)
        return segment

    resumed, straight = train(True), train(False)
    assert_equal(resumed._averaged(), straight._averaged())
    assert (resumed.start_step, resumed.end_step, resumed.n_averaged) == (0, 39, 40)


def test_weights_of_low_precision_are_refused():
    with pytest.raises(ValueError, match=r"a mean in torch.bfloat16 stops moving .*: use swad\.SWAD"):
        AveragedModel(nn.Linear(1, 1).bfloat16())


def test_the_state_dict_has_the_published_keys():
    segment = AveragedModel(Walk())
    names = {"n_averaged", "module.scale", "module.updates", "module.network.weight", "module.network.bias"}
    state = segment.state_dict()
    assert set(state) == names | {"_extra_state"}
    del state["_extra_state"]
    segment.load_state_dict(state)  # as of the published class


def test_start_and_end_are_given_or_the_step():
    segment = AveragedModel(Walk())
    assert (segment.start_step, segment.end_step) == (-1, -1)
    segment.update_parameters(Walk(), step=5)
    segment.update_parameters(Walk(), step=6)
    assert (segment.start_step, segment.end_step) == (5, 6)
    segment.update_parameters(Walk(), start_step=1, end_step=9)
    assert (segment.start_step, segment.end_step) == (5, 9)


def test_use_buffers_averages_them():
    model, seen = nn.BatchNorm1d(2), []

    def step():
        model(torch.randn(8, 2))
        seen.append(model.running_mean.clone())

    valley = LossValley(None, 1, 1, 0.3)
    for loss in (0.5, 0.6, 0.9):  # the second one is averaged, and the third ends the valley
        segment = AveragedModel(model, use_buffers=True)
        for _ in range(3):
            step()
            segment.update_parameters(model)
        valley.update_and_evaluate(segment, None, loss)
    torch.testing.assert_close(valley.get_final_model().module.running_mean, torch.stack(seen[3:6]).mean(0))


def test_only_the_forward_model_is_copied():
    class Features(nn.Linear):
        features = None

        def forward(self, x):
            self.features = super().forward(x)
            return self.features

        def clear_features(self):
            self.features = None

    class Forward(nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network = network

        def predict(self, x):
            return self.network(x)

    class Algorithm(nn.Module):
        def __init__(self):
            super().__init__()
            self.network, self.encoders = Features(2, 1), nn.Linear(100, 100)

        def get_forward_model(self):
            return Forward(self.network)

        def step(self):
            self.network(torch.ones(1, 2))  # leaves a tensor that deepcopy refuses
            nn.init.normal_(self.network.weight)

    algorithm = Algorithm()
    final = trained_valley(algorithm, [0.5, 0.6], LossValley(None, 1, 1, 0.3)).get_final_model()
    assert [tuple(param.shape) for param in final.parameters()] == [(1, 2), (1,)]
    assert final.predict(torch.ones(1, 2)).shape == (1, 1)
    assert isinstance(final.network, Features)


def test_optimizers_are_never_copied():
    class Algorithm(Walk):
        def __init__(self):
            super().__init__()
            self.optimizer = torch.optim.Adam(self.parameters())
            self.schedulers = [torch.optim.lr_scheduler.StepLR(self.optimizer, 1)]
            self.network.optimizer = torch.optim.SGD(self.network.parameters(), 0.1)

    algorithm = Algorithm()
    copied = AveragedModel(algorithm).module
    assert copied.optimizer is copied.network.optimizer is copied.schedulers[0].optimizer is None
    assert isinstance(algorithm.optimizer, torch.optim.Adam)
    assert algorithm.schedulers[0].optimizer is algorithm.optimizer


def test_data_parallel_and_the_model_inside_are_one():
    wrapped = nn.DataParallel(Walk())
    valley = LossValley(None, 1, 1, 0.3)
    for loss in (0.5, 0.6):
        segment = AveragedModel(wrapped)
        wrapped.module.step()
        segment.update_parameters(wrapped.module)
        valley.update_and_evaluate(segment, None, loss)
    assert torch.equal(valley.get_final_model().module.module.flat(), wrapped.module.flat())


def test_another_model_is_refused():
    valley = trained_valley(Walk(), [1.0])
    with pytest.raises(ValueError, match="parameters of the copied one"):
        AveragedModel(Walk()).update_parameters(nn.Linear(2, 1))
    with pytest.raises(ValueError, match="parameters of the first segment"):
        valley.update_and_evaluate(AveragedModel(nn.Linear(2, 1)), None, 1.0)


def test_an_evaluation_before_the_first_update_counts_the_initial_weights():
    model = Walk()
    valley = trained_valley(model, [1.0], LossValley(None, 1, 2, 0.3), updates=0)
    assert torch.equal(valley.get_final_model().module.flat(), model.flat())


# -- frozen parameters ------------------------------------------------------------------------------------


def tower():
    """A large frozen part, and a small one that is trained."""
    model = nn.Sequential(nn.Linear(100, 100).requires_grad_(False), nn.Linear(100, 2))
    return model, lambda: nn.init.normal_(model[1].weight)


@pytest.mark.parametrize("resume", [False, True])
def test_a_frozen_parameter_that_changes_is_averaged_from_the_beginning(resume):
    """A teacher without gradients, of which the published class takes the mean too."""
    model, step = tower()
    N_s, N_e, ratio = 2, 3, 0.3
    valley, twin = LossValley(None, N_s, N_e, ratio), SlowValley(N_s, N_e, ratio)
    for k, loss in enumerate([0.9, 0.5, 0.51, 0.52, 0.53, 0.54, 0.9]):
        segment, weights = AveragedModel(model), []
        for _ in range(3):
            step()
            if k >= 4:
                model[0].bias.data += torch.randn(100)
            segment.update_parameters(model)
            weights.append(nn.utils.parameters_to_vector(model.parameters()).detach().double())
        twin.evaluate(Kept(torch.stack(weights).mean(0), 0, 0, 0, loss))
        valley.update_and_evaluate(segment, None, loss)
        if resume and k == 5:
            state, valley = valley.state_dict(), LossValley(None, N_s, N_e, ratio)
            valley.load_state_dict(state, segment)
    ours = nn.utils.parameters_to_vector(valley.get_final_model().module.parameters())
    torch.testing.assert_close(
        ours.double(), torch.stack([each.weights for each in twin.final()[0]]).mean(0), atol=1e-5, rtol=1e-6
    )


# -- memory -----------------------------------------------------------------------------------------------


def test_memory_is_a_few_sums():
    model = nn.Linear(1000, 100, bias=False)
    model.optimizer = torch.optim.Adam(model.parameters())
    valley, held = LossValley(None, 3, 6, 0.3), []
    for loss in [*LOSSES[:7], *[0.42] * 8]:
        trained_valley(model, [loss], valley, lambda: nn.init.normal_(model.weight), updates=1)
        held.append(len(pickle.dumps(valley)) // model.weight.nbytes)
    assert max(held) == 6 + 1  # sums, and the last segment
    assert held[-1] == 3 + 1


# -- numbers that are no losses, and arguments ------------------------------------------------------------


def test_an_accuracy_as_loss_warns_at_once_where_it_is_given_twice():
    with pytest.warns(UserWarning, match="val_acc and val_loss are the same number, 0.42: pass the loss"):
        valley = trained_and_observed(0.42, 0.42)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained_and_observed(0.43, 0.43, valley)  # once
        trained_and_observed(0.42, 0.42, LossValley(mode="max"))


def trained_and_observed(acc, loss, valley=None):
    valley = valley or LossValley()
    model = Walk()
    segment = AveragedModel(model)
    segment.update_parameters(model)
    valley.update_and_evaluate(segment, acc, loss)
    return valley


def test_an_accuracy_as_loss_warns_when_it_rises():
    with pytest.warns(UserWarning, match="first 4 validation losses rise from 0.3 to 0.6"):
        trained_valley(Walk(), [0.3, 0.4, 0.5, 0.6])


def test_a_score_counts_as_one_minus_it():
    torch.manual_seed(0)
    scores = trained_valley(Walk(), [1 - loss for loss in LOSSES[1:]], LossValley(None, mode="max"))
    torch.manual_seed(0)
    losses = trained_valley(Walk(), LOSSES[1:])
    assert torch.equal(scores.get_final_model().module.flat(), losses.get_final_model().module.flat())
    assert scores.threshold == pytest.approx(1 - losses.threshold)


def test_a_single_number_is_the_loss():
    model = Walk()
    segment = AveragedModel(model)
    valley = LossValley(n_converge=1, n_tolerance=1, tolerance_ratio=0.5)
    valley.update_and_evaluate(segment, 0.4)
    assert valley.threshold == pytest.approx(0.6)


def test_a_loss_that_is_not_finite_is_refused_and_changes_nothing():
    torch.manual_seed(0)
    model = Walk()
    valley = trained_valley(model, LOSSES)
    before = valley.state_dict()
    with pytest.raises(ValueError, match="must be finite, got nan"):
        trained_valley(model, [float("nan")], valley)
    assert_equal(valley.state_dict(), before)


@NEVER_CONVERGED
def test_constants_near_the_largest_float_stay_as_they_are():
    model = Walk()
    model.mask = nn.Parameter(torch.full((2,), torch.finfo(torch.float32).min))
    valley, segment = LossValley(None), AveragedModel(model)
    for loss in LOSSES:
        segment.update_parameters(model)
        valley.update_and_evaluate(segment, None, loss)
        segment = AveragedModel(model)
    assert torch.equal(valley.get_final_model().module.mask, model.mask)


def test_nothing_is_averaged_after_the_end():
    model = Walk()
    valley = trained_valley(model, [*LOSSES, 0.64, 0.65, 0.66])
    assert valley.dead_valley
    before = valley.state_dict()
    trained_valley(model, [0.1, 0.2, 0.3], valley)
    assert_equal(valley.state_dict(), before)


def test_an_average_may_start_later():
    valley = trained_valley(Walk(), [0.1, 0.1, 0.1], LossValley(None, 1, 2, 0.3, start=6))
    with pytest.raises(RuntimeError, match="begins at the first evaluation from update 6 on"):
        valley.get_final_model()
    trained_valley(Walk(), [0.9, 0.9, 0.9], valley)
    assert valley.get_final_model().n_averaged > 0
    assert valley.threshold == pytest.approx(0.9 * 1.3)


def test_mistaken_arguments_are_named():
    with pytest.raises(TypeError, match="first argument is the evaluator or None, got 3: pass n_converge by name"):
        LossValley(3, 6, 0.3)
    with pytest.raises(ValueError, match=r"the published class has semantics='reference', got 'paper': use swad\.SWAD"):
        LossValley(None, semantics="paper")
    with pytest.raises(TypeError, match=r"must be a swad\.compat\.AveragedModel, got a Linear"):
        LossValley().update_and_evaluate(nn.Linear(1, 1), None, 0.5)
    with pytest.raises(ValueError, match=r"got avg_fn: use e\.g\. swad\.EMA"):
        AveragedModel(Walk(), avg_fn=lambda a, b, n: a)


@pytest.mark.parametrize("evaluator", [object(), None])
def test_the_detector_names_the_published_class(evaluator):
    with pytest.raises(TypeError, match=r"is the detector .* the published class, .* is swad\.compat\.LossValley"):
        swad.LossValley(evaluator, 3, 6, 0.3)
    assert swad.compat.LossValley(evaluator, 3, 6, 0.3).evaluator is evaluator


# -- batch norm -------------------------------------------------------------------------------------------


def test_update_bn_takes_the_batches_of_all_domains():
    images = torch.randn(6, 4, 2)
    as_dicts = ([{"x": batch[:2], "y": None}, {"x": batch[2:], "y": None}] for batch in images)
    as_pairs = ([(batch[:2], None), (batch[2:], None)] for batch in images)
    for batches in (as_dicts, as_pairs, iter(images), ((batch, None) for batch in images)):
        model = AveragedModel(nn.Sequential(nn.BatchNorm1d(2), nn.Dropout()))
        update_bn(batches, model, 4, device="cpu")
        torch.testing.assert_close(model.module[0].running_mean, images[:4].mean((0, 1)))
        assert len(list(batches)) == 2  # no batch more than asked for was taken
