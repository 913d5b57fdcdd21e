"""The server answers as its detector does, keeps its limits, asks for its token, and follows promotions."""

import asyncio
import io
import json
import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

import wildood
from wildood.data.inputs import InputSpec
from wildood.habitat.champion import Follower
from wildood.habitat.collecting import Collector
from wildood.habitat.examples import Limits
from wildood.habitat.habitat import Habitat, Settings
from wildood.habitat.metrics import Metrics
from wildood.habitat.recorder import Recorder
from wildood.habitat.server import LOOPBACK, Service, Serving, build_app
from wildood.models.small import MLP

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype("float32")
INFER, PREDICT = "/v2/models/wildood/infer", "/predict"


class Broken(torch.nn.Module):
    """A model that fails: always, or on large inputs."""

    def __init__(self):
        super().__init__()
        self.layer, self.fails = torch.nn.Linear(4, 3), False

    def forward(self, x):
        if self.fails or bool((x.abs() > 100).any()):
            raise IndexError("secret of the model")
        return self.layer(x)


def detector_of(seed=0, model=None):
    torch.manual_seed(seed)
    return wildood.posthoc(model or MLP(4, 3), wildood.EnergyScore(), holdout=X, alpha=0.1)


@pytest.fixture(scope="module")
def detector():
    return detector_of()


def service_of(detector, **settings):
    serving, metrics = Serving(**settings), Metrics()
    follower = Follower(lambda: "d0001", lambda _: detector, limits=serving.limits, metrics=metrics, batch=serving.batch)
    return Service(follower, serving, metrics)


@pytest.fixture
def client(detector):
    with TestClient(build_app(service_of(detector))) as client:
        yield client


def tensor(x, datatype="FP32", name="x"):
    return {"name": name, "shape": list(x.shape), "datatype": datatype, "data": x.flatten().tolist()}


def outputs(response):
    assert response.status_code == 200, response.text
    return {each["name"]: each["data"] for each in response.json()["outputs"]}


def is_one_line(response):
    error = json.loads(response.text)
    return response.text.count("\n") == 1 and error.keys() == {"error"} and "Traceback" not in error["error"]


def test_the_answers_are_those_of_the_detector(client, detector):
    x = np.flip(X, 0).copy()  # the threshold rejects a tenth
    answer = outputs(client.post(INFER, json={"inputs": [tensor(x)]}))
    assert answer["class"] == detector.predict(x).tolist()
    assert -1 in answer["class"]
    assert answer["known"] == (detector.predict(x) >= 0).tolist()
    assert np.allclose(answer["score"], detector.score(x), rtol=1e-5)
    assert answer["p_value"] == detector.p_value(x).tolist()
    plain = client.post(PREDICT, json=x.tolist(), headers={"X-Request-Id": "mine"}).json()
    assert {name: plain[name] for name in answer} == answer
    assert (plain["detector"], plain["id"]) == ("d0001", "mine")
    assert plain["label"] == [number if number >= 0 else None for number in answer["class"]]


def test_binary_tensors_go_in_and_out(client, detector):
    header = {
        "inputs": [tensor(X[:3]) | {"parameters": {"binary_data_size": 48}}],
        "parameters": {"binary_data_output": True},
    }
    del header["inputs"][0]["data"]
    content = json.dumps(header).encode()
    headers = {"Inference-Header-Content-Length": str(len(content))}
    answer = client.post(INFER, content=content + X[:3].tobytes(), headers=headers)
    length = int(answer.headers["inference-header-content-length"])
    assert json.loads(answer.content[:length])["model_version"] == "d0001"
    assert np.array_equal(np.frombuffer(answer.content[length : length + 24], "<i8"), detector.predict(X[:3]))


def test_requests_at_once_get_the_answers_of_requests_alone(detector):
    service, answers = service_of(detector, wait=0.05), {}
    with TestClient(build_app(service)) as client:

        def ask(number):
            answers[number] = client.post(PREDICT, json=X[number : number + 1].tolist()).json()["score"][0]

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        batches = service.metrics.text().decode()
    assert np.allclose([answers[number] for number in range(8)], detector.score(X[:8]), rtol=1e-5)
    assert "wildood_batch_examples_sum 8.0" in batches
    assert "wildood_batch_examples_count 8.0" not in batches


