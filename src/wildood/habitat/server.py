"""The server: an ASGI app that answers with a detector, and uvicorn to run it."""

import asyncio
import hmac
import logging
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import wildood
from wildood.data.structures import Raw, batch_length
from wildood.errors import InputError, printable
from wildood.habitat.batching import Batcher, ClosedError, Job, QueueFullError
from wildood.habitat.champion import Follower, Served
from wildood.habitat.collecting import Collector, Tag
from wildood.habitat.connections import Connection
from wildood.habitat.dashboard import Dashboard
from wildood.habitat.examples import ExampleReader, Limits
from wildood.habitat.habitat import Habitat
from wildood.habitat.metrics import CONTENT_TYPE, Metrics
from wildood.habitat.openapi import description
from wildood.habitat.process import freeze
from wildood.habitat.protocol import (
    HEADER_LENGTH,
    LARGE,
    OUTPUTS,
    Decisions,
    Request,
    check_identifier,
    collected_request,
    dump_json,
    infer_request,
    infer_response,
    json_length,
    media_type,
    parse_json,
    predict_response,
    read_events,
)

Value = TypeVar("Value")
_LOGGER = logging.getLogger("wildood")
HEALTH: Final = frozenset({"/v2/health/live", "/v2/health/ready"})
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
OPT_OUT: Final = "x-wildood-collect"
CONNECTIONS: Final = 1000
DRAIN_SECONDS: Final = 20
_BODIES = 16  # times the largest body: bytes of all bodies that are held at once
_DATATYPES = {"class": "INT64", "score": "FP32", "p_value": "FP64", "known": "BOOL"}


@dataclass(frozen=True)
class Serving:
    """How a server answers.

    Attributes:
        name: of the model, in the paths of the protocol.
        batch: examples that run together at most.
        wait: seconds that a request waits for others.
        queue: examples that may wait; requests beyond are refused.
        limits: of one request.
        token: what clients must bring; None: nothing.
        open_metrics: whether /metrics needs no token.
        hosts: the names by which the server may be called; None: any.
        body_seconds: that a client may take to send its body.
        model: what --model named, for the commands that the page shows.
    """

    name: str = "wildood"
    batch: int = 64
    wait: float = 0.002
    queue: int = 1024
    limits: Limits = field(default_factory=Limits)
    token: bytes | None = field(default=None, repr=False)
    open_metrics: bool = False
    hosts: frozenset[str] | None = None
    body_seconds: float = 30.0
    model: str | None = None


