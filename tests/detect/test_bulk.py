"""Bulk scoring: the lines of the whole at once, in memory that does not grow; the same bytes after an interruption."""

import copy
import gc
import io
import json
import os
import weakref
from csv import DictReader
from pathlib import Path

import numpy as np
import pytest
import torch

import wildood
from wildood.data.archives import Archive, ArrayShard, Shard, ShardExamples, array_archive, shard_size
from wildood.data.files import digest, locked
from wildood.detect import bulk
from wildood.detect.bulk import score_archive, score_shard, shard_directory
from wildood.errors import InputError
from wildood.models.classifier import EVAL_BATCH
from wildood.models.small import MLP

PROVENANCE = {"a detector": "c0ffee", "examples": "x"}


@pytest.fixture(scope="module")
def detector():
    torch.manual_seed(0)
    holdout = np.random.default_rng(0).normal(size=(300, 4)).astype("float32")
    return wildood.posthoc(MLP(4, 3), wildood.EnergyScore(), holdout=holdout, alpha=0.2)


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(1).normal(size=(10_000, 4)).astype("float32")


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rows(x, *, hashed=False):
    """Shards of 4,096 rows."""
    for first in range(0, len(x), 4096):
        part = x[first : first + 4096]
        yield ArrayShard(first, len(part), fingerprint=digest(part.tobytes()) if hashed else "", rows=part)


def score(detector, shards, provenance=PROVENANCE, stop_after=None, form="csv", **options):
    """Score into a.csv, interrupted after some shards; the first examples of the shards that were scored."""
    scored = []

    def scorer(shards):
        for shard in shards:
            if len(scored) == stop_after:
                raise KeyboardInterrupt
            scored.append(shard.first)
            yield shard, score_shard(detector, shard, form)

    with shard_directory(Path("a.csv"), provenance, **options) as directory:
        score_archive(Archive("inbox", "x", None, iter(shards)), scorer, directory)
    return scored


def interrupt(detector, shards, after, **options):
    with pytest.raises(KeyboardInterrupt):
        score(detector, shards, stop_after=after, **options)


def whole(detector, x, form="csv"):
    score(detector, rows(x), form=form)
    return Path("a.csv").read_bytes()


def left():
    return sorted(path.name for path in Path().iterdir())


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_lines_are_those_of_the_whole_bit_by_bit(detector, x, form):
    text = whole(detector, x, form).decode()
    lines = list(DictReader(io.StringIO(text))) if form == "csv" else [json.loads(line) for line in text.splitlines()]
    scores, classes = detector.score_and_classify(x)
    assert [int(line["example"]) for line in lines] == list(range(10_000))
    assert [float(line["score"]) for line in lines] == scores.tolist()
    assert [int(line["class"]) for line in lines] == classes.tolist()
    assert [line["decision"] == "known" for line in lines] == detector.accepts(scores, classes).tolist()
    assert left() == ["a.csv"]


def test_names_of_classes_and_of_files_are_written(detector, x, capsys):
    names = [f"{number}.png" for number in range(5000)]
    named = copy.copy(detector)
    named.record = {**detector.record, "classes": ["ant", "bee", "cat"]}
    scorer = lambda shards: ((shard, score_shard(named, shard, "csv")) for shard in shards)  # noqa: E731
    score_archive(array_archive(x[:5000], names, "x", "x"), scorer, None)
    lines = list(DictReader(io.StringIO(capsys.readouterr().out)))
    assert [line["example"] for line in lines] == names
    assert [line["class"] for line in lines] == [["ant", "bee", "cat"][number] for number in detector.classify(x[:5000])]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_class_without_a_name_is_called_by_its_number(detector, x, form):
    """A model may have more classes than the folder of pictures that it was fitted on."""
    few = copy.copy(detector)
    few.record = {**detector.record, "classes": ["cat", "dog"]}
    classes = detector.classify(x[:50]).tolist()
    expected = [{0: "cat", 1: "dog"}.get(number, number) for number in classes]
    assert set(expected) == {"dog", 2}
    lines = score_shard(few, ArrayShard(0, 50, rows=x[:50]), form).text.splitlines()
    said = [json.loads(line)["class"] for line in lines] if form == "jsonl" else [line.split(",")[3] for line in lines[1:]]
    assert said == (expected if form == "jsonl" else list(map(str, expected)))


def test_shards_hold_whole_batches_so_that_no_batch_depends_on_how_an_archive_is_cut():
    assert {shard_size(size) % EVAL_BATCH for size in range(0, 200_000, 1000)} == {0}