def test_metadata_and_health(client):
    assert client.get("/v2").json()["extensions"] == ["binary_tensor_data"]
    about = client.get("/v2/models/wildood").json()
    assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert [(each["name"], each["datatype"]) for each in about["outputs"]] == [
        ("class", "INT64"),
        ("score", "FP32"),
        ("p_value", "FP64"),
        ("known", "BOOL"),
    ]
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/wildood/ready"):
        assert client.get(path).status_code == 200
    for path in ("/v2/models/other", "/v2/models/other/ready", "/nothing", "/v2/models/%2e%2e%2fetc"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert is_one_line(answer)
    assert client.get(PREDICT).status_code == 405


@pytest.fixture(scope="module")
def pictures():
    class Flat(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8 * 8 * 3, 3)

        def forward(self, x):
            return self.layer(x.flatten(1))

    torch.manual_seed(0)
    x = RNG.integers(0, 256, (50, 8, 8, 3), dtype=np.uint8)
    return wildood.posthoc(Flat(), wildood.EnergyScore(), holdout=x, input=InputSpec(mean=(0.5,), std=(0.25,)), alpha=0.1), x


def encoded(pixels, form="PNG"):
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, form)
    return content.getvalue()


def test_a_picture_is_answered_as_its_pixels_are(pictures):
    detector, x = pictures
    with TestClient(build_app(service_of(detector, limits=Limits(pixels=100)))) as client:
        answer = client.post(PREDICT, content=encoded(x[0]), headers={"Content-Type": "image/png"}).json()
        assert np.allclose(answer["score"], detector.score(x[:1]), rtol=1e-5)
        jpeg = client.post(PREDICT, content=encoded(x[0], "JPEG"), headers={"Content-Type": "image/jpeg"})
        assert jpeg.status_code == 200
        large = np.zeros((20, 20, 3), np.uint8)
        for content, kind, status, said in (
            (encoded(large), "image/png", 400, "20 x 20 pixels: give at most 100"),
            (b"GIF89a", "image/png", 400, "no picture in PNG, JPEG"),
            (encoded(x[0], "BMP"), "image/png", 400, "no picture in PNG, JPEG"),
            (encoded(x[0])[:60], "image/png", 400, "the picture"),
            (b"", "image/png", 400, "is empty"),
            (encoded(x[0]), "image/tiff", 415, "image/png and image/jpeg"),
        ):
            answer = client.post(PREDICT, content=content, headers={"Content-Type": kind})
            assert answer.status_code == status
            assert is_one_line(answer)
            assert said in answer.json()["error"]


def test_a_detector_of_vectors_takes_no_picture(client):
    answer = client.post(PREDICT, content=encoded(np.zeros((4, 4, 3), np.uint8)), headers={"Content-Type": "image/png"})
    assert (answer.status_code, is_one_line(answer)) == (400, True)


