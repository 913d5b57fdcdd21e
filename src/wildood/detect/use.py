"""What a detector has already used some examples for, as far as its record says."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from wildood.data.sources import ArraySource, DatasetSource, Part, Source

NOT_FRESH = "these examples {}, and what a detector was made from is no sample of what it meets: give later traffic"
SEEN_HOLDOUT = (
    "the ID scores of this detector are of examples that the classifier may have trained on, and fresh ID data scores higher"
)
USES = {"threshold": "set the detector's threshold", "holdout": "were the detector's holdout"}


def used_as(record: Mapping[str, Any], source: Source) -> str:
    """What exactly these examples were to the detector of this record: labelled, wild, holdout, threshold, or nothing ("").

    Whole sets are recognised, with their labels or without, not single examples among others.

    >>> import numpy as np, torch, wildood
    >>> x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
    >>> detector = wildood.posthoc(torch.nn.Linear(4, 3), wildood.MaxSoftmax(), holdout=x, alpha=0.1)
    >>> used_as(detector.record, ArraySource(x)), used_as(detector.record, ArraySource(x[:40]))
    ('threshold', '')
    """
    given = {source.fingerprint(), unlabelled_fingerprint(source)}
    known: list[tuple[str, str]] = [
        ("holdout", record.get("chosen_by", "")),
        *record.get("data", {}).items(),
        *record.get("examples", {}).items(),
    ]
    return next((name for name, text in known if given & _recorded(text)), "")


def told_use(used: str) -> str:
    """What examples were to a detector, as the end of a sentence about them; empty if they were nothing.

    >>> told_use("wild"), told_use("threshold"), told_use("")
    ("were the detector's wild data", "set the detector's threshold", '')
    """
    return USES.get(used, f"were the detector's {used} data") if used else ""


def unlabelled_fingerprint(source: Source) -> str:
    """The fingerprint that examples have whether or not labels come with them, and wherever they were read from.

    >>> import numpy as np
    >>> x, y = np.zeros((3, 2)), np.array([0, 1, 0])
    >>> unlabelled_fingerprint(ArraySource(x, y)) == ArraySource(x).fingerprint() != ArraySource(x, y).fingerprint()
    True
    """
    return _unlabelled(source).fingerprint()


def unlabelled_fingerprints(given: Mapping[str, Sequence[Source]]) -> dict[str, str]:
    """For a record's `examples`: the fingerprints without labels, where they differ from those with them.

    >>> import numpy as np
    >>> x, y = np.zeros((3, 2)), np.array([0, 1, 0])
    >>> list(unlabelled_fingerprints({"labelled": [ArraySource(x, y)], "wild": [ArraySource(x)]}))
    ['labelled']
    """
    return {
        name: "+".join(map(unlabelled_fingerprint, sources))
        for name, sources in given.items()
        if any(_unlabelled(source) is not source for source in sources)
    }


def _unlabelled(source: Source) -> Source:
    if isinstance(source, Part):
        inner = _unlabelled(source.source)
        return source if inner is source.source else Part(inner, source.indices)
    if isinstance(source, DatasetSource):
        return replace(source, labelled=False) if source.labelled else source
    if isinstance(source, ArraySource) and (type(source) is not ArraySource or source.labels is not None):
        return ArraySource(source.examples)
    return source


def _recorded(text: str) -> set[str]:
    """The fingerprints in a record's text: of each pool, and of the whole where a part of it was used."""
    prints = text.partition(" at pi = ")[0].split("+")
    whole = {each for one in prints for each in (one, one.partition("/")[0])}
    # A dataset whose examples are others at each reading is known by its type and length: that tells it from nothing.
    return {each for each in whole if each and not each.endswith("]")}
