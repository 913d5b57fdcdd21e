"""A detector on disk: `detector.json`, `weights-*.safetensors`, a README, the tokenizer of texts. No pickle."""

import copy
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any, NotRequired, Required, TypedDict, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from wildood.data.files import DamagedFileError, digest, dump_tensors, load_tensors, locked, write_together
from wildood.data.inputs import Spec
from wildood.data.schema import Count, Limit, SchemaError, check, check_arguments, parse
from wildood.data.texts import FILE as TOKENIZER
from wildood.detect.card import card, is_card
from wildood.detect.detector import Detector, Example, Promise
from wildood.detect.hub import SCHEME, download
from wildood.errors import DetectorFileError, InputError, as_utf8
from wildood.evaluate.thresholds import conformal_threshold, thresholds_by_class
from wildood.models.classifier import Classifier, plain_name, uncompiled
from wildood.models.features import Call, FeatureTap, call_model
from wildood.models.heads import HEADS
from wildood.models.shipped import MODELS, describe_model
from wildood.scores.score import Score
from wildood.scores.shipped import SCORES
from wildood.settings import check_path

FORMAT = 1
ARRAYS = {"holdout_scores": torch.float32, "holdout_classes": torch.int64, "class_thresholds": torch.float64}
PARTS = ("model", "score", "head")  # what the names of other tensors begin with
AGAIN = "save the detector again"
# What torch raises where sizes do not fit.
_TORCH_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, OverflowError, ZeroDivisionError)
Module = TypeVar("Module", bound=nn.Module)
ModelOrBuilder = nn.Module | Callable[[], nn.Module] | None


def _works(convert: Callable[[str], object]) -> Callable[[str], bool]:
    def works(text: str) -> bool:
        try:
            convert(text)
        except (ValueError, OverflowError):
            return False
        return True

    return works


# Names of folders that are not UTF-8 are written with surrogates.
Name = Annotated[str, Limit(_works(lambda text: text.encode(errors="surrogateescape")), "text that can be written")]
Hex = Annotated[str, Limit(_works(float.fromhex), "a number as float.hex writes it")]
Sha256 = Annotated[str, Limit(lambda text: re.fullmatch("[0-9a-f]{64}", text) is not None, "64 hexadecimal digits")]
# A model that ships with wildood has a name and settings, a user's own its class.
_Model = TypedDict("_Model", {"name": NotRequired[str], "settings": NotRequired[dict[str, Any]], "class": NotRequired[str]})


@dataclass(frozen=True)
class _Head:
    features: Count
    classes: Count
    name: str = "DeConfHead"  # which had no name while it was the only one


class _Score(TypedDict):
    name: str
    settings: dict[str, Any]


class _Row(TypedDict, total=False):
    epoch: Required[Count]
    step: Required[Count]
    stage: Count


class _KeptRow(_Row, total=False):
    accuracy: Required[float]


class _Method(TypedDict, total=False):
    name: Required[str]


class _Assessment(TypedDict, total=False):
    start_kept: Required[bool]
    warnings: Required[list[str]]


class _Retrained(TypedDict):
    steps: Count
    wild: Count
    accuracy: float


class _Text(TypedDict):
    column: str
    label_column: str | None
    tokenizer: Sha256


class Record(TypedDict, total=False):
    """The keys of a record that are read; it holds more, for people."""

    method: _Method
    schedule: dict[str, Any]
    seed: int
    kept_epoch: Count
    frozen: bool
    precision: str
    classes: list[Name]
    data: dict[str, str]
    examples: dict[str, str]
    chosen_by: str
    not_by_class: str
    low_accuracy: str
    holdout_accuracy: str
    missing_classes: str
    repeated_wild: str
    temperature: str
    accuracy_lost: str
    uniform: str
    ties: str
    assessment: _Assessment
    retrained: _Retrained
    versions: dict[str, str]
    text: _Text


class Description(TypedDict):
    """`detector.json`: everything about a detector but its tensors."""

    digest: str
    format: int
    weights: Sha256
    model: _Model
    input: Spec | None
    tap: FeatureTap | None
    head: NotRequired[_Head | None]
    score: _Score
    example: Example
    forward: NotRequired[bool]  # whether the model is called by a function of the user's
    threshold: Hex
    class_thresholds: NotRequired[Annotated[list[Hex], Limit(bool, "a list of at least one")] | None]
    promise: Promise | None
    history: list[dict[str, float]]
    record: Record