def test_structured_examples_of_any_length_are_answered():
    class Words(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.layer = torch.nn.Embedding(50, 4), torch.nn.Linear(4, 3)

        def forward(self, ids, mask):
            return self.layer((self.embedding(ids) * mask[..., None]).sum(1))

    ids = RNG.integers(0, 50, (40, 6))
    detector = wildood.posthoc(Words(), wildood.EnergyScore(), holdout={"ids": ids, "mask": np.ones_like(ids)}, alpha=0.1)
    with TestClient(build_app(service_of(detector))) as client:
        for length in (6, 9):
            x = {"ids": RNG.integers(0, 50, (3, length)), "mask": np.ones((3, length), np.int64)}
            expected = detector.score(x)
            plain = client.post(PREDICT, json={name: part.tolist() for name, part in x.items()}).json()
            assert np.allclose(plain["score"], expected, rtol=1e-5)
            tensors = [tensor(part, "INT64", name) for name, part in x.items()]
            assert np.allclose(outputs(client.post(INFER, json={"inputs": tensors}))["score"], expected, rtol=1e-5)
        unknown_word = client.post(PREDICT, json={"ids": [[50]], "mask": [[1]]})
        assert unknown_word.status_code == 400
        assert unknown_word.json()["error"].startswith("the model fails on these examples (IndexError)")


def test_a_model_that_always_fails_is_the_servers_fault(caplog):
    model = Broken()
    detector = detector_of(model=model)
    with TestClient(build_app(service_of(detector))) as client:
        bad = client.post(PREDICT, json=[[1000, 0, 0, 0]])
        assert (bad.status_code, is_one_line(bad), "secret" in bad.text) == (400, True, False)
        detector.classifier.model.fails = True
        failed = client.post(PREDICT, json=X[:1].tolist())
    assert (failed.status_code, is_one_line(failed), "secret" in failed.text) == (500, True, False)


def test_the_blank_example_that_finds_who_is_to_blame_is_not_counted():
    service = service_of(detector_of(model=Broken()))
    with TestClient(build_app(service)) as client:
        assert client.post(PREDICT, json=[[1000, 0, 0, 0]]).status_code == 400
        counted = service.metrics.text().decode()
    assert "wildood_decisions_total{" not in counted
    assert "wildood_batch_examples_count 0.0" in counted


@pytest.mark.parametrize(("examples", "in_thread"), [(2, False), (1500, True)])
def test_large_json_is_read_in_a_thread(detector, monkeypatch, examples, in_thread):
    x, threads = RNG.normal(size=(examples, 4)), []
    service = service_of(detector, limits=Limits(examples=2000), queue=4000)
    check = service.follower.served.reader.check

    def remembered(batch):
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # no event loop runs in this thread
            threads.append(True)
        else:
            threads.append(False)
        return check(batch)

    monkeypatch.setattr(service.follower.served.reader, "check", remembered)
    with TestClient(build_app(service)) as client:
        plain = client.post(PREDICT, json=x.tolist()).json()
        protocol = outputs(client.post(INFER, json={"inputs": [tensor(x, "FP64")]}))
        assert np.allclose(plain["score"], detector.score(x.astype("float32")), rtol=1e-5)
        assert plain["score"] == protocol["score"]
    assert threads == [in_thread, in_thread]


def test_limits_of_bodies_and_examples(detector):
    with TestClient(build_app(service_of(detector, limits=Limits(body=400, examples=3)))) as client:
        declared = client.post(PREDICT, content=b" " * 401)
        chunked = client.post(PREDICT, content=iter([b" " * 300, b" " * 300]))
        many = client.post(PREDICT, json=np.zeros((4, 4)).tolist())
        packed = client.post(PREDICT, content=b"[]", headers={"Content-Encoding": "gzip"})
        lying = client.post(PREDICT, content=b"[]", headers={"Content-Length": "9" * 30})
        assert [each.status_code for each in (declared, chunked, many, packed, lying)] == [413, 413, 400, 415, 413]
        assert all(map(is_one_line, (declared, chunked, many, packed, lying)))
        assert client.post(PREDICT, json=np.zeros((3, 4)).tolist()).status_code == 200


def test_a_full_queue_says_when_to_come_back(detector):
    service = service_of(detector, batch=1, queue=1, wait=0)
    release, entered = threading.Event(), threading.Event()
    decide = service.batcher._run

    def slow(*given):
        entered.set()
        release.wait(10)
        return decide(*given)

    service.batcher._run = slow
    statuses = []
    with TestClient(build_app(service)) as client:

        def ask():
            statuses.append(client.post(PREDICT, json=X[:1].tolist()).status_code)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        threads[0].start()
        entered.wait(10)
        threads[1].start()
        while not service.batcher.waiting:
            time.sleep(0.001)
        refused = client.post(PREDICT, json=X[:1].tolist())
        release.set()
        for thread in threads:
            thread.join()
    assert (refused.status_code, refused.headers["retry-after"], is_one_line(refused)) == (503, "1", True)
    assert statuses == [200, 200]


def test_a_body_that_takes_too_long_is_given_up(detector):
    app = build_app(service_of(detector, body_seconds=0.05))
    sent = []

    async def run():
        async def receive():
            await asyncio.sleep(10)

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": PREDICT, "headers": [], "query_string": b"", "app": app}
        await app(scope, receive, send)

    asyncio.run(run())
    assert sent[0]["status"] == 408


TOKEN = b"0123456789abcdef"


def test_everything_but_health_needs_the_token(detector):
    with TestClient(build_app(service_of(detector, token=TOKEN))) as client:
        for path in ("/v2", "/v2/models/wildood", "/metrics", "/openapi.json", "/nothing", "/v2/health/live/"):
            answer = client.get(path)
            assert (answer.status_code, answer.headers["www-authenticate"], is_one_line(answer)) == (401, "Bearer", True)
        for wrong in ("", "Bearer", "Bearer x", f"Basic {TOKEN.decode()}", f"Bearer {TOKEN.decode()}x", "Bearer ééé"):
            answer = client.post(PREDICT, json=X[:1].tolist(), headers={"Authorization": wrong.encode()})
            assert answer.status_code == 401
            assert answer.json()["error"].startswith("this is not the token of this server: send")
        assert client.get("/v2/health/ready").status_code == 200
        right = {"Authorization": f"Bearer {TOKEN.decode()}"}
        assert client.post(PREDICT, json=X[:1].tolist(), headers=right).status_code == 200
    with TestClient(build_app(service_of(detector, token=TOKEN, open_metrics=True))) as client:
        assert client.get("/metrics").status_code == 200


def test_pages_of_other_sites_can_neither_post_nor_point_their_name_here(detector):
    with TestClient(build_app(service_of(detector, hosts=LOOPBACK)), base_url="http://127.0.0.1:8080") as client:
        body = X[:1].tolist()
        assert client.post(PREDICT, json=body).status_code == 200
        assert client.post(PREDICT, json=body, headers={"Origin": "http://127.0.0.1:8080"}).status_code == 200
        for origin in ("https://evil.example", "null", "http://[", "http://127.0.0.1:9999"):
            assert client.post(PREDICT, json=body, headers={"Origin": origin}).status_code == 403
        for host, status in (("evil.example", 403), ("", 403), ("localhost", 200), ("[::1]:8080", 200)):
            assert client.get("/v2", headers={"Host": host}).status_code == status


def test_nothing_of_a_request_becomes_the_name_of_a_counter(client):
    client.get("/v2/models/<script>")
    client.get("/<script>")
    client.request("<SCRIPT>", "/predict")
    assert "script" not in client.get("/metrics").text.lower()


def test_counters_tell_what_was_answered(client, detector):
    x = np.concatenate([X, X / 9])
    client.post(PREDICT, json=x.tolist())
    client.post(PREDICT, content=b"{")
    lines = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[0] != "#")
    unknown = int((detector.predict(x) < 0).sum())
    assert float(lines['wildood_decisions_total{decision="unknown",detector="d0001"}']) == unknown
    assert float(lines['wildood_decisions_total{decision="known",detector="d0001"}']) == len(x) - unknown
    assert lines['wildood_requests_total{route="/predict",status="400"}'] == "1.0"
    assert lines['wildood_score_bucket{detector="d0001",le="+Inf"}'] == "120.0"
    assert lines['wildood_detector_info{id="d0001",score="EnergyScore"}'] == "1.0"
    assert lines["wildood_alpha"] == "0.1"
    assert float(lines["wildood_unknown_share_bound"]) == detector.unknown_share(x).bound > 0
    buckets = [float(value) for name, value in lines.items() if name.startswith("wildood_score_bucket")]
    assert buckets == sorted(buckets)


