"""A stand-in of the hub on loopback: repositories are folders, a commit writes the files that it contains."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread


@contextmanager
def hub(root: Path, refuse_commits: bool = False) -> Iterator[str]:
    """Serve repositories below a folder, and yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self, content: object, code: int = 200) -> None:
            body = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self._answer({"error": "not found"}, 404)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            address = f"http://127.0.0.1:{self.server.server_port}"
            if self.path == "/api/repos/create":
                repository = json.loads(body)
                name = "/".join(filter(None, (repository.get("organization"), repository["name"])))
                (root / name).mkdir(parents=True, exist_ok=True)
                self._answer({"url": f"{address}/{name}", "id": name, "name": name})
            elif self.path == "/api/validate-yaml":
                self._answer({"errors": [], "warnings": []})
            elif "/preupload/" in self.path:
                files = json.loads(body)["files"]
                self._answer(
                    {
                        "files": [
                            {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files
                        ]
                    }
                )
            elif "/commit/" in self.path and not refuse_commits:
                name = self.path.removeprefix("/api/models/").partition("/commit/")[0]
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        file = root / name / line["value"]["path"]
                        file.write_bytes(base64.b64decode(line["value"]["content"]))
                self._answer({"commitUrl": f"{address}/{name}/commit/1", "commitOid": "1", "success": True})
            else:
                self._answer({"error": "read only"}, 403)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
