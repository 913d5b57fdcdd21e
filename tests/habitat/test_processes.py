"""Several processes on one store, and processes that are killed: nothing is torn, and what was stored is there."""

import os
import shutil
import signal
import sqlite3
import tempfile
import time
import traceback
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from wildood.habitat.answers import Answers
from wildood.habitat.habitat import Habitat
from wildood.habitat.index import UnavailableError
from wildood.habitat.recorder import Recorder
from wildood.habitat.store import Store

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")


@contextmanager
def process(work):
    """A forked process that works; it is ended when it is no longer needed."""
    number = os.fork()
    if number == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - pytest must not run twice
            traceback.print_exc()
        finally:
            os._exit(status)
    try:
        yield number
    finally:
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)


def ended(number):
    """Wait for a process, which must not fail; it stays to be reaped."""
    result = os.waitid(os.P_PID, number, os.WEXITED | os.WNOWAIT)
    assert (result.si_code, result.si_status) == (os.CLD_EXITED, 0)


def record(store, first, count=20, time=None, **settings):
    """Store answers whose scores are the numbers that fill their examples."""
    numbers = np.arange(first, first + count, dtype=np.float64)
    examples = torch.from_numpy(numbers).float()[:, None].repeat(1, 300)
    answers = Answers([str(first)] * count, "d0001", numbers, numbers, numbers > 0, numbers, time=time)
    store.append(answers, examples, **settings)


def assert_whole(store):
    """Every row has its example, and no file is torn; what a killed process left behind is removed."""
    assert [fault for fault in store.check() if "named by nothing" not in fault] == []
    store.sweep()
    assert store.check() == []
    rows = store.rows()
    if len(rows):
        examples = store.source(rows.id).gather(torch.arange(len(rows)))[0]
        assert torch.equal(examples, torch.from_numpy(rows.score).float()[:, None].expand_as(examples))


def test_processes_write_at_once(tmp_path):
    Store.create(tmp_path)

    def work(number):
        store = Store(tmp_path)
        for each in range(10):
            record(store, 10_000 * number + 100 * each)
            if each % 4 == 3:
                store.sweep()

    with process(lambda: work(1)) as first, process(lambda: work(2)) as second:
        ended(first)
        ended(second)
    store = Store(tmp_path)
    rows = store.rows()
    batches = [10_000 * number + 100 * each for number in (1, 2) for each in range(10)]
    assert sorted(rows.score.tolist()) == [batch + place for batch in batches for place in range(20)]
    assert store.windows().seen.sum() == 400
    assert (np.diff(rows.time) >= 0).all()
    assert_whole(store)


def kill_writers(directory, kills, rng):
    """Kill a process that stores and tidies, again and again; gives the numbers of the batches it said were stored."""
    store, done = Store.create(directory), []
    for number in range(kills):
        stored, writing = os.pipe()

        def work(first=1000 * number, told=writing):
            own = Store(directory)
            for each in range(1000):
                record(own, first + each, 1 + each % 3)
                os.write(told, f"{first + each}\n".encode())
                if each % 5 == 4:
                    own.sweep()
                    own.judge(int(own.rows().id[-1]), None, "ann")

        with process(work) as writer:
            os.close(writing)
            os.read(stored, 1)  # it has begun
            time.sleep(rng.uniform(0, 0.4))
            os.kill(writer, signal.SIGKILL)
            os.waitid(os.P_PID, writer, os.WEXITED | os.WNOWAIT)
            with os.fdopen(stored, "rb") as told:
                done += [int(line) for line in told.read().split()[1:]]
        assert_whole(store)
    return store, done


def assert_all_stored(store, done):
    requests = store.rows().request.tolist()
    assert set(map(str, done)) <= set(requests)
    for request in set(requests):  # batches are whole
        assert requests.count(request) == 1 + int(request) % 1000 % 3
    judged = store.judged()
    if len(judged):
        examples = judged.unknown.gather(torch.arange(len(judged)))[0]
        scores = dict(zip(store.rows().id.tolist(), store.rows().score.tolist(), strict=True))
        assert examples[:, 0].tolist() == [scores[answer] for answer in judged.answer.tolist()]


def test_a_killed_writer_loses_nothing_that_was_stored(tmp_path):
    assert_all_stored(*kill_writers(tmp_path, 4, np.random.default_rng(0)))


@pytest.mark.campaign
def test_fifty_killed_writers_lose_nothing_that_was_stored(tmp_path):
    assert_all_stored(*kill_writers(tmp_path, 50, np.random.default_rng(1)))


class Stopping(sqlite3.Connection):
    """A connection whose process may end before and after each commit."""

    def execute(self, statement, *values):
        if statement == "COMMIT":
            step()
        if statement == "PRAGMA synchronous=FULL":  # which would only take time: the machine goes on
            statement = "PRAGMA synchronous=OFF"
        result = super().execute(statement, *values)
        if statement == "COMMIT":
            step()
        return result


left = [0]


def step():
    """One of the moments at which what is on the disk changes; the process ends when none is left."""
    left[0] -= 1
    if left[0] == 0:
        os._exit(3)


def stopping(function):
    def stopped(*args, **settings):
        step()
        return function(*args, **settings)

    return stopped


