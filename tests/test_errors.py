"""The message of an error is one line that any terminal and any file can take."""

import pickle

import pytest

from wildood.errors import LONGEST, CheckpointError, DetectorFileError, InputError, TrainingError, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("as it is: ± é 猫", "as it is: ± é 猫"),
        ("a\nb.png\n", "a b.png"),
        ("first\r\n\tsecond", "first second"),
        ("a\u2028b\x0bc", "a b c"),
        ("caf\udce9", "caf\\udce9"),
        ("\ud800", "\\ud800"),
        ("\x1b[31mred\0", "\\x1b[31mred\\x00"),
    ],
)
@pytest.mark.parametrize("error", [InputError, CheckpointError, DetectorFileError, TrainingError])
def test_a_message_is_one_printable_line(error, text, shown):
    assert str(error(text)) == printable(text) == shown
    str(error(text)).encode()


def test_a_long_message_keeps_its_beginning_and_its_end():
    text = str(InputError(f"x is {'y' * 9999}: give a number"))
    assert len(text) == LONGEST
    assert text.startswith("x is yyy")
    assert text.endswith("yyy: give a number")


def test_an_error_survives_the_way_to_another_process():
    again = pickle.loads(pickle.dumps(InputError("a\nb")))  # noqa: S301 - as Ray and multiprocessing do
    assert (type(again), str(again)) == (InputError, "a b")
