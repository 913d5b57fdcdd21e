"""The page shows what the habitat says, lets in who has the token, escapes what others wrote, and records who did what."""

import io
import json
import re
from html import unescape

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.applications import Starlette
from starlette.testclient import TestClient

import wildood
from wildood.data.inputs import InputSpec
from wildood.habitat.answers import Answers
from wildood.habitat.champion import Follower
from wildood.habitat.comparison_log import record_comparison
from wildood.habitat.dashboard import Dashboard
from wildood.habitat.habitat import Habitat, Settings
from wildood.habitat.judged import is_random
from wildood.habitat.metrics import Metrics
from wildood.habitat.overview import Remembered
from wildood.habitat.server import Service, Serving, build_app

TOKEN = "a-token-of-many-letters"  # noqa: S105 - of this test only
HOSTILE = "<script>alert(1)</script>\"'&"
RNG = np.random.default_rng(0)
NOW = 1000 * 86_400.0 + 7200


def images(count):
    return RNG.integers(0, 256, size=(count, 4, 4, 1)).astype(np.uint8)


def detector_of(seed=0, classes=(HOSTILE, "cat", "dog")):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, len(classes)))
    detector = wildood.posthoc(model, wildood.EnergyScore(), holdout=images(80), input=InputSpec(), alpha=0.1)
    detector.record["classes"] = list(classes)
    return detector


@pytest.fixture(scope="module")
def detector():
    return detector_of()


@pytest.fixture
def habitat(tmp_path, detector, clock):
    clock.now = NOW - 3000
    return Habitat.create(tmp_path / "h", detector, Settings(), who="bob", clock=clock)


@pytest.fixture
def open_page(habitat, detector):
    """Opens the app, by default without a token; closes it at the end."""
    clients = []

    def opened(token=None, detectors=None):
        serving, metrics = Serving(token=token and token.encode()), Metrics()
        load = (detectors or {}).get
        follower = Follower(lambda: habitat.champion, lambda name: load(name) or detector, limits=serving.limits,
                            metrics=metrics, poll=0.02)  # fmt: skip
        client = TestClient(build_app(Service(follower, serving, metrics, habitat=habitat)), follow_redirects=False)
        clients.append(client.__enter__())
        return client

    yield opened
    for client in clients:
        client.__exit__(None, None, None)


def feed(habitat, detector, count=60, request="r"):
    x = torch.from_numpy(images(count))
    scores, classes = detector.score_and_classify(x)
    times = habitat.clock.now + np.arange(1, count + 1)
    habitat.clock.now = float(times[-1])
    known = detector.accepts(scores, classes)
    habitat.store.append(
        Answers([request] * count, habitat.champion, scores, classes, known, detector.p_value(x), time=times), x
    )
    return x


def compared(habitat, *, separated):
    record = {"later": 500, "start": 0.9, "trained": 0.7, "error": 0.02, "separated": separated, "look": 1,
              "says": f"d0002 accepts less {HOSTILE}", "caveat": ""}  # fmt: skip
    with habitat.store.index.writing() as index:
        record_comparison(index, habitat.clock(), "d0001", "d0002", record)


def parts(client, **query):
    response = client.get("/page/parts", params=query)
    assert response.status_code == 200, response.text
    return {name: part["html"] for name, part in response.json()["parts"].items()}


def plain(html):
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


# --- content --------------------------------------------------------------------------------------------------------------


def test_a_new_habitat_says_what_to_do(open_page):
    client = open_page()
    page = client.get("/")
    assert page.status_code == 200
    says = plain(page.text)
    for hint in (
        "Nothing to do now – there is no traffic yet", "Send examples to POST /predict", "Nothing to review",
        "No recorded examples yet", "d0001 has no challenger", "wildood habitat refresh",
    ):  # fmt: skip
        assert hint in says, hint


def test_commands_name_the_model_where_one_is_needed(habitat, detector):
    served = served_of(detector)
    for model, ends in ((None, "refresh h"), ("my models:build", "refresh h --model 'my models:build'")):
        with TestClient(build_app_of(Dashboard(habitat, lambda: served, model=model))) as client:
            shown = unescape(plain(parts(client)["challenger"]))
        assert ends.replace("refresh h", f"wildood habitat refresh {habitat.path}") in shown
        assert ("--model" in shown) == (model is not None)


