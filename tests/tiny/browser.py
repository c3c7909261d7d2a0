"""A report's page as a browser without a window shows it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

FOUND = """
const root = document.documentElement;
const plots = [...document.querySelectorAll(".js-plotly-plot")];
const light = colour => colour.match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + +part, 0) > 382;
return {
  page: root.scrollWidth - root.clientWidth,
  plots: plots.length,
  drawn: document.querySelectorAll(".barlayer .point path, .scatterlayer .trace path").length,
  wider: plots.filter(p => p.querySelector(".main-svg").getBoundingClientRect().right
                          > p.parentElement.getBoundingClientRect().right + 1).length,
  smallest: Math.min(...[...document.querySelectorAll("main *, .js-plotly-plot text")]
                     .filter(e => e.textContent.trim()).map(e => parseFloat(getComputedStyle(e).fontSize))),
  background_is_light: light(getComputedStyle(document.body).backgroundColor),
  text_is_light: light(getComputedStyle(document.querySelector(".xtick text")).fill),
};
"""


@dataclass(frozen=True)
class Found:
    says: list[object]  # on the console
    asked: list[str]  # addresses, the page's own among them
    page: int  # pixels that it is wider than the window
    plots: int
    drawn: int  # bars and lines
    wider: int  # plots that leave their column
    smallest: float  # letters, pixels
    background_is_light: bool
    text_is_light: bool


def start() -> Iterator[Chrome]:
    if not BROWSER or not DRIVER:
        pytest.skip("needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(DRIVER))
    driver.set_script_timeout(300)  # seconds; a busy machine is no failure
    yield driver
    driver.quit()


def read_page(browser: Chrome, file: Path, width: int, scheme: str) -> Found:
    """width: of the window, pixels. scheme: "light" or "dark"."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.get(file.as_uri())
    # Two frames on, sizes have been observed and plots have followed.
    browser.execute_async_script(
        "const f = requestAnimationFrame; f(() => f(() => setTimeout(arguments[0], 100)))"
    )
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    return Found(
        says=browser.get_log("browser"),
        asked=[url for url in asked if not url.startswith("data:")],
        **browser.execute_script(FOUND),
    )
