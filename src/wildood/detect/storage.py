"""A detector on disk: `detector.json` says what it is, `weights-*.safetensors` holds its tensors; no pickle."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from wildood.data.files import DamagedFileError, digest, dump_tensors, load_tensors, write_atomically
from wildood.data.inputs import InputSpec
from wildood.data.locks import locked
from wildood.detect.detector import Detector, Example
from wildood.detect.promise import Promise
from wildood.errors import DetectorFileError
from wildood.models.compiled import plain_name, uncompiled
from wildood.models.features import FeatureTap
from wildood.models.heads import SHIPPED as HEADS
from wildood.models.outputs import Classifier
from wildood.models.shipped import SHIPPED, build_model, describe_model
from wildood.scores.shipped import SHIPPED as SCORES
from wildood.settings import check_path

FORMAT = 1
_Module = TypeVar("_Module", bound=nn.Module)
ARRAYS = ("holdout_scores", "holdout_classes", "class_thresholds")


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
        path, older = _weights_path(directory, content), _older_weights(directory)
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
    content, weights = _read(directory)
    try:
        return _build(content, load_tensors(weights), model, directory)
    except (DamagedFileError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DetectorFileError(f"{directory} does not hold a whole detector ({error}): save the detector again") from error


def _read(directory: Path) -> tuple[dict[str, Any], bytes]:
    """What `detector.json` says, and the weights that it names; the next ones if a `save` replaces both in between."""
    content = read_description(directory)
    path = _weights_path(directory, content)
    try:
        try:
            weights = path.read_bytes()
        except FileNotFoundError:
            with locked(directory, shared=True, waiting=f"a detector is being saved to {directory}: waiting for it"):
                content = read_description(directory)
                path = _weights_path(directory, content)
                weights = path.read_bytes()
    except OSError as error:
        raise DetectorFileError(f"{path} cannot be read ({error.strerror}): save the detector again") from error
    if digest(weights) != content["weights"]:
        raise DetectorFileError(f"{path} is not the file that detector.json belongs to: save the detector again")
    return content, weights


def _build(
    content: dict[str, Any], tensors: dict[str, Tensor], model: nn.Module | Callable[[], nn.Module] | None, directory: Path
) -> Detector:
    """The detector that the JSON describes, with these weights."""
    network = _network(content["model"], model, directory)
    # Older files of compiled models have the names of their wrappers.
    weights = {plain_name(name): tensor for name, tensor in _part(tensors, "model").items()}
    _load_weights(network.load_state_dict, weights, directory)
    spec = None if content["input"] is None else InputSpec.from_dict(content["input"])
    if spec is not None:  # as when it was made: in another layout, a convolution may round otherwise
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    tap = None if content["tap"] is None else FeatureTap(plain_name(content["tap"]["layer"]), content["tap"]["side"])
    if tap is not None and tap.layer not in dict(network.named_modules()):
        raise DetectorFileError(
            f"the model that was passed has no layer {tap.layer!r}: pass the architecture it was made with"
        )
    score = _unset(lambda: SCORES[content["score"]["name"]](**content["score"]["settings"]))
    _load_weights(score.restore, _part(tensors, "score"), directory)
    classifier = Classifier(network, spec, tap)
    if content.get("head") is not None:
        described = {"name": "DeConfHead", **content["head"]}  # which had no name while it was the only one
        classifier.head = _unset(lambda: HEADS[described.pop("name")](**described)).to(classifier.device)
        _load_weights(classifier.head.load_state_dict, _part(tensors, "head"), directory)
    return Detector(
        classifier.eval(),
        score.eval(),
        Example(tuple(content["example"]["shape"]), content["example"]["kind"]),
        threshold=float.fromhex(content["threshold"]),
        promise=None if content["promise"] is None else Promise(**content["promise"]),
        **{name: tensors[name].numpy() for name in ARRAYS if name in tensors},
        history=content["history"],
        record=content["record"],
    )


def _part(tensors: dict[str, Tensor], part: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{part}."): tensor for name, tensor in tensors.items() if name.startswith(f"{part}.")}


def _older_weights(directory: Path) -> Path | None:
    """The weights of the detector that is there already, if it is a whole one."""
    try:
        return _weights_path(directory, _read_json(directory / "detector.json"))
    except DetectorFileError:
        return None


def read_description(directory: Path) -> dict[str, Any]:
    """What `detector.json` says, checked; the weights are not read."""
    path = directory / "detector.json"
    if (directory / "run" / "run.json").exists() and not path.exists():
        raise DetectorFileError(f"{path} is not there yet: call fit again with the same options, and the training goes on")
    return _read_json(path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        if _digest({key: value for key, value in content.items() if key != "digest"}) != content["digest"]:
            raise DetectorFileError(f"{path} was changed after it was written: save the detector again")
    except OSError as error:
        raise DetectorFileError(f"{path} cannot be read ({error.strerror}): give that of a saved detector") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DetectorFileError(f"{path} is damaged or not a wildood detector: save the detector again") from error
    if content.get("format") != FORMAT:
        raise DetectorFileError(
            f"{path} has format {content.get('format')}, this wildood reads format {FORMAT}: use the wildood that wrote it"
        )
    if not isinstance(content.get("weights"), str) or not re.fullmatch("[0-9a-f]{64}", content["weights"]):
        raise DetectorFileError(f"{path} is damaged or not a wildood detector: save the detector again")
    if content["score"]["name"] not in SCORES:
        raise DetectorFileError(f"{path} uses the score {content['score']['name']!r}, which this wildood does not have")
    return content


def _weights_path(directory: Path, content: dict[str, Any]) -> Path:
    return directory / f"weights-{content['weights'][:16]}.safetensors"


def _digest(content: dict[str, Any]) -> str:
    return digest(json.dumps(content, sort_keys=True).encode())


def _network(described: dict[str, Any], model: nn.Module | Callable[[], nn.Module] | None, directory: Path) -> nn.Module:
    if model is None:
        if described.get("name") not in SHIPPED:
            raise DetectorFileError(
                f"{directory} was made with a model of your own ({described.get('class')}): give it again, with model= in "
                "Python or --model module:function on the command line"
            )
        return _unset(lambda: build_model(described))
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
    return uncompiled(network)


def _unset(build: Callable[[], _Module]) -> _Module:
    """A module whose weights are still to be loaded; none are drawn, for another thread may need torch's generator."""
    with torch.device("meta"):
        return build().to_empty(device="cpu")


def _load_weights(load_into: Callable[[dict[str, Tensor]], Any], weights: dict[str, Tensor], directory: Path) -> None:
    try:
        load_into(weights)
    except RuntimeError as error:
        first = shorten(str(error).splitlines()[1] if "\n" in str(error) else str(error), 300, placeholder=" ...")
        raise DetectorFileError(
            f"the weights in {directory} do not fit the model that was passed ({first}): pass the architecture it was "
            "made with"
        ) from error
