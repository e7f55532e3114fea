"""A local server for downloads."""

import random

import pytest

from helpers.download_server import Server


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(random, "uniform", lambda low, high: 0)  # gdown's delay before it retries
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()