def test_the_page_shows_traffic_promise_and_history(open_page, habitat, detector):
    x = feed(habitat, detector, 400)
    client = open_page()
    shown = parts(client)
    unknown = int((detector.predict(x) < 0).sum())
    assert f"{100 * unknown / 400:.1f} % of 400 answers said “unknown”" in plain(shown["traffic"])
    assert shown["traffic"].count("<svg") == 3
    assert "400" in plain(shown["next"])
    assert "≤ 10 %" in plain(shown["next"])
    assert "80 known examples" in plain(shown["promise"])
    assert "the first detector" in plain(shown["history"])
    assert "bob" in plain(shown["history"])
    page = client.get("/").text
    for html in shown.values():
        assert html.strip() in page


def test_examples_are_pictures_of_their_pixels(open_page, habitat, detector):
    x = feed(habitat, detector)
    client = open_page()
    addresses = re.findall(r'src="(/page/example/(\d+)\.png[^"]*)"', parts(client)["galleries"])
    assert len(addresses) == 24
    for address, answer in addresses[:3]:
        response = client.get(address)
        assert response.headers["content-type"] == "image/png"
        assert "private" in response.headers["cache-control"]
        with Image.open(io.BytesIO(response.content)) as image:
            assert np.array_equal(np.asarray(image), x[int(answer) - 1, ..., 0].numpy())
    assert client.get("/page/example/4000.png").status_code == 404
    assert client.get(f"/page/example/{10**30}.png").status_code == 404


def test_numbers_are_shown_where_there_are_no_pictures(tmp_path, clock):
    x = RNG.normal(size=(60, 3)).astype("float32")
    detector = wildood.posthoc(torch.nn.Linear(3, 20), wildood.EnergyScore(), holdout=x, alpha=0.1)
    habitat = Habitat.create(tmp_path / "h", detector, clock=clock)
    scores, classes = detector.score_and_classify(x)
    habitat.store.append(Answers(["r"] * 60, "d0001", scores, classes, scores < 0, scores), torch.from_numpy(x))
    serving, metrics = Serving(), Metrics()
    follower = Follower(lambda: "d0001", lambda _: detector, limits=serving.limits, metrics=metrics)
    with TestClient(build_app(Service(follower, serving, metrics, habitat=habitat))) as client:
        shown = parts(client)
        assert f"{x[59, 0]:.4g}, {x[59, 1]:.4g}, {x[59, 2]:.4g}" in plain(shown["galleries"])
        assert "<img" not in shown["galleries"]
        assert shown["card"].count("<option") == 20
        assert client.get("/page/example/1.png").status_code == 404


def served_alone(place, detector, x, clock):
    """A client of the page of a new habitat with some answers."""
    habitat = Habitat.create(place, detector, clock=clock)
    scores, classes = detector.score_and_classify(x)
    known = detector.accepts(scores, classes)
    habitat.store.append(Answers(["r"] * len(x), "d0001", scores, classes, known, np.full(len(x), np.nan)), x)
    return TestClient(build_app_of(Dashboard(habitat, lambda: served_of(detector))))


def test_a_detector_without_a_promise_says_so(tmp_path, clock):
    x, y = images(200), RNG.integers(0, 3, 200)
    detector = detector_of(0)
    model = detector.classifier.model
    unpromised = wildood.posthoc(model, wildood.EnergyScore(), labelled=(x, y), input=InputSpec())
    with served_alone(tmp_path / "h", unpromised, torch.from_numpy(images(60)), clock) as client:
        shown = {name: plain(html) for name, html in parts(client).items()}
    assert "no promise" in shown["next"]
    assert "Nothing is promised" in shown["promise"]
    assert "not tested" in shown["traffic"]


def test_thresholds_of_each_class_are_drawn_as_one(tmp_path, clock):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[1.0], [-1.0]]) * torch.tensor([1.0, -1.0] * 8))
        model[1].bias.zero_()
    settings = {"holdout": images(400), "input": InputSpec(), "alpha": 0.1, "by_class": True}
    detector = wildood.posthoc(model, wildood.EnergyScore(), **settings)
    assert detector.class_thresholds is not None
    with served_alone(tmp_path / "h", detector, torch.from_numpy(images(60)), clock) as client:
        assert "score - threshold of the predicted class" in plain(parts(client)["traffic"])


