"""The few exceptions a user may meet; each message says what was given, what was expected and what to do next."""


class WildoodError(Exception):
    """Everything wildood refuses or gives up on; catch this to catch them all.

    >>> issubclass(InputError, WildoodError)
    True
    """


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