def save_detector(detector: Detector, directory: Path) -> Path:
    """Write the weights under a name of their own, the model card, and last the JSON that names the weights.

    A failed save leaves the old detector; a README that is edited or no card of ours is left alone. Threads and processes
    that save to one directory at the same time wait for each other.
    """
    detector = copy.copy(detector)  # as it is at this moment: another thread may calibrate it
    score = type(detector.scorer)
    if SCORES.get(score.__name__) is not score:
        raise DetectorFileError(f"the score {score.__name__} is not one of wildood's: it could not be loaded")
    if directory.exists() and not directory.is_dir():
        raise DetectorFileError(f"{directory} is a file: give a directory to save to")
    try:
        _check_promise(detector)
    except SchemaError as error:
        instead = "call detector.calibrate(alpha=...), or promise nothing with detector.promise = None"
        raise InputError(f"{error}: {instead}") from error
    weights = dump_tensors(_tensors(detector))
    content = {"format": FORMAT, "weights": digest(weights), **_describe(detector)}
    description = json.dumps({"digest": _digest(content), **content}, indent=1, default=asdict).encode()
    readme = as_utf8(card(cast("Description", content))).encode()
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory, waiting=f"another detector is being saved to {directory}: waiting for it"):
        path = older = weights_path(directory, digest(weights))
        with suppress(DetectorFileError):  # there is no whole detector yet
            older = weights_path(directory, read_description(directory)["weights"])
        files = {path: weights, directory / "README.md": readme}
        if detector.tokenizer is not None:
            files[directory / TOKENIZER] = detector.tokenizer
        files[directory / "detector.json"] = description
        if not is_card(directory / "README.md"):  # somebody else's
            del files[directory / "README.md"]
        write_together(files)
        if older != path:
            older.unlink(missing_ok=True)
    return directory


def _tensors(detector: Detector) -> dict[str, Tensor]:
    modules = detector.classifier.model, detector.scorer, detector.classifier.head
    states = {part: module.state_dict() for part, module in zip(PARTS, modules, strict=True) if module is not None}
    tensors = {f"{part}.{name}": tensor for part, state in states.items() for name, tensor in state.items()}
    arrays = {name: getattr(detector, name) for name in ARRAYS}
    return tensors | {name: torch.from_numpy(array) for name, array in arrays.items() if array is not None}


def _describe(detector: Detector) -> dict[str, Any]:
    model, head = detector.classifier.model, detector.classifier.head
    each = detector.class_thresholds
    return {
        "model": describe_model(model) or {"class": type(model).__qualname__},
        "input": detector.classifier.spec,
        "tap": detector.classifier.tap,
        "head": None if head is None else {"name": type(head).__name__, **head.settings},
        "score": {"name": type(detector.scorer).__name__, "settings": detector.scorer.settings},
        "example": detector.example,
        "forward": detector.classifier.call is not call_model,
        "threshold": float(detector.threshold).hex(),
        # Also among the tensors; here for those who read only the JSON.
        "class_thresholds": None if each is None else [float(threshold).hex() for threshold in each],
        "promise": detector.promise,
        "history": detector.history,
        "record": detector.record,
    }


def load(directory: str | Path, model: ModelOrBuilder = None, forward: Call | None = None) -> Detector:
    """Read a detector that `save` wrote. Models that ship with wildood are rebuilt; your own has to be passed again.

    Args:
        directory: where `Detector.save` wrote; or "hf://user/name", where `Detector.push_to_hub` did, with "@revision" for
            another commit, branch or tag than the latest.
        model: your model of the same architecture (copied, never changed), or a function that builds it; its weights are
            replaced by the saved ones. Not needed for models from `wildood.models`.
        forward: the function that `fit` was given as `forward`, if there was one: code is not saved.

    >>> import tempfile, numpy as np, wildood
    >>> from wildood.models.small import MLP
    >>> x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
    >>> detector = wildood.posthoc(MLP(4, 3), wildood.EnergyScore(), holdout=x, alpha=0.1)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     again = wildood.load(detector.save(place))
    >>> bool(np.array_equal(again.score(x), detector.score(x)))
    True
    """
    if isinstance(directory, str) and directory.startswith(SCHEME):
        directory = download(directory)
    directory = check_path(directory, "the directory")
    content, weights, tokenizer = _read(directory)
    try:
        tensors = load_tensors(weights)
        _check_arrays(tensors)
        if content.get("forward", False) != (forward is not None):
            given = "needs the function that fit was given: pass forward=" if forward is None else "was made without forward"
            raise DetectorFileError(f"{directory} {given}")
        detector = _build(content, tensors, model, directory, forward or call_model)
        detector.tokenizer = tokenizer
        _check_promise(detector, content.get("class_thresholds"))
        if type(detector.classifier.model) in MODELS.values():  # a user's own model may refuse a blank example
            _try(detector)
    except (SchemaError, DamagedFileError) as error:
        raise DetectorFileError(f"{directory}: {error}: {AGAIN}") from error
    return detector


