"""What a detector has already used some examples for, as far as its record says."""

from wildood.data.sources import ArraySource, Source
from wildood.detect.detector import Detector


def used_as(detector: Detector, source: Source) -> str:
    """What exactly these examples were to a detector: labelled, wild, holdout, threshold, or nothing ("").

    Whole sets are recognised, not single examples among others.

    >>> import numpy as np, torch, wildood
    >>> x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
    >>> detector = wildood.posthoc(torch.nn.Linear(4, 3), wildood.MaxSoftmax(), holdout=x, alpha=0.1)
    >>> used_as(detector, ArraySource(x)), used_as(detector, ArraySource(x[:40]))
    ('threshold', '')
    """
    known: list[tuple[str, str]] = [
        *detector.record.get("data", {}).items(),
        ("holdout", detector.record.get("chosen_by", "")),
    ]
    prints = {source.fingerprint()}
    if isinstance(source, ArraySource) and source.labels is not None:
        prints.add(ArraySource(source.examples).fingerprint())
    for name, text in known:
        if prints & set(text.partition(" at pi = ")[0].split("+")):
            return name
    return ""
