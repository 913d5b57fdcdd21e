"""A detector on disk: `detector.json` says what it is, `weights-*.safetensors` holds its tensors; no pickle."""

import copy
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from wildood.data.files import DamagedFileError, digest, dump_tensors, load_tensors, locked, write_atomically
from wildood.data.inputs import InputSpec
from wildood.data.schema import ArgumentsOf, Count, Limit, Rate, SchemaError, check, check_arguments, parse
from wildood.detect.detector import Detector, Example
from wildood.detect.promise import Promise
from wildood.errors import DetectorFileError, InputError
from wildood.evaluate.thresholds import conformal_threshold, thresholds_by_class
from wildood.models.classifier import Classifier, plain_name, uncompiled
from wildood.models.features import FeatureTap
from wildood.models.heads import HEADS
from wildood.models.shipped import MODELS, build_model, describe_model
from wildood.scores.score import Score
from wildood.scores.shipped import SCORES
from wildood.settings import check_path

FORMAT = 1
ARRAYS = {"holdout_scores": torch.float32, "holdout_classes": torch.int64, "class_thresholds": torch.float64}
AGAIN = "save the detector again"
_TORCH_ERRORS = (
    RuntimeError,
    TypeError,
    ValueError,
    IndexError,
    OverflowError,
    ZeroDivisionError,
)  # of sizes that do not fit
Module = TypeVar("Module", bound=nn.Module)


def _is_hex(text: str) -> bool:
    try:
        float.fromhex(text)
    except (ValueError, OverflowError):
        return False
    return True


def _is_encodable(text: str) -> bool:
    try:
        text.encode(errors="surrogateescape")  # as names of folders are that are not UTF-8
    except UnicodeEncodeError:
        return False
    return True


Name = Annotated[str, Limit(_is_encodable, "text that can be written")]
Hex = Annotated[str, Limit(_is_hex, "a number as float.hex writes it")]
Sha256 = Annotated[str, Limit(lambda text: re.fullmatch("[0-9a-f]{64}", text) is not None, "64 hexadecimal digits")]
# One of those that ship with wildood has a name and settings, a user's own its class.
_Model = TypedDict("_Model", {"name": NotRequired[str], "settings": NotRequired[dict[str, Any]], "class": NotRequired[str]})


class _Tap(TypedDict):
    layer: str
    side: Literal["input", "output"]


class _Head(TypedDict):
    name: NotRequired[str]
    features: Count
    classes: Count


class _Score(TypedDict):
    name: str
    settings: dict[str, Any]


class _Example(TypedDict):
    shape: list[Count]
    kind: Literal["float", "uint8", "integer"]


class _Named(TypedDict, total=False):
    name: Required[str]


class _Row(TypedDict, total=False):
    epoch: Required[Count]
    step: Required[Count]
    stage: Count


class _KeptRow(_Row, total=False):
    accuracy: Required[float]


class _Assessment(TypedDict, total=False):
    start_kept: Required[bool]
    warnings: Required[list[str]]


class Record(TypedDict, total=False):
    """What is read of a record; it holds more, for people."""

    method: _Named
    schedule: dict[str, Any]
    seed: int
    kept_epoch: Count
    frozen: bool
    classes: list[Name]
    data: dict[str, str]
    examples: dict[str, str]
    chosen_by: str
    not_by_class: str
    accuracy_lost: str
    uniform: str
    ties: str
    assessment: _Assessment
    versions: dict[str, str]


class _FitRecord(TypedDict, total=False):
    schedule: Required[dict[str, Any]]
    seed: Required[int]
    kept_epoch: Required[Count]


class Description(TypedDict):
    """`detector.json`: everything about a detector but its tensors."""

    digest: str
    format: int
    weights: Sha256
    model: _Model
    input: Annotated[dict[str, Any], ArgumentsOf(InputSpec)] | None
    tap: _Tap | None
    head: NotRequired[_Head | None]
    score: _Score
    example: _Example
    threshold: Hex
    class_thresholds: NotRequired[Annotated[list[Hex], Limit(bool, "a list of at least one")] | None]
    promise: Annotated[dict[str, Any], ArgumentsOf(Promise)] | None
    history: list[dict[str, float]]
    record: Record


