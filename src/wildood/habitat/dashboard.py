"""The page of a habitat: `GET /`, what it asks for every few seconds, and what its buttons do."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import cache, partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict
from urllib.parse import parse_qs

import torch
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from wildood.data.schema import Count, Limit, SchemaError, parse
from wildood.errors import InputError, printable
from wildood.habitat.access import Access
from wildood.habitat.habitat import Habitat
from wildood.habitat.illustration import Illustrator
from wildood.habitat.overview import SPANS, Course, Remembered, chosen_span, latest_time
from wildood.habitat.review import Review, review
from wildood.habitat.status import Status, status
from wildood.habitat.view import Shown, View
from wildood.report.figures import COLOURS

if TYPE_CHECKING:
    from wildood.habitat.champion import Served

Endpoint = Callable[[Request], Awaitable[Response]]
PARTS: Final = ("next", "traffic", "card", "galleries", "promise", "challenger", "history")
EVERY: Final = 3  # seconds between two looks of the browser
LARGEST_BODY: Final = 4096
MOST_SKIPPED: Final = 200
_SIGN_IN = "/page/sign-in"
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with "no-referrer", browsers would not name their origin when a form is sent
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_Who = Annotated[str, Limit(lambda text: 0 < len(text.strip()) <= 100, "your name, of 1 to 100 letters")]
_Why = Annotated[str, Limit(lambda text: len(text) <= 1000, "a reason of at most 1000 letters")]


class _Judgement(TypedDict):
    """The body of a review."""

    answer: Count
    class_: Count | None
    who: _Who


class _Decision(TypedDict):
    """The body of a promotion."""

    detector: str
    against: str
    who: _Who
    why: _Why
    force: bool


class Dashboard:
    """The endpoints of the page.

    Args:
        habitat: what it shows.
        served: tells which detector answers now.
        token: what must be known to see it; None: nothing.
        model: "module:function" that commands need as --model; None: they need none.
    """

    def __init__(
        self, habitat: Habitat, served: "Callable[[], Served]", token: bytes | None = None, model: str | None = None
    ) -> None:
        self.habitat, self.access, self._model = habitat, Access(token), model
        self._served = served
        self._of = ""  # the detector that the following are about
        self._status = Remembered(lambda: status(habitat, served().detector), least=5.0)
        self._review = Remembered(lambda: review(habitat, served().detector), least=5.0)
        self._courses = {span.key: Remembered(partial(self._course, span.key), least=1.0) for span in SPANS}
        self._last: tuple[Served, Status, Review] | None = None

    def routes(self) -> list[Route]:
        """All routes of the page. What shows or changes anything asks for the cookie or the token."""
        return [
            Route("/", self._page, methods=["GET"]),
            Route("/page/style.css", self._style, methods=["GET"]),
            Route("/page/script.js", self._script, methods=["GET"]),
            Route(_SIGN_IN, self._form, methods=["GET"]),
            Route(_SIGN_IN, self._sign_in, methods=["POST"]),
            Route("/page/sign-out", self._sign_out, methods=["POST"]),
            Route("/page/parts", self._guarded(self._parts), methods=["GET"]),
            Route("/page/example/{answer:int}.png", self._guarded(self._picture), methods=["GET"]),
            Route("/page/review", self._guarded(self._judge), methods=["POST"]),
            Route("/page/promote", self._guarded(self._promote), methods=["POST"]),
        ]

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        async def guarded(request: Request) -> Response:
            if not self.access.admits(request):
                raise HTTPException(401, "this page needs a token: sign in at /")
            return await endpoint(request)

        return guarded

    # --- what is shown ----------------------------------------------------------------------------------------------------

    async def _page(self, request: Request) -> Response:
        if not self.access.admits(request):
            if "text/html" in request.headers.get("accept", "") and "authorization" not in request.headers:
                return RedirectResponse(_SIGN_IN, 303, headers=_HEADERS)
            raise HTTPException(
                401, "this page needs a token: send Authorization: Bearer TOKEN", {"www-authenticate": "Bearer"}
            )
        parts, shown = await asyncio.to_thread(self._rendered, request)
        context: dict[str, Any] = {"parts": parts, "spans": SPANS, "shown": shown, "is_open": self.access.is_open}
        return _html("dashboard.html", title=f"Habitat {printable(self.habitat.path.name)}", **context)

    async def _parts(self, request: Request) -> Response:
        parts, _ = await asyncio.to_thread(self._rendered, request)
        return _json({"parts": {name: {"html": html, "version": version} for name, (html, version) in parts.items()}})

    def _rendered(self, request: Request) -> tuple[dict[str, tuple[str, str]], Shown]:
        """Each part as HTML, and a hash of it."""
        shown = self._shown(request)
        served, state, waiting = self._look()
        course = self._courses[shown.span].get()
        promoted = self.habitat.champion
        view = View.of(
            self.habitat, served.detector, served.names, promoted, state, waiting, shown, course, model=self._model
        )
        if not view.queue and waiting.items:
            self._review.forget()
        macros: Any = _environment().get_template("parts.html").module
        parts = {name: str(getattr(macros, name)(view)) for name in PARTS}
        return {name: (html, blake2b(html.encode(), digest_size=8).hexdigest()) for name, html in parts.items()}, shown

    def _look(self) -> "tuple[Served, Status, Review]":
        """The champion with its status and what waits for review; while another one is loaded, as they last were."""
        served = self._served()
        if served.id != self._of:
            self._of = served.id
            self._status.forget()
            self._review.forget()
            for course in self._courses.values():
                course.forget()
        if served.id == self.habitat.champion:
            found = served, self._status.get(), self._review.get()
            if found[1].champion == found[2].detector == served.id:
                self._last = found
        if self._last is None:
            busy = f"{self.habitat.champion} is being loaded, {served.id} answers: try again in a second"
            raise HTTPException(503, busy, {"retry-after": "1"})
        return self._last

    def _course(self, key: str) -> Course:
        return Course.of(self.habitat, self._status.get(), self._served().detector, key)

    def _shown(self, request: Request) -> Shown:
        asked = request.query_params
        at, skipped = asked.get("at", ""), asked.get("skip", "").split(",")[-MOST_SKIPPED:]
        return Shown(
            chosen_span(self.habitat, asked.get("span"), latest_time(self.habitat)).key,
            int(at) if _is_number(at) else None,
            frozenset(int(each) for each in skipped if _is_number(each)),
        )

    async def _picture(self, request: Request) -> Response:
        illustrator, answer = Illustrator(self._served().detector), int(request.path_params["answer"])
        if not illustrator.draws or answer >= 2**62:
            raise HTTPException(404, "there is no such picture")
        try:
            content = await asyncio.to_thread(
                lambda: illustrator.png(self.habitat.store.source([answer]).gather(torch.arange(1))[0])
            )
        except InputError as error:
            raise HTTPException(404, "there is no such picture: it was removed") from error
        kept = {"cache-control": "private, max-age=86400, immutable"}
        return Response(content, media_type="image/png", headers={**_HEADERS, **kept})

    async def _style(self, _: Request) -> Response:
        return _file("style", "text/css")

    async def _script(self, _: Request) -> Response:
        return _file("script", "text/javascript")

    # --- signing in -------------------------------------------------------------------------------------------------------

    async def _form(self, request: Request) -> Response:
        if self.access.admits(request):
            return RedirectResponse("/", 303, headers=_HEADERS)
        return _html("sign_in.html", title="Sign in", wrong=False)

    async def _sign_in(self, request: Request) -> Response:
        given = parse_qs((await _body(request)).decode("latin-1")).get("token", [""])[0]
        if not self.access.is_token(given):
            return _html("sign_in.html", 403, title="Sign in", wrong=True)
        is_secure = request.headers.get("origin", "").startswith("https:")  # the browser's side of a proxy, if there is one
        return self.access.sign_in(RedirectResponse("/", 303, headers=_HEADERS), secure=is_secure)

    async def _sign_out(self, _: Request) -> Response:
        return self.access.sign_out(RedirectResponse(_SIGN_IN, 303, headers=_HEADERS))

    # --- what the buttons do ----------------------------------------------------------------------------------------------

    async def _judge(self, request: Request) -> Response:
        asked = await _asked(request, _Judgement)
        answer, class_, names = asked["answer"], asked["class_"], self._served().names
        if class_ is not None and class_ >= len(names):
            raise InputError(f"there is no class {class_}: give 0 to {len(names) - 1}, or null for unknown")
        await asyncio.to_thread(self.habitat.store.judge, answer, class_, printable(asked["who"].strip()))
        self._status.forget(most=0.1)  # the next answer must not wait for it
        said = "unknown" if class_ is None else printable(names[class_])
        return _json({"says": f"Answer {answer} is recorded as {said}.", "answer": answer})

    async def _promote(self, request: Request) -> Response:
        asked = await _asked(request, _Decision)
        detector, against, why = asked["detector"], asked["against"], printable(asked["why"].strip())
        if asked["force"] and not why:
            raise InputError("promoting without evidence needs a reason: say why")

        def promote() -> None:
            who = printable(asked["who"].strip())
            self.habitat.promote(detector, who=who, why=why, against=against, force=asked["force"])

        await asyncio.to_thread(promote)
        self._status.forget()
        self._review.forget()
        return _json({"says": f"{detector} is the champion now. {against} answers until it is loaded."})


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


async def _asked(request: Request, expected: Any) -> Any:
    """The body of an action as JSON, which no form of another site can send."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "send application/json")
    try:
        return parse(await _body(request), expected)
    except SchemaError as error:
        raise InputError(str(error)) from error


