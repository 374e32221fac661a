"""The page in a real browser: no error, no request, the result's numbers, on a phone, in the dark, on paper."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grown.bench.runner import run
from grown.report import page, page_compare
from test_page import NAMES, hostile_request, hostile_stream

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("browser") / "run"
    with hostile_stream():
        run(hostile_request(where))
    page.write(where)
    return where


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def visit(browser: Any, path: Path, width: int, scheme: str) -> None:
    """Open a page and check that nothing was said, and nothing asked for but the page."""
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get_log("performance")
    browser.get(path.as_uri())
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]


def background(browser: Any) -> str:
    return str(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))


def test_a_run_in_the_browser(browser: Any, folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text())
    seen = set()
    for width, scheme in ((1200, "light"), (360, "dark")):
        visit(browser, folder / "report.html", width, scheme)
        seen.add(background(browser))
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.execute_script("return document.querySelectorAll('script, img').length") == 0
        numbers = browser.execute_script(
            "return [...document.querySelectorAll('data')].map(d => [d.className, Number(d.value), d.textContent])"
        )
        found: dict[str, list[float]] = {}
        for name, value, _ in numbers:
            found.setdefault(name, []).append(value)
        assert found["accuracy"] == [value for row in result["accuracy_matrix"] for value in row]
        assert found["average_accuracy"] == [result["average_accuracy"]]
        assert found["test"] == [row["test"] for row in result["tasks"]]
        assert found["part"] == list(result["bytes"].values())
        texts = {name: text for name, _, text in numbers}
        assert texts["average_accuracy"] == f"{result['average_accuracy']:.2f}%"
        first = browser.execute_script(
            "return [...document.querySelectorAll('#tasks tbody th')].map(t => t.textContent)"
        )
        assert first == list(NAMES)
        # Every plot is there, has a size, and its letters are the page's.
        boxes = browser.execute_script(
            "return [...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect().height)"
        )
        assert len(boxes) == 9
        assert min(boxes) > 60
        ink = browser.execute_script("return getComputedStyle(document.querySelector('svg text')).fill")
        assert ink == browser.execute_script("return getComputedStyle(document.body).color")
    assert len(seen) == 2  # light and dark differ
    paper = browser.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})
    assert base64.b64decode(paper["data"]).startswith(b"%PDF")


def test_several_runs_in_the_browser(browser: Any, folder: Path, tmp_path: Path) -> None:
    result = json.loads((folder / "result.json").read_text())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "result.json").write_text(json.dumps({**result, "method": "scratch"}))
    out = tmp_path / "all.html"
    out.write_text(page_compare.make(page_compare.read([folder, tmp_path / "other"])))
    visit(browser, out, 360, "light")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
    assert browser.execute_script("return document.querySelectorAll('figure svg').length") == 3
