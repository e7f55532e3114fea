"""Parquet files as the Hugging Face Hub has them, and a local server that the Hub's own client takes for the Hub."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from helpers.download_server import Server
from helpers.small_trees import png

IMAGE = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
COMMIT = "9" * 40


def rows_of(domains: Sequence[str], classes: Sequence[str], per_class: int = 3) -> list[dict[str, Any]]:
    """Rows with the images of `make_tree`, whose names repeat in every class."""
    rows = []
    for domain in domains:
        for name in classes:
            for i in range(per_class):
                image = {"bytes": png((len(rows) + 1) % 256), "path": f"{i:03}.png"}
                rows.append({"image": image, "domain": domain, "label": name})
    return rows


def write_parquet(
    file: Path, rows: list[dict[str, Any]], names: dict[str, list[str]] | None = None, image: Any = IMAGE
) -> Path:
    """Write rows; `names` has the classes of columns, which then hold numbers, as a ClassLabel does."""
    numbered = {column: {name: i for i, name in enumerate(known)} for column, known in (names or {}).items()}
    columns = {
        column: pyarrow.array(
            [numbered[column][row[column]] if column in numbered else row[column] for row in rows],
            image if column == "image" else None,
        )
        for column in rows[0]
    }
    table = pyarrow.table(columns)
    if names:
        features = {column: {"names": known, "_type": "ClassLabel"} for column, known in names.items()}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    file.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, file, row_group_size=5)
    return file


class Hub(Server):
    """Serves the files of one dataset as the Hub does."""

    def __init__(self, repository: str, folder: Path) -> None:
        super().__init__()
        self.repository, self.folder, self.requests = repository, folder, []

    def answer(self, request: Any) -> None:
        path = request.path.split("?")[0].lstrip("/")
        self.requests.append(path)
        names = sorted(file.relative_to(self.folder).as_posix() for file in self.folder.rglob("*") if file.is_file())
        if path.startswith(f"api/datasets/{self.repository}/tree/"):
            sizes = {name: (self.folder / name).stat().st_size for name in names}
            self.send(request, [{"type": "file", "path": n, "size": s, "oid": f"{s:040}"} for n, s in sizes.items()])
        elif path == f"api/datasets/{self.repository}" or path.startswith(f"api/datasets/{self.repository}/revision/"):
            self.send(request, {"id": self.repository, "sha": COMMIT, "siblings": [{"rfilename": n} for n in names]})
        elif (start := f"datasets/{self.repository}/resolve/{COMMIT}/") and path.startswith(start):
            data = (self.folder / path.removeprefix(start)).read_bytes()
            request.send_response(200)
            request.send_header("X-Repo-Commit", COMMIT)
            request.send_header("ETag", f'"{len(data):040}"')
            request.send_header("Content-Length", str(len(data)))
            request.end_headers()
            if request.command == "GET":
                request.wfile.write(data)
        else:
            request.send_response(404)
            request.send_header("X-Error-Code", "RepoNotFound")
            request.send_header("X-Error-Message", "Repository not found")
            request.send_header("Content-Length", "0")
            request.end_headers()

    def send(self, request: Any, content: Any) -> None:
        data = json.dumps(content).encode()
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)
