"""Lines that a person reads: whole in a file, broken between words in a terminal."""

import sys

import pytest

from wildood.cli.printing import say, say_named, wrapped

LONG = "a false-alarm rate of at most 5 % on ID data like /a/very/long/path/that/does/not/fit/into/one/line.npz"


@pytest.mark.parametrize("width", [20, 40, 79])
def test_no_word_is_broken(width):
    lines = wrapped(LONG, indent=4, width=width).splitlines()
    assert " ".join(lines).split() == LONG.split()
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines)
    assert all(line.startswith("    ") for line in lines[1:])


def test_names_stand_before_their_texts(capsys, monkeypatch):
    say_named({"promise": LONG, "seed": "0"}, width=8)
    assert capsys.readouterr().out == f"promise  {LONG}\nseed     0\n"
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _self: True)
    monkeypatch.setenv("COLUMNS", "40")
    say_named({"promise": LONG, "seed": "0"}, width=8)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "promise  a false-alarm rate of at most 5"
    assert all(line.startswith(" " * 9) for line in lines[1:-1])
    assert lines[-1] == "seed     0"


def test_lines_stay_lines(capsys):
    say("one\n\ntwo")
    assert capsys.readouterr().out == "one\n\ntwo\n"
