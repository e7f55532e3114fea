"""The contract of algorithms, tested for all that the registry finds and for some combinations with SAM.

Every behavior must show within four steps. Hyperparameters that bring it there are in `early` and, for single
algorithms, in `tiny_algorithms.QUICK`.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from helpers import HELPERS, ROOT
from helpers.contract_worker import OTHERS, STEPS, first_steps
from helpers.fake_processes import require_same_step
from helpers.forked import run_ranks
from helpers.runs import RecordingCallback, crash_at, require_same, short
from helpers.tiny_algorithms import CLASSES, SHAPE, batch_for, make, noise_for, quick, tell, update
from swad.gpu.cuda_graph import CapturedGraph, run_on_stream
from swad.tensors.batch_norms import batch_norms
from swad.testbed.algorithms.base import Algorithm, StepContext
from swad.testbed.algorithms.hyperparameters import draw, fill
from swad.testbed.algorithms.registry import canonical_name, get_algorithm, list_algorithms
from swad.testbed.models import networks
from swad.testbed.training.checks import find_problems
from swad.testbed.training.evaluation import eval_mode
from swad.testbed.training.loop import RunError, train

NAMES = (*list_algorithms(), "coral+sam", "group_dro+sam", "vat+sam", "mixup+sagm")
every = pytest.mark.parametrize("name", NAMES)


def early(name: str) -> dict[str, float]:
    """Return hyperparameters that bring every change of behavior into the first steps."""
    fields = {one.name for one in dataclasses.fields(get_algorithm(name).Hyperparameters)}
    wanted = {"anneal": 3, "ramp_up": 5, "d_steps": 2, "preparation": 0.2, "lr": 1e-3}
    return {field: value for field, value in wanted.items() if field in fields} | quick(name)


def state_of(algorithm) -> dict[str, torch.Tensor]:
    """Return copies of everything that a checkpoint contains."""
    found = {name: tensor.clone() for name, tensor in algorithm.state_dict().items()}
    for name, optimizer in algorithm.optimizers.items():
        for i, state in optimizer.state_dict()["state"].items():
            found |= {f"{name} {i} {key}": torch.as_tensor(value).clone() for key, value in state.items()}
    return found


def differences(one, other) -> set[str]:
    assert one.keys() == other.keys()
    return {name for name in one if not one[name].equal(other[name])}


# --- declarations ---------------------------------------------------------------------------------------------


@every
def test_it_has_a_name_a_paper_and_valid_hyperparameters(name):
    kind = get_algorithm(name)
    assert canonical_name(name.upper().replace("_", "-")) == name
    own_file = not Path(sys.modules[kind.__module__].__file__).is_relative_to(ROOT)  # there a paper is optional
    assert re.search(r"(19|20)\d\d\.$", kind.paper) or (own_file and not kind.paper), kind.paper
    assert all(isinstance(word, str) and word for word in kind.needs)
    assert "domain labels" in kind.all_needs() or kind.min_domains == 1
    assert sys.modules[kind.__module__].__doc__
    hyperparameters = kind.Hyperparameters
    assert not hyperparameters().problems()
    for field in dataclasses.fields(hyperparameters):
        assert field.metadata["help"]
    for number in range(1, 21):  # number 0 is the defaults
        for dataset in ("PACS", "digits"):
            drawn = fill(hyperparameters, draw(hyperparameters, dataset, number))
            assert not drawn.problems()
        assert not drawn.problems_on_low_res()


# --- a step ----------------------------------------------------------------------------------------------------


@every
def test_a_loss_is_pure(name):
    """Two calls give the same loss, whatever torch's random state is, and change no state."""
    algorithm = make(name, dropout=0.5, **early(name))
    for step in range(1, 5):
        batch, noise = batch_for(algorithm, step), noise_for(algorithm, step)
        before = state_of(algorithm)
        kept = {key: value.clone() for key, value in noise.items()}
        images = batch.images.clone()
        torch.manual_seed(1)
        one = algorithm.loss(batch, noise)
        torch.manual_seed(2)
        two = algorithm.loss(batch, noise)
        assert one.ndim == 0
        assert one.dtype is torch.float32
        assert one.equal(two)
        assert one.isfinite()
        assert not differences(before, state_of(algorithm))
        assert not differences(kept, noise)
        assert batch.images.equal(images)
        assert all(parameter.grad is None for parameter in algorithm.parameters())
        algorithm.pending_buffers = {}


