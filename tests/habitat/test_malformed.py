"""A thousand malformed requests, made from the server's own description: no 500, no traceback, and nothing stays behind."""

import asyncio
import copy
import json
import threading

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import wildood
from wildood.data.inputs import InputSpec
from wildood.habitat.champion import Follower
from wildood.habitat.collecting import Collector
from wildood.habitat.examples import Limits
from wildood.habitat.habitat import Habitat
from wildood.habitat.metrics import Metrics
from wildood.habitat.recorder import Recorder
from wildood.habitat.server import Service, Serving, build_app

RNG = np.random.default_rng(0)


class Flat(torch.nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.layer = torch.nn.Linear(inputs, 3)

    def forward(self, x):
        return self.layer(x.flatten(1))


class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.layer = torch.nn.Embedding(50, 4), torch.nn.Linear(4, 3)

    def forward(self, ids, mask):
        return self.layer((self.embedding(ids) * mask[..., None]).sum(1))


class Server:
    """A server without a network: its app is called in one event loop. With a place for a habitat, it also records."""

    def __init__(self, model, holdout, valid, place=None, **settings):
        detector = wildood.posthoc(model, wildood.EnergyScore(), holdout=holdout, alpha=0.1, **settings)
        serving, metrics = Serving(limits=Limits(body=20_000, examples=8, pixels=100), wait=0), Metrics()
        follower = Follower(lambda: "d0001", lambda _: detector, limits=serving.limits, metrics=metrics, batch=2)
        self.habitat, collector = None, None
        if place is not None:
            self.habitat = Habitat.create(place, detector)
            collector = Collector(Recorder(self.habitat.store, self.habitat.settings), metrics)
        self.service = Service(follower, serving, metrics, collector, self.habitat)
        self.loop, self.valid = asyncio.new_event_loop(), valid
        self.app = build_app(self.service)
        self.description = json.loads(self.ask("GET", "/openapi.json")[2])

    def ask(self, method, path, headers=(), body=b""):
        """The status, the headers and the body of an answer; the request's body comes in two pieces."""
        parts = [body[: len(body) // 2], body[len(body) // 2 :]]
        messages = [
            {"type": "http.request", "body": part, "more_body": more}
            for part, more in zip(parts, (True, False), strict=True)
        ]
        sent = []

        async def receive():
            return messages.pop(0) if messages else {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": list(headers),
            "query_string": b"",
            "app": self.app,
        }
        self.loop.run_until_complete(self.app(scope, receive, send))
        return sent[0]["status"], dict(sent[0]["headers"]), b"".join(message["body"] for message in sent[1:])

    def close(self):
        self.service.close()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


def tensor(name, datatype, array):
    return {"name": name, "shape": list(array.shape), "datatype": datatype, "data": array.flatten().tolist()}


EVENT = {"specversion": "1.0", "type": "org.kubeflow.serving.inference.request", "id": "7", "source": "here"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    threads = threading.active_count()
    images = RNG.integers(0, 256, (40, 4, 4, 3), dtype=np.uint8)
    words = {"ids": RNG.integers(0, 50, (40, 6)), "mask": np.ones((40, 6), np.int64)}
    vectors = RNG.normal(size=(40, 2)).astype("float32")
    spec = InputSpec(mean=(0.5,), std=(0.25,))
    ids, mask = (part[:2] for part in words.values())
    of_words = [
        {"ids": ids.tolist(), "mask": mask.tolist()},
        {"inputs": [tensor("ids", "INT64", ids), tensor("mask", "INT64", mask)]},
    ]
    of_vectors = [[[1, 2.5]], {"inputs": [tensor("x", "FP32", vectors[:2])]}]
    events = [EVENT | {"data": data} for data in (*of_vectors, {"instances": [[0, 1]]})]
    made = [
        Server(torch.nn.Linear(2, 3), vectors, [*of_vectors, events[0], events], tmp_path_factory.mktemp("habitat") / "h"),
        Server(Flat(48), images, [images[:1].tolist(), {"inputs": [tensor("x", "UINT8", images[:1])]}], input=spec),
        Server(Words(), words, of_words),
    ]
    yield made
    for each in made:
        each.close()
    assert made[0].habitat.check() == []
    assert threading.active_count() == threads


ODD = st.sampled_from(
    [None, True, -1, 0, 2**31, 2**63, 10**400, 1e308, -0.5, "", "é\x00\ud800", "../../etc/passwd", "<script>", [], {}, [[]],
     [[1, 2], [3]], [[None]], {"x": 1}, [{"x": [1]}], "FP32", "BYTES", ["a", "b"], {"binary_data_size": 4}]
)  # fmt: skip
JSON = st.recursive(
    ODD | st.integers() | st.floats() | st.text(max_size=5), lambda each: st.lists(each, max_size=3), max_leaves=6
)
NAMES = st.sampled_from(
    [
        "id",
        "inputs",
        "outputs",
        "parameters",
        "data",
        "shape",
        "datatype",
        "name",
        "ids",
        "type",
        "instances",
        "specversion",
        "data_base64",
    ]
)
HEADERS = st.sampled_from(
    [
        (b"inference-header-content-length", b"7"),
        (b"inference-header-content-length", b"-1"),
        (b"inference-header-content-length", "٣".encode()),
        (b"content-length", b"99999999999999999999"),
        (b"content-length", b"x"),
        (b"content-type", b"image/png"),
        (b"content-type", b"image/../x"),
        (b"content-type", b"application/cloudevents+json"),
        (b"content-type", b"application/cloudevents-batch+json"),
        (b"ce-id", b"a%0a%"),
        (b"content-type", b"multipart/form-data; boundary=x"),
        (b"content-encoding", b"gzip"),
        (b"ce-type", b"org.kubeflow.serving.inference.request"),
        (b"ce-specversion", b"1.0"),
        (b"x-request-id", b"a\nb\xff"),
        (b"x-request-id", b""),
        (b"x-wildood-collect", b"\xff"),
        (b"origin", b"https://evil.example"),
        (b"host", b"[::1"),
        (b"authorization", b"\xff\xff"),
    ]
)


@st.composite
def bodies(draw, valid):
    """A valid body with something else in it, something else as a whole, or bytes."""
    value = json.loads(json.dumps(draw(st.sampled_from(valid))))
    for _ in range(draw(st.integers(1, 2))):
        value = changed(draw, value)
    try:
        content = json.dumps(value).encode()
    except ValueError:  # not to be written
        content = b"NaN"
    cut = draw(st.sampled_from([None, None, len(content) // 2, 1, 0]))
    tail = draw(st.sampled_from([b"", b"", b"\x00\xff", b"]", b" " * 20_000]))
    return draw(st.just(content[:cut] + tail) | st.binary(max_size=40))


def changed(draw, value):
    """The value with one of its parts replaced, removed or added."""
    place, here = draw(st.integers(0, 3)), value
    for _ in range(place):
        parts = list(here.values()) if isinstance(here, dict) else here if isinstance(here, list) else []
        inner = [part for part in parts if isinstance(part, dict | list)]
        if not inner:
            break
        here = draw(st.sampled_from(inner))
    other = copy.deepcopy(draw(JSON))  # the next change may be in it
    if isinstance(here, dict):
        key = draw(NAMES | st.sampled_from(sorted(here))) if here else "x"
        if draw(st.booleans()) and key in here:
            del here[key]
        else:
            here[key] = other
    elif here and isinstance(here, list):
        here[draw(st.integers(0, len(here) - 1))] = other
    return value if place else draw(st.just(value) | JSON)


@pytest.mark.slow
@settings(
    max_examples=750, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
@given(st.data())
def test_malformed_requests_are_refused_in_one_line(servers, data):
    server = data.draw(st.sampled_from(servers))
    paths = server.description["paths"]
    with_body = [path for path in sorted(paths) if "post" in paths[path]]
    if data.draw(st.integers(0, 9)):
        path, method = data.draw(st.sampled_from(with_body)), "POST"
        media = st.sampled_from(sorted(paths[path]["post"]["requestBody"]["content"]))
        headers = [*data.draw(st.lists(HEADERS, max_size=1)), (b"content-type", data.draw(media).encode())]
    else:
        path, method = data.draw(st.sampled_from(sorted(paths))), data.draw(st.sampled_from(["POST", "GET", "PUT", "HEAD"]))
        headers = data.draw(st.lists(HEADERS, max_size=2))
    for _ in range(2):
        check_refused(server, path, method, headers, data.draw(bodies(server.valid)))


def check_refused(server, path, method, headers, body):
    paths = server.description["paths"]
    status, answered, content = server.ask(method, path.replace("{name}", "wildood"), headers, body)
    documented = paths[path].get(method.lower(), {}).get("responses", {})
    assert str(status) in (documented or {"403", "405"}) or method == "HEAD", content
    assert status != 500, content
    assert b"Traceback" not in content
    if method != "HEAD" and answered.get(b"content-type", b"").startswith(b"application/json"):
        value = json.loads(content)
        schema = documented.get(str(status), {}).get("content", {}).get("application/json", {}).get("schema", {})
        jsonschema.validate(value, schema | {"components": server.description["components"]})
        assert status < 400 or (value.keys() <= {"error", "ready"} and content.count(b"\n") == 1)
    assert (server.service.held, server.service.batcher.waiting) == (0, 0)


def test_the_series_of_the_counters_are_few_whatever_is_asked(servers):
    for number in range(50):
        servers[0].ask("GET", f"/{number}")
        servers[0].ask("POST", f"/v2/models/{number}/infer")
        servers[0].ask("GET", f"/v2/models/a/{number}")
    text = servers[0].service.metrics.text().decode()
    assert len(text.splitlines()) < 400
    assert "/49" not in text


def test_the_description_has_every_route_but_those_of_the_page(servers):
    for server in servers:
        routes = {route.path for route in server.app.routes if not route.path.startswith("/page/")}
        assert routes == set(server.description["paths"])
    names = [item.get("get", item.get("post"))["operationId"] for item in servers[0].description["paths"].values()]
    assert len(set(names)) == len(names)
    assert "below `/page/`" in servers[0].description["info"]["description"]


def test_valid_events_are_collected(servers):
    event, batch = servers[0].valid[2:]
    for media, content, count in (("cloudevents", event, 1), ("cloudevents-batch", batch, 4)):
        headers = [(b"content-type", f"application/{media}+json".encode())]
        status, _, answer = servers[0].ask("POST", "/collect", headers, json.dumps(content).encode())
        assert (status, json.loads(answer)["collected"]) == (202, count)
        schema = {"$ref": "#/components/schemas/Collected", "components": servers[0].description["components"]}
        jsonschema.validate(json.loads(answer), schema)
    accepted = servers[0].description["paths"]["/collect"]["post"]["requestBody"]["content"]
    for media, content in (("application/cloudevents+json", event), ("application/cloudevents-batch+json", batch)):
        jsonschema.validate(content, accepted[media]["schema"] | {"components": servers[0].description["components"]})


def test_valid_requests_of_these_servers_are_answered(servers):
    for server in servers:
        plain, tensors, *_ = server.valid
        assert server.ask("POST", "/predict", body=json.dumps(plain).encode())[0] == 200
        status, _, content = server.ask("POST", "/v2/models/wildood/infer", body=json.dumps(tensors).encode())
        assert status == 200
        schema = {"$ref": "#/components/schemas/InferResponse", "components": server.description["components"]}
        jsonschema.validate(json.loads(content), schema)
