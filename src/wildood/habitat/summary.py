"""How the results of a habitat show themselves: lines by what they are about, as text and in notebooks."""

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from wildood.report.table import Column, Row, Table, to_html


@dataclass(frozen=True, repr=False)
class Summary:
    """A result with a `summary` in a few lines.

    >>> print(Summary())
    <BLANKLINE>
    """

    @property
    def summary(self) -> dict[str, str]:
        """The result in a few lines, by what they are about."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data: every field, and the summary; None for a number that is not finite."""
        text = json.dumps(asdict(self), default=_plain)
        record: dict[str, Any] = json.loads(text, parse_constant=lambda _: None)
        return record | {"summary": self.summary}

    def __repr__(self) -> str:
        return "\n".join(f"{name:12} {text}" for name, text in self.summary.items())

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """The same as HTML, which notebooks show."""
        rows = [Row.of(name, text) for name, text in self.summary.items()]
        return to_html([Table([Column("about"), Column("result")], rows)])


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def days_text(seconds: float) -> str:
    """A duration in the unit that suits it.

    >>> days_text(90), days_text(3 * 86400)
    ('2 minutes', '3 days')
    """
    for unit, length in (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= length or unit == "minute":
            count = round(seconds / length)
            return f"{count} {unit}{'' if count == 1 else 's'}"
    raise AssertionError


def count_text(count: int, noun: str) -> str:
    """A number of things.

    >>> count_text(1, "example"), count_text(2000, "example")
    ('1 example', '2,000 examples')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