def save_detector(detector: Detector, directory: Path) -> Path:
    """Write the weights under their own name, then the JSON that names them: a failed save leaves the old detector.

    Of several saves to one directory at a time, by threads or processes, one waits for the other.
    """
    detector = copy.copy(detector)  # as it is at this moment: another thread may calibrate it
    if SCORES.get(type(detector.scorer).__name__) is not type(detector.scorer):
        raise DetectorFileError(
            f"the score {type(detector.scorer).__name__} is not one of wildood's: it could not be loaded"
        )
    if directory.exists() and not directory.is_dir():
        raise DetectorFileError(f"{directory} is a file: give a directory to save to")
    if wrong := _broken_promise(detector):
        raise InputError(f"{wrong}: call detector.calibrate(alpha=...), or promise nothing with detector.promise = None")
    head = detector.classifier.head
    parts = {
        "model": detector.classifier.model.state_dict(),
        "score": detector.scorer.state_dict(),
        "head": {} if head is None else head.state_dict(),
    }
    tensors = {f"{part}.{name}": tensor for part, state in parts.items() for name, tensor in state.items()}
    for name in ARRAYS:
        if (array := getattr(detector, name)) is not None:
            tensors[name] = torch.from_numpy(array)
    weights = dump_tensors(tensors)
    tap, each = detector.classifier.tap, detector.class_thresholds
    content = {
        "format": FORMAT,
        "weights": digest(weights),
        "model": describe_model(detector.classifier.model) or {"class": type(detector.classifier.model).__qualname__},
        "input": None if detector.classifier.spec is None else detector.classifier.spec.to_dict(),
        "tap": None if tap is None else vars(tap),
        "head": None if head is None else {"name": type(head).__name__, **head.settings},
        "score": {"name": type(detector.scorer).__name__, "settings": detector.scorer.settings},
        "example": vars(detector.example),
        "threshold": float(detector.threshold).hex(),
        "class_thresholds": None if each is None else [float(one).hex() for one in each],  # for those who read no arrays
        "promise": None if detector.promise is None else vars(detector.promise),
        "history": detector.history,
        "record": detector.record,
    }
    description = json.dumps({"digest": _digest(content), **content}, indent=1).encode()
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory, waiting=f"another detector is being saved to {directory}: waiting for it"):
        path, older = _weights_path(directory, digest(weights)), _older_weights(directory)
        write_atomically(path, weights)
        write_atomically(directory / "detector.json", description)
        if older is not None and older != path:
            older.unlink(missing_ok=True)
    return directory


def load(directory: str | Path, model: nn.Module | Callable[[], nn.Module] | None = None) -> Detector:
    """Read a detector that `save` wrote. Models that ship with wildood are rebuilt; for your own, pass it again.

    Args:
        directory: where `Detector.save` wrote.
        model: your model of the same architecture (copied, never changed), or a function that builds it; its weights are
            replaced by the saved ones. Not needed for models from `wildood.models`.

    >>> import tempfile, numpy as np, wildood
    >>> from wildood.models.small import MLP
    >>> x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
    >>> detector = wildood.posthoc(MLP(4, 3), wildood.EnergyScore(), holdout=x, alpha=0.1)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     again = wildood.load(detector.save(place))
    >>> bool(np.array_equal(again.score(x), detector.score(x)))
    True
    """
    directory = check_path(directory, "the directory")
    content, weights_path, weights = _read(directory)
    try:
        tensors = load_tensors(weights)
    except DamagedFileError as error:
        raise DetectorFileError(f"{weights_path} is {error}: {AGAIN}") from error
    if wrong := _wrong_array(tensors):
        raise DetectorFileError(f"{weights_path}: {wrong}: {AGAIN}")
    detector = _build(content, tensors, model, directory)
    if wrong := _broken_promise(detector) or _other_thresholds(content, detector):
        raise DetectorFileError(f"{directory}: {wrong}: {AGAIN}")
    return detector


