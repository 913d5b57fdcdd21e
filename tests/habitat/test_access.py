"""The cookie of the page: made with the token, never holding it, and checked in full."""

import pytest
from starlette.requests import Request

from wildood.habitat.access import LASTS, Access

TOKEN = b"a token of many letters"


def request(**headers):
    return Request({"type": "http", "headers": [(name.encode(), value.encode()) for name, value in headers.items()]})


@pytest.fixture
def access(clock):
    return Access(TOKEN, clock)


def test_the_cookie_admits_until_it_ends(access, clock):
    value = access.value()
    assert TOKEN.decode() not in value
    assert access.admits(request(cookie=f"{access.cookie}={value}"))
    clock.now += LASTS - 1
    assert access.holds(value)
    clock.now += 1
    assert not access.holds(value)


def test_a_cookie_of_another_token_or_another_end_is_refused(access, clock):
    value = access.value()
    until, mac = value.split(".")
    other = Access(b"another token of many letters", clock)
    assert not access.holds(other.value())
    assert access.cookie != other.cookie
    strange = [
        "",
        ".",
        mac,
        f"{int(until) + 1}.{mac}",
        f"{until}.",
        f"{until}.{mac[:-1]}",
        f"-{value}",
        f"{value}x",
        "²." + mac,
    ]
    assert not any(map(access.holds, strange))


def test_the_token_itself_admits_as_a_bearer_only(access):
    assert access.admits(request(authorization=f"Bearer {TOKEN.decode()}"))
    assert not access.admits(request(authorization=f"Basic {TOKEN.decode()}"))
    assert not access.admits(request(authorization="Bearer tökén"))
    assert not access.admits(request(cookie=f"{access.cookie}={TOKEN.decode()}"))
    assert not access.admits(request())


def test_without_a_token_everybody_is_admitted_but_no_token_is_right():
    access = Access(None)
    assert access.is_open
    assert access.admits(request())
    assert not access.is_token("")
