"""Fetching from a server that behaves, breaks off, lies and attacks; all on this machine."""

import dataclasses
import hashlib
import io
import json
import os
import stat
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from helpers.small_trees import make_tree, save_image
from swad.data import _http, benchmarks
from swad.data._unpack import unpack
from swad.data.benchmarks import Benchmark, Download, fetch, show_fetched
from swad.data.domains import DataError


class Server:
    """Files by name. ``cut`` breaks the connection after that many bytes, as often as it lists numbers."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.types: dict[str, str] = {}
        self.cut: list[int] = []
        self.ranges: list[str | None] = []
        self.length, self.tag = True, '"one"'
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *args: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        name = request.path.lstrip("/").split("?")[0]
        wanted = request.headers.get("Range")
        self.ranges.append(wanted)
        if name not in self.files:
            request.send_error(404)
            return
        data, start = self.files[name], 0
        if wanted and request.headers.get("If-Range") == self.tag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start and start >= len(data):
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(data)}")
            request.end_headers()
            return
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        if self.length:
            request.send_header("Content-Length", str(len(data) - start))
        request.send_header("ETag", self.tag)
        request.send_header("Content-Type", self.types.get(name, "application/octet-stream"))
        request.end_headers()
        body = data[start:]
        request.wfile.write(body[: self.cut.pop(0)] if self.cut else body)


@pytest.fixture
def server():
    one = Server()
    yield one
    one.http.shutdown()
    one.http.server_close()


def pack(tree: Path, inner: str, kind: str = "zip") -> bytes:
    out = io.BytesIO()
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    if kind == "zip":
        with zipfile.ZipFile(out, "w") as archive:
            for path in files:
                archive.write(path, f"{inner}/{path.relative_to(tree)}")
    else:
        with tarfile.open(fileobj=out, mode=f"w:{kind}") as archive:
            archive.add(tree, inner)
    return out.getvalue()


@pytest.fixture
def toy(server, tmp_path) -> Benchmark:
    """A benchmark whose archive the server holds."""
    tree = make_tree(tmp_path / "made", ["a", "b"], ["x", "y"])
    # Noise, so that the archive has a size worth cutting.
    for i, path in enumerate(sorted(tree.rglob("*.png"))):
        Image.frombytes("RGB", (16, 16), hashlib.shake_256(bytes([i])).digest(768)).save(path)
    server.files["toy.zip"] = pack(tree, "kfold")
    return Benchmark(
        name="toy",
        folder="toy",
        domains=("a", "b"),
        counts={"a": 6, "b": 6},
        n_classes=2,
        inner="kfold",
        downloads=(Download(server.url + "toy.zip", "toy.zip"),),
    )


def sum_of(server: Server, name: str = "toy.zip") -> str:
    return hashlib.sha256(server.files[name]).hexdigest()


def with_sum(toy: Benchmark, digest: str) -> Benchmark:
    return dataclasses.replace(toy, downloads=(dataclasses.replace(toy.downloads[0], sha256=digest),))


def left(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_a_fetch(server, toy, tmp_path):
    root = tmp_path / "root"
    calls = []
    result = fetch(with_sum(toy, sum_of(server)), root, progress=lambda *a: calls.append(a), pause=0)
    assert result.path == root / "toy"
    assert result.check.ok
    assert result.files[0].verified
    assert not result.notes
    assert {words.split()[0] for words, _, _ in calls} == {"downloading", "checking", "unpacking"}
    assert left(root) == ["toy", "toy.fetched.json"]
    assert left(root / "toy") == ["a", "b"]
    with pytest.raises(DataError, match="exists already"):
        fetch(toy, root)


@pytest.mark.parametrize("kind", ["", "gz", "xz"])
def test_tars_of_any_compression(server, toy, tmp_path, kind):
    server.files["toy.zip"] = pack(tmp_path / "made", "kfold", kind)
    assert fetch(toy, tmp_path / "root", pause=0).check.ok


def test_unknown_checksums_are_recorded_and_said(server, toy, tmp_path):
    root = tmp_path / "root"
    result = fetch(toy, root, pause=0)
    assert "no checksum is published" in result.notes[0]
    record = json.loads((root / "toy.fetched.json").read_text())
    assert record["files"][0]["sha256"] == sum_of(server)
    (root / "toy").rename(root / "old")
    assert fetch(toy, root, pause=0).notes == ()
    (root / "toy").rename(root / "older")
    server.files["toy.zip"] += b"\0"
    changed = fetch(toy, root, pause=0)
    assert "differs from the one recorded before" in changed.notes[0]
    out = io.StringIO()
    show_fetched(changed, Console(file=out, width=200))
    assert "recorded (no checksum was published)" in out.getvalue()


def test_a_broken_connection_is_taken_up_by_itself(server, toy, tmp_path):
    server.cut = [700, 900]
    assert fetch(with_sum(toy, sum_of(server)), tmp_path / "root", pause=0).check.ok
    assert server.ranges == [None, "bytes=700-", "bytes=1600-"]


def test_an_interrupted_fetch_goes_on_when_run_again(server, toy, tmp_path):
    root = tmp_path / "root"
    server.cut = [1000]
    with pytest.raises(DataError, match=r"toy\.zip stopped \(1,000 of .*; run this again to go on"):
        fetch(toy, root, attempts=1)
    assert left(root) == [".fetch-toy"]
    assert not (root / "toy").exists()
    assert fetch(with_sum(toy, sum_of(server)), root, attempts=1).check.ok
    assert server.ranges == [None, "bytes=1000-"]


def test_a_file_that_changed_meanwhile_is_fetched_whole(server, toy, tmp_path):
    root = tmp_path / "root"
    server.cut = [1000]
    with pytest.raises(DataError):
        fetch(toy, root, attempts=1)
    server.tag = '"two"'
    assert fetch(with_sum(toy, sum_of(server)), root, attempts=1).check.ok


def test_a_part_that_is_whole_already(server, toy, tmp_path):
    work = tmp_path / "root" / ".fetch-toy"
    work.mkdir(parents=True)
    data = server.files["toy.zip"]
    (work / "toy.zip.part").write_bytes(data)
    (work / "toy.zip.part.json").write_text(json.dumps({"total": len(data), "validator": server.tag}))
    assert fetch(toy, tmp_path / "root", attempts=1).check.ok


@pytest.mark.parametrize("kind", ["zip", "", "gz"])
def test_a_truncated_archive(server, toy, tmp_path, kind):
    root = tmp_path / "root"
    whole = pack(tmp_path / "made", "kfold", kind)
    server.files["toy.zip"] = whole[: len(whole) // 2]
    with pytest.raises(DataError, match="not a whole archive") as caught:
        fetch(toy, root, pause=0)
    assert "\n" not in str(caught.value)
    assert not (root / "toy").exists()
    assert not (root / ".fetch-toy" / "toy.zip").exists()
    server.files["toy.zip"] = whole
    assert fetch(toy, root, pause=0).check.ok


def test_a_truncated_answer_without_a_length(server, toy, tmp_path):
    server.length, server.cut = False, [1000]
    with pytest.raises(DataError, match="not a whole archive"):
        fetch(toy, tmp_path / "root", pause=0)


def test_a_corrupted_archive(server, toy, tmp_path):
    root = tmp_path / "root"
    whole, digest = server.files["toy.zip"], sum_of(server)
    middle = len(whole) // 2
    server.files["toy.zip"] = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    with pytest.raises(DataError, match=f"expected {digest}; it is removed"):
        fetch(with_sum(toy, digest), root, pause=0)
    with pytest.raises(DataError, match="not a whole archive"):  # its own checksums notice
        fetch(toy, root, pause=0)
    assert not (root / "toy").exists()
    server.files["toy.zip"] = whole
    assert fetch(with_sum(toy, digest), root, pause=0).check.ok


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
def test_malicious_archives_are_refused_whole(server, toy, tmp_path, attack):
    root = tmp_path / "deep" / "er" / "root"
    server.files["toy.zip"] = ATTACKS[attack]
    with pytest.raises(DataError, match="is refused: its entry") as caught:
        fetch(toy, root, pause=0)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("evil*"))
    assert not list(tmp_path.rglob("passwd"))
    assert not Path("/tmp/swad-evil.txt").exists()
    assert not (root / "toy").exists()


def test_an_archive_that_grows_too_large(tmp_path):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", b"\0" * 3_000_000)
    (tmp_path / "bomb.zip").write_bytes(out.getvalue())
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:gz") as archive:
        entry = tarfile.TarInfo("bomb")
        entry.size = 3_000_000
        archive.addfile(entry, io.BytesIO(b"\0" * entry.size))
    (tmp_path / "bomb.tgz").write_bytes(tar.getvalue())
    for name in ("bomb.zip", "bomb.tgz"):
        with pytest.raises(DataError, match="unpacks to more than 1,000,000 bytes"):
            unpack(tmp_path / name, tmp_path / "out", max_bytes=1_000_000)
        assert sum(f.stat().st_size for f in (tmp_path / "out").iterdir()) <= 1_000_000


def test_an_entry_that_occurs_twice(tmp_path):
    with zipfile.ZipFile(tmp_path / "twice.zip", "w") as archive:
        archive.writestr("a.txt", "1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.txt", "2")
    with pytest.raises(DataError, match="occurs twice"):
        unpack(tmp_path / "twice.zip", tmp_path / "out", max_bytes=100)


def test_answers_that_are_no_file(server, toy, tmp_path):
    server.types["toy.zip"] = "text/html"
    with pytest.raises(DataError, match=r"web page instead of toy\.zip.* by hand, save it as .*toy\.zip") as caught:
        fetch(toy, tmp_path / "root", pause=0)
    assert "\n" not in str(caught.value)
    del server.files["toy.zip"]
    with pytest.raises(DataError, match="answered 404"):
        fetch(toy, tmp_path / "root", pause=0)
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(DataError, match="run this again"):
        fetch(toy, tmp_path / "root", attempts=2, pause=0)


def test_a_file_saved_by_hand_is_taken(server, toy, tmp_path):
    work = tmp_path / "root" / ".fetch-toy"
    work.mkdir(parents=True)
    (work / "toy.zip").write_bytes(server.files.pop("toy.zip"))
    assert fetch(toy, tmp_path / "root", pause=0).check.ok


def test_a_confirmation_page_is_answered(server, toy, tmp_path):
    server.files["confirmed"] = server.files.pop("toy.zip")
    page = '<form action="/confirmed"><input type="hidden" name="confirm" value="t"></form>'
    server.files["toy.zip"], server.types["toy.zip"] = page.encode(), "text/html"
    assert fetch(toy, tmp_path / "root", pause=0).check.ok
    # A form that leads elsewhere is not followed.
    away = _http.WebPageError(page.replace("/confirmed", "http://127.0.0.2/x"), server.url)
    with pytest.raises(_http.WebPageError):
        _http.confirmed(away)


def test_addresses():
    found = _http.direct("https://drive.google.com/uc?id=abc")
    assert found == "https://drive.usercontent.google.com/download?id=abc&export=download&confirm=t"
    with pytest.raises(DataError, match="only http and https"):
        _http.direct("file:///etc/passwd")


def test_an_archive_of_another_shape(server, toy, tmp_path):
    other = dataclasses.replace(toy, inner="PACS")
    with pytest.raises(DataError, match="holds kfold rather than PACS"):
        fetch(other, tmp_path / "root", pause=0)


def test_nothing_to_fetch_and_nowhere_to_put_it(toy, tmp_path):
    for name in ("digits", "folder"):
        with pytest.raises(DataError, match="nothing to fetch"):
            fetch(name, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write in"):
        fetch(toy, tmp_path / "file" / "below")


def test_two_fetches_at_once(toy, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    work = tmp_path / "root" / ".fetch-toy"
    work.mkdir(parents=True)
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another fetch works"):
            fetch(toy, tmp_path / "root")


def test_several_files_and_one_left_as_it_is(server, toy, tmp_path):
    server.files["list.txt"] = b"a/x/000.png\n"
    extra = Download(server.url + "list.txt", "list.txt", sum_of(server, "list.txt"), unpack=False)
    whole = dataclasses.replace(toy, inner="", downloads=(*toy.downloads, extra), folder="both")
    server.files["toy.zip"] = pack(tmp_path / "made" / "a", "a")
    fetch(whole, tmp_path / "root", pause=0)
    assert left(tmp_path / "root" / "both") == ["a", "list.txt"]


def test_terra_incognita_is_arranged(server, tmp_path):
    benchmark = benchmarks.get("TerraIncognita")
    images, notes = tmp_path / "images", tmp_path / "notes"
    names = [f"{i}.png" for i in range(5)]
    for name in names:
        save_image(images / name, 0)
    notes.mkdir()
    categories = [{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}, {"id": 3, "name": "car"}]
    places = ["38", "46", 100, "7", "43"]
    pictures = [{"id": n, "location": p, "file_name": n} for n, p in zip(names, places, strict=True)]
    marks = [("0.png", 1), ("0.png", 1), ("1.png", 1), ("1.png", 2), ("2.png", 2), ("3.png", 1), ("4.png", 3)]
    annotations = [{"image_id": n, "category_id": c} for n, c in marks]
    half = {"categories": categories, "images": pictures[:3], "annotations": annotations[:5]}
    rest = {"categories": categories, "images": pictures[3:], "annotations": annotations[5:]}
    (notes / "train.json").write_text(json.dumps(half))
    (notes / "test.json").write_text(json.dumps(rest))
    server.files["i.tar.gz"] = pack(images, "eccv_18_all_images_sm", "gz")
    server.files["a.tar.gz"] = pack(notes, "eccv_18_annotation_files", "gz")
    downloads = tuple(Download(server.url + name, name) for name in ("i.tar.gz", "a.tar.gz"))
    result = fetch(dataclasses.replace(benchmark, downloads=downloads), tmp_path / "root", pause=0)
    found = sorted(str(p.relative_to(result.path)) for p in result.path.rglob("*.png"))
    assert found == [
        "location_100/cat/2.png",
        "location_38/dog/0.png",
        "location_46/cat/1.png",
        "location_46/dog/1.png",
    ]
    pictures[0]["file_name"] = "../../secret.png"
    (notes / "train.json").write_text(json.dumps(half))
    server.files["a.tar.gz"] = pack(notes, "eccv_18_annotation_files", "gz")
    os.rename(result.path, tmp_path / "away")
    with pytest.raises(DataError, match="not among its images"):
        fetch(dataclasses.replace(benchmark, downloads=downloads), tmp_path / "root", pause=0)