class CountedShard(Shard):
    """A shard whose examples are made when they are read; the class knows how many of all are alive."""

    alive = most = 0

    def read(self, threads):
        examples = np.zeros((256, 4), np.float32)
        CountedShard.alive += 1
        CountedShard.most = max(CountedShard.most, CountedShard.alive)
        weakref.finalize(examples, CountedShard.forget)
        return ShardExamples(examples, range(self.first, self.first + 256))

    @classmethod
    def forget(cls):
        cls.alive -= 1


def test_memory_holds_one_shard_whatever_the_length_of_the_archive(detector, monkeypatch):
    listed, written, really = [], [], bulk.ShardDirectory.write

    def shards():
        for number in range(50):
            listed.append(number)
            yield CountedShard(256 * number, 256)

    def write(directory, shard, scores):
        written.append(scores.lines)
        assert len(listed) == len(written)  # no shard is taken before the last one is written
        really(directory, shard, scores)

    monkeypatch.setattr(bulk.ShardDirectory, "write", write)
    gc.collect()
    score(detector, shards())
    assert written == [256] * 50
    assert 1 <= CountedShard.most <= 2
    gc.collect()
    assert CountedShard.alive == 0


@pytest.mark.parametrize("after", [0, 1, 2])
def test_interrupted_after_any_shard_it_scores_the_others_and_ends_with_the_same_bytes(detector, x, after):
    expected = whole(detector, x)
    Path("a.csv").write_text("old")
    interrupt(detector, rows(x), after)
    assert Path("a.csv").read_text() == "old"
    assert left() == ["a.csv", "a.csv.part"][: 1 + bool(after)]  # without a finished shard, nothing is kept
    assert score(detector, rows(x)) == [0, 4096, 8192][after:]
    assert (Path("a.csv").read_bytes(), left()) == (expected, ["a.csv"])


def test_interrupted_while_shards_are_joined_it_scores_none_again(detector, x, monkeypatch):
    expected = whole(detector, x)
    Path("a.csv").write_text("old")
    synced, really = [], os.fsync

    def stop(file):
        really(file)
        synced.append(Path("a.csv").read_text())
        if len(synced) == 1 + 3 + 1:  # the record, the shards, and what they are joined into
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bulk.os, "fsync", stop)
        interrupt(detector, rows(x), None)
    assert synced[-1] == Path("a.csv").read_text() == "old"  # what replaces it is on the disk first
    assert score(detector, rows(x)) == []
    assert (Path("a.csv").read_bytes(), left()) == (expected, ["a.csv"])