def _read(directory: Path) -> tuple[Description, bytes, bytes | None]:
    """What `detector.json` says, and the files that it names; the next ones if a `save` replaces them in between."""
    content = read_description(directory)
    path = weights_path(directory, content["weights"])
    try:
        try:
            weights = path.read_bytes()
        except FileNotFoundError:
            with locked(directory, waiting=f"a detector is being saved to {directory}: waiting for it"):
                content = read_description(directory)
                path = weights_path(directory, content["weights"])
                weights = path.read_bytes()
    except OSError as error:
        raise DetectorFileError(f"{path} cannot be read ({error.strerror}): {AGAIN}") from error
    if digest(weights) != content["weights"]:
        raise DetectorFileError(f"{path} is not the file that detector.json belongs to: {AGAIN}")
    return content, weights, _read_tokenizer(content, directory)


def _read_tokenizer(content: Description, directory: Path) -> bytes | None:
    """The tokenizer of a detector of texts."""
    if "text" not in content["record"]:
        return None
    path = directory / TOKENIZER
    try:
        tokenizer = path.read_bytes()
    except OSError as error:
        raise DetectorFileError(f"{path}: {error.strerror}: the detector reads texts with it, copy it there") from error
    if digest(tokenizer) != content["record"]["text"]["tokenizer"]:
        raise DetectorFileError(f"{path} is not the tokenizer that the detector was made with: copy that one there")
    return tokenizer


def read_description(directory: Path) -> Description:
    """What `detector.json` says, checked; the weights are not read."""
    path = directory / "detector.json"
    if (directory / "run" / "run.json").exists() and not path.exists():
        raise DetectorFileError(f"{path} is not there yet: call fit again with the same options, and the training goes on")
    try:
        content: Any = parse(path.read_bytes(), dict[str, Any])
        stored = content.pop("digest")
    except OSError as error:
        raise DetectorFileError(f"{path} cannot be read ({error.strerror}): give that of a saved detector") from error
    except (SchemaError, KeyError) as error:
        raise DetectorFileError(f"{path} is damaged or not a wildood detector: {AGAIN}") from error
    if _digest(content) != stored:
        raise DetectorFileError(f"{path} was changed after it was written: {AGAIN}")
    if content.get("format") != FORMAT:
        raise DetectorFileError(
            f"{path} has format {content.get('format')!r}, this wildood reads format {FORMAT}: use the wildood that wrote it"
        )
    try:
        description: Description = check(content | {"digest": stored}, Description)
        _check_values(description)
    except SchemaError as error:
        raise DetectorFileError(f"{path}: {error}: {AGAIN}") from error
    return description


def detector_directory(path: Path) -> Path | None:
    """The directory of the saved detector that a path names: the directory itself, or the file of its weights in it."""
    if path.is_dir():
        return path
    is_its_file = (path.parent / "detector.json").is_file() and path.suffix == ".safetensors"
    if is_its_file and path.name == weights_path(path.parent, read_description(path.parent)["weights"]).name:
        return path.parent
    return None


def classifier_weights(tensors: dict[str, Tensor]) -> dict[str, Tensor] | None:
    """The weights of the classifier among the tensors of a detector; None if they are not those of a detector."""
    if any(name not in ARRAYS and name.partition(".")[0] not in PARTS for name in tensors):
        return None
    return _part(tensors, "model")


def _part(tensors: dict[str, Tensor], part: str) -> dict[str, Tensor]:
    weights = {name.removeprefix(f"{part}."): each for name, each in tensors.items() if name.startswith(f"{part}.")}
    # Older files of compiled models have the names of their wrappers.
    return {plain_name(name): each for name, each in weights.items()} if part == "model" else weights


