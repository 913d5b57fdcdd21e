"""The store: what is recorded is read back, sampled uniformly, and kept within its bounds."""

import sqlite3

import numpy as np
import pytest
import scipy.stats
import torch

from wildood.errors import InputError
from wildood.habitat import upkeep
from wildood.habitat.answers import Answers, Counts
from wildood.habitat.index import UnavailableError
from wildood.habitat.store import Store


def examples_of(store, ids):
    return store.source(ids).gather(torch.arange(len(ids)))[0]


def test_what_was_recorded_is_read_back(store, answers, vectors):
    assert store.append(answers(3), vectors(3)) == 3
    assert store.append(answers(2, 3), None) == 2
    rows = store.rows()
    assert rows.id.tolist() == [1, 2, 3, 4, 5]
    assert rows.request.tolist() == ["r0", "r1", "r2", "r3", "r4"]
    assert rows.detector.tolist() == ["d0001"] * 5
    assert rows.score.tolist() == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert rows.class_.tolist() == [0, 1, 2, 0, 1]
    assert rows.known.tolist() == [True, False, True, False, True]
    assert rows.p_value.tolist() == [0.0, 0.001, 0.002, 0.003, 0.004]
    assert rows.time.tolist() == [1e6] * 5
    assert rows.has_example.tolist() == [True, True, True, False, False]
    assert rows.shadow.tolist() == [""] * 5
    assert np.isnan(rows.shadow_score).all()
    assert examples_of(store, [3, 1, 3]).tolist() == [[2.0, 2.0], [0.0, 0.0], [2.0, 2.0]]
    windows = store.windows()
    assert (windows.start.tolist(), windows.seen.tolist(), windows.unknown.tolist()) == ([1e6], [5], [2])
    assert (windows.sampled.tolist(), windows.dropped.tolist(), windows.below.tolist()) == ([5], [0], [1.0])
    assert store.check() == []


def test_rows_are_chosen_by_id_time_detector_and_example(store, answers, vectors, clock):
    store.append(answers(3), vectors(3))
    clock.now += 50
    store.append(
        Answers(["x"], "d0002", [1.0], [1], [True], [np.nan], shadow="d0003", shadow_score=[2.0], shadow_known=[0]), None
    )
    assert store.rows(after=1, until=3).id.tolist() == [2, 3]
    assert store.rows(since=1e6 + 1).id.tolist() == [4]
    assert store.rows(detector="d0001").id.tolist() == [1, 2, 3]
    assert store.rows(with_examples=True).id.tolist() == [1, 2, 3]
    last = store.rows(detector="d0002")
    assert (last.shadow.tolist(), last.shadow_score.tolist(), last.shadow_known.tolist()) == (["d0003"], [2.0], [False])
    assert np.isnan(last.p_value).all()
    assert len(store.rows(detector="nobody")) == 0


def test_an_empty_store_has_empty_columns(store):
    assert len(store.rows()) == len(store.windows()) == len(store.judged()) == 0
    store.sweep(budget=1, retain=1.0)
    assert store.check() == []


def test_columns_of_other_lengths_are_refused(store, answers, vectors):
    with pytest.raises(InputError, match="2 examples: give one for each"):
        store.append(answers(3), vectors(2))
    with pytest.raises(InputError, match="score has shape"):
        store.append(Answers(["a"], "d0001", [1.0, 2.0], [0], [True], [0.5]), None)
    with pytest.raises(InputError, match="NaN"):
        store.append(answers(1), torch.full((1, 2), torch.nan))
    assert len(store.rows()) == 0
    assert store.check() == []


def test_the_id_of_a_request_may_be_any_text(store):
    hostile = "'); DROP TABLE answers; --\0\udcff" + 1000 * "x"
    store.append(Answers([hostile], "d0001", [1.0], [0], [True], [0.5]), None)
    assert store.rows().request[0].startswith("'); DROP TABLE answers; --")
    assert len(store.rows().request[0]) <= 200


def test_missing_examples_are_named(store, answers, vectors):
    store.append(answers(1), vectors(1))
    store.append(answers(1), None)
    with pytest.raises(InputError, match=r"2 of 3 answers have no example, such as answer 2"):
        store.source([1, 2, 77])
    with pytest.raises(InputError, match="no answers are named"):
        store.source([])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.float64])
def test_examples_are_kept_to_the_bit(store, answers, dtype):
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (7, 5, 4, 3))).to(dtype)
    store.append(answers(7), x)
    again = examples_of(store, store.rows().id)
    assert again.dtype == dtype
    assert torch.equal(again, x)
    store.append(answers(7), x)
    store.sweep()
    assert torch.equal(examples_of(store, store.rows().id), torch.cat([x, x]))


