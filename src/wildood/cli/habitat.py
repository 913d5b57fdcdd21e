"""`wildood habitat`: how a detector in service is, and its successor: trained, compared, promoted; what to label."""

import copy
import getpass
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import tyro
from torch import nn

from wildood.cli.inputs import read_labelled, read_model, read_weights
from wildood.cli.main import FOUND, OK, say, say_named
from wildood.cli.options import DATA_ROOT, named, parse
from wildood.data.files import write_text
from wildood.data.inputs import InputSpec
from wildood.data.schema import SchemaError
from wildood.data.schema import parse as parse_json
from wildood.detect.detector import Detector
from wildood.detect.storage import detector_directory, load
from wildood.errors import InputError
from wildood.habitat.calibrate import calibrate
from wildood.habitat.compare import compare
from wildood.habitat.habitat import Habitat
from wildood.habitat.refresh import recorded_method, recorded_schedule, refresh
from wildood.habitat.review import TOP, parse_answers, read_answers, record_answers, review
from wildood.habitat.status import status
from wildood.habitat.summary import Summary
from wildood.methods.shipped import METHODS
from wildood.train.progress import verbose_logging

REMEMBERED = "refresh.json"  # in the habitat: what its refresh is given
ALLOWED = {
    "status": {"json"},
    "refresh": {
        "labelled", "holdout", "weights", "method", "steps", "batch", "seed", "restart", "skip_broken", "data_root", "json",
        "allow_duplicates",
    },
    "calibrate": {"why", "who", "force", "json"},
    "compare": {"holdout", "skip_broken", "data_root", "json", "to"},
    "promote": {"to", "force", "why", "who"},
    "review": {"answer", "answers", "who", "top", "json"},
}  # fmt: skip


@dataclass(frozen=True)
class HabitatOptions:
    """How a detector in service is, and its successor.

    The exit code of status is 3 if its test finds unknowns.

    Attributes:
        action: status: traffic, unknowns, the promise, what to do next. calibrate: set the champion's threshold by known
            examples of now, without training. refresh: train a challenger on what was collected; goes on if it was killed.
            compare: champion and challenger on later traffic. promote: make the challenger the champion. review: what to
            label first, and people's answers.
        habitat: the directory.
        labelled: refresh: ID examples with classes, as for fit; remembered for the next time, as are holdout, weights,
            method, steps, batch and seed.
        holdout: refresh, compare: ID examples with classes that no classifier was trained on. Refresh trains and chooses
            with a half, a quarter sets the threshold, a quarter is for compare.
        weights: refresh: the classifier to start from, a file of safetensors or a saved detector; by default the champion's.
        method: refresh: woods, oe, ...; by default the champion's.
        steps: refresh: how many steps to train; by default as the champion.
        batch: refresh: labelled examples in a step; by default as the champion.
        seed: refresh: decides every random draw (default: 0).
        restart: refresh: leave an unfinished refresh, and take the traffic of now.
        allow_duplicates: refresh: equal examples in the holdout and in training are no leak, because inputs repeat.
        to: promote, compare: the id of a detector; by default the challenger.
        force: promote: although no comparison has shown that it is better. calibrate: although no change is found.
        why: promote, calibrate: the reason, for the record.
        who: promote, calibrate, review: the person (default: the user of this process).
        answer: review: what a person says, as in 17=cat or 17=unknown; can be repeated.
        answers: review: a .csv file with the columns id and class.
        top: review: how many examples to list.
        model: module:function that builds a model of your own. For security, it is not remembered.
        json: print JSON instead of text.
        skip_broken: leave out pictures that cannot be read, instead of stopping.
        quiet: show no progress.
    """

    action: Annotated[
        Literal["status", "calibrate", "refresh", "compare", "promote", "review"],
        tyro.conf.Positional,
        named("ACTION"),
    ]
    habitat: Annotated[Path, tyro.conf.Positional, named("HABITAT")]
    labelled: Annotated[str | None, named("DATA")] = None
    holdout: Annotated[str | None, named("DATA")] = None
    weights: Annotated[Path | None, named("PATH")] = None
    method: Annotated[str | None, named("NAME")] = None
    steps: Annotated[int | None, named("N")] = None
    batch: Annotated[int | None, named("N")] = None
    seed: Annotated[int | None, named("N")] = None
    restart: bool = False
    allow_duplicates: bool = False
    to: Annotated[str | None, named("ID")] = None
    force: bool = False
    why: Annotated[str, named("TEXT")] = ""
    who: Annotated[str | None, named("NAME")] = None
    answer: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, named("ID=CLASS")] = ()
    answers: Annotated[Path | None, named("FILE")] = None
    top: Annotated[int, named("N", f"(default: {TOP})")] = TOP
    model: Annotated[str | None, named("MODULE:FUNCTION")] = None
    json: bool = False
    skip_broken: bool = False
    data_root: Annotated[Path | None, named("DIRECTORY", help=DATA_ROOT)] = None
    quiet: bool = False


