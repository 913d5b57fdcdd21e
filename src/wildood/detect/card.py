"""What a saved detector is, in words: the lines of `wildood show`, and the model card beside its files."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, StrictUndefined, Template

from wildood.data.files import digest
from wildood.data.inputs import InputSpec, Spec
from wildood.data.tables import TableSpec
from wildood.detect.detector import caught_at, threshold_text, warnings_of
from wildood.errors import as_utf8, printable
from wildood.settings import settings_text

if TYPE_CHECKING:  # storage writes cards
    from wildood.detect.storage import Description, Record

HEAD = "---\nlibrary_name: wildood\nwildood_card: {}\n"  # with a digest of the rest
CARD = """\
{% if is_image %}
pipeline_tag: image-classification
{% endif %}
tags:
- wildood
- out-of-distribution-detection
---

# A classifier that says “unknown”

{% if warnings %}
## Warnings

{% for warning in warnings %}
- {{ warning }}
{% endfor %}

{% endif %}
This detector answers with a class, or with -1 (unknown) where its score is above a threshold.

{% for name, text in lines.items() if name in ("model", "input", "score", "threshold") %}
- **{{ name }}:** {{ text }}
{% endfor %}
{% if classes %}
- **classes:** {% for name in classes %}{{ name | code }}{% if not loop.last %}, {% endif %}{% endfor %}

{% endif %}

## What it promises

{% for name, text in lines.items() if name in ("promise", "by class", "assumes", "caught") %}
- **{{ name }}:** {{ text }}
{% endfor %}

{% if "caught" not in lines %}
How many unknowns are caught is not promised.
{% endif %}
{% if metrics %}

## What the fit measured

Of data that trained nothing:

{% for name, text in metrics.items() %}
- **{{ name }}:** {{ text }}
{% endfor %}
{% endif %}

## How it was made

{% for name, text in lines.items() if name in ("method", "trained", "schedule", "precision", "kept", "seed", "versions") %}
- **{{ name }}:** {{ text }}
{% endfor %}
{% if data %}

The fingerprints of its data:

{% for name, fingerprint in data.items() %}
- **{{ name }}:** {{ fingerprint | code }}
{% endfor %}
{% endif %}

## How to load it

{% if own %}
`model` is your network of the class {{ own | code }}, or a function that builds it.{{ " `forward` is the function that calls it." if forward }}
No code is saved.
{% else %}
The network comes with wildood.
{% endif %}

```python
import wildood

detector = wildood.load("detector/"{{ ", model=model" if own }}{{ ", forward=forward" if forward }})  # or "hf://user/name"
detector.predict(x)
```

`detector.json` and the safetensors file hold the detector, with weights of the checksum
{{ weights | code }}. This text is never read.
"""  # noqa: E501 - a sentence of the template


def description_lines(content: "Description") -> dict[str, str]:
    """The description as lines of text, each with its name."""
    record, example, promise = content["record"], content["example"], content["promise"]
    by_class = content.get("class_thresholds")
    each = None if by_class is None else [float.fromhex(text) for text in by_class]
    threshold = threshold_text(float.fromhex(content["threshold"]), each)
    model = content["model"].get("name") or f"{content['model'].get('class')}, your own: name it with --model at score"
    return {
        **_warnings(record),
        "model": model,
        "input": f"{example}{_spec(content['input'])}",
        "score": f"{content['score']['name']}{_bracketed(content['score']['settings'])}, higher = more OOD",
        "threshold": f"unknown above {threshold}" if each is None else f"{threshold}: unknown above that of its class",
        "promise": str(promise) if promise else "none: not calibrated",
        **({"by class": f"NOT done: {record['not_by_class']}"} if "not_by_class" in record else {}),
        **({"assumes": promise.assumption} if promise and promise.unseen else {}),
        **_caught(record, float.fromhex(content["threshold"]), each),
        **(_making(record, content["history"]) if "method" in record else {}),
        "versions": settings_text(record.get("versions", {})),
    }


def _caught(record: Mapping[str, Any], threshold: float, each: list[float] | None) -> dict[str, str]:
    """The bound on what is caught, if judged unknowns give one, with what could not be checked."""
    bound = caught_at(record, threshold, None if each is None else np.array(each))
    if bound is None:
        return {}
    return {"caught": "; ".join(filter(None, [str(bound), record["judged"].get("caveat", "")]))}


def card(content: "Description") -> str:
    """The model card of a detector, as Markdown with the metadata that Hugging Face's Hub reads."""
    record, lines = content["record"], description_lines(content)
    model = content["model"]
    text = _template().render(
        lines=lines | ({"model": f"{model.get('class')}, not part of wildood"} if "name" not in model else {}),
        warnings=warnings_of(record),
        classes=record.get("classes", ()),
        metrics=_metrics(record, content["history"]),
        data=record.get("data", {}),
        is_image=isinstance(content["input"], InputSpec),
        own=None if "name" in model else model.get("class"),
        forward=content.get("forward", False),
        weights=content["weights"],
    )
    return HEAD.format(digest(as_utf8(text).encode())) + text