@every
def test_randomness_depends_on_generator_and_step_alone(name):
    algorithm = make(name, dropout=0.5, **early(name))
    first = noise_for(algorithm, 1)
    torch.manual_seed(5)
    assert not differences(first, noise_for(algorithm, 1))
    other = noise_for(algorithm, 2)
    assert differences(first, other)
    assert {key: (value.shape, value.dtype) for key, value in first.items()} == {
        key: (value.shape, value.dtype) for key, value in other.items()
    }


@every
def test_updates_change_all_parameters_and_no_frozen_statistics(name):
    """The network has batch norms with frozen statistics."""
    network = networks.build("test_resnet", CLASSES)
    for norm in batch_norms(network):
        nn.init.ones_(norm.weight)  # some start at 0, and the layers before them would get no gradient
    algorithm = make(name, network, shape=(3, 32, 32), **early(name))
    batch = batch_for(algorithm, shape=(3, 32, 32))
    before = state_of(algorithm)
    trained = {id(p) for one in algorithm.optimizers.values() for group in one.param_groups for p in group["params"]}
    assert {id(p) for p in algorithm.parameters()} == trained
    for step in range(1, 5):
        update(algorithm, batch._replace(step=step))
    after, parameters = algorithm.state_dict(), {key for key, _ in algorithm.named_parameters()}
    changed = {key for key, tensor in after.items() if not tensor.equal(before[key])}
    assert parameters <= changed
    assert not any(key.startswith("predictor.") for key in changed - parameters)
    assert not algorithm.pending_buffers
    assert any("running_mean" in key for key in after)


@pytest.mark.slow
@every
def test_it_learns(name):
    """Training on one batch lowers its cross entropy."""
    algorithm = make(name, lr=1e-3, **quick(name))
    batch = batch_for(algorithm)
    images = batch.images[0] if algorithm.views > 1 else batch.images

    @torch.no_grad()
    def entropy():
        with eval_mode(algorithm.predictor):
            scores = torch.cat([algorithm.predictor(some) for some in images.chunk(3)])
        return functional.cross_entropy(scores, batch.labels)

    before = entropy()
    for step in range(1, 17):
        update(algorithm, batch._replace(step=step))
    assert entropy() < before - 0.1


@every
def test_a_new_instance_resumes_from_a_state(name):
    """Weights, buffers and optimizers are equal to the last bit, also across a change of phase."""
    algorithm = make(name, dropout=0.5, **early(name))
    for step in (1, 2, 3):
        update(algorithm, batch_for(algorithm, step))
    stored = {key: tensor.clone() for key, tensor in algorithm.state_dict().items()}
    optimizers = {key: copied(one.state_dict()) for key, one in algorithm.optimizers.items()}
    fresh = make(name, dropout=0.5, **early(name))
    for parameter in fresh.parameters():
        nn.init.normal_(parameter)  # so that anything that is not loaded shows
    fresh.load_state_dict(stored)
    for key, optimizer in fresh.optimizers.items():
        optimizer.load_state_dict(optimizers[key])
    for step in (4, 5, 6):
        one, other = (update(each, batch_for(each, step)) for each in (algorithm, fresh))
        assert one.equal(other)
    assert not differences(state_of(algorithm), state_of(fresh))


def copied(state):
    """Return a copy that shares no tensor."""
    if isinstance(state, torch.Tensor):
        return state.clone()
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    return [copied(value) for value in state] if isinstance(state, list) else state


@every
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_two_domains_and_the_smallest_batch(name, optimizer):
    kind = get_algorithm(name)
    algorithm = make(name, domains=2, batch_size=kind.min_per_domain, **early(name))
    tell(algorithm, optimizer=optimizer)
    for step in range(1, 5):
        assert update(algorithm, batch_for(algorithm, step)).isfinite()
        assert all(p.grad.isfinite().all() for p in algorithm.parameters() if p.grad is not None)
    assert all(p.isfinite().all() for p in algorithm.parameters())


