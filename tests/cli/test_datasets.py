"""`swad datasets`, and the printed results of checking and downloading one."""

from __future__ import annotations

from pathlib import Path

from helpers.small_trees import make_tree
from swad.cli.datasets import print_check, print_download
from swad.testbed.data.download import DownloadedFile, DownloadResult
from swad.testbed.data.verify import BadImage, CheckResult, DomainCount


def test_datasets_are_listed_shown_and_checked(here, tmp_path):
    listing = here("datasets").stdout
    assert "9,991" in listing
    assert "TerraIncognita" in listing
    assert "ICCV 2017" in here("datasets", "show", "PACS").stdout.replace("\n", " ")
    files = {"PACS": "ROOT/PACS/<domain>/<class>/<image>", "folder": "ROOT/<domain>/<class>/<image>"}
    for name, expected in (files | {"rotated_mnist": "ROOT/MNIST/<the four idx files of MNIST>"}).items():
        assert expected in here("datasets", "show", name).stdout
    assert "Did you mean 'download'?" in here("datasets", "dowload", "PACS", code=2).stderr
    assert here("datasets", "PACS").stdout == here("datasets", "show", "PACS").stdout
    make_tree(tmp_path / "mine", ["north", "south"], ["cat", "dog"])
    assert "12" in here("datasets", "check", tmp_path / "mine", "--name", "folder").stdout
    (tmp_path / "mine" / "north" / "cat" / "001.png").write_bytes(b"no image")
    bad = here("datasets", "check", tmp_path / "mine", "--name", "folder", code=1)
    assert "001.png" in bad.stdout + bad.stderr


GOOD = CheckResult("toy", Path("toy"), (DomainCount("a", 3, 3, 2), DomainCount("b", 4, None, 2)), 2, 7)


def test_problems_and_bad_images_are_printed(capsys):
    bad = tuple(BadImage(Path(f"a/x/{i}.png"), f"a/x/{i}.png: truncated") for i in range(25))
    result = CheckResult(
        "toy",
        Path("toy"),
        (DomainCount("a", 3, 4, 2),),
        2,
        0,
        ("domain a has 3 images, expected 4",),
        ("a note",),
        bad,
    )
    print_check(result)
    text = capsys.readouterr().out
    for words in ("note: a note", "domain a has 3 images", "a/x/0.png: truncated", "and 6 more", "26 problems"):
        assert words in text
    print_check(GOOD)
    assert "no problems" in capsys.readouterr().out


def test_checksums_are_printed(capsys):
    known, unknown = (DownloadedFile("http://x", f"{known}.zip", 1000, "ab" * 32, known) for known in (True, False))
    print_download(DownloadResult("toy", Path("data/toy"), (known, unknown), ("a note",), GOOD))
    text = capsys.readouterr().out
    assert "True.zip  1,000 bytes  sha256 abababababababab… verified" in text
    assert "recorded (no checksum is published)" in text
    assert "a note" in text
    assert text.rstrip().endswith("data/toy")


def test_names_with_markup_are_printed_verbatim(capsys):
    result = CheckResult("[red]toy[/]", Path("toy"), (DomainCount("[red]x[/]", 3, 3, 2),), 2, 3)
    print_check(result)
    text = capsys.readouterr().out
    assert "[red]toy[/] at toy" in text
    assert "[red]x[/]" in text