def damaged(content):
    """As a kill, a full disk or a user may leave it."""
    header = content.index(b"\n") + 1
    yield b""
    yield content[: header // 2]
    yield content[:header]
    yield content[:-1]
    yield content[: header + 99] + bytes([content[header + 99] ^ 1]) + content[header + 100 :]
    yield b"null\n" + content[header:]
    yield content.replace(b'"lines": 4096', b'"lines": -1')


def test_damaged_shard_is_scored_again(detector, x):
    expected = whole(detector, x)
    interrupt(detector, rows(x), 2)
    contents = {path: path.read_bytes() for path in Path("a.csv.part").iterdir()}
    first = min(path for path in contents if path.suffix == ".shard")
    for content in damaged(contents[first]):
        assert content != contents[first]
        Path("a.csv.part").mkdir(exist_ok=True)
        for path, sound in contents.items():
            path.write_bytes(sound)
        first.write_bytes(content)
        assert score(detector, rows(x)) == [0, 8192]
        assert (Path("a.csv").read_bytes(), left()) == (expected, ["a.csv"])


def refusal(detector, shards, **options):
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    with pytest.raises(InputError) as refused:
        score(detector, shards, **options)
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    assert "\n" not in str(refused.value)
    return str(refused.value)


ANEW = "remove it to begin anew, or give another --out"


def test_shards_of_other_or_more_examples_are_refused_and_later_examples_may_change(detector, x):
    interrupt(detector, rows(x, hashed=True), 2)
    later, earlier = x.copy(), x.copy()
    later[9000] += 1
    earlier[5000] += 1
    said = refusal(detector, rows(earlier, hashed=True))
    assert said == f"a.csv.part was begun with other examples than now: {ANEW}"
    assert refusal(detector, rows(x[:5000], hashed=True)) == said
    assert refusal(detector, rows(x[:4096], hashed=True)) == f"a.csv.part was begun with more examples than now: {ANEW}"
    assert score(detector, rows(later, hashed=True)) == [8192]


def test_shards_provenance_something_else_are_refused_and_kept(detector, x):
    interrupt(detector, rows(x), 1)
    said = refusal(detector, rows(x), provenance=PROVENANCE | {"a detector": "another"})
    assert said == f"a.csv.part was begun with a detector other than now: {ANEW}"
    said = refusal(detector, rows(x), provenance={"a detector": "another"})
    assert said == f"a.csv.part was begun with a detector and examples other than now: {ANEW}"


@pytest.mark.parametrize("record", [None, b"", b"[]", b'{"a detector": 3}'])
def test_shards_without_a_record_are_refused_and_kept(detector, x, record):
    interrupt(detector, rows(x), 1)
    if record is None:
        Path("a.csv.part/record.json").unlink()
    else:
        Path("a.csv.part/record.json").write_bytes(record)
    said = f"a.csv.part has no record, or a damaged one, of what its shards were made from: {ANEW}"
    assert refusal(detector, rows(x)) == said


def test_directory_without_a_finished_shard_counts_for_nobody(detector, x):
    Path("a.csv.part").mkdir()
    Path("a.csv.part/record.json").write_text('{"a detector": "another"}')
    assert len(score(detector, rows(x))) == 3
    assert left() == ["a.csv"]


def test_what_is_not_ours_is_never_removed(detector, x):
    Path("a.csv.part").write_text("a user's own")
    said = "a.csv.part is in the way, where finished shards are kept: remove it, or give another --out"
    assert refusal(detector, rows(x)) == said
    Path("a.csv.part").unlink()
    Path("a.csv.part").mkdir()
    Path("a.csv.part/notes.txt").write_text("a user's own")
    score(detector, rows(x))
    assert list(Path("a.csv.part").iterdir()) == [Path("a.csv.part/notes.txt")]


def test_two_processes_do_not_write_one_output(detector, x):
    interrupt(detector, rows(x), 1)
    with locked(Path("a.csv.part/lock")):
        assert refusal(detector, rows(x)) == "another process is writing a.csv.part: wait for it, or give another --out"
    assert score(detector, rows(x)) == [4096, 8192]


class TornShard(Shard):
    """Pictures of which the last ones cannot be read."""

    def __init__(self, first, sound, broken):
        super().__init__(first, sound + broken)
        names = [f"{first + number}.png" for number in range(sound + broken)]
        examples = np.zeros((sound, 4), np.float32)
        object.__setattr__(
            self, "content", ShardExamples(examples, names[:sound], [(name, "is empty") for name in names[sound:]])
        )

    def read(self, threads):
        return self.content


def test_pictures_left_out_are_named_and_counted_also_those_before_an_interruption(detector, caplog):
    caplog.set_level("INFO", "wildood")
    shards = [TornShard(0, 0, 2), TornShard(2, 3, 1), TornShard(6, 2, 0)]
    interrupt(detector, shards, 2, skip_broken=True)
    assert caplog.messages == [
        "left out, because it cannot be read: 0.png (is empty)",
        "left out, because it cannot be read: 1.png (is empty)",
        "left out, because it cannot be read: 5.png (is empty)",
        "a.csv.part keeps 3 lines: the same command continues from there",
    ]
    assert refusal(detector, shards) == "a.csv.part was begun with --skip-broken, and left out 3: give it again"
    caplog.clear()
    score(detector, shards, skip_broken=True)
    assert caplog.messages == [
        "a.csv.part has 3 lines already: continuing from there",
        "inbox: 3 left out because they cannot be read",
    ]
    lines = Path("a.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["example", "2.png", "3.png", "4.png", "6.png", "7.png"]


def test_archive_without_a_picture_that_can_be_read_is_refused_and_nothing_is_written(detector, capsys):
    shards = [TornShard(0, 0, 4), TornShard(4, 0, 3)]
    said = "inbox: none of its 7 pictures can be read: repair them, or give others"
    assert refusal(detector, shards, skip_broken=True) == said
    assert left() == []
    with pytest.raises(InputError, match="none of its 7 pictures"):
        score_archive(
            Archive("inbox", "x", None, iter(shards)),
            lambda shards: ((shard, score_shard(detector, shard, "csv")) for shard in shards),
            None,
        )
    assert capsys.readouterr().out == ""
