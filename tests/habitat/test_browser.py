"""The page in a real browser, headless Chromium: signing in, reviewing by keyboard, promoting, on a phone and on a desk."""

import shutil
import socket
import threading
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import uvicorn
from selenium.webdriver import ActionChains, Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service as DriverService
from selenium.webdriver.common.keys import Keys
from sklearn.datasets import load_digits

import wildood
from wildood.data.inputs import InputSpec
from wildood.habitat.answers import Answers
from wildood.habitat.champion import Follower
from wildood.habitat.habitat import Habitat, Settings
from wildood.habitat.metrics import Metrics
from wildood.habitat.server import Service, Serving, build_app

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver: apt-get install chromium chromium-driver"
    ),
]
TOKEN = "a-token-of-many-letters"  # noqa: S105 - of this test only
FLAGS = (
    "--headless", "--hide-scrollbars", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
SCHEMES = ("light", "dark")
# The contrast of each text with what is behind it, where it is below 4.5 (WCAG 2.2, AA).
CONTRAST = """
const parse = text => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = element => {
  for (let each = element; each; each = each.parentElement) {
    const colour = parse(getComputedStyle(each).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
const low = [], seen = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (seen.nextNode()) {
  const element = seen.currentNode.parentElement, text = seen.currentNode.textContent.trim();
  if (!text || !element.checkVisibility() || element.closest("noscript, script, template")) continue;
  const style = getComputedStyle(element);
  const [a, b] = [light(parse(element.closest("svg") ? style.fill : style.color)), light(behind(element))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) low.push(`${text}: ${ratio.toFixed(2)}`);
}
return low;
"""


class Digits:
    """A classifier of the digits 0 to 6 in service, which meets 7s, too."""

    def __init__(self, place):
        data = load_digits()
        x, y = (data.images * 15).astype(np.uint8)[..., None], data.target
        self.rng = np.random.default_rng(0)
        order = self.rng.permutation(np.flatnonzero(y < 7))
        self.known, self.unknown = x[order[600:]], x[y == 7]
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 7))
            optimizer = torch.optim.Adam(model.parameters(), 0.01)
            train, labels = torch.from_numpy(x[order[:400]]).float() / 255, torch.from_numpy(y[order[:400]])
            for _ in range(100):
                optimizer.zero_grad()
                F.cross_entropy(model(train), labels).backward()
                optimizer.step()
        self.detector = wildood.posthoc(model, wildood.EnergyScore(), holdout=x[order[400:600]], input=InputSpec())
        self.habitat = Habitat.create(place, self.detector, Settings())
        self.feed(300)
        self.habitat.add(self.detector, parent="d0001", trained_until=0)

    def feed(self, count):
        some = self.rng.random(count) < 0.2
        drawn = self.rng.choice(self.known, count)
        drawn[some] = self.rng.choice(self.unknown, int(some.sum()))
        x = torch.from_numpy(drawn)
        scores, classes = self.detector.score_and_classify(x)
        known = self.detector.accepts(scores, classes)
        times = time.time() - np.linspace(1800, 0, count)
        self.habitat.store.append(
            Answers(["request"] * count, "d0001", scores, classes, known, self.detector.p_value(x), time=times), x
        )

    def serve(self, listener):
        serving, metrics = Serving(token=TOKEN.encode()), Metrics()
        follower = Follower(
            lambda: self.habitat.champion, lambda _: self.detector, limits=serving.limits, metrics=metrics, poll=0.1
        )
        app = build_app(Service(follower, serving, metrics, habitat=self.habitat))
        server = uvicorn.Server(uvicorn.Config(app, http="h11", ws="none", log_config=None, access_log=False))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        return server, thread