@every
@pytest.mark.usefixtures("few")
def test_too_few_images_or_domains_are_errors(name, tmp_path, monkeypatch):
    algorithm = get_algorithm(name)
    least = algorithm.min_per_domain
    few = short(tmp_path / "few", algorithm=name, hyperparameters={"batch_size": least - 1})
    assert [problem for problem in find_problems(few) if "batch_size" in problem], "a smaller batch must be an error"
    if least > 1:
        assert f"{name} needs a batch_size of {least} or more, got {least - 1}" in find_problems(few)
    if algorithm.min_domains > 1:
        alone = short(tmp_path / "run", algorithm=name, target=("paper", "board", "clutter"))
        rule = f"{name} needs at least 2 source domains, got outline: hold out fewer"
        assert find_problems(alone) == [rule]
        # As for datasets whose domains are not known before they are loaded.
        monkeypatch.setattr("swad.testbed.training.resolve.find_problems", lambda config: [])
        with pytest.raises(RunError, match=f"^{re.escape(rule)}$"):
            train(alone)


@every
@pytest.mark.parametrize("clip", [1e-3, None])
def test_gradients_are_averaged_and_clipped(name, clip):
    algorithm = make(name, **early(name))
    averaged: set[int] = set()
    norms: list[float] = []

    def average(parameters):
        averaged.update(map(id, parameters))

    for optimizer in algorithm.optimizers.values():
        held = [p for group in optimizer.param_groups for p in group["params"]]

        def noted(*args, held=held, step=optimizer.step):
            grads = [p.grad for p in held if p.grad is not None]  # none where a phase does not train them
            norms.append(nn.utils.get_total_norm(grads).item())
            return step(*args)

        optimizer.step = noted
    for step in range(1, 4):
        update(algorithm, batch_for(algorithm, step), StepContext(average_gradients=average, clip=clip))
    assert averaged == {id(p) for p in algorithm.parameters()}
    assert (max(norms) < 1.001e-3) is (clip is not None)


# --- networks and precision ------------------------------------------------------------------------------------


def vit() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    return VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=4, num_heads=2, num_classes=CLASSES)


def mobile() -> nn.Module:
    torch.manual_seed(0)
    return networks.build("test_efficientnet", CLASSES)


@every
@pytest.mark.parametrize(("network", "dropout"), [(vit, 0.5), (mobile, 0)])
def test_it_trains_vits_and_networks_with_batch_norms(name, network, dropout):
    shape = (3, 32, 32)
    if name == "dson" and network is vit:
        with pytest.raises(
            networks.NetworkError, match="VisionTransformer has none: choose a network with batch norms"
        ):
            make(name, network())
        return
    algorithm = make(name, network(), shape=shape, dropout=dropout, **early(name))
    before = state_of(algorithm)
    for step in range(1, 5):
        assert update(algorithm, batch_for(algorithm, step, shape)).isfinite()
    after = algorithm.state_dict()
    assert not [key for key, _ in algorithm.named_parameters() if after[key].equal(before[key])]


def in_bf16():
    return torch.autocast("cpu", dtype=torch.bfloat16)


@every
def test_mixed_precision_is_close_to_full_precision(name):
    algorithm = make(name, **early(name))
    for step in range(1, 4):
        batch, noise = batch_for(algorithm, step), noise_for(algorithm, step)
        full = algorithm.loss(batch, noise)
        with in_bf16():
            mixed = algorithm.loss(batch, noise)
        assert mixed.dtype is torch.float32
        assert mixed.item() == pytest.approx(full.item(), rel=0.03, abs=0.03)
        assert not mixed.equal(full)
        algorithm.pending_buffers = {}
        assert update(algorithm, batch, StepContext(autocast=in_bf16)).isfinite()
    assert all(p.isfinite().all() and p.dtype is torch.float32 for p in algorithm.parameters())