def _read(directory: Path) -> tuple[Description, Path, bytes]:
    """What `detector.json` says, and the weights that it names; the next ones if a `save` replaces both in between."""
    content = read_description(directory)
    path = _weights_path(directory, content["weights"])
    try:
        try:
            weights = path.read_bytes()
        except FileNotFoundError:
            with locked(directory, waiting=f"a detector is being saved to {directory}: waiting for it"):
                content = read_description(directory)
                path = _weights_path(directory, content["weights"])
                weights = path.read_bytes()
    except OSError as error:
        raise DetectorFileError(f"{path} cannot be read ({error.strerror}): {AGAIN}") from error
    if digest(weights) != content["weights"]:
        raise DetectorFileError(f"{path} is not the file that detector.json belongs to: {AGAIN}")
    return content, path, weights


def _build(
    content: Description, tensors: dict[str, Tensor], model: nn.Module | Callable[[], nn.Module] | None, directory: Path
) -> Detector:
    """The detector that the JSON describes, with these weights."""
    # Older files of compiled models have the names of their wrappers.
    weights = {plain_name(name): tensor for name, tensor in _part(tensors, "model").items()}
    network = _network(content["model"], weights, model, directory)
    spec = None if content["input"] is None else InputSpec.from_dict(content["input"])
    if spec is not None:  # as when it was made: in another layout, a convolution may round otherwise
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    tap = None if content["tap"] is None else FeatureTap(plain_name(content["tap"]["layer"]), content["tap"]["side"])
    if tap is not None and tap.layer not in dict(network.named_modules()):
        raise DetectorFileError(
            f"the model that was passed has no layer {tap.layer!r}: pass the architecture it was made with"
        )
    score = _built(lambda: SCORES[content["score"]["name"]](**content["score"]["settings"]), "score", directory)
    _load_weights(score, _part(tensors, "score"), f"the score's tensors in {directory} do not fit it", AGAIN)
    classifier = Classifier(network, spec, tap)
    if (described := content.get("head")) is not None:
        settings = described["features"], described["classes"]
        head = _built(lambda: HEADS[_head_name(described)](*settings), "head", directory)
        _load_weights(head, _part(tensors, "head"), f"the head's tensors in {directory} do not fit it", AGAIN)
        classifier.head = head.to(classifier.device)
    detector = Detector(
        classifier.eval(),
        score.eval(),
        Example(tuple(content["example"]["shape"]), content["example"]["kind"]),
        threshold=float.fromhex(content["threshold"]),
        promise=None if content["promise"] is None else Promise(**content["promise"]),
        **{name: tensors[name].numpy() for name in ARRAYS if name in tensors},
        history=content["history"],
        record=dict(content["record"]),
    )
    if type(network) in MODELS.values():  # a user's own model may refuse a blank example
        _try(detector, directory)
    return detector


