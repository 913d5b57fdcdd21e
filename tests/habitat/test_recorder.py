"""The recorder: nothing delays or breaks an answer, and what is lost is counted."""

import logging
import sqlite3
import threading

import numpy as np
import pytest
import torch

from wildood.errors import InputError
from wildood.habitat import recorder as module
from wildood.habitat.habitat import Settings
from wildood.habitat.recorder import Recorder
from wildood.habitat.store import Store

QUIET = Settings(flush_seconds=1000.0, per_window=None)  # nothing is stored before it is asked for


def test_what_is_offered_is_stored_in_order(store, answers, vectors):
    with Recorder(store, QUIET) as recorder:
        for first in range(0, 50, 10):
            recorder.offer(answers(10, first), vectors(10, first))
        assert len(store.rows()) == 0
        recorder.flush()
        assert store.rows().request.tolist() == [f"r{number}" for number in range(50)]
        recorder.offer(answers(10, 50), vectors(10, 50))
        counters = recorder.counters
        assert (counters.seen, counters.unknown, counters.stored, counters.waiting) == (60, 30, 50, 10)
    rows = store.rows()
    assert len(rows) == 60
    assert store.source(rows.id).gather(torch.arange(60))[0][:, 0].tolist() == list(range(60))
    windows = store.windows()
    assert (windows.seen.tolist(), windows.unknown.tolist(), windows.dropped.tolist()) == ([60], [30], [0])


def test_a_full_queue_drops_and_counts(store, answers, vectors):
    with Recorder(store, Settings(flush_seconds=1000.0, queue=25)) as recorder:
        for first in range(0, 50, 10):
            recorder.offer(answers(10, first), vectors(10, first))
        assert (recorder.counters.waiting, recorder.counters.dropped) == (20, 30)
    assert len(store.rows()) == 20
    assert (store.windows().seen.tolist(), store.windows().dropped.tolist()) == ([50], [30])


def test_the_bytes_of_the_queue_are_bounded(store, answers, monkeypatch):
    monkeypatch.setattr(module, "QUEUE_BYTES", 3000)
    with Recorder(store, QUIET) as recorder:
        for first in range(5):
            recorder.offer(answers(1, first), torch.zeros(1, 250))
        assert (recorder.counters.waiting, recorder.counters.dropped) == (3, 2)
        recorder.flush()
        recorder.offer(answers(1, 9), torch.zeros(1, 250))
    assert len(store.rows()) == 4


def test_all_answers_are_counted_and_a_sample_is_stored(store, answers, vectors):
    with Recorder(store, Settings(flush_seconds=1000.0, sample=0.1)) as recorder:
        for first in range(0, 5000, 100):
            recorder.offer(answers(100, first), vectors(100, first))
    assert store.windows().seen.tolist() == [5000]
    assert 400 < len(store.rows()) < 600  # 500 +- 21
    assert store.rows().priority.max() < 0.1
    assert store.check() == []


def test_what_a_full_window_would_not_take_is_not_queued(store, answers, vectors):
    with Recorder(store, Settings(flush_seconds=1000.0, per_window=10)) as recorder:
        recorder.offer(answers(1000), vectors(1000))
        recorder.flush()
        recorder.offer(answers(1000), vectors(1000))
        assert recorder.counters.waiting < 100  # 10 on average
    assert len(store.rows()) == 10
    assert store.windows().seen.tolist() == [2000]


def test_scores_without_examples(store, answers, vectors):
    with Recorder(store, Settings(collect="scores")) as recorder:
        recorder.offer(answers(3), vectors(3))
    assert store.rows().has_example.tolist() == [False] * 3


def test_who_opts_out_is_counted_but_not_stored(store, answers, vectors):
    with Recorder(store, QUIET) as recorder:
        recorder.offer(answers(3), vectors(3), collect=False)
    assert len(store.rows()) == 0
    assert store.windows().seen.tolist() == [3]


def test_full_batches_do_not_wait(store, answers, vectors):
    with Recorder(store, Settings(flush_seconds=1000.0, flush_rows=10)) as recorder:
        stored = threading.Event()
        extend = store.extend
        recorder._store.extend = lambda *args, **kwargs: (extend(*args, **kwargs), stored.set())[0]
        recorder.offer(answers(10), vectors(10))
        assert stored.wait(10)