def _check_values(content: Description) -> None:
    """Refuse values that have the right types, but do not fit each other, or names that nothing has."""
    score, head, promise, model = content["score"], content.get("head"), content["promise"], content["model"]
    if score["name"] not in SCORES:
        raise SchemaError(f"score.name is {score['name']!r}, which this wildood does not have")
    check_arguments(score["settings"], SCORES[score["name"]], "score.settings")
    if head is not None and head.name not in HEADS:
        raise SchemaError(f"head.name is {head.name!r}, which this wildood does not have")
    if model.get("name") in MODELS:
        check_arguments(model.get("settings"), MODELS[model["name"]], "model.settings")
    if promise is not None and content["threshold"] == "nan":
        raise SchemaError("threshold is 'nan', expected a number, because of the promise")
    if content.get("class_thresholds") is not None and not (promise and promise.by_class):
        raise SchemaError("class_thresholds is there, expected null, because nothing is promised by class")
    record, history = content["record"], content["history"]
    if "method" in record:
        if missing := [key for key in ("schedule", "seed", "kept_epoch") if key not in record]:
            raise SchemaError(f"record.{missing[0]} is missing")
        kept = record["kept_epoch"]
        check(kept, Annotated[int, Limit(lambda row: row < len(history), "a row of history")], "record.kept_epoch")
        check(history[kept], _KeptRow, f"history[{kept}]")
        check(history[-1], _Row, f"history[{len(history) - 1}]")


def _check_arrays(tensors: dict[str, Tensor]) -> None:
    """Refuse tensors that belong to no module and are not what they are called."""
    for name, tensor in tensors.items():
        if name in ARRAYS and (tensor.dtype != ARRAYS[name] or tensor.ndim != 1):
            shape = tuple(tensor.shape)
            raise SchemaError(f"{name} is {tensor.dtype} of shape {shape}, expected {ARRAYS[name]} in one dimension")
        if name == "holdout_classes" and bool((tensor < 0).any()):
            raise SchemaError(f"{name} holds {int(tensor.min())}, expected numbers of classes")
        if name not in ARRAYS and name.partition(".")[0] not in PARTS:
            raise SchemaError(f"{name!r} is not known to this wildood")


def _check_promise(detector: Detector, described: Sequence[str] | None = None) -> None:
    """Refuse thresholds that are not those that the promise needs, or that detector.json describes otherwise."""
    promise, scores, classes = detector.promise, detector.holdout_scores, detector.holdout_classes
    if promise is None:
        return
    if scores is None or classes is None or not len(scores) == len(classes) == promise.examples:
        counts = " scores and ".join("no" if array is None else str(len(array)) for array in (scores, classes))
        raise SchemaError(f"the promise rests on {promise.examples} examples, but there are {counts} classes of them")
    each = detector.class_thresholds
    if promise.by_class != (each is not None):
        is_there = "None" if each is None else "there"
        raise SchemaError(f"the promise has by_class={promise.by_class}, but class_thresholds is {is_there}")
    try:
        threshold = conformal_threshold(scores, promise.alpha, promise.confidence)
        needed = None if each is None else thresholds_by_class(scores, classes, len(each), promise.alpha, promise.confidence)
    except InputError as error:
        raise SchemaError(f"the promise cannot be kept ({error})") from error
    if detector.threshold != threshold:
        needs = f"a promise of {promise.alpha:g} needs {threshold:.6g}"
        raise SchemaError(f"the threshold is {detector.threshold:.6g}, but {needs}")
    if each is not None and not np.array_equal(np.asarray(needed), each):
        raise SchemaError("the thresholds of classes are not those that the promise needs")
    if described and each is not None and [float.fromhex(text) for text in described] != each.tolist():
        raise SchemaError("the thresholds of classes in detector.json are not those in the weights")


def _try(detector: Detector) -> None:
    """Score two blank examples; what is stored by class must be of the classes that the model has."""
    blank = detector.example.blank(2)
    try:
        scores, count = detector.score(blank), detector.predict_proba(blank).shape[1]
    except _TORCH_ERRORS as error:
        parts = "the input, example, tap, head or score that is stored with it"
        raise SchemaError(f"the model does not fit {parts} ({_first_line(error)})") from error
    classes, each = detector.holdout_classes, detector.class_thresholds
    if scores.shape != (2,) or not np.isfinite(scores).all():
        raise SchemaError(f"the score of a blank example is {scores[0]}, expected a number")
    if (classes is not None and classes.max(initial=0) >= count) or (each is not None and len(each) != count):
        raise SchemaError(f"what is stored by class is not of the model's {count} classes")


