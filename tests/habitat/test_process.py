"""Settings of a process that serves: memory that is kept, and objects that are left out of garbage collection."""

import ctypes
import gc
import weakref

import pytest

from wildood.habitat.champion import Follower
from wildood.habitat.examples import Limits
from wildood.habitat.metrics import Metrics
from wildood.habitat.process import freeze, is_frozen, keep_memory


class Library:
    """What stands for the C library: it remembers the options that were set."""

    def __init__(self):
        self.options = {}

    def mallopt(self, option, value):
        self.options[option] = value


@pytest.fixture
def library(monkeypatch):
    for name in ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX"):
        monkeypatch.delenv(name, raising=False)
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    return library


@pytest.fixture
def thawed():
    yield
    gc.unfreeze()


def test_large_blocks_are_kept_unless_the_environment_says_how(library, monkeypatch):
    keep_memory()
    assert library.options == {-1: 2**28, -3: 2**25}
    library.options.clear()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")
    keep_memory()
    assert library.options == {}


def test_another_c_library_stays_as_it_is(library, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    keep_memory()


@pytest.mark.usefixtures("thawed")
def test_what_is_there_is_frozen_and_collected_at_the_next_freeze():
    class Cyclic:
        def __init__(self):
            self.self = self

    assert not is_frozen()
    one = Cyclic()
    seen = weakref.ref(one)
    freeze()
    del one
    gc.collect()
    assert is_frozen()
    assert seen() is not None
    freeze()
    assert seen() is None


@pytest.mark.usefixtures("thawed")
def test_a_promotion_freezes_the_new_detector_where_the_first_was_frozen(detector):
    current = ["d0001"]
    follower = Follower(lambda: current[0], lambda _: detector, limits=Limits(), metrics=Metrics(), batch=2)
    current[0] = "d0002"
    follower.look()
    assert not is_frozen()
    freeze()
    before = gc.get_freeze_count()
    later = [[number] for number in range(1000)]
    current[0] = "d0003"
    follower.look()
    assert gc.get_freeze_count() >= before + len(later)
