"""The report in a real browser: light and dark, wide and narrow, by keyboard, with the network watched."""

import base64
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ragbench.bench.results import Results
from ragbench.testing.toy_results import toy_results

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

# Every element with text of its own: its colour and what lies behind it, composited, as WCAG sees them.
CONTRAST = """
const canvas = document.createElement('canvas'); canvas.width = canvas.height = 1;
const pen = canvas.getContext('2d', {willReadFrequently: true});
const rgba = (c) => { pen.clearRect(0, 0, 1, 1); pen.fillStyle = c; pen.fillRect(0, 0, 1, 1); return [...pen.getImageData(0, 0, 1, 1).data].map((v) => v / 255); };
const over = (top, below) => top.slice(0, 3).map((v, i) => v * top[3] + below[i] * (1 - top[3]));
const light = (c) => c.map((v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4).reduce((t, v, i) => t + v * [.2126, .7152, .0722][i], 0);
const behind = (e) => { const chain = []; for (; e; e = e.parentElement) chain.push(rgba(getComputedStyle(e).backgroundColor)); return chain.reverse().reduce((b, c) => over(c, b), [1, 1, 1]); };
const bad = []; let seen = 0;
for (const e of document.querySelectorAll('body *')) {
  if (!e.checkVisibility() || e.closest('script, style, .unseen, :disabled')) continue;
  if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
  const style = getComputedStyle(e), svg = e.closest('svg') && e.tagName !== 'title' && e.tagName !== 'desc';
  if (e.closest('svg') && !svg) continue;
  const back = behind(svg ? e.closest('figure') : e), text = over(rgba(svg ? style.fill : style.color), back);
  const [low, high] = [light(text), light(back)].sort((a, b) => a - b), ratio = (high + .05) / (low + .05);
  const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
  seen++;
  if (ratio < (large ? 3 : 4.5)) bad.push([e.tagName, e.className, e.textContent.trim().slice(0, 40), ratio.toFixed(2)]);
}
return [seen, bad.slice(0, 10)];
"""  # noqa: E501