def test_arrays_of_numpy_are_taken_too(store, answers):
    x = np.arange(6, dtype=">f4").reshape(3, 2)
    x.flags.writeable = False
    store.append(answers(3), x)
    assert examples_of(store, [1, 2, 3]).tolist() == x.tolist()


def texts(count, length):
    ids = torch.arange(count * length).reshape(count, length) + 1
    return {"input_ids": ids, "extra": (torch.ones(count, length, dtype=torch.bool), torch.full((count,), float(length)))}


def test_structured_examples_of_different_lengths(store, answers):
    store.extend([(answers(2), texts(2, 3)), (answers(2, 2), texts(2, 5)), (answers(1, 4), texts(1, 3))])
    assert len(list(store.traffic.iterdir())) == 2  # one file for each length
    assert store.rows().request.tolist() == ["r0", "r1", "r2", "r3", "r4"]
    batch = examples_of(store, [2, 3, 5])
    assert batch["input_ids"].tolist() == [[4, 5, 6, 0, 0], [1, 2, 3, 4, 5], [1, 2, 3, 0, 0]]
    assert batch["extra"][0].tolist() == [[True] * 3 + [False] * 2, [True] * 5, [True] * 3 + [False] * 2]
    assert batch["extra"][1].tolist() == [3.0, 5.0, 3.0]
    assert isinstance(batch["extra"], tuple)
    before = store.source([1, 2, 3, 4, 5]).fingerprint()
    store.judge(4, None, "ann")
    store.sweep()
    assert store.source([1, 2, 3, 4, 5]).fingerprint() == before
    assert store.judged().unknown.gather(torch.arange(1))[0]["input_ids"].tolist() == [[6, 7, 8, 9, 10]]
    assert store.check() == []


def test_the_fingerprint_is_that_of_the_examples_in_their_order(store, answers, vectors):
    for first in range(0, 30, 3):
        store.append(answers(3, first), vectors(3, first))
    ids = store.rows().id
    before = store.source(ids).fingerprint()
    assert store.source(ids[::-1]).fingerprint() != before
    assert store.source(ids[1:]).fingerprint() != before
    files = {each.name for each in store.traffic.iterdir()}
    store.sweep()
    assert {each.name for each in store.traffic.iterdir()}.isdisjoint(files)
    assert store.source(ids).fingerprint() == before


def test_a_sample_is_uniform_over_batches_and_servers(store, answers, clock):
    servers = [store, Store(store.directory, clock=clock, window=100.0)]
    for number, server in enumerate(servers):
        server._draws = np.random.default_rng(number)
    for number in range(20):
        count = 100 if number % 2 else 300  # rates differ
        servers[number % 3 % 2].append(answers(count, 1000 * number), None, sample=0.8, per_window=500)
    rows = store.rows()
    assert len(rows) == 500
    assert store.windows().seen.tolist() == [4000]
    assert store.windows().sampled.tolist() == [500]
    assert store.windows().below.tolist() == [rows.priority.max()]
    batch = (rows.score * 10).round().astype(int) // 1000
    expected = np.array([300 if number % 2 == 0 else 100 for number in range(20)]) / 4000 * 500
    assert scipy.stats.chisquare(np.bincount(batch, minlength=20), expected).pvalue > 0.01
    # Within the batches, too: the place of each row in its own batch is uniform.
    place = ((rows.score * 10).round().astype(int) % 1000 + 0.5) / np.where(batch % 2 == 0, 300, 100)
    assert scipy.stats.kstest(place, "uniform").pvalue > 0.01
    assert scipy.stats.kstest(rows.priority / rows.priority.max(), "uniform").pvalue > 0.01