def _part(tensors: dict[str, Tensor], part: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{part}."): tensor for name, tensor in tensors.items() if name.startswith(f"{part}.")}


def _older_weights(directory: Path) -> Path | None:
    """The weights of the detector that is there already, if it is a whole one."""
    try:
        return _weights_path(directory, _read_json(directory / "detector.json")["weights"])
    except DetectorFileError:
        return None


def read_description(directory: Path) -> Description:
    """What `detector.json` says, checked; the weights are not read."""
    path = directory / "detector.json"
    if (directory / "run" / "run.json").exists() and not path.exists():
        raise DetectorFileError(f"{path} is not there yet: call fit again with the same options, and the training goes on")
    return _read_json(path)


def _read_json(path: Path) -> Description:
    try:
        content: Any = parse(path.read_bytes(), dict[str, Any])
        found = content.pop("digest")
    except OSError as error:
        raise DetectorFileError(f"{path} cannot be read ({error.strerror}): give that of a saved detector") from error
    except (SchemaError, KeyError) as error:
        raise DetectorFileError(f"{path} is damaged or not a wildood detector: {AGAIN}") from error
    if _digest(content) != found:
        raise DetectorFileError(f"{path} was changed after it was written: {AGAIN}")
    if content.get("format") != FORMAT:
        raise DetectorFileError(
            f"{path} has format {content.get('format')!r}, this wildood reads format {FORMAT}: use the wildood that wrote it"
        )
    content["digest"] = found
    try:
        check(content, Description)
        description: Description = content
        _check_values(description)
    except SchemaError as error:
        raise DetectorFileError(f"{path}: {error}: {AGAIN}") from error
    return description


def _check_values(content: Description) -> None:
    """Refuse values that have the right types, but do not fit each other, or have names that nothing has."""
    score, head, promise, model = content["score"], content.get("head"), content["promise"], content["model"]
    if score["name"] not in SCORES:
        raise SchemaError(f"score.name is {score['name']!r}, which this wildood does not have")
    check_arguments(score["settings"], SCORES[score["name"]], "score.settings")
    if head is not None and _head_name(head) not in HEADS:
        raise SchemaError(f"head.name is {head['name']!r}, which this wildood does not have")
    if model.get("name") in MODELS:
        check_arguments(model.get("settings"), MODELS[model["name"]], "model.settings")
    if content["input"] is not None:
        try:
            InputSpec.from_dict(content["input"])
        except InputError as error:
            raise SchemaError(f"input: {error}") from error
    if promise is not None:
        check(promise["alpha"], Rate, "promise.alpha")
        check(promise.get("confidence"), Rate | None, "promise.confidence")
        if content["threshold"] == "nan":
            raise SchemaError("threshold is 'nan', expected a number, because of the promise")
    each = content.get("class_thresholds")
    if each is not None and (promise is None or not promise.get("by_class")):
        raise SchemaError("class_thresholds is there, expected null, because nothing is promised by class")
    record, history = content["record"], content["history"]
    if "method" in record:
        check(record, _FitRecord, "record")
        check(
            record["kept_epoch"],
            Annotated[int, Limit(lambda kept: kept < len(history), "a row of history")],
            "record.kept_epoch",
        )
        check(history[record["kept_epoch"]], _KeptRow, f"history[{record['kept_epoch']}]")
        check(history[-1], _Row, f"history[{len(history) - 1}]")


def _wrong_array(tensors: dict[str, Tensor]) -> str:
    """What is wrong with the tensors that belong to no module, or nothing."""
    for name, tensor in tensors.items():
        if name in ARRAYS and (tensor.dtype != ARRAYS[name] or tensor.ndim != 1):
            return f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}, expected {ARRAYS[name]} in one dimension"
        if name == "holdout_classes" and bool((tensor < 0).any()):
            return f"{name} holds {int(tensor.min())}, expected numbers of classes"
        if name not in ARRAYS and name.partition(".")[0] not in {"model", "score", "head"}:
            return f"{name!r} is not known to this wildood"
    return ""


def _broken_promise(detector: Detector) -> str:
    """Why the thresholds are not those that the promise needs, or nothing."""
    promise, scores, classes, each = (
        detector.promise,
        detector.holdout_scores,
        detector.holdout_classes,
        detector.class_thresholds,
    )
    if promise is None:
        return ""
    if scores is None or classes is None or not len(scores) == len(classes) == promise.examples:
        counts = ["no" if array is None else str(len(array)) for array in (scores, classes)]
        return (
            f"the promise rests on {promise.examples} examples, but there are {' scores and '.join(counts)} classes of them"
        )
    if promise.by_class != (each is not None):
        return f"the promise has by_class={promise.by_class}, but class_thresholds is {'None' if each is None else 'there'}"
    try:
        threshold = conformal_threshold(scores, promise.alpha, promise.confidence)
        needed = None if each is None else thresholds_by_class(scores, classes, len(each), promise.alpha, promise.confidence)
    except InputError as error:
        return f"the promise cannot be kept ({error})"
    if detector.threshold != threshold:
        return f"the threshold is {detector.threshold:.6g}, but a promise of {promise.alpha:g} needs {threshold:.6g}"
    if needed is not None and not np.array_equal(needed, np.asarray(each)):
        return "the thresholds of classes are not those that the promise needs"
    return ""


def _other_thresholds(content: Description, detector: Detector) -> str:
    """That the thresholds of classes that can be read without the arrays are not those of the arrays, or nothing."""
    said, each = content.get("class_thresholds"), detector.class_thresholds
    if said is None or (each is not None and [float.fromhex(text) for text in said] == each.tolist()):
        return ""
    return "the thresholds of classes in detector.json are not those in the weights"