@every
def test_predictions_depend_on_the_image_or_the_declared_group(name):
    algorithm = make(name, **early(name))
    for step in range(1, 4):
        update(algorithm, batch_for(algorithm, step))
    group = algorithm.eval_group_size(algorithm.hyperparameters)
    images = torch.randn(12, *SHAPE, generator=torch.Generator().manual_seed(7))
    with torch.no_grad(), eval_mode(algorithm.predictor):
        together = algorithm.predictor(images)
        ones = torch.cat([algorithm.predictor(image[None]) for image in images])
        whole = torch.cat([algorithm.predictor(some) for some in images.split(group or 5)])
    torch.testing.assert_close(whole, together, rtol=1e-4, atol=1e-5)
    assert torch.allclose(ones, together, rtol=1e-4, atol=1e-5) is (group is None)
    assert group is None or "grouped evaluation" in algorithm.needs


# --- a whole run -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@every
@pytest.mark.usefixtures("few")
def test_an_interrupted_run_with_averages_resumes(name, tmp_path):
    own = {**early(name), "batch_size": 4, "dropout": 0.5}
    settings = {"algorithm": name, "steps": 8, "evaluate_every": 4, "checkpoint_every": 4, "hyperparameters": own}
    if "anneal" in own:
        own["anneal"] = 5  # after the checkpoint and before the interruption
    whole = train(short(tmp_path / "whole", **settings))
    assert set(whole.scores) == {"best", "last", "swad", "swa", "ema"}
    assert whole.scores["ema"] != whole.scores["last"]
    with pytest.raises(ZeroDivisionError):
        train(short(tmp_path / "broken", **settings), callback=crash_at(7))
    callback = RecordingCallback()
    train(short(tmp_path / "broken", **settings), callback=callback)
    prepared = 2 if "preparation" in own else 0
    last_checkpoint = (6 + prepared) // 4 * 4 - prepared  # every 4 updates, also those of a preparation
    assert callback.events[0].startswith(f"start {last_checkpoint}/")
    require_same(tmp_path / "whole", tmp_path / "broken")


# --- two processes ---------------------------------------------------------------------------------------------

SHARDED = {
    "arm": {"context_width": 8},
    "coral+sam": {"rho": 0.5},
    "cdann": {"mlp_dropout": 0.5, "grad_penalty": 1.0},
    "dann": {"mlp_dropout": 0.5, "grad_penalty": 1.0},
    "dmg": {},
    "dson": {},
    "eisnet": {"whole": 0.3, "margin": 0.5},
    "er": {"mlp_width": 8},
    "miro+sam": {},
    "mixstyle": {"p": 1.0, "alpha": 1.0},
    "mldg": {"weight_decay": 0.01},
    "mtl": {"ema": 0.5},
    "mtl+sagm": {"rho": 0.5},
    "padain": {"p": 1.0},
    "sagnet": {},
}
"""Algorithms with more than a loss of whole-batch rows, and hyperparameters that show if a rank draws for itself."""


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("step", [1, 2])  # DANN has two phases
@pytest.mark.parametrize("name", SHARDED)
def test_two_simulated_processes_make_the_step_of_one(name, step, dropout, monkeypatch):
    algorithm = make(name, dropout=dropout, lr=1e-3, **SHARDED[name])
    for earlier in range(1, step):  # memories and moving averages have content then
        update(algorithm, batch_for(algorithm, earlier))
    require_same_step(algorithm, batch_for(algorithm, step), noise_for(algorithm, step), monkeypatch)