def test_each_window_has_its_own_sample(store, answers, vectors, clock):
    for number in range(3):
        clock.now = 1e6 + 100 * number
        for _ in range(2):
            store.append(answers(50), vectors(50), per_window=20)
    assert store.windows().start.tolist() == [1e6, 1e6 + 100, 1e6 + 200]
    assert store.windows().sampled.tolist() == [20, 20, 20]
    assert np.bincount((store.rows().time - 1e6).astype(int) // 100).tolist() == [20, 20, 20]
    store.sweep()
    assert store.check() == []


def test_examples_that_a_window_no_longer_holds_leave_the_disk(store, answers):
    for first in range(0, 1000, 100):
        store.append(answers(100, first), torch.zeros(100, 100), per_window=50)
        store.sweep()
    assert sum(each.stat().st_size for each in store.traffic.iterdir()) < 3 * 50 * 400
    assert store.check() == []


def test_what_was_counted_elsewhere_is_added(store, answers, vectors):
    store.append(answers(2), vectors(2), counts={1e6: Counts(100, 7, 3)})
    store.extend([], counts={1e6 + 100: Counts(10, 1, 0)})
    windows = store.windows()
    assert (windows.start.tolist(), windows.seen.tolist()) == ([1e6, 1e6 + 100], [100, 10])
    assert (windows.unknown.tolist(), windows.dropped.tolist()) == ([7, 1], [3, 0])


def test_a_clock_that_goes_back_stands_still(store, answers, vectors, clock):
    store.append(answers(2), vectors(2))
    clock.now -= 5000
    store.append(answers(2), vectors(2))
    store.extend([], counts={clock.now: Counts(1)})
    assert store.rows().time.tolist() == [1e6] * 4
    assert store.windows().start.tolist() == [1e6]
    assert store.windows().seen.tolist() == [5]
    clock.now = 1e6 + 30
    store.append(answers(3, time=[1e6 + 20, 1e6 + 10, 1e6 + 30]), vectors(3))
    assert store.rows().time.tolist()[4:] == [1e6 + 20, 1e6 + 20, 1e6 + 30]
    store.sweep(retain=1e5)
    assert len(store.rows()) == 7
    assert store.check() == []


def test_retention_removes_older_windows(store, answers, vectors, clock):
    for number in range(10):
        clock.now = 1e6 + 100 * number
        store.append(answers(5), vectors(5))
    store.sweep(retain=500)
    assert store.rows().time.min() == 1e6 + 400
    assert len(store.windows()) == 10  # counters stay
    assert len(list(store.traffic.iterdir())) == 6
    assert store.check() == []


def test_the_budget_removes_the_oldest_windows(store, answers, clock):
    for number in range(10):
        clock.now = 1e6 + 100 * number
        store.append(answers(100), torch.zeros(100, 250))
    store.sweep(budget=10**9)
    assert len(store.rows()) == 1000
    store.sweep(budget=550_000)  # of about 126,000 a window
    assert np.unique(store.rows().time).tolist() == [1e6 + 600, 1e6 + 700, 1e6 + 800, 1e6 + 900]
    assert sum(each.stat().st_size for each in store.traffic.iterdir()) <= 550_000
    assert store.check() == []


def test_one_window_beyond_the_budget_stays_a_uniform_sample(store, answers):
    store._draws = np.random.default_rng(0)
    for first in range(0, 2000, 200):
        store.append(answers(200, first), torch.zeros(200, 250))
        store.sweep(budget=500_000)
    rows = store.rows()
    assert 250 < len(rows) < 400  # of about 1,256 bytes
    assert rows.priority.max() <= store.windows().below[0] < 0.25
    assert scipy.stats.kstest(rows.score / 200, "uniform").pvalue > 0.01
    assert store.check() == []


def test_small_files_are_joined(store, answers, vectors, monkeypatch):
    for first in range(0, 20, 2):
        store.append(answers(2, first), vectors(2, first))
    old = store.source(store.rows().id)
    store.sweep()
    assert len(list(store.traffic.iterdir())) == 1
    assert examples_of(store, store.rows().id)[:, 0].tolist() == list(range(20))
    assert old.gather(torch.arange(20))[0][:, 0].tolist() == list(range(20))  # open files outlive their names
    monkeypatch.setattr(upkeep, "LARGE", 300)
    for first in range(20, 40, 2):
        store.append(answers(2, first), vectors(2, first))
    store.sweep()
    assert len(list(store.traffic.iterdir())) == 6  # the first, and five of two each
    assert examples_of(store, store.rows().id)[:, 0].tolist() == list(range(40))
    assert store.check() == []


def test_files_may_be_joined_while_they_are_opened(store, answers, vectors, monkeypatch):
    for first in range(0, 20, 2):
        store.append(answers(2, first), vectors(2, first))
    read = store.open

    def open_late(*places):
        monkeypatch.setattr(store, "open", read)
        store.sweep()
        return read(*places)

    monkeypatch.setattr(store, "open", open_late)
    assert examples_of(store, store.rows().id)[:, 0].tolist() == list(range(20))


def test_a_missing_file_is_named(store, answers, vectors):
    store.append(answers(2), vectors(2))
    file = next(store.traffic.iterdir())
    file.unlink()
    with pytest.raises(InputError, match=f"{file.name} is missing"):
        store.source([1])
    assert store.check() == [f"{file.name} is missing"]


def test_the_check_finds_what_is_wrong(store, answers, vectors):
    store.append(answers(2), vectors(2))
    file = next(store.traffic.iterdir())
    stray = store.traffic / "stray.npy"
    stray.write_bytes(file.read_bytes())
    assert store.check() == ["stray.npy is named by nothing: sweep removes it"]
    store.sweep()
    assert store.check() == []
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    assert store.check() == [f"{file.name} was torn or changed"]
    file.write_bytes(content)
    wrong = {
        "UPDATE answers SET row = 5 WHERE id = 1": "is row 5 of",
        "UPDATE answers SET row = 1 WHERE id = 1": "the same example",
        "UPDATE answers SET shard = 'x.npy' WHERE id = 1": "does not know",
        "UPDATE answers SET window = 7 WHERE id = 1": "of no window",
        "UPDATE answers SET priority = 2 WHERE id = 1": "too large a priority",
        "UPDATE answers SET time = 7 WHERE id = 2": "older than",
        "UPDATE shards SET rows = 7": "does not hold what the index says",
    }
    for statement, text in wrong.items():
        before = store.index.path.read_bytes()
        with store.index.writing() as index:
            index.execute(statement)
        assert any(text in fault for fault in store.check()), statement
        store.index.path.write_bytes(before)
        assert store.check() == []


def test_judged_examples_outlive_the_traffic(store, answers, vectors, clock):
    store.append(answers(10), vectors(10))
    clock.now += 10
    store.judge(3, 2, "ann")
    store.judge(4, None, "ann")
    store.judge(6, 1, "ann")
    clock.now += 10
    store.judge(6, None, "bob")  # the last judgement counts
    clock.now += 1e6
    store.sweep(budget=1, retain=100)
    assert len(store.rows()) == 0
    judged = store.judged()
    assert judged.answer.tolist() == [3, 4, 6]
    assert judged.answered.tolist() == [1e6] * 3
    assert judged.time.tolist() == [1e6 + 10, 1e6 + 10, 1e6 + 20]
    assert judged.who.tolist() == ["ann", "ann", "bob"]
    assert judged.class_.tolist() == [2, -1, -1]
    x, y = judged.known.gather(torch.arange(1))
    assert (x.tolist(), y.tolist()) == ([[2.0, 2.0]], [2])
    x, y = judged.unknown.gather(torch.arange(2))
    assert (x.tolist(), y) == ([[3.0, 3.0], [5.0, 5.0]], None)
    store.judge(3, 0, "eve")  # although the answer is gone
    assert store.judged().class_.tolist() == [0, -1, -1]
    assert store.check() == []


def test_files_of_judged_examples_are_joined(store, answers, vectors):
    store.append(answers(10), vectors(10))
    for answer in range(1, 11):
        store.judge(answer, answer % 3, "ann")
    assert len(list(store.traffic.iterdir())) == 11
    store.sweep()
    assert len(list(store.traffic.iterdir())) == 2
    x, y = store.judged().known.gather(torch.arange(10))
    assert (x[:, 0].tolist(), y.tolist()) == (list(range(10)), [(number + 1) % 3 for number in range(10)])
    assert store.check() == []


def test_what_cannot_be_judged_is_refused(store, answers, vectors):
    store.append(answers(1), None)
    with pytest.raises(InputError, match="no example, such as answer 1"):
        store.judge(1, 0, "ann")
    with pytest.raises(InputError, match="class_ is -1"):
        store.judge(1, -1, "ann")
    assert len(store.judged()) == 0
    assert store.check() == []


def test_a_full_disk_loses_nothing_that_was_stored(store, answers, vectors, monkeypatch):
    store.append(answers(2), vectors(2))

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            store.append(answers(2), vectors(2))
    assert store.check() == []
    pages = {}

    def small(*args, **settings):
        connection = connect(*args, **settings)
        pages["most"] = connection.execute("PRAGMA max_page_count=1").fetchone()[0]
        return connection

    connect = sqlite3.connect
    with monkeypatch.context() as patch:
        patch.setattr("sqlite3.connect", small)
        with pytest.raises(UnavailableError, match="the disk is full: make room"):
            store.append(answers(5000), vectors(5000))
    assert pages["most"] < 100
    stored = len(store.rows())
    store.sweep()
    assert store.check() == []
    store.append(answers(3), vectors(3))
    assert len(store.rows()) == stored + 3
    assert len(examples_of(store, store.rows().id)) == stored + 3


def test_a_store_that_is_locked_says_so(store, answers, vectors):
    store.index.patience = 0.01
    with store.index.writing(), pytest.raises(UnavailableError, match="another process is writing to it: try again"):
        store.append(answers(1), vectors(1))
    store.append(answers(1), vectors(1))
    assert len(store.rows()) == 1


def test_a_damaged_index_says_so(store):
    store.index.path.write_bytes(b"no index at all" * 1000)
    with pytest.raises(UnavailableError, match=r"index\.sqlite: it is damaged: restore it from a copy"):
        store.rows()


def test_a_readonly_store_is_only_read(store, answers, vectors):
    store.append(answers(2), vectors(2))
    readonly = Store(store.directory, readonly=True)
    assert len(readonly.rows()) == 2
    with pytest.raises(UnavailableError, match="cannot be written to"):
        readonly.append(answers(2), vectors(2))
    readonly.check()
    assert len(store.rows()) == 2
