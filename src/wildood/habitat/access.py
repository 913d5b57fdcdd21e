"""Who may see the page: a browser has no Authorization header, so it signs in once and keeps a cookie."""

import hmac
from collections.abc import Callable
from hashlib import sha256
from time import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

LASTS: Final = 7 * 86_400  # seconds
_PURPOSE = b"wildood page "


class Access:
    """Checks the credentials of a request for the page: the cookie, or the token itself.

    The cookie holds when it ends, and an HMAC of that with the token as its key: it neither tells the token nor can be made
    without it, and another token ends all of them. Browsers send cookies to every port of a host, so its name depends on
    the token, too.

    >>> access = Access(b"a token of many letters")
    >>> access.holds(access.value()), access.holds("4102444800.00"), access.holds("")
    (True, False, False)
    """

    def __init__(self, token: bytes | None, clock: Callable[[], float] = time) -> None:
        self._token, self._clock = token, clock
        self.cookie = f"wildood_{self._mac(b'name')[:8]}"

    @property
    def is_open(self) -> bool:
        """Whether no token is asked for."""
        return self._token is None

    def admits(self, request: Request) -> bool:
        """Whether a request brings the cookie or the token."""
        if self._token is None:
            return True
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        is_bearer = scheme.lower() == "bearer" and self.is_token(given)
        return is_bearer or self.holds(request.cookies.get(self.cookie, ""))

    def is_token(self, given: str) -> bool:
        """Whether this is the token, compared in constant time."""
        return self._token is not None and hmac.compare_digest(given.strip().encode(), self._token)

    def holds(self, value: str) -> bool:
        """Whether this is the value of a cookie that has not ended."""
        until, _, given = value.partition(".")
        if not (until.isascii() and until.isdigit() and len(until) < 15):
            return False
        is_ours = hmac.compare_digest(given.encode(), self._mac(until.encode()).encode())
        return is_ours and self._clock() < int(until)

    def value(self) -> str:
        """The value of a new cookie."""
        until = str(int(self._clock()) + LASTS)
        return f"{until}.{self._mac(until.encode())}"

    def sign_in(self, response: Response, *, secure: bool) -> Response:
        """Give the browser the cookie: scripts cannot read it, and no page of another site makes the browser send it."""
        response.set_cookie(
            self.cookie, self.value(), max_age=LASTS, path="/", httponly=True, samesite="strict", secure=secure
        )
        return response

    def sign_out(self, response: Response) -> Response:
        """Take the cookie back."""
        response.delete_cookie(self.cookie, path="/", httponly=True, samesite="strict")
        return response

    def _mac(self, text: bytes) -> str:
        return hmac.new(self._token or b"", _PURPOSE + text, sha256).hexdigest()
