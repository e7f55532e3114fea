"""Downloading from a local server that works, breaks connections, and serves damaged or malicious archives."""

import dataclasses
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import stat
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from helpers import ROOT
from helpers.download_server import Server, pack
from helpers.small_trees import make_tree
from swad.cli import datasets as datasets_command
from swad.testbed.data import benchmarks, download
from swad.testbed.data.benchmark import Benchmark, Download
from swad.testbed.data.download import download_dataset, unpack
from swad.util.files import FileLock
from swad.util.images import DataError


@pytest.fixture
def toy(server, tmp_path) -> Benchmark:
    """A benchmark whose archive is on the server."""
    tree = make_tree(tmp_path / "made", ["a", "b"], ["x", "y"])
    # Noise does not compress, so the archive is large enough to be cut.
    for i, path in enumerate(sorted(tree.rglob("*.png"))):
        Image.frombytes("RGB", (16, 16), hashlib.shake_256(bytes([i])).digest(768)).save(path)
    server.files["toy.zip"] = pack(tree, "kfold")
    return Benchmark(
        name="toy",
        folder="toy",
        domains=("a", "b"),
        counts={"a": 6, "b": 6},
        n_classes=2,
        sources=((Download(server.url + "toy.zip", "toy.zip"),),),
    )


def checksum(server: Server, name: str = "toy.zip") -> str:
    return hashlib.sha256(server.files[name]).hexdigest()


def with_checksum(toy: Benchmark, digest: str) -> Benchmark:
    return dataclasses.replace(toy, sources=((dataclasses.replace(toy.sources[0][0], sha256=digest),),))