class Service:
    """The endpoints, and what they share: the detector that answers, the batcher, the counters, the collector.

    With a habitat, the app also has its page.
    """

    def __init__(
        self,
        follower: Follower,
        settings: Serving,
        metrics: Metrics,
        collector: Collector | None = None,
        habitat: Habitat | None = None,
    ) -> None:
        self.habitat = habitat
        self.follower, self.settings, self.metrics, self.collector = follower, settings, metrics, collector
        self.batcher: Batcher[Served, Decisions] = Batcher(
            Served.decide, self._answered, size=settings.batch, wait=settings.wait, queue=settings.queue
        )
        metrics.waiting.set_function(lambda: self.batcher.waiting)
        self.held = 0  # bytes of bodies
        self.stopping = False

    def close(self) -> None:
        """Answer what waits, record what is to be recorded, and end the threads."""
        self.stopping = True
        self.follower.stop()
        self.batcher.close()
        if self.collector is not None:
            self.collector.close()

    def _answered(self, served: Served, examples: Raw, decisions: Decisions, jobs: list[Job[Served]]) -> None:
        """Count and record a batch, in the model's thread, after its clients have their answers."""
        try:
            self.metrics.answered(served.scores, decisions.score, int((~decisions.known).sum()))
            if self.collector is not None:
                self.collector.take(served, self.follower.shadow, examples, decisions, jobs)
        except Exception:
            _LOGGER.exception("a batch was answered, but could not be counted or recorded")

    # --- endpoints --------------------------------------------------------------------------------------------------------

    async def live(self, _: HttpRequest) -> Response:
        """Whether the server runs."""
        return _json({"live": True})

    async def ready(self, _: HttpRequest) -> Response:
        """Whether it takes requests."""
        return _json({"ready": not self.stopping}, 503 if self.stopping else 200)

    async def server_metadata(self, _: HttpRequest) -> Response:
        """What the server is."""
        return _json({"name": "wildood", "version": wildood.__version__, "extensions": ["binary_tensor_data"]})

    async def model_metadata(self, request: HttpRequest) -> Response:
        """What the model takes and returns."""
        self._check_name(request)
        served = self.follower.served
        inputs = [{"name": each.name, "datatype": each.datatype, "shape": list(each.shape)} for each in served.reader.fields]
        outputs = [{"name": name, "datatype": _DATATYPES[name], "shape": [-1]} for name in OUTPUTS]
        about = {"name": self.settings.name, "versions": [served.id], "platform": "wildood"}
        return _json({**about, "inputs": inputs, "outputs": outputs})

    async def model_ready(self, request: HttpRequest) -> Response:
        """Whether the model takes requests."""
        self._check_name(request)
        return await self.ready(request)

    async def infer(self, request: HttpRequest) -> Response:
        """Open Inference Protocol v2."""
        self._check_name(request)
        served = self.follower.served
        async with self._body(request) as body:
            header_length = request.headers.get(HEADER_LENGTH)
            size = json_length(body, header_length)
            parsed = await _read(served.reader, size, infer_request, body, header_length, served.reader)
            parsed = Request(parsed.examples, parsed.id or secrets.token_hex(8), parsed.outputs)
            (decisions,) = await self._decide(served, [(parsed.examples, parsed.id)], request)
        content, header = infer_response(self.settings.name, served.id, parsed, decisions)
        if header is None:
            return Response(content, media_type="application/json")
        return Response(content, media_type="application/octet-stream", headers={HEADER_LENGTH: str(header)})

    async def predict(self, request: HttpRequest) -> Response:
        """JSON lists or a picture."""
        served = self.follower.served
        identifier = check_identifier(request.headers.get("x-request-id", secrets.token_hex(8)))
        async with self._body(request) as body:
            media = media_type(request.headers)
            if media.startswith("image/"):
                if media not in {"image/png", "image/jpeg"}:
                    raise HTTPException(415, "pictures are read as image/png and image/jpeg: send one of them")
                examples = await asyncio.to_thread(served.reader.picture, body)
            else:
                examples = await _read(served.reader, len(body), _values, body, served.reader)
            (decisions,) = await self._decide(served, [(examples, identifier)], request)
        return Response(predict_response(served.id, identifier, served.names, decisions), media_type="application/json")

    async def collect(self, request: HttpRequest) -> Response:
        """Examples that another server answers."""
        if self.collector is None:
            raise HTTPException(409, "this server does not collect: start it with --habitat")
        served = self.follower.served
        async with self._body(request) as body:
            examples = await asyncio.to_thread(_collected, body, request.headers, served.reader)
            decisions = await self._decide(served, examples, request) if examples else []
        count = sum(len(each.score) for each in decisions)
        return _json({"collected": count} | ({"detector": served.id} if count else {}), 202)

    async def metrics_text(self, _: HttpRequest) -> Response:
        """Counters for Prometheus."""
        return Response(await asyncio.to_thread(self.metrics.text), media_type=CONTENT_TYPE)

    async def openapi(self, _: HttpRequest) -> Response:
        """The description of the server."""
        served = self.follower.served
        return _json(description(self.settings, served.reader, secured=self.settings.token is not None))

    async def no_page(self, _: HttpRequest) -> Response:
        """What `GET /` says without a habitat."""
        raise HTTPException(404, "nothing is recorded, so there is no page: start the server with --habitat")

    # --- what they share --------------------------------------------------------------------------------------------------

    def _check_name(self, request: HttpRequest) -> None:
        if request.path_params["name"] != self.settings.name:
            raise HTTPException(404, f"there is no model of this name: the only one is {self.settings.name}")

    @asynccontextmanager
    async def _body(self, request: HttpRequest) -> AsyncIterator[bytearray]:
        """The whole body, held while the block runs; a slow or a large one is refused."""
        limit, body = self.settings.limits.body, bytearray()
        declared = request.headers.get("content-length", "0")
        if declared.isascii() and declared.isdigit() and (len(declared) > 15 or int(declared) > limit):
            raise HTTPException(413, f"the body is larger than {limit} bytes: send less at a time")
        if request.headers.get("content-encoding", "identity") != "identity":
            raise HTTPException(415, "compressed bodies are not read: send it as it is")
        try:
            async with asyncio.timeout(self.settings.body_seconds):
                async for chunk in request.stream():
                    if len(body) + len(chunk) > limit:
                        raise HTTPException(413, f"the body is larger than {limit} bytes: send less at a time")
                    if self.held + len(chunk) > _BODIES * limit:
                        raise QueueFullError
                    body += chunk
                    self.held += len(chunk)
            yield body
        except TimeoutError as error:
            raise HTTPException(408, f"the body took longer than {self.settings.body_seconds:g} seconds") from error
        finally:
            self.held -= len(body)

    async def _decide(self, served: Served, parts: list[tuple[Raw, str]], request: HttpRequest) -> list[Decisions]:
        """The decisions on the examples of each id, from batches that may hold others."""
        is_collected = request.headers.get(OPT_OUT, "yes").strip().lower() not in {"no", "false", "0"}
        tagged = [(examples, Tag(identifier, is_collected=is_collected)) for examples, identifier in parts]
        try:
            results = await self.batcher.submit_all(served, tagged)
        except (QueueFullError, ClosedError, InputError):
            raise
        except Exception as error:
            await self._blame(served, error)
            kind = type(error).__name__
            raise InputError(f"the model fails on these examples ({kind}): are they like those of its training?") from error
        for _, waited in results:
            self.metrics.queued.observe(waited)
        return [decisions for decisions, _ in results]

    async def _blame(self, served: Served, error: Exception) -> None:
        """Raise again what the model raised, unless it works on blank examples: then the request is to blame."""
        try:
            await self.batcher.probe(served, served.detector.example.blank(1))
        except (QueueFullError, ClosedError):
            raise
        except Exception:
            _LOGGER.exception("the model of detector %s fails", served.id)
            raise HTTPException(500, f"the model fails ({type(error).__name__})") from error