class Browser:
    """Chromium with a fresh profile, driven through its driver."""

    def __init__(self, address, profile):
        options = ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.address = address
        self.driver = Chrome(options=options, service=DriverService(DRIVER))

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def resize(self, width, scheme="light"):
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    def press(self, *keys):
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def tab_to(self, identifier):
        """Press Tab until something has the focus, as a person without a mouse does; what has it must be seen to have it."""
        tab = {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
        for _ in range(80):
            for kind in ("keyDown", "keyUp"):  # faster than through the driver's actions
                self.driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": kind, **tab})
            if self.run("return document.activeElement.id") == identifier:
                style = self.run("return getComputedStyle(document.activeElement).outlineStyle")
                assert style == "solid"
                return
        raise AssertionError(f"the Tab key never reaches {identifier}")

    def look(self):
        """Make the page look now: it does so when it comes into view."""
        self.run("document.dispatchEvent(new Event('visibilitychange'))")

    def wait(self, script, *arguments):
        """Wait until a script gives something true."""
        for _ in range(150):
            if result := self.run(script, *arguments):
                return result
            time.sleep(0.1)
        raise AssertionError(f"never true: {script}")

    def errors(self):
        return [entry for entry in self.driver.get_log("browser") if entry["level"] in {"SEVERE", "WARNING"}]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return Digits(tmp_path_factory.mktemp("habitat") / "digits")


@pytest.fixture(scope="module")
def browser(digits, tmp_path_factory):
    listener = socket.create_server(("127.0.0.1", 0))
    server, thread = digits.serve(listener)
    browser = Browser(f"http://127.0.0.1:{listener.getsockname()[1]}/", tmp_path_factory.mktemp("profile"))
    try:
        yield browser
    finally:
        browser.driver.quit()
        server.should_exit = True
        thread.join()
        listener.close()


def test_the_page_in_a_browser(browser, digits):
    """One visit: each step needs the one before."""
    sign_in(browser)
    assert_fits(browser)
    review_by_keyboard(browser, digits)
    keep_the_dialog_while_the_page_changes(browser, digits)
    promote(browser, digits)
    assert browser.errors() == []


def sign_in(browser):
    browser.resize(390)
    browser.driver.get(browser.address)
    assert browser.run("return location.pathname") == "/page/sign-in"
    assert browser.run("return document.activeElement.id") == "token"
    browser.press(TOKEN, Keys.ENTER)
    browser.wait("return location.pathname === '/' && document.readyState === 'complete'")
    assert browser.run("return document.cookie") == ""  # scripts cannot read it


def assert_fits(browser):
    for width in (390, 1200):
        for scheme in SCHEMES:
            browser.resize(width, scheme)
            assert browser.wait("return innerWidth === arguments[0]", width)
            assert browser.run("return document.documentElement.scrollWidth") == width
            assert browser.run(CONTRAST) == []
    assert browser.run(
        "return [...document.querySelectorAll('svg')].every(each => each.getBoundingClientRect().height > 50)"
    )
    assert browser.run("return document.querySelectorAll('svg').length") == 3
    browser.wait("return document.querySelector('#card img').naturalWidth === 8")
    small = "return [...document.querySelectorAll('button')].filter(b => b.checkVisibility() && b.offsetHeight < 24).length"
    assert browser.run(small) == 0


def review_by_keyboard(browser, digits):
    answer = "const card = document.querySelector('#card [data-answer]'); return card && Number(card.dataset.answer)"
    first = browser.run(answer)
    browser.tab_to("class-3")
    browser.press(Keys.ENTER)  # without a name, nothing is recorded
    assert browser.wait("return document.activeElement.id === 'who'")
    assert not len(digits.habitat.store.judged())
    browser.press("ann")
    browser.tab_to("class-3")
    browser.press(Keys.ENTER)
    second = browser.wait(f"{answer} !== arguments[0] && Number(card.dataset.answer)", first)
    assert browser.run("return document.activeElement.id") == "class-3"  # the focus stays where the hands are
    assert browser.run("return document.getElementById('said').textContent").startswith(f"Answer {first} is recorded as 3")
    browser.press("u")
    third = browser.wait(f"{answer} !== arguments[0] && Number(card.dataset.answer)", second)
    browser.press("s")
    browser.wait(f"{answer} !== arguments[0] && Number(card.dataset.answer)", third)
    judged = digits.habitat.store.judged()
    assert dict(zip(judged.answer.tolist(), judged.class_.tolist(), strict=True)) == {first: 3, second: -1}
    assert judged.who.tolist() == ["ann", "ann"]


def keep_the_dialog_while_the_page_changes(browser, digits):
    browser.tab_to("promote")
    browser.press(Keys.ENTER)
    assert browser.wait("return document.getElementById('ask').open")
    assert "It was not compared with d0001" in browser.run("return document.getElementById('ask').innerText")
    browser.tab_to("why")
    browser.press("a reason")
    digits.feed(40)
    time.sleep(1)  # for so long, the server remembers the figures
    browser.look()
    browser.wait("return document.getElementById('next').innerText.includes('340')")
    assert browser.run("return document.activeElement.id") == "why"
    assert browser.run("return document.getElementById('why').value") == "a reason"
    browser.press(Keys.ESCAPE)
    assert browser.wait("return !document.getElementById('ask').open")
    assert digits.habitat.champion == "d0001"


def promote(browser, digits):
    browser.run("document.getElementById('promote').click()")
    browser.wait("return document.getElementById('ask').open")
    submit = "document.querySelector('#ask button[type=submit]').click()"
    browser.run(submit)  # without a reason
    assert browser.run("return document.getElementById('ask').open")
    browser.run("document.getElementById('why').focus()")
    browser.press("it knows the 7s", Keys.TAB, Keys.ENTER)
    browser.wait("return document.getElementById('history').innerText.includes('it knows the 7s')")
    last = digits.habitat.promotions()[-1]
    assert (last.detector, last.who, last.why, last.forced) == ("d0002", "ann", "it knows the 7s", True)
    time.sleep(0.3)  # until the server has loaded it
    browser.look()
    browser.wait("return document.getElementById('challenger').innerText.includes('d0002 has no challenger')")