# --- in a habitat ---------------------------------------------------------------------------------------------------------


class World:
    """A habitat and its server, which looks for promotions when it is told to."""

    def __init__(self, path, **settings):
        self.habitat = Habitat.create(path, detector_of(), Settings(**settings))
        self.metrics, serving = Metrics(), Serving(batch=8, wait=0.001)
        self.shadow = settings.get("shadow", 0.0)
        self.follower = Follower(
            lambda: self.habitat.champion,
            lambda name: self.habitat.detector(name),
            lambda: self.habitat.challenger if self.shadow else None,
            limits=serving.limits,
            metrics=self.metrics,
            batch=8,
            poll=0.02,
        )
        self.recorder = Recorder(self.habitat.store, self.habitat.settings)
        self.service = Service(
            self.follower, serving, self.metrics, Collector(self.recorder, self.metrics, shadow=self.shadow)
        )
        self.client = TestClient(build_app(self.service))

    def rows(self):
        self.recorder.flush()
        return self.habitat.store.rows()

    def until(self, condition):
        end = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.005)


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path / "h")
    with world.client:
        yield world


def test_answers_are_recorded_with_their_examples(world):
    world.client.post(PREDICT, json=X[:3].tolist(), headers={"X-Request-Id": "first"})
    world.client.post(INFER, json={"inputs": [tensor(X[3:5])], "id": "second"})
    world.until(lambda: len(world.rows()) == 5)
    rows = world.rows()
    assert rows.request.tolist() == ["first"] * 3 + ["second"] * 2
    assert set(rows.detector.tolist()) == {"d0001"}
    assert np.allclose(rows.score, world.follower.served.detector.score(X[:5]), rtol=1e-5)
    stored = world.habitat.store.source(rows.id).gather(torch.arange(5))[0]
    assert np.array_equal(stored.numpy(), X[:5])
    assert "wildood_sampled_total 5.0" in world.client.get("/metrics").text


