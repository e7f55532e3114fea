from __future__ import annotations

import csv
import json

import pytest

pytest.importorskip("sklearn")


@pytest.fixture
def digits(tmp_path):
    """Ten digits in two styles, and a damaged file."""
    from swad.testbed.data import benchmarks
    from swad.testbed.data.transforms import to_pil

    dataset = benchmarks.load("digits")
    for domain in dataset.domains[:2]:
        for i in range(5):
            path = tmp_path / "new" / domain.name / dataset.classes[domain.labels[i]] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            to_pil(domain.image(i)).save(path)
    (tmp_path / "new" / "broken.png").write_bytes(b"no image")
    return tmp_path / "new"


def test_the_table_and_the_file(here, tiny_run, digits, tmp_path):
    from swad.testbed.deploy.choose import find_weights

    done = here("predict", tiny_run, digits, "-o", tmp_path / "out.csv", "--device", "cpu")
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    assert set(rows[0]) == {"path", "domain", "label", "predicted", "probability"}
    lines = done.stdout.splitlines()
    assert lines[-1] == f"wrote {tmp_path / 'out.csv'}"
    assert all(any(row["path"] in line and row["predicted"] in line for line in lines) for row in rows)
    for domain in ("board", "clutter"):
        of_domain = [row for row in rows if row["domain"] == domain]
        accuracy = 20 * sum(row["label"] == row["predicted"] for row in of_domain)
        (line,) = [line.split() for line in lines if line.startswith(f"{domain} ")]
        assert (line[1], line[3]) == ("5", f"{accuracy:.1f}")
    assert f"warning: skipped an image: cannot decode image {digits / 'broken.png'}: " in done.stderr
    chosen = find_weights(tiny_run)[0]
    assert lines[0] == f"predicting 11 images with {chosen}"


def test_csv_and_json_hold_the_same(here, tiny_run, digits, tmp_path):
    for suffix in (".csv", ".json"):
        here("predict", tiny_run, digits, "--weights", "swad", "-o", tmp_path / f"out{suffix}", "--device", "cpu")
    with (tmp_path / "out.csv").open() as file:
        rows = [{**row, "probability": float(row["probability"])} for row in csv.DictReader(file)]
    assert rows == json.loads((tmp_path / "out.json").read_text())


def test_long_tables_are_cut(here, tiny_run, digits, monkeypatch):
    monkeypatch.setattr("swad.cli._console.MAX_ROWS", 3)
    assert "and 7 more; --output predictions.csv writes all" in here("predict", tiny_run, digits).stdout


def test_mistakes_are_one_line_and_write_nothing(here, tiny_run, digits, tmp_path):
    output, listed = tmp_path / "out.csv", tmp_path / "list.csv"
    listed.write_text("path\nnew/1.png\n")
    for arguments, message in (
        ((tiny_run, digits / "broken.png", "-o", output), "none of 1 image could be predicted"),
        ((tiny_run, digits, "-o", tmp_path / "out.txt"), "the suffix of --output must be one of .csv, .json"),
        ((tiny_run, tmp_path / "nowhere"), "there is no "),
        ((tiny_run, listed, "-o", listed), "--output must not replace what is read, got "),
        ((tiny_run.parent, digits), "holds no run"),
        ((tiny_run, digits, "--device", "cuda:77"), "cuda"),
    ):
        errors = here("predict", *arguments, code=1).stderr.splitlines()
        assert errors[-1].startswith("error: ")
        assert message in errors[-1]
    assert not output.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["list.csv", "new"]
    assert listed.read_text() == "path\nnew/1.png\n"
