"""A class of DomainBed's form must be what it is in its own training loop, with our averages, resuming and files."""

from __future__ import annotations

import copy
import io
import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from helpers import few_digits
from swad.testbed.algorithms import AlgorithmError
from swad.testbed.algorithms.base import Batch, RunInfo, StepContext
from swad.testbed.algorithms.domainbed.stand_ins import RunNetworks, using
from swad.testbed.algorithms.registry import get_algorithm
from swad.testbed.data import benchmarks
from swad.testbed.data.benchmarks import digits
from swad.testbed.data.splits import hold_out
from swad.testbed.models import networks
from swad.testbed.training.config import ConfigError, RunConfig
from swad.testbed.training.distributed import Dist
from swad.testbed.training.export import load_predictor
from swad.testbed.training.loop import RunInterrupted, train
from swad.testbed.training.resolve import resolution_notes, resolve
from swad.testbed.training.run_dir import RunError
from swad.testbed.training.state import build_algorithm

METHODS = ("ERM", "Align", "Adversary", "Teacher", "Inner")
SHAPE, N_CLASSES, N_DOMAINS, N_IMAGES = (3, 28, 28), 4, 3, 8


def network():
    torch.manual_seed(5)
    return networks.build("small", N_CLASSES)


def build(name, **hyperparameters):
    cls = get_algorithm(f"algorithms:{name}")
    values = {"lr": 1e-3, "batch_size": N_IMAGES, **hyperparameters}
    predictor = network()
    torch.manual_seed(1)
    return cls(predictor, cls.Hyperparameters(**values), RunInfo((50,) * N_DOMAINS, image_shape=SHAPE)).train()


def batch(step):
    generator = torch.Generator().manual_seed(step)
    n = N_DOMAINS * N_IMAGES
    images = torch.randn(n, *SHAPE, generator=generator, dtype=torch.float64)
    return Batch(step, images, torch.randint(N_CLASSES, (n,), generator=generator))


def update(algorithm, step):
    algorithm.draw_randomness(torch.Generator().manual_seed(step), step)
    torch.manual_seed(step)
    return algorithm.update(batch(step), {}, StepContext())


def original(name, **hyperparameters):
    """The class as its own repository would make it, with our network."""
    cls = get_algorithm(f"algorithms:{name}")
    values = cls.Hyperparameters(**{"lr": 1e-3, "batch_size": N_IMAGES, **hyperparameters})
    run_networks = RunNetworks(network(), 3, values.dropout)
    torch.manual_seed(1)
    with using(run_networks, nullcontext):
        method = cls.method_class(SHAPE, N_CLASSES, N_DOMAINS, values.to_hparams())
    return method, run_networks


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_twenty_steps_equal_those_of_the_original_loop(name, dropout):
    method, run_networks = original(name, dropout=dropout)
    method.double().train()
    losses = []
    for step in range(1, 21):
        images, labels = (rows.reshape(N_DOMAINS, N_IMAGES, *rows.shape[1:]) for rows in batch(step)[1:3])
        np.random.seed(step)
        random.seed(step)
        torch.manual_seed(step)
        with using(run_networks, nullcontext):
            losses.append(method.update(list(zip(images, labels, strict=True)), None)["loss"])
    algorithm = build(name, dropout=dropout).double()
    ours = [float(update(algorithm, step)) for step in range(1, 21)]
    assert ours == pytest.approx(losses, rel=1e-6)
    for (key, theirs), (own_key, own) in zip(
        method.named_parameters(), algorithm.method.named_parameters(), strict=True
    ):
        assert key == own_key
        assert torch.equal(theirs, own), key
    method.eval()
    algorithm.predictor.eval()
    images = batch(99).images
    with torch.no_grad():
        assert torch.equal(method.predict(images), algorithm.predictor(images))


def test_the_forms_of_2020_and_of_the_published_swad_code_are_the_same():
    losses = [[float(update(build(name).double(), 1))] for name in ("ERM", "ERMOf2020", "ERMOfSWAD")]
    assert losses[0] == losses[1] == losses[2]


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_training_equals_one_that_was_never_stopped(name):
    algorithm = build(name).double()
    for step in range(1, 11):
        if step == 6:
            file = io.BytesIO()
            torch.save(algorithm.state_dict(), file)
        update(algorithm, step)
    file.seek(0)
    resumed = build(name).double()
    resumed.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    for step in range(6, 11):
        update(resumed, step)
    before, after = algorithm.predictor.state_dict(), resumed.predictor.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_an_average_has_what_predict_uses_and_nothing_else():
    for name, parts in {
        "ERM": {"network"},
        "Adversary": {"network"},
        "Teacher": {"network", "teacher", "prior"},
    }.items():
        assert {key.partition(".")[0] for key in build(name).predictor.state_dict()} == parts


def test_predict_knows_whether_it_is_in_training():
    algorithm = build("Teacher").double()
    for step in (1, 2):
        update(algorithm, step)
    images, method = batch(3).images, algorithm.method
    with torch.no_grad():
        for mode in (True, False):
            algorithm.predictor.train(mode)
            method.training = mode
            assert torch.equal(algorithm.predictor(images), method.predict(images))
        assert not torch.equal(method.network(images), method.teacher(images))