def is_card(path: Path) -> bool:
    """Whether a file is a model card that nobody edited, which another one may replace, or is not there."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    rest = text[len(HEAD.format("0" * 64)) :]
    return text == HEAD.format(digest(rest)).encode() + rest


class _Markdown(str):
    """Text that is Markdown already."""

    __slots__ = ()


@cache
def _template() -> Template:
    environment = Environment(  # noqa: S701 - not HTML: every text is escaped by `finalize`
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, _Markdown) else escape_markdown(printable(value)),
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["code"] = code_span
    return environment.from_string(CARD)


def escape_markdown(text: str) -> str:
    """Text as Markdown shows it, in a table or out of it."""
    return re.sub(r"([\\`*_\[\]<>|&~$])", r"\\\1", one_line(text))


def code_span(text: object) -> str:
    """Text as it is in Markdown, on one line; its fence is longer than any backticks in it.

    >>> print(code_span("a`b"), code_span("<i>"))
    `` a`b `` `<i>`
    """
    plain = printable(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", plain)), default=0))
    space = " " if "`" in plain or not plain.strip() else ""
    return _Markdown(f"{fence}{space}{plain}{space}{fence}")


def one_line(text: str) -> str:
    """Without line ends, which would end a row of a table."""
    return " ".join(text.split())


def _metrics(record: "Record", history: list[dict[str, float]]) -> dict[str, str]:
    """What the fit measured of the start and of what is deployed, by data set aside."""
    found: Mapping[str, Any] = record.get("assessment", {})
    metrics = {}
    if "method" in record and "accuracy" in history[0]:
        deployed = record.get("retrained", history[record["kept_epoch"]])
        start, kept = (100 * row["accuracy"] for row in (history[0], deployed))
        metrics["accuracy"] = f"{kept:.1f} %; of the starting classifier {start:.1f} %"
    if benefit := found.get("benefit"):
        trained, start, error = (100 * benefit[name] for name in ("trained", "start", "error"))
        which = "the start is deployed" if found["start_kept"] else "the trained detector is deployed"
        metrics["wild acceptance"] = (
            f"trained {trained:.1f} %, start {start:.1f} % (standard error of the difference {error:.1f}), the mean over "
            f"false-alarm rates up to alpha; less is better; {which}"
        )
    if "rejected" in found:
        what = f"{found['aside']} {found['examples']} examples"
        whose = "the first training's" if "retrained" in record else "the deployed"
        metrics["rejected"] = f"{100 * found['rejected']:.1f} % of {what}, at {whose} threshold"
    return metrics


def _warnings(record: "Record") -> dict[str, str]:
    """What its record says against it, numbered if there is more."""
    texts = warnings_of(record)
    return {f"warning {number}" if len(texts) > 1 else "warning": text for number, text in enumerate(texts, 1)}


def _trained(record: "Record") -> dict[str, str]:
    """What was trained, where that is not the whole model once."""
    if "retrained" in record:
        steps, wild = record["retrained"]["steps"], record["retrained"]["wild"]
        text = f"twice; the second time for {steps} steps on all {wild} wild examples. Results on wild data are of the first"
        return {"trained": text}
    is_frozen = record.get("frozen") and not record.get("assessment", {}).get("start_kept", False)
    return {"trained": "the last layer and what the method adds (frozen)"} if is_frozen else {}


def _making(record: "Record", history: list[dict[str, float]]) -> dict[str, str]:
    start_kept = record.get("assessment", {}).get("start_kept", False)
    kept = history[record["kept_epoch"]]  # a row of all stages; the last one's are the last
    stage = f" of stage {kept['stage']}" if "stage" in kept else ""
    names = ("epoch", "step") if record["schedule"].get("epochs") is not None else ("step",)
    first, *others = (f"{name} {kept[name]} of {history[-1][name]}" for name in names)
    epoch = ", ".join([first + stage, *others])
    return {
        "method": f"{record['method']['name']}: {settings_text(record['method'])}{' (not deployed)' if start_kept else ''}",
        **_trained(record),
        "schedule": settings_text(record["schedule"]),
        **({"precision": f"{record['precision']} in training"} if "precision" in record and not start_kept else {}),
        "kept": f"{epoch}, accuracy {100 * kept['accuracy']:.1f} % on data set aside",
        "seed": str(record["seed"]),
    }


def _bracketed(settings: dict[str, Any]) -> str:
    text = settings_text(settings)
    return f" ({text})" if text else ""


def _spec(spec: Spec | None) -> str:
    if isinstance(spec, TableSpec):
        return f", of {len(spec.numeric)} columns of numbers and {len(spec.categorical)} of categories"
    return "" if spec is None else f", {spec.layout}, mean {spec.mean}, std {spec.std}"
