"""`swad doctor`."""

from __future__ import annotations


def test_doctor_shows_versions_and_devices(here):
    text = here("doctor").stdout
    assert "torch" in text
    assert "ms per update" in text
