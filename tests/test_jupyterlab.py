"""The README's example pasted into a notebook in JupyterLab, in a real browser."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(420)]
README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLE = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "bench(" in block)


@pytest.fixture
def lab(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    notebook = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "cells": [
            {
                "cell_type": "code",
                "id": "one",
                "metadata": {},
                "source": "",
                "outputs": [],
                "execution_count": None,
            }
        ],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    }
    (tmp_path / "try.ipynb").write_text(json.dumps(notebook))
    env = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
        "JUPYTER_DATA_DIR": str(tmp_path / "data"),
    }
    log = open(tmp_path / "lab.log", "w")
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "jupyterlab",
            "--no-browser",
            "--allow-root",
            f"--ServerApp.port={port}",
            "--ServerApp.ip=127.0.0.1",
            "--IdentityProvider.token=",
            "--ServerApp.disable_check_xsrf=True",
            f"--ServerApp.root_dir={tmp_path}",
        ],
        cwd=tmp_path,
        env=env,
        stdout=log,
        stderr=log,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{url}/api/status", timeout=2).read()
                break
            except OSError:
                assert server.poll() is None, (tmp_path / "lab.log").read_text()
                time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait(30)
        log.close()


@pytest.fixture
def browser():
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for a in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=1300,1000",
    ):
        options.add_argument(a)
    options.binary_location = shutil.which("chromium")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def test_the_readme_example_in_jupyterlab(lab, browser, tmp_path):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(f"{lab}/lab/tree/try.ipynb?reset")
    wait = WebDriverWait(browser, 120)
    editor = wait.until(
        lambda d: next(
            (
                e
                for e in d.find_elements(By.CSS_SELECTOR, ".jp-Notebook .jp-CodeCell .cm-content")
                if e.is_displayed()
            ),
            None,
        )
    )
    wait.until(
        lambda d: "Idle" in d.find_element(By.CSS_SELECTOR, "#jp-main-statusbar").text
    )  # the kernel is up
    assert not browser.find_elements(By.CSS_SELECTOR, ".jp-Dialog")  # a missing kernel would ask
    editor.click()
    browser.execute_cdp_cmd("Input.insertText", {"text": EXAMPLE + "results"})
    ActionChains(browser).key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT).perform()
    output = WebDriverWait(browser, 280).until(
        lambda d: next(
            (
                o
                for o in d.find_elements(By.CSS_SELECTOR, ".jp-OutputArea-output")
                if "recall@5" in o.text and o.find_elements(By.TAG_NAME, "table")
            ),
            None,
        )
    )
    browser.save_screenshot(str(tmp_path / "lab.png"))
    text = browser.find_element(By.CSS_SELECTOR, ".jp-Notebook").text
    assert "Error" not in text and "Traceback" not in text
    assert len(output.find_elements(By.CSS_SELECTOR, "tbody tr")) >= 8
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_a_notebook_that_nobody_trusted_still_reads_well(lab, browser, tmp_path, theme):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    from ragbench.chunk.token import TokenChunker
    from ragbench.testing.toy_results import toy_results

    results = toy_results(documents=2)
    chunks = TokenChunker(40, 10)(results.corpus)
    shown = [
        v._repr_html_()
        for v in (
            chunks.show(mark=results.gold),
            chunks.describe(),
            results.gold,
            results.leaderboard(),
            results.budget_curve(),
        )
    ]
    cells = [
        {
            "cell_type": "code",
            "id": f"c{i}",
            "metadata": {},
            "source": f"{i}",
            "execution_count": 1,
            "outputs": [
                {
                    "output_type": "execute_result",
                    "execution_count": 1,
                    "metadata": {},
                    "data": {"text/html": page, "text/plain": ""},
                }
            ],
        }
        for i, page in enumerate(shown)
    ]
    notebook = json.loads((tmp_path / "try.ipynb").read_text()) | {"cells": cells}
    (tmp_path / "theirs.ipynb").write_text(json.dumps(notebook))
    settings = tmp_path / "config" / "lab" / "user-settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "themes.jupyterlab-settings").write_text(json.dumps({"theme": theme}))
    tracker = settings.parent / "notebook-extension"
    tracker.mkdir()
    (tracker / "tracker.jupyterlab-settings").write_text(
        json.dumps({"windowingMode": "none"})
    )  # all cells at once
    browser.get(f"{lab}/lab/tree/theirs.ipynb?reset")
    WebDriverWait(browser, 120).until(
        lambda d: d.find_elements(By.CSS_SELECTOR, ".jp-OutputArea-output table")
    )
    time.sleep(3)
    browser.save_screenshot(str(tmp_path / "untrusted.png"))
    found = browser.execute_script(
        """
      const out = [...document.querySelectorAll('.jp-OutputArea-output')], all = (q) => out.flatMap((o) => [...o.querySelectorAll(q)]);
      return {active: all('style, svg, script').length, chunks: new Set(all('span').map((e) => getComputedStyle(e).backgroundColor)).size,
              bars: all('span').filter((e) => e.title.includes('tokens') && e.getBoundingClientRect().height > 20).length, marks: all('b').filter((e) => getComputedStyle(e).textDecorationLine === 'underline').length,
              text: out.map((o) => o.innerText).join('\\n'), wide: out.filter((o) => o.scrollWidth > o.clientWidth + 1).length};"""  # noqa: E501
    )
    assert found["active"] == 0 and found["chunks"] >= 5 and found["bars"] >= 3 and found["marks"] >= 7
    assert (
        results.budget_curve().alt in found["text"] and "tokens of retrieved text" not in found["text"]
    )  # the sentence, and no heap of axis labels
    assert found["wide"] == 0  # the leaderboard fits beside the open file list at 1,300 pixels