def test_what_others_wrote_is_escaped_everywhere(open_page, habitat, detector):
    feed(habitat, detector, 200, request=HOSTILE)
    habitat.add(detector, parent="d0001", trained_until=0)
    compared(habitat, separated=True)
    client = open_page()
    body = {"answer": 1, "class_": 0, "who": HOSTILE}
    assert client.post("/page/review", json=body).status_code == 200
    decision = {"detector": "d0002", "against": "d0001", "who": HOSTILE, "why": HOSTILE, "force": False}
    texts = [client.get("/").text]
    assert client.post("/page/promote", json=decision).status_code == 200
    texts.append(client.get("/?span=<script>alert(1)</script>&at=<script>&skip=<script>").text)
    for text in texts:
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert re.findall(r"<script[^>]*>", texts[0]) == re.findall(r'<script src="/page/script.js\?\w+" defer>', texts[0])


def test_a_part_has_the_same_version_until_it_changes(open_page, habitat, detector, monkeypatch):
    # However slow the machine is: a status that took long is kept for a while.
    monkeypatch.setattr(Remembered, "_took", property(lambda _: 0.0, lambda *_: None), raising=False)
    feed(habitat, detector)
    client = open_page()
    first, second = (client.get("/page/parts").json()["parts"] for _ in range(2))
    assert first == second
    assert client.post("/page/review", json={"answer": 1, "class_": None, "who": "ann"}).status_code == 200
    third = client.get("/page/parts").json()["parts"]
    assert third["promise"]["version"] != first["promise"]["version"]
    assert third["history"] == first["history"]


# --- review ---------------------------------------------------------------------------------------------------------------


def test_a_judgement_is_recorded_with_its_author_and_the_next_answer_follows(open_page, habitat, detector):
    feed(habitat, detector)
    client = open_page()
    first = int(re.search(r'data-answer="(\d+)"', parts(client)["card"])[1])
    said = client.post("/page/review", json={"answer": first, "class_": 1, "who": "  ann  "}).json()
    assert said == {"says": f"Answer {first} is recorded as cat.", "answer": first}
    judged = habitat.store.judged()
    assert (judged.answer.tolist(), judged.class_.tolist(), judged.who.tolist()) == ([first], [1], ["ann"])
    second = int(re.search(r'data-answer="(\d+)"', parts(client)["card"])[1])
    assert second != first
    assert "Judged cat." in plain(parts(client, at=first)["card"])
    assert client.post("/page/review", json={"answer": first, "class_": None, "who": "bob"}).status_code == 200
    assert habitat.store.judged().class_.tolist() == [-1]
    assert int(re.search(r'data-answer="(\d+)"', parts(client, skip=str(second))["card"])[1]) not in {first, second}


def test_an_answer_of_the_random_sample_cannot_be_picked_for_its_score(open_page, habitat, detector):
    feed(habitat, detector, 400)
    client = open_page()
    shown = parts(client)
    waiting = {int(each) for each in re.findall(r"\d+", str(habitat.review(model=detector.classifier.model).random))}
    picked = [int(each) for each in re.findall(r'data-pick="(\d+)"', shown["galleries"])]
    assert picked
    assert not is_random(picked).any()
    hidden = next(each for each in range(1, 400) if is_random(each) and each not in waiting)
    assert f'data-answer="{hidden}"' not in parts(client, at=hidden)["card"]
    assert f'data-answer="{picked[0]}"' in parts(client, at=picked[0])["card"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"class_": 3}, "there is no class 3: give 0 to 2, or null for unknown"),
        ({"class_": "cat"}, "class_"),
        ({"class_": -1}, "class_"),
        ({"answer": 4000}, "no example, such as answer 4000"),
        ({"answer": "1"}, "answer"),
        ({"who": "  "}, "your name"),
        ({"who": "x" * 101}, "your name"),
        ({"other": 1}, "other"),
    ],
)
def test_a_wrong_judgement_is_refused_in_one_line(open_page, habitat, detector, change, says):
    feed(habitat, detector)
    response = open_page().post("/page/review", json={"answer": 1, "class_": 0, "who": "ann"} | change)
    assert response.status_code == 400
    assert says in response.json()["error"]
    assert not len(habitat.store.judged())


