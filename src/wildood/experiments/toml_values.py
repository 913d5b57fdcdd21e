"""Values as TOML writes them, and which values it can write."""

import json
import math
import re


def toml_value(value: object) -> str:
    """A number, a text, a truth value or a list of such as TOML; JSON writes all but what is infinite or no number.

    >>> toml_value([1, 0.5, float("inf"), True, "a"])
    '[1, 0.5, inf, true, "a"]'
    """
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    return json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f")


def toml_key(name: str) -> str:
    """A name before a value: in quotes where it is not plain.

    >>> toml_key("width"), toml_key("the width")
    ('width', '"the width"')
    """
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def is_toml_value(value: object) -> bool:
    r"""Whether a value comes back from TOML as it was.

    >>> [is_toml_value(each) for each in (1, float("nan"), "a", ["a", 1.0], None, [None], {"a": 1}, "\ud800")]
    [True, True, True, True, False, False, False, False]
    """
    if isinstance(value, list | tuple):
        return all(map(is_toml_value, value))
    if isinstance(value, str):
        return value == value.encode(errors="ignore").decode()  # half of a pair of surrogates cannot be written
    return isinstance(value, bool | int | float)