async def _read(reader: ExampleReader, size: int, read: Callable[..., Value], *arguments: Any) -> Value:
    """What a function reads of `size` bytes of JSON; where that takes long, in a thread, so that others need not wait."""
    if size > LARGE or reader.takes_slow_values:
        return await asyncio.to_thread(read, *arguments)
    return read(*arguments)


def _values(body: bytearray, reader: ExampleReader) -> Raw:
    return reader.values(parse_json(body))


def _collected(body: bytearray, headers: Mapping[str, str], reader: ExampleReader) -> list[tuple[Raw, str]]:
    """The examples of each event that `/collect` was sent, with its id; all are read before the first is recorded."""
    events = read_events(body, headers)
    parts = [(collected_request(event.content, reader), event.id or secrets.token_hex(8)) for event in events]
    count = sum(batch_length(examples) for examples, _ in parts)
    if count > reader.limits.examples:
        raise InputError(f"the events have {count} examples together: give at most {reader.limits.examples} at a time")
    return parts


class Gate:
    """Before the app: the token, the host and the origin of a request are checked; after it, the request is counted."""

    def __init__(self, app: ASGIApp, settings: Serving, metrics: Metrics) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = perf_counter(), 0

        async def counting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            refused = self._refusal(scope)
            await (refused or self.app)(scope, receive, counting)
        finally:
            route = _route(scope["path"])
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.seconds.labels(route).observe(perf_counter() - started)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = {name: value for name, value in scope["headers"] if name in {b"authorization", b"host", b"origin"}}
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self.settings.hosts is not None and _hostname(host) not in self.settings.hosts:
            # A page of another site may have made its own name point here.
            return _error(403, f"this host name is not served: call {', '.join(sorted(self.settings.hosts))}")
        origin = headers.get(b"origin")
        is_foreign = origin is not None and _netloc(origin.decode("latin-1").lower()) != host
        if is_foreign and scope["method"] not in {"GET", "HEAD"}:
            return _error(403, "the request comes from a page of another site")
        token = self.settings.token
        is_page = scope["path"] == "/" or scope["path"].startswith("/page/")  # which asks for its cookie itself
        is_open = is_page or scope["path"] in HEALTH or (self.settings.open_metrics and scope["path"] == "/metrics")
        if token is None or is_open:
            return None
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if hmac.compare_digest(given.strip(), token) and scheme.lower() == b"bearer":
            return None
        what = "this is not the token of this server" if b"authorization" in headers else "this server needs a token"
        response = _error(401, f"{what}: send Authorization: Bearer TOKEN")
        response.headers["www-authenticate"] = "Bearer"
        return response


