"""A local server for downloads, and image files with a folder for their cache."""

import random
from pathlib import Path

import huggingface_hub.constants
import pytest

from helpers.download_server import Server
from helpers.image_files import make_files
from helpers.parquet_files import Hub


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(random, "uniform", lambda low, high: 0)  # gdown's delay before it retries
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def root(tmp_path) -> Path:
    return make_files(tmp_path / "data")


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "caches"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The dataset owner/shots at a local server that the Hub's client uses, and a cache of its own."""
    monkeypatch.setenv("SWAD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "at-the-hub"
    folder.mkdir()
    server = Hub("owner/shots", folder)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url.rstrip("/"))
    template = server.url + "{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    yield server
    server.http.shutdown()
    server.http.server_close()
