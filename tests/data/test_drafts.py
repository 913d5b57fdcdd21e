"""A file that is cut off at any moment goes on to the same bytes, and is never mistaken for another one."""

import json
import math
import os
from pathlib import Path

import pytest

from wildood.data.files import locked
from wildood.detect import bulk as drafts
from wildood.detect.bulk import draft_of
from wildood.errors import InputError

PIECES = ["one\n", "zwei ä\n", "three\n"]
WHOLE = "".join(PIECES).encode()
MADE_OF = {"letters": "latin", "a language": "many"}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "numbers.txt"


def write(file, made_of=MADE_OF, stop_before=None):
    """Add the pieces that are missing; the count of those that were there."""
    with draft_of(file, made_of) as draft:
        begin = draft.note.get("pieces", 0)
        for number in range(begin, len(PIECES)):
            if number == stop_before:
                raise KeyboardInterrupt
            draft.add(PIECES[number], {"pieces": number + 1})
    return begin


def cut_off(file, after):
    with pytest.raises(KeyboardInterrupt):
        write(file, stop_before=after)


def left(file):
    return sorted(path.name for path in file.parent.iterdir())


def test_finished_draft_is_the_file_and_leaves_nothing_beside_it(file):
    file.write_text("old")
    assert write(file) == 0
    assert (file.read_bytes(), left(file)) == (WHOLE, ["numbers.txt"])


@pytest.mark.parametrize("after", [1, 2])
def test_whatever_was_written_but_not_noted_is_cut_and_written_anew(file, after):
    cut_off(file, after)
    part = file.with_name("numbers.txt.part")
    known, following = part.read_bytes(), PIECES[after].encode()
    assert known == "".join(PIECES[:after]).encode()
    about = file.with_name("numbers.txt.part.json").read_bytes()
    for half in range(len(following) + 1):  # as a kill between any two bytes leaves it
        part.write_bytes(known + following[:half])
        file.with_name("numbers.txt.part.json").write_bytes(about)
        assert write(file) == after
        assert (file.read_bytes(), left(file)) == (WHOLE, ["numbers.txt"])
        file.unlink()


def test_old_file_stays_until_the_new_one_is_whole(file):
    file.write_text("old")
    cut_off(file, 2)
    assert file.read_text() == "old"
    assert write(file) == 2
    assert file.read_bytes() == WHOLE


def test_what_is_noted_was_put_on_the_disk_first(file, monkeypatch):
    order, really = [], os.fsync
    monkeypatch.setattr(
        drafts.os, "fsync", lambda number: (order.append(Path(f"/proc/self/fd/{number}").readlink()), really(number))
    )
    write(file)
    synced = ["part" if name.name == "numbers.txt.part" else "note" for name in order]
    assert synced == ["note", *(["part", "note"] * len(PIECES))]


def test_call_that_ends_before_anything_is_known_leaves_nothing(file):
    cut_off(file, 0)
    assert left(file) == []


def test_draft_of_a_kill_before_the_first_piece_counts_for_nobody(file):
    file.with_name("numbers.txt.part").write_bytes(b"on")
    about = {"made_of": {"letters": "greek"}, "bytes": 0, "note": {}}
    file.with_name("numbers.txt.part.json").write_text(json.dumps(about))
    assert write(file) == 0
    assert file.read_bytes() == WHOLE


def test_note_that_outlived_its_draft_is_ignored(file):
    cut_off(file, 2)
    file.with_name("numbers.txt.part").rename(file)  # killed between the last two steps
    assert write(file) == 0
    assert (file.read_bytes(), left(file)) == (WHOLE, ["numbers.txt"])


def refusal(file, made_of=MADE_OF):
    before = {path.name: path.read_bytes() for path in file.parent.iterdir()}
    with pytest.raises(InputError) as refused:
        write(file, made_of)
    assert {path.name: path.read_bytes() for path in file.parent.iterdir()} == before
    assert "\n" not in str(refused.value)
    return str(refused.value).replace(f"{file.parent}/", "")


ANEW = "remove numbers.txt.part and numbers.txt.part.json to begin anew, or give another file"


def test_draft_of_something_else_is_refused_and_kept(file):
    cut_off(file, 1)
    said = refusal(file, MADE_OF | {"letters": "greek"})
    assert said == f"numbers.txt.part was begun with letters other than now: {ANEW}"
    said = refusal(file, {"letters": "greek"})
    assert said == f"numbers.txt.part was begun with letters and a language other than now: {ANEW}"


def test_file_that_is_no_draft_of_ours_is_refused_and_kept(file):
    file.with_name("numbers.txt.part").write_bytes(b"a user's own")
    assert refusal(file) == f"numbers.txt.part is there, but is no draft that can go on: {ANEW}"
    file.with_name("numbers.txt.part.json").write_bytes(b"[]")
    assert refusal(file) == f"numbers.txt.part.json is damaged (the whole is [], expected an object): {ANEW}"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"bytes": math.inf}, "bytes is inf, expected a whole number"),
        ({"bytes": -1}, "bytes is -1, expected a whole number from 0 on"),
        ({"made_of": {"letters": 3}}, "made_of.letters is 3, expected text"),
        ({"note": []}, "note is [], expected an object"),
    ],
)
def test_a_note_with_a_wrong_value_is_refused(file, wrong, said):
    cut_off(file, 1)
    about = file.with_name("numbers.txt.part.json")
    about.write_text(json.dumps(json.loads(about.read_bytes()) | wrong))
    assert refusal(file) == f"numbers.txt.part.json is damaged ({said}): {ANEW}"


def test_draft_that_lost_lines_is_refused(file):
    cut_off(file, 2)
    os.truncate(file.with_name("numbers.txt.part"), 3)
    assert refusal(file) == f"numbers.txt.part is there, but is no draft that can go on: {ANEW}"


def test_two_processes_do_not_write_one_draft(file):
    cut_off(file, 1)
    with locked(file.with_name("numbers.txt.part")):
        assert refusal(file) == "another process is writing numbers.txt.part: wait for it, or give another file"
    assert write(file) == 1