@pytest.mark.distributed
@pytest.mark.slow
def test_two_processes_make_the_steps_of_one(tmp_path):
    """Compare losses, weights and buffers of all algorithms in one test, so that the processes start once."""
    run_ranks([HELPERS / "contract_worker.py", tmp_path, json.dumps(NAMES)])
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    for name, (algorithm, options) in {**{name: (name, {}) for name in NAMES}, **OTHERS}.items():
        alone = first_steps(algorithm, **{**options, "n_parts": 1})
        assert len(alone["losses"]) == STEPS
        # torch's own reduction, but for algorithms with an update of their own
        assert first[name]["data_parallel"] == (get_algorithm(algorithm).update is Algorithm.update), name
        # VAT divides the difference of two almost equal predictions by its norm, which amplifies rounding errors: 1e-7
        # becomes 1e-5 on some processors. Half the weight of its second term would change the parameters by 7e-3.
        factor = 20 if name.startswith("vat") else 1
        torch.testing.assert_close(
            first[name]["losses"], alone["losses"], rtol=factor * 1e-5, atol=factor * 1e-6, msg=_of(name)
        )
        for key, tensor in alone["state"].items():
            torch.testing.assert_close(
                first[name]["state"][key], tensor, rtol=0, atol=factor * 5e-6, msg=_of(f"{name} {key}")
            )
        assert first[name]["losses"].equal(second[name]["losses"]), name
        assert not differences(first[name]["state"], second[name]["state"]), name


def _of(what):
    return lambda text: f"{what}: {text}"


# --- on a GPU --------------------------------------------------------------------------------------------------


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def _repeatable(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def on_gpu(name):
    algorithm = make(name, dropout=0.5, **{**early(name), "lr": 0.01}).cuda()
    tell(algorithm, n_preparation=3 * algorithm.run_info.n_preparation)  # long enough to be captured
    for optimizer in algorithm.optimizers.values():
        for group in optimizer.param_groups:
            group["eps"] = 0.1  # Adam amplifies the rounding of tiny gradients

    def inputs(step):
        batch = batch_for(algorithm, step)
        batch = batch._replace(images=batch.images.cuda(), labels=batch.labels.cuda())
        return batch, algorithm.draw_randomness(torch.Generator("cuda").manual_seed(1000 + step), step)

    return algorithm, inputs


@pytest.mark.gpu
@needs_gpu
@every
def test_a_step_never_waits_for_the_device(name):
    algorithm, inputs = on_gpu(name)
    for step in range(1, 9):
        batch, _ = inputs(step)
        torch.cuda.synchronize()
        if step > 4:
            torch.cuda.set_sync_debug_mode("error")
        try:
            noise = algorithm.draw_randomness(torch.Generator("cuda").manual_seed(step), step)
            assert all(value.is_cuda for value in noise.values())
            algorithm.update(batch, noise, StepContext())
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@needs_gpu
@every
def test_a_captured_step_equals_an_eager_step(name):
    """A captured step, replayed with other images and noise, equals the eager step."""
    algorithm, inputs = on_gpu(name)
    twin, _ = on_gpu(name)
    stream = torch.cuda.Stream()
    warm_ups: Counter[str] = Counter()
    graphs: dict[str, CapturedGraph[torch.Tensor]] = {}
    for step in range(1, 19):
        batch, noise = inputs(step)
        twin_loss = update_on_gpu(twin, batch, noise)
        phase = algorithm.phase(step)
        if step > 1 and phase != algorithm.phase(step - 1):
            algorithm.on_phase_start(phase)
        tensors = {"images": batch.images, "labels": batch.labels}

        def make_step(tensors, noise, batch=batch):
            return algorithm.update(batch._replace(**tensors), noise, StepContext())

        if warm_ups[phase] < 2:
            warm_ups[phase] += 1
            loss = run_on_stream(stream, partial(make_step, tensors, noise))
        else:
            if phase not in graphs:
                graphs[phase] = CapturedGraph(make_step, tensors, noise, stream=stream)
            loss = graphs[phase].replay(tensors, noise)
        torch.testing.assert_close(loss, twin_loss, rtol=1e-2, atol=1e-3)
    assert graphs
    for key, tensor in twin.state_dict().items():
        torch.testing.assert_close(algorithm.state_dict()[key], tensor, rtol=1e-2, atol=2e-3)


def update_on_gpu(algorithm, batch, noise):
    phase = algorithm.phase(batch.step)
    if batch.step > 1 and phase != algorithm.phase(batch.step - 1):
        algorithm.on_phase_start(phase)
    return algorithm.update(batch, noise, StepContext())
