from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import swad
from helpers import few_digits
from helpers.tiny_runs import tiny

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Runs of two trials with snapshots."""
    from swad.testbed.training.loop import train

    folder = tmp_path_factory.mktemp("merge")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("swad.testbed.data.benchmarks.digits.render", few_digits.render)
        for trial in (0, 1):
            train(tiny(folder / f"paper-{trial}", trial=trial, averages=()))
        yield folder


def require_equal(file, expected):
    found = load_file(file)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-7)


def test_greedy_reports_each_step_and_writes_what_it_took(here, root, tmp_path):
    output = tmp_path / "soup.safetensors"
    result = here("merge", root / "paper-0", root / "paper-1", "--greedy", "-o", output)
    lines = result.stdout.splitlines()
    assert "the runs of other trials were trained" in result.stdout
    steps = [line for line in lines if " of 2: " in line]
    assert len(steps) == 2
    assert steps[0].startswith("1 of 2: ")
    assert steps[0].endswith(", taken")
    taken = sorted(line.split(": ")[1] for line in steps if line.endswith("taken"))
    assert lines[-3:] == [
        f"merged {len(taken)} of 2 checkpoints",
        f"wrote {output}",
        f"wrote {output.with_suffix('.md')}",
    ]
    require_equal(output, swad.merge(taken))
    again = here("merge", root, "--greedy", "-o", tmp_path / "again.safetensors").stdout  # a directory of runs
    assert [line for line in again.splitlines() if " of 2: " in line] == steps
    quiet = here("merge", root / "paper-0", "--weights", "snapshots", "--greedy", "-o", output).stdout
    assert "other trials" not in quiet


def test_fixed_ways_are_those_of_the_library(here, root, tmp_path):
    output, run = tmp_path / "merged.safetensors", root / "paper-0"
    names = ("step-000010", "step-000020", "step-000030", "last")
    files = [run / "weights" / f"{name}.safetensors" for name in names]
    snapshots = ("merge", run, "--weights", "snapshots,last", "-o", output)
    for options, keywords in (
        ((), {}),
        (("--last", "2"), {"last": 2}),
        (("--decay", "1-sqrt"), {"decay": "1-sqrt"}),
        (("--coefficients", "1,1,2,0"), {"coefficients": [1, 1, 2, 0]}),
        (("--initial", files[0], "--alpha", "0.3"), {"initial": files[0], "alpha": 0.3}),
        (("--initial", files[0]), {"initial": files[0]}),
    ):
        here(*snapshots, *options)
        require_equal(output, swad.merge(files, **keywords))
    assert "merged 3 of 4 checkpoints" in here(*snapshots, "--coefficients", "1,1,2,0").stdout


def test_checkpoints_of_other_programs_need_no_run(here, tmp_path):
    torch.save({"model": {"w": torch.tensor([1.0])}}, tmp_path / "a.pth")
    save_file({"w": torch.tensor([4.0])}, tmp_path / "b.safetensors")
    output = tmp_path / "m.safetensors"
    result = here("merge", tmp_path / "a.pth", tmp_path / "b.safetensors", "-o", output)
    assert result.stdout == f"merged 2 of 2 checkpoints\nwrote {output}\n"
    assert load_file(output)["w"].item() == 2.5


def test_mistakes_are_one_line_and_write_nothing(here, root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a, b, bad = tmp_path / "a.safetensors", tmp_path / "b.safetensors", tmp_path / "bad.pt"
    save_file({"w": torch.ones(1)}, a)
    save_file({"v": torch.ones(1)}, b)
    torch.save(torch.nn.Linear(1, 1), bad)
    run = shutil.copytree(root / "paper-0", tmp_path / "run")
    (run / "weights" / "last.safetensors").write_bytes(b"nothing")
    before = sorted(tmp_path.rglob("*"))

    def error(*arguments):
        result = here("merge", *arguments, code=1)
        assert result.stderr.count("\n") == 1
        assert sorted(tmp_path.rglob("*")) == before
        return result.stderr

    assert "must be of one architecture" in error(a, b)
    assert "unpickling that could run any code" in error(bad)
    assert "--alpha needs --initial" in error(a, "--alpha", "0.3")
    assert "alpha must be from 0" in error(a, "--initial", a, "--alpha", "3")
    assert "--greedy needs runs" in error(a, "--greedy")
    assert "--update-bn needs runs" in error(a, "--update-bn")
    assert "the output must not replace" in error(a, "-o", a)
    assert "decay must be one of 1-sqrt, linear, cosine" in error(a, "--decay", "sqrt")
    assert "there is no " in error(tmp_path / "none.pt")
    assert "use a complete .safetensors file" in error(run)
    assert "has no weights 'swad'" in error(root / "paper-0", "--weights", "swad")
    assert "frozen batch norms" in error(root / "paper-0", "--update-bn")
    assert "give one of them" in error(root, "--greedy", "--decay", "linear")
