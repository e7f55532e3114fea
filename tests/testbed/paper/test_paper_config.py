from pathlib import Path

import pytest

from swad.testbed.data import mnist
from swad.testbed.paper.paper_config import find_datasets, make_config
from swad.testbed.training.config import ConfigError


def _domains(root: Path, *names: str) -> None:
    for name in names:
        (root / name).mkdir(parents=True)


def test_datasets_are_found_below_a_directory_or_as_the_directory(tmp_path):
    pacs = ("art_painting", "cartoon", "photo", "sketch")
    _domains(tmp_path / "PACS", *pacs)
    _domains(tmp_path / "VLCS", "Caltech101", "LabelMe", "SUN09")  # VOC2007 is missing
    assert find_datasets(tmp_path) == ("PACS",)
    assert find_datasets(tmp_path / "PACS") == ("PACS",)  # and not DomainNet, which has sketches too
    assert find_datasets(None) == ()


def test_the_scale_follows_from_the_data(tmp_path):
    small = make_config()
    assert (small.scale, small.datasets, small.output) == ("small", ("digits",), Path("paper-small"))
    _domains(tmp_path / "PACS", "art_painting", "cartoon", "photo", "sketch")
    full = make_config(data=tmp_path)
    assert (full.scale, full.datasets, full.trials, full.protocol) == ("full", ("PACS",), (0, 1, 2), "printed")
    assert full.steps_of("PACS") == 5000


def test_own_values_win_over_those_of_the_scale():
    config = make_config(scale="smoke", trials=(1, 0, 1), targets=("paper",), steps=5, images=0, radii=None)
    assert (config.trials, config.targets, config.steps, config.images) == ((0, 1), ("paper",), 5, None)
    assert config.radii == (0.0, 5.0)


def test_the_target_of_the_smoke_scale_is_for_the_digits_alone(tmp_path):
    assert make_config(scale="smoke", targets=()).targets == ("board",)
    for name in mnist.FILES:
        (tmp_path / name).touch()
    assert make_config(scale="smoke", datasets=["RotatedMNIST"], data=tmp_path, targets=()).targets == ()
    own = make_config(scale="smoke", datasets=["RotatedMNIST"], data=tmp_path, targets=("15",))
    assert own.targets == ("15",)


def test_stand_ins_come_first_and_only_the_items_datasets_count():
    config = make_config(scale="smoke")
    assert config.measured_datasets(("PACS", "VLCS")) == ("digits",)


def test_all_problems_are_listed_together():
    with pytest.raises(ConfigError) as caught:
        make_config(scale="smal", protocol="papers", datasets=["packs", "PACS"])
    assert len(caught.value.problems) == 4
    for text in (
        "did you mean 'small'?",
        "did you mean 'paper'?",
        "'packs'",
        "PACS needs its directory",
    ):
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"steps": 5}, "evaluate_every must not exceed the 5 steps, got 10"),
        ({"weights": "nowhere"}, "weights must be pretrained, random or an existing file, got 'nowhere'"),
        ({"device": "tpu"}, "device must be auto, cpu, cuda or cuda:NUMBER, got 'tpu'"),
        ({"targets": ("papr",)}, "there is no domain 'papr': did you mean 'paper'?"),
    ],
)
def test_settings_of_the_runs_are_checked_as_those_of_a_sweep(options, problem):
    with pytest.raises(ConfigError) as caught:
        make_config(scale="small", **options)
    assert caught.value.problems == (problem,)


def test_a_dataset_of_the_paper_must_be_complete(tmp_path):
    _domains(tmp_path / "VLCS", "Caltech101", "LabelMe", "SUN09")
    with pytest.raises(ConfigError) as caught:
        make_config(datasets=["VLCS", "PACS"], data=tmp_path)
    no_pacs, no_vlcs = caught.value.problems
    assert no_pacs.startswith("no domain of PACS ")
    assert no_vlcs == f"dataset VLCS is not in {tmp_path}: `swad datasets download VLCS`"
