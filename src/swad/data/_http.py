"""One file over HTTP, resumable: bytes gather in ``<file>.part`` and the name appears when all have arrived.

A broken connection is taken up where it stopped (``Range``), provided the server still serves the same file: its
validator (``ETag`` or ``Last-Modified``) and length are kept beside the part and compared.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import re
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from swad.data.domains import DataError
from swad.util.progress import Progress

CHUNK = 2**20


class InterruptedTransferError(Exception):
    """The transfer stopped early; what arrived is kept and another try may go on from there."""


class WebPageError(Exception):
    """The server sent a page to look at instead of the file."""

    def __init__(self, html: str, url: str) -> None:
        super().__init__(url)
        self.html, self.url = html, url


def download(
    url: str,
    file: Path,
    *,
    progress: Progress | None = None,
    attempts: int = 5,
    pause: float = 1.0,
    timeout: float = 60.0,
) -> None:
    """Bring ``url`` to ``file``, going on from an earlier part; tries again when the connection breaks."""
    url = direct(url)
    part = file.with_name(file.name + ".part")
    by_hand = f"or download {url} by hand, save it as {file} and run this again"
    for attempt in range(1, attempts + 1):
        try:
            try:
                _pull(url, part, progress, timeout)
            except WebPageError as page:
                # Google asks for a click before it hands out files too large to scan.
                _pull(confirmed(page), part, progress, timeout)
        except WebPageError as page:
            raise DataError(
                f"the server sent a web page instead of {file.name}; wait a day (quota) {by_hand}"
            ) from page
        except urllib.error.HTTPError as error:
            if attempt == attempts or (error.code < 500 and error.code != 429):
                raise DataError(
                    f"the server answered {error.code} {error.reason} for {url}; try later {by_hand}"
                ) from error
        except (InterruptedTransferError, OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
                raise DataError(f"cannot write {part}: {error.strerror}; make room or choose another folder") from error
            if attempt == attempts:
                raise DataError(
                    f"the download of {file.name} stopped ({error}); run this again to go on, {by_hand}"
                ) from error
        else:
            os.replace(part, file)
            _notes(part).unlink(missing_ok=True)
            return
        time.sleep(pause * 2 ** (attempt - 1))


def sha256(file: Path, progress: Progress | None = None) -> str:
    """The checksum of a file."""
    total, done, digest = file.stat().st_size, 0, hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if progress:
                progress(f"checking {file.name}", done, total)
    return digest.hexdigest()


def direct(url: str) -> str:
    """The address that hands out a Google Drive file without the page before it; other addresses unchanged."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise DataError(f"only http and https addresses are fetched, got {url}")
    key = urllib.parse.parse_qs(parts.query).get("id")
    if parts.hostname == "drive.google.com" and key:
        query = urllib.parse.urlencode({"id": key[0], "export": "download", "confirm": "t"})
        return f"https://drive.usercontent.google.com/download?{query}"
    return url


def confirmed(page: WebPageError) -> str:
    """The address behind the form of a confirmation page on the same site; raises the page where there is none."""
    form = _Form()
    form.feed(page.html)
    if form.action is None or "confirm" not in form.fields:
        raise page
    action = urllib.parse.urljoin(page.url, form.action)
    here, there = urllib.parse.urlsplit(page.url), urllib.parse.urlsplit(action)
    if there.scheme != here.scheme or there.netloc != here.netloc:
        raise page
    return f"{action}?{urllib.parse.urlencode(form.fields)}"


class _Form(HTMLParser):
    """The address and hidden fields of the first form of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.action: str | None = None
        self.fields: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form" and self.action is None:
            self.action = given.get("action")
        elif tag == "input" and given.get("type") == "hidden" and "name" in given:
            self.fields.setdefault(given["name"], given.get("value", ""))


def _pull(url: str, part: Path, progress: Progress | None, timeout: float) -> None:
    """One request: append to the part what is missing of it."""
    known = _read_notes(part)
    have = part.stat().st_size if part.exists() and known.get("total") else 0
    headers = {"User-Agent": "swad"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if known.get("validator"):
            headers["If-Range"] = str(known["validator"])
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing lies beyond what we have
            if have == known["total"]:
                return
            part.unlink()
            raise InterruptedTransferError("the file has changed on the server") from error
        raise
    with response:
        if response.headers.get_content_type() == "text/html":
            raise WebPageError(response.read(2**20).decode("utf-8", "replace"), response.url)
        total, begin = _extent(response)
        if response.status == 206 and (begin != have or total != known.get("total")):
            part.unlink(missing_ok=True)
            raise InterruptedTransferError("the file has changed on the server")
        done = have if response.status == 206 else 0
        if total is not None:
            free = shutil.disk_usage(part.parent).free
            if total - done > free:
                raise DataError(f"{part.parent} has {free:,} bytes free, {total - done:,} are needed; make room")
        validator = response.headers.get("ETag", "")
        if not validator or validator.startswith("W/"):
            validator = response.headers.get("Last-Modified", "")
        _notes(part).write_text(json.dumps({"total": total, "validator": validator}), "utf-8")
        with part.open("ab" if done else "wb") as out:
            while chunk := response.read(CHUNK):
                out.write(chunk)
                done += len(chunk)
                if progress:
                    progress(f"downloading {part.name.removesuffix('.part')}", done, total)
    if total is not None and done != total:
        if done > total:
            part.unlink()
        raise InterruptedTransferError(f"{done:,} of {total:,} bytes arrived")


def _extent(response: Any) -> tuple[int | None, int]:
    """The length of the whole file and where this answer begins in it."""
    if response.status == 206:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
        return (int(match[2]), int(match[1])) if match else (None, -1)
    length = response.headers.get("Content-Length")
    return (int(length) if length else None), 0


def _notes(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _read_notes(part: Path) -> dict[str, Any]:
    try:
        notes = json.loads(_notes(part).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return notes if isinstance(notes, dict) else {}