def test_a_mistake_in_an_offer_is_logged_once_and_raises_nothing(store, answers, vectors, caplog):
    with Recorder(store, QUIET) as recorder:
        recorder.offer(answers(3), vectors(2))
        recorder.offer(answers(3), vectors(2))
        recorder.offer(answers(1), vectors(1))
    assert len(store.rows()) == 1
    assert [each.message for each in caplog.records] == ["answers cannot be recorded; this is said once"]


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), sqlite3.OperationalError("other")])
def test_a_full_disk_stops_storing_and_is_tried_again(store, answers, vectors, caplog, monkeypatch, error):
    if isinstance(error, sqlite3.Error):
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
    connect, drafts = sqlite3.connect, store.drafts
    with Recorder(store, QUIET) as recorder:
        if isinstance(error, OSError):
            monkeypatch.setattr(store, "drafts", failing(error))
        else:
            monkeypatch.setattr(sqlite3, "connect", failing(error))
        recorder.offer(answers(10), vectors(10))
        recorder.flush()
        recorder.flush()
        assert "No space left" in recorder.counters.stopped or "the disk is full" in recorder.counters.stopped
        assert recorder.counters.waiting == 10
        recorder.offer(answers(10, 10), vectors(10, 10))
        monkeypatch.setattr(store, "drafts", drafts)
        monkeypatch.setattr(sqlite3, "connect", connect)
        recorder.flush()
        assert (recorder.counters.stored, recorder.counters.stopped) == (20, "")
    messages = [each.message for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(messages) == 2
    assert "nothing is stored" in messages[0]
    assert "answers go on" in messages[0]
    assert "stored again" in messages[1]
    assert store.rows().request.tolist() == [f"r{number}" for number in range(20)]
    assert store.check() == []


def test_a_stopped_recorder_keeps_to_its_bounds_and_tries_again_by_itself(store, answers, vectors, monkeypatch):
    monkeypatch.setattr(module, "RETRY", 0.05)
    drafts = store.drafts
    monkeypatch.setattr(store, "drafts", failing(OSError(28, "No space left on device")))
    with Recorder(store, Settings(flush_seconds=0.01, queue=30)) as recorder:
        for first in range(0, 100, 10):
            recorder.offer(answers(10, first), vectors(10, first))
            recorder.flush()
        assert (recorder.counters.waiting, recorder.counters.dropped) == (30, 70)
        monkeypatch.setattr(store, "drafts", drafts)
        for _ in range(1000):
            if recorder.counters.stored:
                break
            threading.Event().wait(0.01)
        assert recorder.counters.stored == 30
    assert store.windows().dropped.tolist() == [70]


def test_a_stopped_recorder_still_applies_budget_and_retention_which_may_make_room(store, answers, vectors, monkeypatch):
    monkeypatch.setattr(module, "SWEEP", 0.0)
    swept = []
    monkeypatch.setattr(store, "drafts", failing(OSError(28, "No space left on device")))
    monkeypatch.setattr(store, "sweep", lambda **settings: swept.append(settings))
    with Recorder(store, Settings(flush_seconds=60.0, budget=1000, retain=50.0)) as recorder:
        recorder.offer(answers(10), vectors(10))
        recorder.flush()
        assert "No space left" in recorder.counters.stopped
        swept.clear()
        recorder.flush()
        assert swept == [{"budget": 1000, "retain": 50.0}]


def test_what_cannot_be_stored_in_the_end_is_counted(store, answers, vectors, monkeypatch):
    readonly = Store(store.directory, clock=store.clock, window=100.0, readonly=True)
    recorder = Recorder(readonly, QUIET)
    recorder.offer(answers(10), vectors(10))
    recorder.close()
    assert (recorder.counters.stored, recorder.counters.dropped, recorder.counters.waiting) == (0, 10, 0)
    assert "writable" in recorder.counters.stopped
    assert len(store.rows()) == 0


def test_redaction(store, answers, vectors, caplog):
    settings = Settings(flush_seconds=1000.0, redact="mine:halve")
    with pytest.raises(InputError, match="mine:halve"):
        Recorder(store, settings)

    def redact(batch):
        if len(batch) == 2:
            raise ValueError("the name of a person")
        return batch[:-1] if len(batch) == 3 else np.asarray(batch) / 2

    with Recorder(store, settings, redact=redact) as recorder:
        for count in (1, 2, 3, 4):
            recorder.offer(answers(count, count), vectors(count, count))
    rows = store.rows()
    assert rows.request.tolist() == ["r1", "r4", "r5", "r6", "r7"]
    assert store.source(rows.id).gather(torch.arange(5))[0][:, 0].tolist() == [0.5, 2.0, 2.5, 3.0, 3.5]
    assert recorder.counters.dropped == 5
    assert store.windows().dropped.tolist() == [5]
    assert "person" not in caplog.text
    assert "redact failed" in caplog.text


def test_what_is_redacted_once_is_not_redacted_again(store, answers, vectors, monkeypatch):
    drafts = store.drafts
    with Recorder(store, Settings(flush_seconds=1000.0, redact="x:y"), redact=lambda batch: batch / 2) as recorder:
        monkeypatch.setattr(store, "drafts", failing(OSError(28, "No space left on device")))
        recorder.offer(answers(1, 8), vectors(1, 8))
        recorder.flush()
        monkeypatch.setattr(store, "drafts", drafts)
    assert store.source([1]).gather(torch.arange(1))[0].tolist() == [[4.0, 4.0]]