def start(width: int = 1280, height: int = 900, scheme: str = "light", scripts: bool = True):
    """Headless Chromium of this size that prefers this colour scheme."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = shutil.which("chromium")
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        f"--window-size={width},{height}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripts})
    return driver


def picture(driver, path: Path) -> None:
    """The whole page, not only what fits the window."""
    taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "format": "png"})
    path.write_bytes(base64.b64decode(taken["data"]))


def requests(driver) -> list[str]:
    """What the page asked for, other than itself and data it carries."""
    events = [json.loads(e["message"])["message"] for e in driver.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return [u for u in urls if not u.startswith(("data:", "about:")) and not u.endswith("report.html")]


@pytest.fixture(scope="module", autouse=True)
def browser_is_there():
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.fail(
            "chromium and chromedriver are not installed: make test-system installs them, or apt-get install"
            " chromium chromium-driver"
        )


@pytest.fixture(scope="module")
def results() -> Results:
    toy = toy_results()
    gold = replace(
        toy.gold,
        query_list=tuple(
            q._replace(text=q.text + " 🔧 <b>&") if i == 3 else q for i, q in enumerate(toy.gold.query_list)
        ),
    )
    return replace(toy, gold=gold)


@pytest.fixture(scope="module")
def page(results, tmp_path_factory) -> Path:
    return results.report(tmp_path_factory.mktemp("browser") / "report.html")


@pytest.fixture
def opened(page, request):
    """A driver with the report open; parameters as for `start`."""
    driver = start(**getattr(request, "param", {}))
    try:
        driver.get(page.as_uri())
        yield driver
        complaints = [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        assert complaints == []
        assert requests(driver) == []
    finally:
        driver.quit()


def find(driver, selector: str):
    from selenium.webdriver.common.by import By

    return driver.find_elements(By.CSS_SELECTOR, selector)


def visible_questions(driver) -> list[str]:
    return [
        r.find_element("css selector", "small").text
        for r in find(driver, "#grid tbody tr")
        if r.is_displayed()
    ]


VIEWS = [{"width": w, "scheme": s} for w in (1280, 400) for s in ("light", "dark")]


@pytest.mark.parametrize("opened", VIEWS, indirect=True, ids=lambda v: f"{v['scheme']}-{v['width']}")
def test_it_reads_in_every_view(opened, tmp_path, request):
    view = request.node.callspec.params["opened"]
    picture(opened, tmp_path / f"{view['scheme']}-{view['width']}.png")
    assert opened.execute_script("return document.documentElement.scrollWidth") <= view["width"]
    background = opened.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[view["scheme"]]
    seen, bad = opened.execute_script(CONTRAST)
    assert seen > 600
    assert bad == []
    opened.execute_script("document.querySelector('button[data-open]').click()")
    seen, bad = opened.execute_script(CONTRAST)
    assert bad == []
    picture(opened, tmp_path / f"{view['scheme']}-{view['width']}-question.png")


def test_the_contrast_check_can_fail(opened):
    opened.execute_script("document.querySelector('h1').style.color = '#cccccc'")
    assert [b[0] for b in opened.execute_script(CONTRAST)[1]] == ["H1"]


def test_theme_button(opened):
    def colour():
        return opened.execute_script("return getComputedStyle(document.body).backgroundColor")

    (button,) = find(opened, "#theme")
    seen = []
    for _ in range(3):
        button.click()
        seen.append((button.text, colour()))
    assert seen == [
        ("Theme: light", "rgb(255, 255, 255)"),
        ("Theme: dark", "rgb(20, 23, 27)"),
        ("Theme: auto", "rgb(255, 255, 255)"),
    ]


def test_filter_search_and_metric(opened, results):
    from selenium.webdriver.support.ui import Select

    (count,) = find(opened, "#count")
    assert count.text == f"{results.n} of {results.n} questions"
    Select(find(opened, "#tag")[0]).select_by_visible_text("identifier")
    tagged = [q.query_id for q in results.gold.answerable if "identifier" in q.tags]
    assert visible_questions(opened) == tagged
    find(opened, "#find")[0].send_keys("PUMP pressure")
    wanted = [
        q.query_id
        for q in results.gold.answerable
        if q.query_id in tagged and "pump" in q.text and "pressure" in q.text
    ]
    assert visible_questions(opened) == wanted
    assert count.text == f"{len(wanted)} of {results.n} questions"
    Select(find(opened, "#metric")[0]).select_by_visible_text("mrr")
    first = results.leaderboard().frame["system"].iloc[0]
    shown = float(find(opened, "#grid tfoot td")[0].text)
    assert shown == pytest.approx(results.per_query("mrr").loc[wanted, first].mean(), abs=5.1e-4)


def test_sort_by_a_system(opened, results):
    last = results.leaderboard().frame["system"].iloc[-1]
    heads = find(opened, "#grid thead button")
    for order in ("descending", "ascending"):
        opened.execute_script("arguments[0].click()", heads[-1])
        scores = results.per_query()[last][visible_questions(opened)].to_numpy()
        assert (scores.tolist()) == sorted(scores.tolist(), reverse=order == "descending")
        assert find(opened, "#grid thead th")[-1].get_attribute("aria-sort") == order
    opened.execute_script("arguments[0].click()", heads[0])
    assert visible_questions(opened) == [q.query_id for q in results.gold.answerable]


def test_a_question_by_keyboard(opened, results):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    button = find(opened, "#grid tbody button[data-open='3']")[0]
    opened.execute_script("arguments[0].focus()", button)
    button.send_keys(Keys.ENTER)
    (dialog,) = find(opened, "dialog[open]")
    asked = results.gold.query_list[3]
    assert (
        dialog.find_element("css selector", "h2").text == asked.text
    )  # angle brackets and a wrench included
    (e,) = results.gold.by_query[asked.query_id]
    evidence = results.corpus[e.doc_id].text[e.start : e.end]
    assert dialog.find_element("css selector", "blockquote p").text == evidence
    system = results[results.leaderboard().frame["system"].iloc[0]]
    marks = [m.text for m in dialog.find_elements("css selector", "details[open] mark")]
    assert marks
    assert all(m in evidence for m in marks)
    passages = opened.execute_script(
        "return [...document.querySelectorAll('details[open] .passage p')].map((p) => p.textContent)"
    )
    assert passages == [system.chunks.text(int(i)) for i in system.run.of(3)[:5]]
    ActionChains(opened).send_keys(Keys.ARROW_RIGHT).perform()
    assert find(opened, "dialog h2")[0].text == results.gold.query_list[4].text
    ActionChains(opened).send_keys(Keys.ESCAPE).perform()
    assert find(opened, "dialog[open]") == []


def test_unanswerable_questions_open_too(opened, results):
    lost = results.gold.unanswerable[0]
    button = next(b for b in find(opened, "button[data-open]") if b.text == "look")
    opened.execute_script("arguments[0].click()", button)
    (dialog,) = find(opened, "dialog[open]")
    assert lost.text in dialog.text
    assert "No document answers this question" in dialog.text
    assert dialog.find_elements("css selector", "mark") == []


@pytest.mark.parametrize("opened", [{"scripts": False}], indirect=True, ids=["no-scripts"])
def test_without_scripts_the_tables_stand(opened, results):
    assert len([r for r in find(opened, "#grid tbody tr") if r.is_displayed()]) == results.n
    assert not find(opened, "#theme")[0].is_displayed()
    assert "need JavaScript" in find(opened, "noscript")[0].text


def test_it_prints(opened, tmp_path):
    pdf = base64.b64decode(
        opened.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "landscape": True})["data"]
    )
    (tmp_path / "report.pdf").write_bytes(pdf)
    import pymupdf

    with pymupdf.open(stream=pdf) as doc:
        text = " ".join(p.get_text() for p in doc)
        pages = doc.page_count
    assert "Leaderboard by recall@5" in text
    assert "Theme:" not in text
    assert "q42" in text
    assert pages < 30


def test_markup_in_documents_is_text(results, tmp_path):
    """The attack of test_report, where it would have to work: in a browser."""
    evil = "</script><img src=x onerror=\"document.title='owned'\">"
    documents = [replace(d, text=evil + d.text[len(evil) :]) for d in results.corpus]
    corpus = replace(results.corpus, documents=documents)
    gold = replace(
        results.gold,
        query_list=tuple(
            q._replace(text=q.text + evil, tags=(evil,), answer=evil) for q in results.gold.query_list
        ),
    )
    systems = [
        replace(s, name=s.name + evil, ranking=replace(s.ranking, chunks=replace(s.chunks, corpus=corpus)))
        for s in results.systems
    ]
    attacked = replace(results, corpus=corpus, gold=gold, systems=systems, latency_ms={})
    driver = start()
    try:
        driver.get(attacked.report(tmp_path / "report.html").as_uri())
        for i in range(3):
            driver.execute_script(f"document.querySelector('button[data-open=\"{i}\"]').click()")
            driver.execute_script(
                "document.querySelectorAll('dialog details').forEach((d) => { d.open = true; })"
            )
        assert find(driver, "dialog h2")[0].text.endswith(evil)
        assert find(driver, "img") == []
        assert driver.title == "Which system finds the evidence?"
        assert requests(driver) == []
    finally:
        driver.quit()
