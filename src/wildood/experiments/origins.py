"""Where the runs of a table come from: whether the same code, with the same versions of what it uses, made all of them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wildood.experiments.results import Result

UNKNOWN_ORIGIN = "unknown"
_NO_VERSIONS = {"threads"}  # recorded among them


def origins(results: Sequence[Result]) -> tuple[str, ...]:
    """What differs in how results were made, a sentence for each; nothing where nothing is recorded.

    >>> from wildood.experiments.experiment import Experiment
    >>> energy = Experiment("digits", ("digits",), method="energy")
    >>> origins([Result(energy, {}, 0.9, 0.05, 100, about={"code": code}) for code in ("a1", "b2", "a1")])
    ('The runs come from different code: a1 (2 runs), b2 (1 run)',)
    """
    abouts = [result.about or {} for result in results]
    return tuple(
        f"The runs come from different {what}: {_told(counts)}" for what, counts in _recorded(abouts) if len(counts) > 1
    )


def _recorded(abouts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Counter[str]]]:
    """How many runs have each code, and each version of each package."""
    if any("code" in about for about in abouts):
        yield "code", Counter(str(about.get("code", UNKNOWN_ORIGIN)) for about in abouts)
    versions = [each if isinstance(each := about.get("versions"), Mapping) else {} for about in abouts]
    for name in dict.fromkeys(name for each in versions for name in each if name not in _NO_VERSIONS):
        yield f"versions of {name}", Counter(str(each.get(name, UNKNOWN_ORIGIN)) for each in versions)


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{value} ({count} {'run' if count == 1 else 'runs'})" for value, count in sorted(counts.items()))