@pytest.mark.slow
def test_a_process_may_end_at_every_step(tmp_path, clock, monkeypatch):
    """Each step of storing, judging and tidying is the last one of a process."""
    store = Store.create(tmp_path / "before", clock=clock, window=100.0)
    store._draws = np.random.default_rng(1)
    for first in range(0, 100, 10):
        record(store, first, 10, time=np.full(10, clock.now + first))
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **settings: connect(*args, factory=Stopping, **settings))
    monkeypatch.setattr(os, "fsync", stopping(lambda _: None))
    for name in ("replace", "unlink"):
        monkeypatch.setattr(Path, name, stopping(getattr(Path, name)))

    def work(directory):
        own = Store(directory, clock=clock, window=100.0)
        own._draws = np.random.default_rng(0)
        clock.now += 90
        record(own, 1000, 30, per_window=25)
        own.judge(int(own.rows().id[0]), None, "ann")
        own.sweep(budget=30_000)

    for steps in range(1, 1000):
        directory = tmp_path / str(steps)
        shutil.copytree(tmp_path / "before", directory)

        def stop(steps=steps, directory=directory):
            left[0] = steps
            work(directory)

        with process(stop) as number:
            result = os.waitid(os.P_PID, number, os.WEXITED | os.WNOWAIT)
        after = Store(directory, clock=clock, window=100.0)
        faults = [fault for fault in after.check() if "named by nothing" not in fault]
        assert faults == [], steps
        assert_whole(after)
        if result.si_status == 0:
            break
        assert result.si_status == 3
    assert steps > 30
    assert len(after.judged()) == 1
    assert len(after.rows()) < 30


def kill_promoters(directory, detector, kills, rng):
    """Kill a process that adds and promotes detectors, again and again."""
    habitat = Habitat.create(directory, detector)
    for _ in range(kills):

        def work():
            own = Habitat(directory)
            for _ in range(1000):
                champion = own.champion
                added = own.add(detector, parent=champion, trained_until=0)
                own.promote(added, who="ann", force=True, against=champion)

        with process(work) as promoter:
            before = len(habitat.promotions())
            while len(habitat.promotions()) == before:
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.3))
            os.kill(promoter, signal.SIGKILL)
            os.waitid(os.P_PID, promoter, os.WEXITED | os.WNOWAIT)
        assert [fault for fault in habitat.check() if "named by nothing" not in fault] == []
        habitat.sweep()
        assert habitat.check() == []
        history = habitat.promotions()
        assert [each.former for each in history[1:]] == [each.detector for each in history[:-1]]
        assert habitat.champion == history[-1].detector
        assert habitat.detector().threshold == detector.threshold
    return habitat


def test_a_killed_promotion_is_whole_or_not_at_all(tmp_path, detector):
    assert len(kill_promoters(tmp_path / "h", detector, 3, np.random.default_rng(0)).promotions()) > 3


@pytest.mark.campaign
def test_fifty_killed_promotions_are_whole_or_not_at_all(tmp_path, detector):
    assert len(kill_promoters(tmp_path / "h", detector, 50, np.random.default_rng(1)).promotions()) > 50


@pytest.mark.parametrize("is_crashed", [False, True])
def test_a_directory_that_may_not_be_written_to_is_read(detector, is_crashed):
    with tempfile.TemporaryDirectory() as name:  # other users may look into it, unlike into tmp_path
        place = Path(name)
        place.chmod(0o755)
        habitat = Habitat.create(place / "h", detector)
        habitat.add(detector, parent="d0001", trained_until=0)
        record(habitat.store, 5, 2)

        def crash():
            connection = habitat.store.index._open("mode=rw")
            connection.execute("INSERT INTO looks(test) VALUES('left in the log')")
            os.kill(os.getpid(), signal.SIGKILL)

        if is_crashed:
            with process(crash) as number:
                os.waitid(os.P_PID, number, os.WEXITED | os.WNOWAIT)
        paths = [place / "h", *(place / "h").rglob("*")]
        modes = [path.stat().st_mode for path in paths]

        def work():
            if os.geteuid() == 0:  # who may write to everything
                os.setuid(65534)
            own = Habitat(place / "h")
            assert own.champion == "d0001"
            assert own.detector().threshold == detector.threshold
            rows = own.store.rows()
            assert own.store.source(rows.id).gather(torch.arange(2))[0][:, 0].tolist() == [5.0, 6.0]
            with own.store.index.reading() as index:
                assert index.execute("SELECT count(*) FROM looks").fetchone()[0] == is_crashed
            with pytest.raises(UnavailableError, match="make its directory writable"):
                own.promote("d0002", who="ann", force=True)
            with Recorder(own.store, own.settings) as recorder:
                recorder.offer(Answers(["a"], "d0001", [1.0], [0], [True], [0.5]), torch.zeros(1, 300))
            assert recorder.counters.dropped == 1
            assert recorder.counters.stopped

        try:
            for path in reversed(paths):
                path.chmod(path.stat().st_mode & ~0o222)
            with process(work) as number:
                ended(number)
        finally:
            for path, mode in zip(paths, modes, strict=True):
                path.chmod(mode)