@dataclass(frozen=True)
class Sources:
    """What a refresh was given; paths are absolute."""

    labelled: str | None = None
    holdout: str | None = None
    weights: str | None = None
    method: str | None = None
    steps: int | None = None
    batch: int | None = None
    seed: int | None = None
    skip_broken: bool = False
    data_root: str | None = None


def run(words: Sequence[str]) -> int:
    """Do what the action names, print the result, and return its exit code."""
    options = parse(HabitatOptions, "habitat", words)
    _check_options(options)
    habitat = Habitat(options.habitat)
    if options.action == "promote":
        promotion = habitat.promote(options.to, who=_who(options), why=options.why, force=options.force)
        forced = ", by force" if promotion.forced else ""
        say(f"{promotion.detector} is the champion now, after {promotion.former}{forced}")
        return OK
    with verbose_logging(verbose=not options.quiet):
        champion = _load(habitat, None, options)
        if options.action == "status":
            found = status(habitat, champion)
            _say(found, options)
            return FOUND if found.found else OK
        _say(
            {"calibrate": _calibrate, "refresh": _refresh, "compare": _compare, "review": _review}[options.action](
                habitat, champion, options
            ),
            options,
        )
    return OK


def _check_options(options: HabitatOptions) -> None:
    """Refuse options of other actions."""
    default = HabitatOptions(options.action, options.habitat)
    everywhere = {"model", "quiet"}
    for name, value in vars(options).items():
        if value != vars(default)[name] and name not in ALLOWED[options.action] | everywhere:
            which = " and ".join(action for action, names in ALLOWED.items() if name in names)
            raise InputError(f"--{name.replace('_', '-')} is for {which}, not for {options.action}: leave it out")


def _load(habitat: Habitat, detector_id: str | None, options: HabitatOptions) -> Detector:
    return habitat.detector(detector_id, model=None if options.model is None else read_model(options.model))


def _say(result: Summary, options: HabitatOptions) -> None:
    if options.json:
        say(json.dumps(result.to_dict(), indent=1))
    else:
        say_named(result.summary, width=12)


def _who(options: HabitatOptions) -> str:
    """The person who promotes or judges."""
    if options.who is not None:
        return options.who
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        return str(os.getuid()) if hasattr(os, "getuid") else ""


def _calibrate(habitat: Habitat, champion: Detector, options: HabitatOptions) -> Summary:
    return calibrate(habitat, champion, who=_who(options), why=options.why, force=options.force)


