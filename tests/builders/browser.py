"""A headless Chromium with a profile of its own, in the size and colour scheme that a test wants."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM = Path("/usr/bin/chromium")
CHROMEDRIVER = Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WAIT_SECONDS = 15.0


class Browser:
    """What a person does with the pages, and what the browser complains of."""

    def __init__(self, driver: webdriver.Chrome, base_url: str) -> None:
        self.driver = driver
        self._base_url = base_url

    def open(self, path: str) -> None:
        self.driver.get(f"{self._base_url}{path}")

    def type(self, field: str, text: str) -> None:
        self.driver.find_element(By.ID, field).send_keys(text)

    def press(self, label: str) -> None:
        """Clicks the button or link that reads so."""
        wanted = json.dumps(label)
        path = f"//button[normalize-space()={wanted}] | //a[normalize-space()={wanted}]"
        self.driver.find_element(By.XPATH, path).click()

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def until_it_shows(self, text: str) -> None:
        """Waits until the page shows a text."""
        self._wait().until(lambda _: text in self.text(), f"the page does not show {text!r}")

    def until(self, script: str) -> None:
        """Waits until an expression in the page is true."""
        self._wait().until(lambda _: self.driver.execute_script(f"return {script}"), script)

    def text(self) -> str:
        """All that the page shows."""
        return str(self.driver.execute_script("return document.body.innerText"))

    def resize(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Makes the page this wide, in CSS pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._command("Emulation.setDeviceMetricsOverride", metrics)
        self._command("Emulation.setEmulatedMedia", {"features": [scheme]})

    def scrolls_sideways(self) -> bool:
        """Whether the page is wider than its window."""
        return bool(
            self.driver.execute_script(
                "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
            )
        )

    def complaints(self) -> list[str]:
        """Errors and policy violations since the last call, but not of answers that a test provoked."""
        entries: list[dict[str, Any]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries if entry["source"] != "network"]

    def _command(self, name: str, parameters: dict[str, Any]) -> None:
        self.driver.execute_cdp_cmd(name, parameters)

    def _wait(self) -> WebDriverWait[webdriver.Chrome]:
        return WebDriverWait(self.driver, WAIT_SECONDS)


@contextmanager
def chromium(base_url: str, profile: Path) -> Iterator[Browser]:
    """A browser that ends with the block."""
    options = Options()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(CHROMEDRIVER)))
    try:
        yield Browser(driver, base_url)
    finally:
        driver.quit()