async def _body(request: Request) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(10):
            async for chunk in request.stream():
                body += chunk
                if len(body) > LARGEST_BODY:
                    raise HTTPException(413, f"the body is larger than {LARGEST_BODY} bytes")
    except TimeoutError as error:
        raise HTTPException(408, "the body took longer than 10 seconds") from error
    return bytes(body)


def _json(value: Any) -> Response:
    return Response(json.dumps(value), media_type="application/json", headers=_HEADERS)


def _html(template: str, status_code: int = 200, **context: Any) -> Response:
    text = _environment().get_template(template).render(**context)
    return Response(text, status_code, media_type="text/html", headers=_HEADERS)


def _file(name: str, media_type: str) -> Response:
    text, _ = _files()[name]
    return Response(text, media_type=media_type, headers={**_HEADERS, "cache-control": "max-age=31536000, immutable"})


@cache
def _environment() -> Environment:
    loader = ChoiceLoader([PackageLoader("wildood.habitat"), PackageLoader("wildood.report")])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals |= {"colours": COLOURS, "every": EVERY, "version_of": lambda name: _files()[name][1]}
    environment.filters["clock"] = _clock
    return environment


@cache
def _files() -> dict[str, tuple[str, str]]:
    """The style sheet and the script, each with a hash of it."""
    texts = {
        "style": _environment().get_template("dashboard.css").render(),
        "script": _environment().get_template("dashboard.js").render(),
    }
    return {name: (text, blake2b(text.encode(), digest_size=6).hexdigest()) for name, text in texts.items()}


def _clock(moment: float) -> str:
    """A moment as machines read it."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