def _netloc(origin: str) -> str:
    """The host and port of an origin; "" if it has none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _hostname(host: str) -> str:
    """A Host header without its port."""
    return host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]


def _route(path: str) -> str:
    """The path as the counters name it: nothing of a request becomes a name."""
    if path.startswith("/v2/models/"):
        end = path.rpartition("/")[2]
        return f"/v2/models/{{name}}/{end}" if end in {"infer", "ready"} else "/v2/models/{name}"
    if path.startswith("/page/"):
        return "/page"
    return path if path in _PATHS else "other"


_PATHS = {*HEALTH, "/v2", "/predict", "/collect", "/metrics", "/openapi.json", "/"}


def build_app(service: Service) -> Starlette:
    """The ASGI app of a service; it starts to follow promotions with the app, and drains when the app ends."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        service.follower.start()
        yield
        await asyncio.to_thread(service.close)

    routes = [
        Route("/v2/models/{name}/infer", service.infer, methods=["POST"]),
        Route("/predict", service.predict, methods=["POST"]),
        Route("/collect", service.collect, methods=["POST"]),
        Route("/v2/health/live", service.live),
        Route("/v2/health/ready", service.ready),
        Route("/v2", service.server_metadata),
        Route("/v2/models/{name}", service.model_metadata),
        Route("/v2/models/{name}/ready", service.model_ready),
        Route("/metrics", service.metrics_text),
        Route("/openapi.json", service.openapi),
        *_page(service),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=_HANDLERS)
    app.router.redirect_slashes = False
    app.add_middleware(Gate, settings=service.settings, metrics=service.metrics)
    return app


def _page(service: Service) -> list[Route]:
    """The routes of the habitat's page."""
    if service.habitat is None:
        return [Route("/", service.no_page)]
    settings = service.settings
    return Dashboard(service.habitat, lambda: service.follower.served, settings.token, settings.model).routes()


def _json(value: Any, status: int = 200) -> Response:
    return Response(dump_json(value) + b"\n", status, media_type="application/json")


def _error(status: int, message: object) -> Response:
    return _json({"error": printable(message)}, status)


async def _on_mistake(_: HttpRequest, error: Exception) -> Response:
    return _error(400, error)


async def _on_refusal(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - what it is registered for
    response = _error(error.status_code, error.detail)
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


async def _on_full(_: HttpRequest, error: Exception) -> Response:
    why = "the server stops" if isinstance(error, ClosedError) else "too many requests wait"
    response = _error(503, f"{why}: try again in a second")
    response.headers["retry-after"] = "1"
    return response


async def _on_bug(_: HttpRequest, __: Exception) -> Response:
    return _error(500, "a mistake of the server: see its log")


async def _on_disconnect(_: HttpRequest, __: Exception) -> Response:
    return _error(400, "the client went away")


_HANDLERS: Mapping[Any, Callable[[HttpRequest, Exception], Awaitable[Response]]] = {
    InputError: _on_mistake,
    HTTPException: _on_refusal,
    QueueFullError: _on_full,
    ClosedError: _on_full,
    ClientDisconnect: _on_disconnect,
    Exception: _on_bug,
}


def run_app(app: ASGIApp, listener: socket.socket) -> None:
    """Serve an app on a listening socket until SIGTERM or Ctrl-C; requests that have begun are answered."""
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=Connection,  # of h11, which bounds the size of headers
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    # asyncio sets it only where the socket names its protocol; without it, an answer waits 40 ms for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    former = signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises it again when it is done
    freeze()
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        signal.signal(signal.SIGTERM, former)
