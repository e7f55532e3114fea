"""A local HTTP server for downloads, and archives to serve."""

import io
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Server:
    """Serves files by name; each number in ``cut`` breaks one connection after that many bytes."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut: list[int] = []
        self.ranges: list[str | None] = []
        self.length, self.tag = True, '"one"'
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            do_HEAD = do_GET  # noqa: N815

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
        request.send_header("Content-Type", "application/octet-stream")
        request.end_headers()
        body = data[start:]
        request.wfile.write(body[: self.cut.pop(0)] if self.cut else body)


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