def test_a_request_that_opts_out_is_answered_and_counted_but_not_recorded(world):
    answer = world.client.post(PREDICT, json=X[:2].tolist(), headers={"X-Wildood-Collect": "no"})
    world.client.post(PREDICT, json=X[2:3].tolist(), headers={"X-Request-Id": "in"})
    world.until(lambda: len(world.rows()) == 1)
    assert answer.status_code == 200
    assert world.rows().request.tolist() == ["in"]
    assert world.habitat.store.windows().seen.sum() == 3


def test_traffic_of_another_server_is_collected(world):
    event = {"ce-specversion": "1.0", "ce-type": "org.kubeflow.serving.inference.request", "ce-id": "7", "ce-source": "k"}
    answer = world.client.post("/collect", json={"instances": X[:2].tolist()}, headers=event)
    assert (answer.status_code, answer.json()) == (202, {"collected": 2, "detector": "d0001"})
    ignored = world.client.post("/collect", json={}, headers=event | {"ce-type": "org.kubeflow.serving.inference.response"})
    assert (ignored.status_code, ignored.json()) == (202, {"collected": 0})
    assert world.client.post("/collect", json=X[2:3].tolist()).status_code == 202
    world.until(lambda: len(world.rows()) == 3)
    assert world.rows().request.tolist()[:2] == ["7", "7"]
    refused = world.client.post("/collect", json=[1], headers=event | {"ce-type": "<b>"})
    assert (refused.status_code, is_one_line(refused)) == (400, True)