def _refresh(habitat: Habitat, champion: Detector, options: HabitatOptions) -> Summary:
    sources = _remembered(habitat, options)
    if sources.labelled is None or sources.holdout is None:
        missing = " and ".join(f"--{name}" for name in ("labelled", "holdout") if getattr(sources, name) is None)
        raise InputError(f"habitat refresh needs {missing}: give it once, it is remembered")
    reading = _reading(champion, sources)
    labelled = read_labelled(sources.labelled, "--labelled", reading, champion)
    holdout = read_labelled(sources.holdout, "--holdout", reading, champion)
    if sources.method is not None and sources.method not in METHODS:
        raise InputError(f"--method {sources.method}: give one of {', '.join(METHODS)}")
    method = recorded_method(champion) if sources.method is None else METHODS[sources.method]()
    schedule = recorded_schedule(champion, method)
    if sources.steps is not None:
        schedule = replace(schedule, steps=sources.steps, epochs=None)
    if sources.batch is not None:
        schedule = replace(schedule, batch=sources.batch)
    start = None if sources.weights is None else _start(Path(sources.weights), champion, options)
    # Remembered before hours of training: a killed refresh goes on by the same short command.
    write_text(habitat.path / REMEMBERED, json.dumps(asdict(sources), indent=1) + "\n")
    return refresh(
        habitat,
        champion,
        labelled,
        holdout,
        start=start,
        method=method,
        schedule=schedule,
        allow_duplicates=options.allow_duplicates,
        restart=options.restart,
        seed=sources.seed or 0,
        verbose=not options.quiet,
    )


def _compare(habitat: Habitat, champion: Detector, options: HabitatOptions) -> Summary:
    sources = _remembered(habitat, options)
    challenger = habitat.challenger if options.to is None else options.to
    if challenger is None:
        raise InputError(f"{habitat.path} has no challenger: wildood habitat refresh makes one")
    holdout = None
    if sources.holdout is not None:
        holdout = read_labelled(sources.holdout, "--holdout", _reading(champion, sources), champion)
    return compare(habitat, champion, _load(habitat, challenger, options), holdout, id=challenger)


def _review(habitat: Habitat, champion: Detector, options: HabitatOptions) -> Summary:
    answers = {} if options.answers is None else read_answers(options.answers)
    answers |= parse_answers(options.answer)
    recorded = record_answers(habitat, champion, answers, _who(options)) if answers else 0
    return replace(review(habitat, champion, top=options.top), recorded=recorded)


def _remembered(habitat: Habitat, options: HabitatOptions) -> Sources:
    """What this refresh and earlier ones were given: the words first."""
    path = habitat.path / REMEMBERED
    try:
        before: Sources = parse_json(path.read_bytes(), Sources)
    except FileNotFoundError:
        before = Sources()
    except SchemaError as error:
        raise InputError(f"{path}: {error}: remove it, and give the options again") from error
    typed = {name: getattr(options, name) for name in vars(before)}
    typed |= {name: _absolute(typed[name]) for name in ("labelled", "holdout") if typed[name] is not None}
    typed |= {name: str(typed[name].absolute()) for name in ("weights", "data_root") if typed[name] is not None}
    return replace(before, **{name: value for name, value in typed.items() if value is not None and value is not False})


def _absolute(text: str) -> str:
    """A path as an absolute one; the name of a set as it is. FILE.npz:x,y names arrays of a file."""
    file, colon, arrays = text.rpartition(":")
    for path, rest in ((text, ""), (file, colon + arrays)):
        if path and Path(path).exists():
            return f"{Path(path).absolute()}{rest}"
    return text


def _reading(champion: Detector, sources: Sources) -> Any:
    """How files are read: as for the training of the champion."""
    spec = champion.classifier.spec
    size = spec.size if isinstance(spec, InputSpec) else None
    root = None if sources.data_root is None else Path(sources.data_root)
    return SimpleNamespace(size=size, data_root=root, skip_broken=sources.skip_broken, model=None, mean=None)


def _start(weights: Path, champion: Detector, options: HabitatOptions) -> nn.Module:
    """The classifier that --weights names, of the champion's architecture."""
    if (directory := detector_directory(weights)) is not None:
        start = load(directory, model=None if options.model is None else read_model(options.model))
        return start.classifier.model
    model = copy.deepcopy(champion.classifier.model)
    try:
        model.load_state_dict(read_weights(weights, model))
    except RuntimeError as error:
        raise InputError(f"--weights {weights} do not fit the champion's model: {str(error).splitlines()[-1]}") from error
    return model
