"""The lines of an archive: those of the whole at once, in memory that does not grow, and from any chunk on."""

import copy
import gc
import io
import json
import weakref
from csv import DictReader
from itertools import islice

import numpy as np
import pytest
import torch

import wildood
from wildood.detect.bulk import Archive, Progress, Read, Rows, archive_of, chunk_size, lines_of, write_lines
from wildood.errors import InputError
from wildood.models.classifier import EVAL_BATCH
from wildood.models.small import MLP


@pytest.fixture(scope="module")
def detector():
    torch.manual_seed(0)
    holdout = np.random.default_rng(0).normal(size=(300, 4)).astype("float32")
    return wildood.posthoc(MLP(4, 3), wildood.EnergyScore(), holdout=holdout, alpha=0.2)


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(1).normal(size=(10_000, 4)).astype("float32")


class Kept:
    """An output that keeps what it is given, and may be cut off before it takes a chunk."""

    def __init__(self, text="", note=None, cut_before=None):
        self.text, self.note, self.notes, self.cut_before = text, note or {}, [], cut_before

    def add(self, text, note):
        if len(self.notes) == self.cut_before:
            raise KeyboardInterrupt
        self.text, self.note = self.text + text, dict(note)
        self.notes.append(self.note)

    def refuse(self, why):
        return InputError(f"it {why}")


def answer(detector, form="csv"):
    return lambda chunks: ((chunk, lines_of(detector, chunk, form)) for chunk in chunks)


def archive(x, names=()):
    return archive_of(x, names, "x", "x")


def written(detector, x, output, form="csv"):
    write_lines(archive(x), answer(detector, form), output, lambda _: None)
    return output.text


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_lines_are_those_of_the_whole_bit_by_bit(detector, x, form):
    text = written(detector, x, Kept(), form)
    rows = list(DictReader(io.StringIO(text))) if form == "csv" else [json.loads(line) for line in text.splitlines()]
    scores, classes = detector.score_and_classify(x)
    assert [int(row["example"]) for row in rows] == list(range(10_000))
    assert [float(row["score"]) for row in rows] == scores.tolist()
    assert [int(row["class"]) for row in rows] == classes.tolist()
    assert [row["decision"] == "known" for row in rows] == detector.accepts(scores, classes).tolist()


def test_chunks_hold_whole_batches():
    assert {chunk_size(nbytes) % EVAL_BATCH for nbytes in range(0, 200_000, 1000)} == {0}


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_cut_off_before_any_chunk_it_goes_on_to_the_same_text(detector, x, cut):
    whole, output = written(detector, x, Kept()), Kept(cut_before=cut)
    with pytest.raises(KeyboardInterrupt):
        written(detector, x, output)
    assert output.note.get("listed", 0) == 4096 * cut
    assert written(detector, x, Kept(output.text, output.note)) == whole


def test_done_but_not_published_it_writes_nothing_more(detector, x):
    output = Kept()
    whole = written(detector, x, output)
    assert written(detector, x, Kept(whole, output.note)) == whole


def test_other_or_fewer_examples_before_the_cut_are_refused(detector, x):
    def stored(values):
        pieces = [Rows(values[start : start + 4096], start, hashed=True) for start in range(0, len(values), 4096)]
        return Archive("x", "x", None, iter(pieces))

    output = Kept(cut_before=2)
    with pytest.raises(KeyboardInterrupt):
        write_lines(stored(x), answer(detector), output, lambda _: None)
    later, earlier = x.copy(), x.copy()
    later[9000] += 1
    earlier[5000] += 1
    for values, why in ((earlier, "other examples than x has now"), (x[:4096], "more examples than x has now")):
        with pytest.raises(InputError, match=f"it was begun with {why}"):
            write_lines(stored(values), answer(detector), Kept("", output.note), lambda _: None)
    done = write_lines(stored(later), answer(detector), Kept("", output.note), lambda _: None)
    assert (done.listed, done.examples) == (10_000, 10_000)


class Counted:
    """A chunk whose examples are made when they are read; it knows how many of all are alive."""

    place, count, state = None, 256, ""
    alive = most = 0

    def __init__(self, number):
        self.first = 256 * number

    def read(self, threads):
        examples = np.zeros((256, 4), np.float32)
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)
        weakref.finalize(examples, Counted.forget)
        return Read(examples, range(self.first, self.first + 256))

    @classmethod
    def forget(cls):
        cls.alive -= 1