# --- promotion ------------------------------------------------------------------------------------------------------------


def test_a_better_challenger_is_promoted_and_the_server_follows(open_page, habitat, detector):
    feed(habitat, detector)
    challenger = detector_of(1)
    habitat.add(challenger, parent="d0001", trained_until=0)
    compared(habitat, separated=True)
    client = open_page(detectors={"d0002": challenger})
    shown = parts(client)["challenger"]
    assert "d0002 may replace d0001" in plain(shown)
    assert "The difference is more than chance explains" in plain(shown)
    assert "90.0 %" in plain(shown)
    assert 'maxlength="1000" required' not in shown
    body = {"detector": "d0002", "against": "d0001", "who": "ann", "why": "it is better", "force": False}
    assert client.post("/page/promote", json=body).status_code == 200
    last = habitat.promotions()[-1]
    assert (last.detector, last.former, last.who, last.why, last.forced) == ("d0002", "d0001", "ann", "it is better", False)
    assert last.evidence["trained"] == 0.7
    for _ in range(200):
        if "Go back to d0001" in plain(parts(client)["history"]):
            break
    shown = parts(client)
    assert "d0002 has no challenger" in plain(shown["challenger"])
    back = {"detector": "d0001", "against": "d0002", "who": "ann", "why": "", "force": False}
    assert client.post("/page/promote", json=back).status_code == 200
    assert habitat.champion == "d0001"


def test_a_challenger_without_evidence_needs_force_and_a_reason(open_page, habitat, detector):
    feed(habitat, detector)
    habitat.add(detector, parent="d0001", trained_until=0)
    client = open_page()
    shown = parts(client)["challenger"]
    assert "It was not compared with d0001" in plain(shown)
    assert 'maxlength="1000" required' in shown
    body = {"detector": "d0002", "against": "d0001", "who": "ann", "why": "", "force": False}
    assert "nothing says that d0002 is better" in client.post("/page/promote", json=body).json()["error"]
    assert "needs a reason" in client.post("/page/promote", json=body | {"force": True}).json()["error"]
    assert habitat.champion == "d0001"
    assert client.post("/page/promote", json=body | {"force": True, "why": "I know"}).status_code == 200
    assert habitat.promotions()[-1].forced
    assert "I know: by force" in plain(parts(open_page())["history"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"detector": "d0009"}, "there is no detector"),
        ({"detector": "../d0001"}, "there is no detector"),
        ({"against": "d0002"}, "the champion is d0001 now"),
        ({"who": ""}, "your name"),
        ({"why": "x" * 1001}, "a reason"),
        ({"force": 1}, "force"),
    ],
)
def test_a_wrong_promotion_changes_nothing(open_page, habitat, detector, change, says):
    habitat.add(detector, parent="d0001", trained_until=0)
    body = {"detector": "d0002", "against": "d0001", "who": "ann", "why": "", "force": False}
    response = open_page().post("/page/promote", json=body | change)
    assert response.status_code == 400
    assert says in response.json()["error"]
    assert len(habitat.promotions()) == 1


def test_until_a_champion_is_loaded_the_page_is_about_the_one_that_answers(open_page, habitat, detector):
    feed(habitat, detector)
    client = open_page()
    assert "d0001 for" in plain(parts(client)["next"])
    habitat.add(detector, parent="d0001", trained_until=0)
    dashboard = Dashboard(habitat, lambda: served_of(detector))
    with TestClient(build_app_of(dashboard)) as other:
        parts(other)
        habitat.promote("d0002", who="ann", why="because", force=True)
        assert "until d0002 is loaded" in plain(parts(other)["next"])


def served_of(detector):
    """What a follower has loaded."""
    return type("Served", (), {"id": "d0001", "detector": detector, "names": ["a", "b", "c"]})