def test_a_copy_of_the_predictor_predicts_by_its_own_weights():
    algorithm = build("Teacher").double()
    update(algorithm, 1)
    images, predictor = batch(2).images, algorithm.predictor.eval()
    twin = copy.deepcopy(predictor)
    with torch.no_grad():
        before = predictor(images)
        twin.prior.fill_(0.5)
        for param in twin.parameters():
            param.zero_()
        assert torch.equal(predictor(images), before)
        assert torch.allclose(twin(images), torch.full_like(before, -0.1 * np.log(0.5)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("OwnNetwork", "OwnNetwork must make its network by networks.Featurizer, but has one of its own: .*"),
        ("NeedsPackage", "NeedsPackage needs further packages: install them with pip install extra"),
        (
            "NeedsHparam",
            "NeedsHparam needs the hyperparameter 'of_no_registry': the hparams_registry.py .* must have it",
        ),
        ("Hidden", "predict of Hidden must use modules that are its attributes, .* belong into an nn.ModuleList"),
        ("FourChannels", "the network of a run takes 3 channels, got a featurizer of 4"),
        (
            "NeedsUnlabeled",
            "NeedsUnlabeled failed with .*; if it needs unlabeled images of the target, it cannot run here",
        ),
        ("NeedsHelper", "domainbed.lib.misc.something_of_a_fork has no stand-in and is not beside the file: .*"),
        ("Lazy", "Lazy makes ema in a step and uses it in the next: .* make them there"),
        ("Replaces", "Replaces replaces network, which predict uses, but an average follows one module: .*"),
        ("Silent", "update of Silent must return a dict of numbers, got None"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(name, message):
    def run():
        algorithm = build(name).double()
        for step in (1, 2):
            update(algorithm, step)

    with pytest.raises(AlgorithmError, match=f"^{message}$"):
        run()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_class_that_calls_cuda_needs_a_gpu():
    with pytest.raises(AlgorithmError, match=r"NeedsGPU asks for a GPU in its own code, and there is none"):
        build("NeedsGPU")


# --- whole runs ---------------------------------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(digits, "render", few_digits.render)


def config(output, name="Teacher", **options):
    return RunConfig.from_options(
        **{
            "dataset": "digits",
            "target": "paper",
            "algorithm": f"algorithms:{name}",
            "output": output,
            "steps": 12,
            "evaluate_every": 3,
            "averages": ("swad", "ema"),
            "hyperparameters": {"batch_size": 4},
            **options,
        }
    )


@pytest.mark.usefixtures("few")
def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path, monkeypatch):
    whole = train(config(tmp_path / "whole"))
    cls = get_algorithm("algorithms:Teacher")
    original_update = cls.update
    calls = []

    def interrupted(self, *args):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return original_update(self, *args)

    monkeypatch.setattr(cls, "update", interrupted)
    with pytest.raises(RunInterrupted):
        train(config(tmp_path / "parts", checkpoint_every=3))
    parts = train(config(tmp_path / "parts"))
    assert len(calls) == 8 + 12 - 6
    for weights in ("best", "last", "swad", "ema"):
        names = [result.run_dir / "weights" / f"{weights}.safetensors" for result in (whole, parts)]
        first, second = (load_predictor(name).model.state_dict() for name in names)
        assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.usefixtures("few")
def test_an_error_in_the_file_names_its_line(tmp_path, published):
    with pytest.raises(
        RunError, match=rf"algorithms:Wrong failed with .* \({published}/algorithms.py, line \d+, in .*\)"
    ):
        train(config(tmp_path / "run", "Wrong"))


@pytest.mark.parametrize(("setting", "value"), [("optimizer", "sgd"), ("lr_schedule", "cosine"), ("clip", 1.0)])
def test_settings_of_our_optimizers_do_not_apply(setting, value, tmp_path):
    rule = f"algorithms:ERM has optimizers of its own, to which {setting} does not apply: leave it out"
    with pytest.raises(ConfigError, match=rule):
        train(config(tmp_path / "run", "ERM", **{setting: value}))


def test_it_cannot_be_combined_with_sam():
    with pytest.raises(AlgorithmError, match="SAM needs an algorithm that steps on one loss"):
        get_algorithm("algorithms:ERM+sam")


@pytest.mark.usefixtures("few")
def test_several_processes_are_refused(tmp_path):
    resolved = resolve(config(tmp_path / "run"))
    sources = hold_out(benchmarks.load("digits"), ("paper",)).sources
    with pytest.raises(RunError, match="algorithms:Teacher trains in one process, got 2: leave out --processes"):
        build_algorithm(resolved, sources, Dist(torch.device("cpu"), 0, 2))


def test_how_it_runs_is_said(tmp_path):
    requested = config(tmp_path / "run")
    rule = "algorithms:Teacher makes its steps itself, with optimizers of its own: eagerly, in one process"
    assert rule in resolution_notes(requested, resolve(requested))
