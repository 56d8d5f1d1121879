"""Headless Chromium, which opens files without a network."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

__all__ = ["Browser", "open_browser"]


class Browser:
    """A page in a window of any width."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self._driver = driver
        self._scheme = "light"
        self._resize(1440)

    def open(self, path: Path, width: int = 1440, scheme: str = "light") -> None:
        """Open a file; `scheme` is ``light`` or ``dark``."""
        self._scheme = scheme
        self.media("")
        self._resize(width)
        self._log()  # of the page before
        self._driver.get(path.as_uri())

    def media(self, name: str) -> None:
        """Show the page as on paper (``print``), or as on a screen."""
        features = [{"name": "prefers-color-scheme", "value": self._scheme}]
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": name, "features": features})

    def console(self) -> list[str]:
        """What the page wrote to the console since it was opened."""
        return [entry["message"] for entry in self._log()]

    def _log(self) -> list[dict[str, Any]]:
        """Log entries since the last call."""
        found: list[dict[str, Any]] = self._driver.get_log("browser")  # type: ignore[no-untyped-call]
        return found

    def all(self, selector: str) -> list[WebElement]:
        return self._driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self._driver.find_element(By.CSS_SELECTOR, selector)

    def run(self, script: str, *arguments: object) -> Any:
        """The result of JavaScript in the page."""
        return self._driver.execute_script(script, *arguments)

    def screenshot(self, path: Path) -> None:
        """The whole page."""
        width, height = self.run("const r = document.documentElement; return [r.clientWidth, r.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, 16_000), "scale": 1}
        shot = self._driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def _resize(self, width: int) -> None:
        self._driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
        )


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """Start Chromium, and stop it at the end."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert chromium is not None, "chromium is not installed"
    assert driver is not None, "chromium-driver is not installed"
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost", f"--user-data-dir={profile}",
    ):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield Browser(chrome)
    finally:
        chrome.quit()
