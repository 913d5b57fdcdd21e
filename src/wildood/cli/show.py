"""`wildood show`: what a saved detector is, what it promises, how it was made."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from wildood.cli.main import say_named
from wildood.cli.options import named, parse
from wildood.data.inputs import InputSpec
from wildood.detect.detector import threshold_text, warnings_of
from wildood.detect.storage import Description, Record, read_description
from wildood.report.page import settings_text


@dataclass(frozen=True)
class ShowOptions:
    """What a saved detector is, what it promises, how it was made. Its weights are not read and no code is imported.

    Attributes:
        detector: the directory that fit wrote.
        json: everything that is known, as JSON.
    """

    detector: Annotated[Path, tyro.conf.Positional, named("DETECTOR")]
    json: bool = False


def run(words: Sequence[str]) -> None:
    """Print a few readable lines, or all of it as JSON."""
    options = parse(ShowOptions, "show", words)
    content = read_description(options.detector)
    if options.json:
        sys.stdout.write(json.dumps(content, indent=2, default=asdict) + "\n")
    else:
        say_named(description_lines(content), width=10)


def description_lines(content: Description) -> dict[str, str]:
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
        **(_making(record, content["history"]) if "method" in record else {}),
        "versions": settings_text(record.get("versions", {})),
    }


def _warnings(record: Record) -> dict[str, str]:
    """What its record says against it, numbered if there is more."""
    texts = warnings_of(record)
    return {f"warning {number}" if len(texts) > 1 else "warning": text for number, text in enumerate(texts, 1)}


def _making(record: Record, history: list[dict[str, float]]) -> dict[str, str]:
    start_kept = record.get("assessment", {}).get("start_kept", False)
    kept = history[record["kept_epoch"]]  # a row of all stages; the last one's are the last
    stage = f" of stage {kept['stage']}" if "stage" in kept else ""
    names = ("epoch", "step") if record["schedule"].get("epochs") is not None else ("step",)
    first, *others = (f"{name} {kept[name]} of {history[-1][name]}" for name in names)
    epoch = ", ".join([first + stage, *others])
    return {
        "method": f"{record['method']['name']}: {settings_text(record['method'])}{' (not deployed)' if start_kept else ''}",
        **(
            {"trained": "the last layer and what the method adds (frozen)"}
            if record.get("frozen") and not start_kept
            else {}
        ),
        "schedule": settings_text(record["schedule"]),
        "kept": f"{epoch}, accuracy {100 * kept['accuracy']:.1f} % on data set aside",
        "seed": str(record["seed"]),
    }


def _bracketed(settings: dict[str, Any]) -> str:
    text = settings_text(settings)
    return f" ({text})" if text else ""


def _spec(spec: InputSpec | None) -> str:
    return "" if spec is None else f", {spec.layout}, mean {spec.mean}, std {spec.std}"
