"""The screen of a browser under test."""

from typing import Any


def emulate(browser: Any, width: int, scheme: str) -> None:
    """Show the page on a screen of this width, with a light or a dark color scheme."""
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
