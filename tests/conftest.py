import gc
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

# Two test processes on two cores: torch must not start two threads in each. For the processes that tests start:
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Runs note in the cache which images they decoded. Tests leave nothing in the user's.
os.environ.setdefault("SWAD_CACHE", tempfile.mkdtemp(prefix="swad-cache-"))
# A shared machine is slow at times; how long an example takes says nothing about whether it is right.
hypothesis.settings.register_profile("swad", deadline=None)
hypothesis.settings.load_profile("swad")

TESTS = Path(__file__).parent
# Neither test processes nor those that they start compile source and tests again each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# They find the helpers and the same source.
paths = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def pytest_collection_finish() -> None:
    """Keep what was imported out of garbage collections: trainers ask for many, of half a second each."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # Otherwise bindings report what is left at the exit as leaks.


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests for a GPU where there is none, and keep torch to one thread if it read the environment before."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs an NVIDIA GPU")
    if (loaded := sys.modules.get("torch")) is not None and loaded.get_num_threads() != 1:
        loaded.set_num_threads(1)


@pytest.fixture
def quick_workers(monkeypatch) -> None:
    """Let commands in this process take their workers from the fork server, which has imported torch."""
    from helpers import forked
    from swad.testbed.workers import local

    monkeypatch.setattr(local, "PROCESSES", forked.CONTEXT)


@pytest.fixture
def here(monkeypatch, capfd, quick_workers) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Run a command in this process, for the many cases that need no process of their own."""
    from swad import cli

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["swad", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, errors = capfd.readouterr()
        assert (caught.value.code or 0) == code, out + errors
        return subprocess.CompletedProcess(sys.argv, code, out, errors)

    yield call
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 40 steps, target paper, with snapshots."""
    pytest.importorskip("sklearn")
    from helpers.tiny_runs import finished

    return finished(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def noise_folder(tmp_path: Path) -> Path:
    """A folder with 3 domains of 2 classes of 10 images of noise each, of different sizes, which a test may change."""
    np, image = pytest.importorskip("numpy"), pytest.importorskip("PIL.Image")
    root, random = tmp_path / "images", np.random.RandomState(0)
    for domain in "abc":
        for shade, label in enumerate(("dark", "light")):
            (root / domain / label).mkdir(parents=True)
            for i in range(10):
                pixels = random.randint(0, 128, (40 + i, 56, 3)) + 127 * shade
                image.fromarray(pixels.astype(np.uint8)).save(root / domain / label / f"{i}.png")
    return root