def build_app_of(dashboard):
    return Starlette(routes=dashboard.routes())


# --- access ---------------------------------------------------------------------------------------------------------------


def sign_in(client, token=TOKEN, origin="http://testserver"):
    return client.post("/page/sign-in", data={"token": token}, headers={"origin": origin})


def test_nothing_but_the_form_is_shown_without_the_token(open_page, habitat, detector):
    feed(habitat, detector)
    client = open_page(TOKEN)
    redirect = client.get("/", headers={"accept": "text/html"})
    assert (redirect.status_code, redirect.headers["location"]) == (303, "/page/sign-in")
    assert client.get("/").status_code == 401
    assert client.get("/", headers={"accept": "text/html", "authorization": "Bearer wrong"}).status_code == 401
    form = client.get("/page/sign-in")
    assert 'type="password"' in form.text
    assert "h" not in re.findall(r"habitat", form.text)
    is_open = {"/page/sign-in", "/page/style.css", "/page/script.js", "/page/sign-out", "/"}
    routes = [route for route in Dashboard(habitat, lambda: None, TOKEN.encode()).routes() if route.path not in is_open]
    assert len(routes) == 4
    for route in routes:
        for method in route.methods - {"HEAD"}:
            path = route.path.replace("{answer:int}", "1")
            assert client.request(method, path, json={}).status_code == 401, path


def test_signing_in_gives_a_cookie_that_holds_no_token(open_page):
    client = open_page(TOKEN)
    response = sign_in(client)
    assert (response.status_code, response.headers["location"]) == (303, "/")
    cookie = response.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/", "Max-Age=604800"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert TOKEN not in cookie
    assert client.get("/").status_code == 200
    assert client.get("/page/sign-in").status_code == 303
    out = client.post("/page/sign-out")
    assert out.status_code == 303
    assert client.get("/page/parts").status_code == 401


def test_over_tls_the_cookie_never_leaves_it(open_page):
    assert "Secure" in sign_in(open_page(TOKEN), origin="https://testserver").headers["set-cookie"]


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN[:-1], "tökén"])
def test_a_wrong_token_gives_no_cookie(open_page, token):
    response = sign_in(open_page(TOKEN), token)
    assert response.status_code == 403
    assert "set-cookie" not in response.headers
    assert "This is not the token" in response.text


def test_the_cookie_opens_the_page_and_nothing_else(open_page):
    client = open_page(TOKEN)
    sign_in(client)
    assert client.get("/page/parts").status_code == 200
    assert client.get("/metrics").status_code == 401
    assert client.post("/predict", json=[[0]]).status_code == 401


def test_a_page_of_another_site_can_do_nothing(open_page, habitat, detector):
    feed(habitat, detector)
    client = open_page(TOKEN)
    sign_in(client)
    body = {"answer": 1, "class_": 0, "who": "ann"}
    for origin in ("http://evil.example", "null", "http://testserver:81"):
        assert client.post("/page/review", json=body, headers={"origin": origin}).status_code == 403
    form = client.post("/page/review", content=json.dumps(body), headers={"content-type": "text/plain"})
    assert form.status_code == 415
    assert not len(habitat.store.judged())
    assert client.post("/page/review", json=body, headers={"origin": "http://testserver"}).status_code == 200


def test_every_answer_carries_the_policy(open_page, habitat, detector):
    feed(habitat, detector)
    client = open_page()
    for path in ("/", "/page/parts", "/page/style.css", "/page/script.js", "/page/example/1.png"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy, path
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
    page = client.get("/").text
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page)
    assert not re.search(r"(?:src|href)=\"(?!/page/|#|data:,)", page)


def test_a_long_body_is_refused(open_page):
    response = open_page().post("/page/review", content=b" " * 5000, headers={"content-type": "application/json"})
    assert response.status_code == 413


def test_without_a_habitat_there_is_no_page(detector):
    serving, metrics = Serving(), Metrics()
    follower = Follower(lambda: "d0001", lambda _: detector, limits=serving.limits, metrics=metrics)
    with TestClient(build_app(Service(follower, serving, metrics))) as client:
        response = client.get("/")
    assert response.status_code == 404
    assert "--habitat" in response.json()["error"]
