"""What JSON files hold of a promise and of what was found about it: the same wherever it was looked at."""

from dataclasses import asdict
from typing import Any

from wildood.detect.detector import Detector
from wildood.experiments.evaluation import PromiseCheck


def promise_record(detector: Detector, check: PromiseCheck) -> dict[str, Any]:
    """What was promised, and what was found.

    >>> from types import SimpleNamespace
    >>> promise_record(SimpleNamespace(promise=None), PromiseCheck("no promise", "nothing was promised"))["verdict"]
    'no promise'
    """
    return {"promised": None if detector.promise is None else asdict(detector.promise), **asdict(check)}
