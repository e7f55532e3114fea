"""`swad datasets`."""

from __future__ import annotations


def test_datasets_are_listed_shown_and_checked(here, tmp_path):
    listing = here("datasets").stdout
    assert "9,991" in listing
    assert "TerraIncognita" in listing
    assert "ICCV 2017" in here("datasets", "show", "PACS").stdout.replace("\n", " ")
    assert "Did you mean 'download'?" in here("datasets", "dowload", "PACS", code=2).stderr
    assert here("datasets", "PACS").stdout == here("datasets", "show", "PACS").stdout
    from PIL import Image

    for domain in ("north", "south"):
        for label in ("cat", "dog"):
            class_dir = tmp_path / "mine" / domain / label
            class_dir.mkdir(parents=True)
            for i in range(3):
                Image.new("RGB", (8, 8), (40 * i, 0, 0)).save(class_dir / f"{i}.png")
    assert "12" in here("datasets", "check", tmp_path / "mine", "--name", "folder").stdout
    (tmp_path / "mine" / "north" / "cat" / "1.png").write_bytes(b"no image")
    bad = here("datasets", "check", tmp_path / "mine", "--name", "folder", code=1)
    assert "1.png" in bad.stdout + bad.stderr