def test_memory_holds_one_chunk_whatever_the_length_of_the_archive(detector):
    asked, told = [], []

    def listed():
        for number in range(200):
            asked.append(number)
            yield Counted(number)

    class Written(Kept):
        def add(self, text, note):
            assert len(asked) == len(self.notes) + 1  # nothing is asked for before the last lines are written
            assert text.count("\n") == 256 + (not self.notes)
            self.notes.append(note)

    gc.collect()
    done = write_lines(Archive("x", "x", None, listed()), answer(detector), Written(), told.append)
    assert done.examples == 200 * 256
    assert [at.listed for at in told] == list(range(0, 201 * 256, 256))
    assert 1 <= Counted.most <= 2
    gc.collect()
    assert Counted.alive == 0


class Torn:
    """A chunk of pictures of which some cannot be read."""

    place, state = None, ""

    def __init__(self, first, whole, broken):
        self.first, self.count = first, whole + broken
        self.found = Read(
            np.zeros((whole, 4), np.float32),
            [f"{first + number}.png" for number in range(whole)],
            [(f"{first + whole + number}.png", "is empty") for number in range(broken)],
        )

    def read(self, threads):
        return self.found


def test_broken_ones_are_told_counted_and_counted_on_after_a_cut(detector, caplog):
    def pieces():
        return Archive("inbox", "x", None, iter([Torn(0, 0, 2), Torn(2, 3, 1), Torn(6, 2, 0)]))

    output = Kept(cut_before=1)
    with pytest.raises(KeyboardInterrupt):
        write_lines(pieces(), answer(detector), output, lambda _: None)
    assert output.text.splitlines()[0] == "example,score,decision,class"
    assert output.text.count("\n") == 4
    caplog.clear()
    done = write_lines(pieces(), answer(detector), Kept(output.text, output.note), lambda _: None)
    assert done == Progress(8, 5, 3, done.state)
    assert caplog.messages == ["inbox: 3 left out because they cannot be read"]
    caplog.clear()
    write_lines(pieces(), answer(detector), Kept(), lambda _: None)
    assert caplog.messages[:1] == ["left out, because it cannot be read: 0.png (is empty)"]
    assert len(caplog.messages) == 4


def test_archive_of_nothing_but_broken_ones_is_refused_and_nothing_is_written(detector):
    output = Kept()
    with pytest.raises(InputError, match=r"inbox: not one of its pictures \(7\) can be read: repair them, or give others"):
        write_lines(
            Archive("inbox", "x", None, iter([Torn(0, 0, 4), Torn(4, 0, 3)])), answer(detector), output, lambda _: None
        )
    assert (output.text, output.note) == ("", {})


def test_names_of_classes_and_of_files_are_written(detector, x):
    names = [f"{number}.png" for number in range(5000)]
    named = archive(x[:5000], names)
    detector.record["classes"] = ["ant", "bee", "cat"]
    try:
        output = Kept()
        write_lines(named, answer(detector), output, lambda _: None)
    finally:
        del detector.record["classes"]
    rows = list(islice(DictReader(io.StringIO(output.text)), 5000))
    assert [row["example"] for row in rows] == names
    assert [row["class"] for row in rows] == [["ant", "bee", "cat"][number] for number in detector.classify(x[:5000])]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_class_without_a_name_is_called_by_its_number(detector, x, form):
    """A model may have more classes than the folder of pictures that it was fitted on."""
    few = copy.copy(detector)
    few.record = {**detector.record, "classes": ["cat", "dog"]}
    classes = detector.classify(x[:50]).tolist()
    expected = [{0: "cat", 1: "dog"}.get(number, number) for number in classes]
    assert set(expected) == {"dog", 2}
    lines = lines_of(few, Rows(x[:50]), form).text.splitlines()
    said = [json.loads(line)["class"] for line in lines] if form == "jsonl" else [line.split(",")[3] for line in lines[1:]]
    assert said == (expected if form == "jsonl" else list(map(str, expected)))
