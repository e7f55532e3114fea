"""A local server for downloads, and image files with a folder for their cache."""

import random
from pathlib import Path

import pytest

from helpers.download_server import Server
from helpers.image_files import make_files


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