def _build(content: Description, tensors: dict[str, Tensor], model: ModelOrBuilder, directory: Path, call: Call) -> Detector:
    """The detector that the JSON describes, with these tensors."""
    weights = _part(tensors, "model")
    if model is None:
        network = _rebuild_model(content["model"], weights, directory)
    else:
        network = _copy_model(model, weights, directory)
    spec, tap = content["input"], content["tap"]
    if spec is not None:  # as when it was made: in another layout, a convolution may round otherwise
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if tap is not None:
        tap = replace(tap, layer=plain_name(tap.layer))
        if tap.layer not in dict(network.named_modules()):
            raise DetectorFileError(
                f"the model that was passed has no layer {tap.layer!r}: pass the architecture it was made with"
            )
    score = _build_module(SCORES[content["score"]["name"]], content["score"]["settings"], "score")
    _load_weights(score, _part(tensors, "score"), "the score")
    classifier = Classifier(network, spec, tap, call)
    if (head := content.get("head")) is not None:
        sizes = {"features": head.features, "classes": head.classes}
        classifier.head = _build_module(HEADS[head.name], sizes, "head")
        _load_weights(classifier.head, _part(tensors, "head"), "the head")
        classifier.head.to(classifier.device)
    arrays: dict[str, Any] = {name: tensors[name].numpy() for name in ARRAYS if name in tensors}
    return Detector(
        classifier.eval(),
        score.eval(),
        content["example"],
        threshold=float.fromhex(content["threshold"]),
        promise=content["promise"],
        **arrays,
        history=content["history"],
        record=dict(content["record"]),
    )


def _rebuild_model(description: _Model, weights: dict[str, Tensor], directory: Path) -> nn.Module:
    """A model that ships with wildood, with its weights."""
    if description.get("name") not in MODELS:
        raise DetectorFileError(
            f"{directory} was made with a model of your own ({description.get('class')}): give it again, with model= in "
            "Python or --model module:function on the command line"
        )
    stored = sum(tensor.numel() for tensor in weights.values())
    for name, value in description["settings"].items():
        if isinstance(value, int) and value > stored:  # no size or depth is: such a model would take for ever to build
            raise SchemaError(f"model.settings.{name} is {value}, but {stored} weights are stored")
    network = _build_module(MODELS[description["name"]], description["settings"], "model")
    dtypes = Counter(tensor.dtype for tensor in weights.values() if tensor.is_floating_point())
    network.to(max(dtypes, key=dtypes.__getitem__, default=torch.float32))
    _load_weights(network, weights, f"the {description['name']} they belong to")
    return network


def _copy_model(model: Any, weights: dict[str, Tensor], directory: Path) -> nn.Module:
    """A copy of the user's model, or the one that the user's function builds, with the saved weights."""
    if not isinstance(model, nn.Module) and not callable(model):
        raise DetectorFileError(f"model is a {type(model).__name__}: pass an nn.Module, or a function that builds one")
    try:
        network = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
    except (RuntimeError, TypeError) as error:
        if not isinstance(model, nn.Module):  # what goes wrong in a user's function is theirs to see
            raise
        raise DetectorFileError(f"the model cannot be copied ({error}): pass a function that builds it") from error
    if not isinstance(network, nn.Module):
        raise DetectorFileError(f"model() returned a {type(network).__name__}: it must build an nn.Module")
    network = uncompiled(network)
    try:
        _load_weights(network, weights, "the model that was passed")
    except SchemaError as error:
        raise DetectorFileError(f"{directory}: {error}: pass the architecture it was made with") from error
    return network


def _build_module(cls: type[Module], settings: dict[str, Any], name: str) -> Module:
    """A module without memory for its tensors, which are still to be loaded: settings may ask for any amount of it."""
    try:
        with torch.device("meta"):
            return cls(**settings)
    except _TORCH_ERRORS as error:
        raise SchemaError(f"{name}.settings build no {name} ({_first_line(error)})") from error


def _load_weights(module: nn.Module, weights: dict[str, Tensor], owner: str) -> None:
    """Load tensors of exactly the names, shapes and types that a module has; those of a fitted score have any shape."""
    own = module.state_dict()
    load_into = module.restore if isinstance(module, Score) else module.load_state_dict
    assign = any(tensor.is_meta for tensor in own.values())
    for name, tensor in weights.items():
        if name in own and own[name].dtype != tensor.dtype:
            raise SchemaError(f"the weights do not fit {owner} ({name} is {tensor.dtype}, expected {own[name].dtype})")
    try:  # copies are aligned in memory, as torch's own tensors are, so that sums round alike
        load_into({name: tensor.clone() for name, tensor in weights.items()} if assign else weights, assign=assign)
    except RuntimeError as error:
        raise SchemaError(f"the weights do not fit {owner} ({_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    """What an error of torch says, in one line: after a heading, the first thing that it lists."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return shorten(lines[1] if lines[0].endswith(":") and len(lines) > 1 else lines[0], 300, placeholder=" ...")


def weights_path(directory: Path, weights: str) -> Path:
    """The file of the weights with a checksum."""
    return directory / f"weights-{weights[:16]}.safetensors"


def _digest(content: dict[str, Any]) -> str:
    return digest(json.dumps(content, sort_keys=True, default=asdict).encode())