def _try(detector: Detector, directory: Path) -> None:
    """Ask the detector about two blank examples; what is stored by class must be of the classes that the model has."""
    blank = detector.example.blank(2)
    try:
        scores, count = detector.score(blank), detector.predict_proba(blank).shape[1]
    except _TORCH_ERRORS as error:
        raise DetectorFileError(
            f"{directory}: the model does not fit the input, example, tap, head or score that is stored with it "
            f"({_first_line(error)}): {AGAIN}"
        ) from error
    classes, each = detector.holdout_classes, detector.class_thresholds
    if scores.shape != (2,) or not np.isfinite(scores).all():
        raise DetectorFileError(f"{directory}: the score of a blank example is {scores[0]}, expected a number: {AGAIN}")
    if (classes is not None and classes.max(initial=0) >= count) or (each is not None and len(each) != count):
        raise DetectorFileError(f"{directory}: what is stored by class is not of the model's {count} classes: {AGAIN}")


def _head_name(head: _Head) -> str:
    return head.get("name", "DeConfHead")  # which had no name while it was the only one


def _weights_path(directory: Path, weights: str) -> Path:
    return directory / f"weights-{weights[:16]}.safetensors"


def _digest(content: dict[str, Any]) -> str:
    return digest(json.dumps(content, sort_keys=True).encode())


def _network(
    described: _Model, weights: dict[str, Tensor], model: nn.Module | Callable[[], nn.Module] | None, directory: Path
) -> nn.Module:
    """The model with its weights: rebuilt, or a copy of the one that was passed."""
    if model is None:
        if described.get("name") not in MODELS:
            raise DetectorFileError(
                f"{directory} was made with a model of your own ({described.get('class')}): give it again, with model= in "
                "Python or --model module:function on the command line"
            )
        return _rebuilt(described, weights, directory)
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
    _load_weights(
        network,
        weights,
        f"the weights in {directory} do not fit the model that was passed",
        "pass the architecture it was made with",
    )
    return network


def _rebuilt(described: _Model, weights: dict[str, Tensor], directory: Path) -> nn.Module:
    settings, stored = described["settings"], sum(tensor.numel() for tensor in weights.values())
    for name, value in settings.items():
        if isinstance(value, int) and value > stored:  # no size or depth is: such a model would take for ever to build
            raise DetectorFileError(
                f"{directory}: model.settings.{name} is {value}, but {stored} weights are stored: {AGAIN}"
            )
    network = _built(lambda: build_model({**described}), "model", directory)
    kinds = Counter(tensor.dtype for tensor in weights.values() if tensor.is_floating_point())
    network.to(max(kinds, key=kinds.__getitem__, default=torch.float32))
    _load_weights(network, weights, f"the weights in {directory} do not fit the {described['name']} they belong to", AGAIN)
    return network


def _built(build: Callable[[], Module], name: str, directory: Path) -> Module:
    """A module without memory for its tensors, which are still to be loaded: settings may ask for any amount of it."""
    try:
        with torch.device("meta"):
            return build()
    except _TORCH_ERRORS as error:
        raise DetectorFileError(f"{directory}: {name}.settings build no {name} ({_first_line(error)}): {AGAIN}") from error


def _load_weights(module: nn.Module, weights: dict[str, Tensor], complaint: str, advice: str) -> None:
    """Load tensors of exactly the names, shapes and types that a module has; those of a fitted score have any shape."""
    own = module.state_dict()
    for name, tensor in weights.items():
        if name in own and own[name].dtype != tensor.dtype:
            raise DetectorFileError(f"{complaint} ({name} is {tensor.dtype}, expected {own[name].dtype}): {advice}")
    load_into = module.restore if isinstance(module, Score) else module.load_state_dict
    assign = any(tensor.is_meta for tensor in own.values())
    try:  # copies are aligned in memory, as torch's own tensors are, so that sums round alike
        load_into({name: tensor.clone() for name, tensor in weights.items()} if assign else weights, assign=assign)
    except RuntimeError as error:
        raise DetectorFileError(f"{complaint} ({_first_line(error)}): {advice}") from error


def _first_line(error: Exception) -> str:
    """What an error of torch says, in one line: after a heading, the first thing that it lists."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return shorten(lines[1] if lines[0].endswith(":") and len(lines) > 1 else lines[0], 300, placeholder=" ...")
