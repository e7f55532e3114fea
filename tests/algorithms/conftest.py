from __future__ import annotations

import dataclasses

import pytest

from swad.data import benchmarks


@pytest.fixture(scope="session")
def few_digits():
    whole = benchmarks.load("digits")
    domains = [dataclasses.replace(one, labels=one.labels[:40], images=one.images[:40]) for one in whole.domains]
    return dataclasses.replace(whole, domains=tuple(domains))


@pytest.fixture
def few(monkeypatch, few_digits):
    """Make runs use few images of the digits, so that evaluations are fast."""
    monkeypatch.setattr(benchmarks, "load", lambda *args, **options: few_digits)