def test_a_batch_of_events_is_collected_as_a_whole_or_not_at_all(world):
    event = {"specversion": "1.0", "type": "org.kubeflow.serving.inference.request", "source": "k"}
    headers = {"Content-Type": "application/cloudevents-batch+json"}

    def send(*values):
        events = [event | {"id": f"e{number}", "data": value} for number, value in enumerate(values)]
        return world.client.post("/collect", content=json.dumps(events), headers=headers)

    for wrong in (send(X[:1].tolist(), [[1]]), send(X[:1].tolist(), None), send(X[:200].tolist(), *5 * [X[:60].tolist()])):
        assert (wrong.status_code, is_one_line(wrong)) == (400, True)
    answer = send(X[:1].tolist(), {"instances": X[1:3].tolist()}, {"inputs": [tensor(X[3:4])]})
    assert (answer.status_code, answer.json()) == (202, {"collected": 4, "detector": "d0001"})
    assert send().json() == {"collected": 0}
    world.until(lambda: len(world.rows()) == 4)
    rows = world.rows()
    assert rows.request.tolist() == ["e0", "e1", "e1", "e2"]
    stored = world.habitat.store.source(rows.id).gather(torch.arange(4))[0]
    assert np.array_equal(stored.numpy(), X[:4])
    assert world.habitat.store.windows().seen.sum() == 4


def test_a_server_without_a_habitat_does_not_collect(client):
    assert client.post("/collect", json=X[:1].tolist()).status_code == 409


def test_a_promotion_is_followed_without_losing_a_request(world):
    second = world.habitat.add(detector_of(seed=1), parent="d0001", trained_until=0)
    ended, answers = threading.Event(), []

    def ask():
        while not ended.is_set():
            answers.append(world.client.post(PREDICT, json=X[:1].tolist()))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    world.until(lambda: len(answers) > 5)
    world.habitat.promote(second, who="test", force=True)
    world.until(lambda: world.follower.served.id == second)
    count = len(answers)
    world.until(lambda: len(answers) > count + 5)
    ended.set()
    for thread in threads:
        thread.join()
    assert {each.status_code for each in answers} == {200}
    scores = {"d0001": detector_of().score(X[:1])[0], second: detector_of(seed=1).score(X[:1])[0]}
    given = [(each.json()["detector"], each.json()["score"][0]) for each in answers]
    assert {name for name, _ in given} == {"d0001", second}
    assert all(abs(score - scores[name]) < 1e-5 for name, score in given)  # no detector under another's name
    world.habitat.promote("d0001", who="test", why="go back")
    world.until(lambda: world.client.post(PREDICT, json=X[:1].tolist()).json()["detector"] == "d0001")


def test_a_detector_that_cannot_be_loaded_leaves_the_present_one(world, caplog):
    second = world.habitat.add(detector_of(seed=1), parent="d0001", trained_until=0)
    (world.habitat.directory(second) / "detector.json").write_text("{")
    world.habitat.promote(second, who="test", force=True)
    world.until(lambda: "wildood_failed_loads_total 1.0" in world.client.get("/metrics").text)
    assert world.client.post(PREDICT, json=X[:1].tolist()).json()["detector"] == "d0001"
    assert "d0002 cannot be loaded, d0001 goes on" in caplog.text


def test_the_challenger_scores_in_the_shadow_and_the_champion_answers(tmp_path):
    world = World(tmp_path / "h", shadow=1.0)
    with world.client:
        second = world.habitat.add(detector_of(seed=1), parent="d0001", trained_until=0)
        world.until(lambda: world.follower.shadow is not None)
        answer = world.client.post(PREDICT, json=X[:2].tolist()).json()
        world.until(lambda: len(world.rows()) == 2)
        rows = world.rows()
        assert answer["detector"] == "d0001"
        assert rows.detector.tolist() == ["d0001"] * 2
        assert rows.shadow.tolist() == [second] * 2
        assert np.allclose(rows.shadow_score, detector_of(seed=1).score(X[:2]), rtol=1e-5)
        assert np.allclose(rows.score, answer["score"], rtol=1e-5)
        world.habitat.promote(second, who="test", force=True)
        world.until(lambda: world.client.post(PREDICT, json=X[:1].tolist()).json()["detector"] == second)
        world.until(lambda: world.follower.shadow is None)


def test_what_waits_is_recorded_when_the_server_ends(tmp_path):
    world = World(tmp_path / "h", flush_seconds=60.0)
    with world.client:
        world.client.post(PREDICT, json=X[:4].tolist())
    assert len(world.habitat.store.rows()) == 4
    assert world.habitat.check() == []