def entries(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_a_dataset_is_downloaded_and_moved_into_place(server, toy, tmp_path):
    root = tmp_path / "root"
    calls = []
    result = download_dataset(with_checksum(toy, checksum(server)), root, progress=lambda *a: calls.append(a))
    assert result.path == root / "toy"
    assert result.check.ok
    assert result.files[0].verified
    assert not result.notes
    assert {words.split()[0] for words, _, _ in calls} == {"downloading", "unpacking"}
    assert entries(root) == ["toy", "toy.fetched.json"]
    assert entries(root / "toy") == ["a", "b"]
    with pytest.raises(DataError, match="already exists"):
        download_dataset(toy, root)


@pytest.mark.parametrize("kind", ["", "gz", "xz"])
def test_tar_archives_of_any_compression(server, toy, tmp_path, kind):
    server.files["toy.zip"] = pack(tmp_path / "made", "kfold", kind)
    assert download_dataset(toy, tmp_path / "root").check.ok


def test_the_docs_say_which_checksums_are_published():
    published = {
        name: [
            item.sha256 is not None
            for source in benchmarks.get(name).sources
            if not isinstance(source, str)
            for item in source
        ]
        for name in benchmarks.names()
    }
    assert {name for name, given in published.items() if any(given)} == {"colored_mnist", "rotated_mnist", "domain_net"}
    assert all(published["colored_mnist"] + published["rotated_mnist"])
    assert sum(published["domain_net"]) == 1
    page, command = (ROOT / "docs" / "benchmark.md").read_text(), datasets_command.download.__doc__
    for text in (page, command):
        words = " ".join(text.split())
        assert "Checksums are published for the files of MNIST and for one list of DomainNet, and verified." in words
        assert not re.search("verif(y|ies) (its )?checksum", words)


def test_unpublished_checksums_are_recorded_and_compared(server, toy, tmp_path):
    root = tmp_path / "root"
    result = download_dataset(toy, root)
    assert "no checksum is published" in result.notes[0]
    record = json.loads((root / "toy.fetched.json").read_text())
    assert record["files"][0]["sha256"] == checksum(server)
    (root / "toy").rename(root / "old")
    assert download_dataset(toy, root).notes == ()
    (root / "toy").rename(root / "older")
    server.files["toy.zip"] += b"\0"
    for number in range(2):  # the record stays that of the first download
        changed = download_dataset(toy, root)
        assert "differs from that of the first download" in changed.notes[0]
        assert not changed.files[0].verified
        assert json.loads((root / "toy.fetched.json").read_text()) == record
        (root / "toy").rename(root / f"changed-{number}")


def test_a_damaged_record_is_written_anew(server, toy, tmp_path):
    (tmp_path / "root").mkdir()
    no_checksum = json.dumps({"files": [{"url": toy.sources[0][0].url}]})
    for content in ("no json", "[]", no_checksum, '{"files": [5]}'):
        (tmp_path / "root" / "toy.fetched.json").write_text(content)
        assert "no checksum is published" in download_dataset(toy, tmp_path / "root").notes[0]
        assert checksum(server) in (tmp_path / "root" / "toy.fetched.json").read_text()
        shutil.rmtree(tmp_path / "root" / "toy")


def test_a_file_of_another_checksum_that_lies_there_is_fetched_again(server, toy, tmp_path):
    work = tmp_path / "root" / ".fetch-toy"
    work.mkdir(parents=True)
    (work / "toy.zip").write_bytes(b"of another day")
    result = download_dataset(with_checksum(toy, checksum(server)), tmp_path / "root")
    assert result.check.ok
    assert result.files[0].verified


def enlarge(server: Server, tree: Path) -> None:
    """Replace the archive by one of 2 MB: gdown keeps the received bytes in chunks of 512 KiB."""
    pixels = hashlib.shake_256(b"large").digest(800 * 800 * 3)
    Image.frombytes("RGB", (800, 800), pixels).save(tree / "a" / "x" / "000.png")
    server.files["toy.zip"] = pack(tree, "kfold")


def test_a_broken_connection_is_resumed(server, toy, tmp_path):
    enlarge(server, tmp_path / "made")
    server.cut = [700_000, 600_000]
    assert download_dataset(with_checksum(toy, checksum(server)), tmp_path / "root").check.ok
    assert server.ranges == [None, f"bytes={2**19}-", f"bytes={2**20}-"]


def test_an_interrupted_download_is_resumed_by_the_next_one(server, toy, tmp_path):
    root = tmp_path / "root"
    enlarge(server, tmp_path / "made")
    server.cut = [700_000]
    with pytest.raises(
        DataError, match=r"cannot download toy: http.*toy\.zip: cannot fetch toy\.zip .*Run the command again to resume"
    ) as caught:
        download_dataset(toy, root, retries=0)
    assert "\n" not in str(caught.value)
    assert entries(root) == [".fetch-toy"]
    assert download_dataset(with_checksum(toy, checksum(server)), root, retries=0).check.ok
    assert server.ranges == [None, None, f"bytes={2**19}-"]


def test_a_file_that_changed_on_the_server_is_not_mixed_with_the_old_one(server, toy, tmp_path):
    root = tmp_path / "root"
    enlarge(server, tmp_path / "made")
    server.cut = [700_000]
    with pytest.raises(DataError, match="Run the command again to resume"):
        download_dataset(toy, root, retries=0)
    server.files["toy.zip"] = pack(tmp_path / "made", "kfold", "gz")
    with pytest.raises(DataError, match="removed it"):
        download_dataset(with_checksum(toy, checksum(server)), root)
    assert download_dataset(with_checksum(toy, checksum(server)), root).check.ok


@pytest.mark.parametrize("kind", ["zip", "", "gz"])
def test_a_truncated_archive(server, toy, tmp_path, kind):
    root = tmp_path / "root"
    whole = pack(tmp_path / "made", "kfold", kind)
    server.files["toy.zip"] = whole[: len(whole) // 2]
    with pytest.raises(DataError, match="not a complete archive") as caught:
        download_dataset(toy, root)
    assert "\n" not in str(caught.value)
    assert not (root / "toy").exists()
    assert not (root / ".fetch-toy" / "toy.zip").exists()
    server.files["toy.zip"] = whole
    assert download_dataset(toy, root).check.ok


def test_a_truncated_response_without_a_length(server, toy, tmp_path):
    server.length, server.cut = False, [1000]
    with pytest.raises(DataError, match="not a complete archive"):
        download_dataset(toy, tmp_path / "root")


def test_a_corrupted_archive(server, toy, tmp_path):
    root = tmp_path / "root"
    whole, digest = server.files["toy.zip"], checksum(server)
    middle = len(whole) // 2
    server.files["toy.zip"] = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    with pytest.raises(DataError, match=f"expected {digest}; removed it"):
        download_dataset(with_checksum(toy, digest), root)
    with pytest.raises(DataError, match="not a complete archive"):  # by the archive's own checksums
        download_dataset(toy, root)
    assert not (root / "toy").exists()
    server.files["toy.zip"] = whole
    assert download_dataset(with_checksum(toy, digest), root).check.ok


def evil_zip(name: str, kind: int = stat.S_IFREG, text: str = "evil") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        entry = zipfile.ZipInfo("placeholder")
        entry.filename = name
        entry.external_attr = (kind | 0o777) << 16
        archive.writestr(entry, text)
    return out.getvalue()


def evil_tar(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname, entry.size = kind, link, 4 if kind == tarfile.REGTYPE else 0
        archive.addfile(entry, io.BytesIO(b"evil"))
        if link:
            below = tarfile.TarInfo(f"{name}/evil.txt")
            below.size = 4
            archive.addfile(below, io.BytesIO(b"evil"))
    return out.getvalue()


ATTACKS = {
    "zip, up": evil_zip("kfold/../../../evil.txt"),
    "zip, up with backslashes": evil_zip("kfold\\..\\..\\evil.txt"),
    "zip, absolute": evil_zip("/tmp/swad-evil.txt"),
    "zip, drive": evil_zip("C:/evil.txt"),
    "zip, link": evil_zip("kfold", stat.S_IFLNK, "/tmp"),
    "tar, up": evil_tar("kfold/../../../evil.txt"),
    "tar, absolute": evil_tar("/tmp/swad-evil.txt"),
    "tar, link out": evil_tar("kfold", tarfile.SYMTYPE, "../../.."),
    "tar, link to a file": evil_tar("kfold/passwd", tarfile.SYMTYPE, "/etc/passwd"),
    "tar, hard link": evil_tar("kfold/passwd", tarfile.LNKTYPE, "/etc/passwd"),
    "tar, device": evil_tar("kfold/null", tarfile.CHRTYPE),
    "tar, pipe": evil_tar("kfold/pipe", tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_malicious_archives_cannot_write_outside_of_their_folder(tmp_path, attack):
    into = tmp_path / "deep" / "er" / "into"
    into.mkdir(parents=True)
    archive = tmp_path / "archive"
    archive.write_bytes(ATTACKS[attack])
    try:
        unpack(archive, into)
    except DataError as error:
        assert "has an unsafe entry" in str(error)
        assert "\n" not in str(error)
    else:
        assert "zip" in attack or attack == "tar, absolute"  # whose entries are renamed
    outside = [path for path in tmp_path.rglob("*") if into not in (path, *path.parents)]
    assert set(outside) == {archive, *(parent for parent in into.parents if tmp_path in parent.parents)}
    assert not Path("/tmp/swad-evil.txt").exists()
    assert not any(path.is_symlink() or "root:" in path.read_text() for path in into.rglob("*") if not path.is_dir())


def test_an_unsafe_archive_is_a_one_line_error(server, toy, tmp_path):
    server.files["toy.zip"] = ATTACKS["tar, up"]
    with pytest.raises(
        DataError, match=r"toy\.zip has an unsafe entry .*; get the archive from another source"
    ) as caught:
        download_dataset(toy, tmp_path / "root")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "root" / "toy").exists()


def test_a_missing_file_and_an_unreachable_server_are_one_line_errors(server, toy, tmp_path):
    del server.files["toy.zip"]
    with pytest.raises(
        DataError, match=r"cannot fetch toy\.zip .*404.*save one of these files in .*\.fetch-toy by hand"
    ) as caught:
        download_dataset(toy, tmp_path / "root")
    assert "\n" not in str(caught.value)
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(DataError, match="Run the command again to resume"):
        download_dataset(toy, tmp_path / "root", retries=1)


def test_a_file_downloaded_by_hand_is_used(server, toy, tmp_path):
    work = tmp_path / "root" / ".fetch-toy"
    work.mkdir(parents=True)
    (work / "toy.zip").write_bytes(server.files.pop("toy.zip"))
    assert download_dataset(toy, tmp_path / "root").check.ok


def test_an_archive_without_the_domains(server, toy, tmp_path):
    other = dataclasses.replace(toy, domains=("a", "c"))
    with pytest.raises(DataError, match=r"toy\.zip: it must contain the folders a, c, got kfold"):
        download_dataset(other, tmp_path / "root")


@pytest.mark.parametrize("inner", [".", "data", "repository-master/data/toy"])
def test_the_folder_of_the_domains_is_found_in_an_archive(server, toy, tmp_path, inner):
    server.files["toy.zip"] = pack(tmp_path / "made", inner)
    download_dataset(toy, tmp_path / "root")
    assert entries(tmp_path / "root" / "toy") == ["a", "b"]


def test_the_next_source_is_tried_when_one_fails(server, toy, tmp_path):
    server.files["copy.zip"] = server.files.pop("toy.zip")
    (tmp_path / "made" / "a" / "x" / "000.png").unlink()
    server.files["lacks.zip"] = pack(tmp_path / "made", "toy")
    server.files["page.zip"] = b"<html>Sign in to continue</html>"
    names = ["toy.zip", "lacks.zip", "page.zip", "copy.zip"]
    sources = tuple((Download(server.url + name, name),) for name in names)
    result = download_dataset(dataclasses.replace(toy, sources=sources), tmp_path / "root")
    assert result.check.ok
    assert result.check.path == result.path
    assert [file.filename for file in result.files] == ["copy.zip"]
    assert "copy.zip" in (tmp_path / "root" / "toy.fetched.json").read_text()


def test_if_all_sources_fail_one_message_has_every_reason(server, toy, tmp_path):
    (tmp_path / "made" / "a" / "x" / "000.png").unlink()
    server.files = {"lacks.zip": pack(tmp_path / "made", "toy"), "page.zip": b"<html>Sign in to continue</html>"}
    names = ["toy.zip", "lacks.zip", "page.zip"]
    sources = tuple((Download(server.url + name, name),) for name in names)
    with pytest.raises(DataError) as caught:
        download_dataset(dataclasses.replace(toy, sources=sources), tmp_path / "root")
    message = str(caught.value)
    assert "\n" not in message
    for words in (
        f"{server.url}toy.zip: cannot fetch toy.zip (",
        "404",
        f"{server.url}lacks.zip: domain a has 5 images, expected 6",
        "page.zip is not a complete archive",
        f"put the images at {tmp_path}/root/toy/<domain>/<class>/<image>",
    ):
        assert words in message
    assert entries(tmp_path / "root") == [".fetch-toy"]  # what came is kept, but nothing incomplete is in place
    assert entries(tmp_path / "root" / ".fetch-toy") == ["lacks.zip", "lock"]


def test_nothing_to_download_and_a_folder_that_cannot_be_written(toy, tmp_path):
    for name in ("digits", "folder"):
        with pytest.raises(DataError, match="nothing to download"):
            download_dataset(name, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write toy to"):
        download_dataset(toy, tmp_path / "file" / "below")


def test_a_second_download_at_the_same_time_is_refused(toy, tmp_path):
    pytest.importorskip("fcntl")
    work = tmp_path / "root" / ".fetch-toy"
    work.mkdir(parents=True)
    with FileLock(work / "lock"), pytest.raises(DataError, match=f"process {os.getpid()} is already downloading"):
        download_dataset(toy, tmp_path / "root")


def test_several_files_one_of_which_is_not_unpacked(server, toy, tmp_path):
    server.files["list.txt"] = b"a/x/000.png\n"
    extra = Download(server.url + "list.txt", "list.txt", checksum(server, "list.txt"), unpack=False)
    whole = dataclasses.replace(toy, sources=((*toy.sources[0], extra),), folder="both")
    server.files["toy.zip"] = pack(tmp_path / "made", "")
    download_dataset(whole, tmp_path / "root")
    assert entries(tmp_path / "root" / "both") == ["a", "b", "list.txt"]


# --- archives that would fill the memory or the disk ----------------------------------------------------------------


def tar_with_header(kind: bytes, size: int) -> bytes:
    """Return a compressed archive whose first entry declares a header extension of many zeros."""
    header = tarfile.TarInfo("header")
    header.type, header.size = kind, size
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1) as file:
        file.write(header.tobuf(tarfile.USTAR_FORMAT))
        for _ in range(size // 2**20):
            file.write(bytes(2**20))
        file.write(tarfile.TarInfo("a.txt").tobuf() + bytes(1024))
    return out.getvalue()


@pytest.mark.parametrize("kind", ["XHDTYPE", "XGLTYPE", "SOLARIS_XHDTYPE", "GNUTYPE_LONGNAME", "GNUTYPE_LONGLINK"])
def test_a_huge_tar_header_is_refused_before_it_is_read(tmp_path, kind):
    archive = tmp_path / "bomb.tar.gz"
    archive.write_bytes(tar_with_header(getattr(tarfile, kind), 2**26))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"has an unsafe entry \(a header of 67,108,864 bytes\); get the archive"):
            unpack(archive, tmp_path / "into")
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_sparse_tar_entries_are_refused(tmp_path):
    entry = tarfile.TarInfo("a.png")
    entry.type = tarfile.GNUTYPE_SPARSE
    (tmp_path / "old.tar").write_bytes(entry.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with tarfile.open(tmp_path / "new.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        entry = tarfile.TarInfo("a.png")
        entry.size, entry.pax_headers = 512, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
        archive.addfile(entry, io.BytesIO(b"0\n".ljust(512, b"\0")))
    for name in ("old.tar", "new.tar"):
        with pytest.raises(DataError, match=r"has an unsafe entry \(a sparse file\)"):
            unpack(tmp_path / name, tmp_path / "into")


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_an_archive_that_unpacks_to_far_more_than_its_size_is_refused(tmp_path, monkeypatch, kind):
    archive = tmp_path / f"bomb.{kind}"
    zeros = bytes(2**20)
    if kind == "zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            for i in range(20):
                file.writestr(f"{i}.png", zeros)
    else:
        with tarfile.open(archive, "w:gz") as file:
            for i in range(20):
                entry = tarfile.TarInfo(f"{i}.png")
                entry.size = len(zeros)
                file.addfile(entry, io.BytesIO(zeros))
    unpack(archive, tmp_path / "allowed")  # less than 1 GiB
    monkeypatch.setattr(download, "MAX_EXTRA_BYTES", 10 * 2**20)
    with pytest.raises(
        DataError, match=rf"bomb\.{kind} must unpack to at most .*, but file 11 exceeds this; get"
    ) as caught:
        unpack(archive, tmp_path / "into")
    assert "\n" not in str(caught.value)
    written = list((tmp_path / "into").glob("*")) if (tmp_path / "into").exists() else []
    assert len(written) == (0 if kind == "zip" else 10)
    monkeypatch.setattr(download, "MAX_MEMBERS", 5)
    with pytest.raises(DataError, match="but file 6 exceeds this"):
        unpack(archive, tmp_path / "other")


def test_a_file_over_http_without_a_checksum_is_a_warning(server, toy, tmp_path):
    (note,) = download_dataset(toy, tmp_path / "root").notes
    assert note.startswith("toy.zip: no checksum is published; recorded it in toy.fetched.json; it came over http")
    assert f"compare its sha256 {checksum(server)} with that of another copy" in note
