"""The few exceptions a user may meet; each message says what was given, what was expected and what to do next."""

LONGEST = 1000  # characters of a message: a value in it may be of any length


def as_utf8(text: str) -> str:
    r"""The text, with what UTF-8 cannot say spelt out: the bytes of a file's name that are not UTF-8.

    >>> as_utf8("caf\udce9")
    'caf\\udce9'
    """
    return text.encode(errors="backslashreplace").decode()


def printable(text: object) -> str:
    r"""A text as one line that any terminal and any file can take; what is left out of a very long one is its middle.

    >>> printable("photos/a\nb.png"), printable("caf\udce9.png"), len(printable("y" * 5000))
    ('photos/a b.png', 'caf\\udce9.png', 1000)
    """
    line = " ".join(part.strip() for part in str(text).splitlines())
    line = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 305]} ... {line[-300:]}"


class WildoodError(Exception):
    """Everything wildood refuses or gives up on; catch this to catch them all. Its message is one line.

    >>> issubclass(InputError, WildoodError)
    True
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(message))


class InputError(WildoodError, ValueError):
    """An argument, a data set or a model that cannot be used as it is.

    >>> raise InputError("alpha is 2: give a rate between 0 and 1")
    Traceback (most recent call last):
    wildood.errors.InputError: alpha is 2: give a rate between 0 and 1
    """


class CheckpointError(WildoodError):
    """A run directory that belongs to another run, or whose checkpoint is torn.

    >>> raise CheckpointError("runs/a was made with seed 0, this call has seed 1: use another run_dir")
    Traceback (most recent call last):
    wildood.errors.CheckpointError: runs/a was made with seed 0, this call has seed 1: use another run_dir
    """


class DetectorFileError(WildoodError):
    """A saved detector that is missing, torn, tampered with, or made for another model.

    >>> raise DetectorFileError("out/detector.json does not exist: give the directory that save() wrote")
    Traceback (most recent call last):
    wildood.errors.DetectorFileError: out/detector.json does not exist: give the directory that save() wrote
    """


class TrainingError(WildoodError):
    """Training that cannot go on, such as a loss that is no longer finite.

    >>> raise TrainingError("the loss is nan at step 7")
    Traceback (most recent call last):
    wildood.errors.TrainingError: the loss is nan at step 7
    """
