"""Bodies of requests and answers: the Open Inference Protocol v2 with its binary extension, `/predict`, and CloudEvents."""

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from wildood.data.structures import Raw
from wildood.detect.detector import UNKNOWN
from wildood.errors import InputError
from wildood.habitat.examples import DATATYPES, MOST_AXES, Array, ExampleReader, datatype_of, flattened, numbers_of
from wildood.settings import quoted

HEADER_LENGTH: Final = "inference-header-content-length"
LARGE: Final = 2**16  # bytes of JSON, which take some milliseconds to read
OUTPUTS: Final = ("class", "score", "p_value", "known")
BATCH: Final = "application/cloudevents-batch+json"
REQUEST_EVENT, RESPONSE_EVENT = "org.kubeflow.serving.inference.request", "org.kubeflow.serving.inference.response"
_IDENTIFIER = re.compile(r"[\x20-\x7e]{1,128}")
_LARGEST = float(np.finfo(np.float32).max)
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class Decisions(NamedTuple):
    """What a detector says of a batch, one array each: the classifier's class, the score, the p-value, known or not."""

    class_: npt.NDArray[np.int64]
    score: npt.NDArray[np.float32]
    p_value: npt.NDArray[np.float64]
    known: npt.NDArray[np.bool_]

    def part(self, first: int, count: int) -> "Decisions":
        """Those of some consecutive examples."""
        return self.at(slice(first, first + count))

    def at(self, places: Any) -> "Decisions":
        """Those at some places."""
        return Decisions(self.class_[places], self.score[places], self.p_value[places], self.known[places])

    def outputs(self) -> dict[str, Array]:
        """By the names of the protocol; the class of an unknown example is -1."""
        return dict(zip(OUTPUTS, (np.where(self.known, self.class_, UNKNOWN), *self[1:]), strict=True))


@dataclass(frozen=True)
class Request:
    """An inference request.

    Attributes:
        examples: a raw batch.
        id: as the client named it; "" if it did not.
        outputs: the outputs that it wants, each with whether it wants it in binary.
    """

    examples: Raw
    id: str = ""
    outputs: tuple[tuple[str, bool], ...] = tuple((name, False) for name in OUTPUTS)


def parse_json(content: bytes | bytearray | memoryview) -> Any:
    """Strict JSON: UTF-8, no NaN or infinity, no key twice, no more nesting than the parser stands.

    >>> parse_json(b'{"a": 1, "a": 2}')
    Traceback (most recent call last):
    wildood.errors.InputError: the body is not JSON: the key 'a' is there twice
    """
    hooks: dict[str, Any] = {"parse_constant": _refuse_constant, "object_pairs_hook": _unique}
    if len(content) > LARGE:
        hooks |= {"parse_float": _float, "parse_int": _int}
    try:
        return json.loads(str(content, "utf-8"), **hooks)
    except RecursionError as error:
        raise InputError("the body is not JSON: it is nested too deeply") from error
    except ValueError as error:
        raise InputError(f"the body is not JSON: {error}") from error


# Large bodies are read in a thread. The parser, which is written in C, lets other threads run only while it calls Python.
def _float(text: str) -> float:
    return float(text)


def _int(text: str) -> int:
    return int(text)


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {quoted(next(name for name in names if names.count(name) > 1))} is there twice")
    return found


def dump_json(value: Any) -> bytes:
    """JSON in one line."""
    return _ENCODER.encode(value).encode()


def check_identifier(value: Any) -> str:
    """A request's id: 1 to 128 printable ASCII characters, so that it can be stored and logged as it is."""
    if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value):
        raise InputError("the request's id is not 1 to 128 printable ASCII characters: give a shorter one, or none")
    return value


def infer_request(body: bytearray, header_length: str | None, reader: ExampleReader) -> Request:
    """The request of `POST /v2/models/{name}/infer`; `header_length` is its Inference-Header-Content-Length."""
    length = json_length(body, header_length)
    with memoryview(body) as view:
        return v2_request(parse_json(view[:length]), view[length:], reader)


def json_length(body: bytearray, header_length: str | None) -> int:
    """How many bytes of the body are JSON; binary tensors follow them."""
    if header_length is None:
        return len(body)
    if not re.fullmatch("[0-9]{1,18}", header_length) or int(header_length) > len(body):
        raise InputError(f"Inference-Header-Content-Length is {quoted(header_length)}, of a body of {len(body)} bytes")
    return int(header_length)


def v2_request(content: Any, binary: memoryview | bytes, reader: ExampleReader) -> Request:
    """The request in a parsed JSON object of the protocol, and the binary tensors after it."""
    _check_keys(content, {"inputs"}, {"id", "parameters", "outputs"}, "the request")
    listed = content["inputs"]
    if not isinstance(listed, list) or not 0 < len(listed) <= len(reader.fields):
        raise InputError(f"inputs is no list of tensors, of which {len(reader.fields)} are expected")
    tensors: dict[str, Array | list[str]] = {}
    for number, each in enumerate(listed):
        tensor, size = _tensor(each, binary, f"inputs[{number}]")
        binary = binary[size:]
        if each["name"] in tensors:
            raise InputError(f"two inputs have the name {quoted(each['name'])}")
        tensors[each["name"]] = tensor
    if len(binary):
        raise InputError(f"the body has {len(binary)} bytes more than its tensors: give each its binary_data_size")
    identifier = check_identifier(content["id"]) if content.get("id", "") != "" else ""
    return Request(reader.tensors(tensors), identifier, _wanted(content))


def _check_keys(value: Any, required: set[str], optional: set[str], name: str) -> None:
    if not isinstance(value, dict):
        raise InputError(f"{name} is no JSON object: give one with {', '.join(sorted(required))}")
    if missing := required - value.keys():
        raise InputError(f"{name} has no {quoted(min(missing))}: give it")
    if others := value.keys() - required - optional:
        raise InputError(f"{name} has a key {quoted(min(others))}, which the protocol does not know: leave it out")


def _parameters(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Parameters may be of any name; those that are not known are ignored, as the protocol says."""
    parameters = value.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InputError(f"{name}.parameters is no JSON object")
    return parameters


def _flag(parameters: Mapping[str, Any], key: str, name: str, default: bool) -> bool:
    value = parameters.get(key, default)
    if not isinstance(value, bool):
        raise InputError(f"{name}.parameters.{key} is no true or false")
    return value


def _tensor(value: Any, binary: memoryview | bytes, name: str) -> tuple[Array | list[str], int]:
    """A tensor, and how many of the binary bytes it took."""
    _check_keys(value, {"name", "shape", "datatype"}, {"data", "parameters"}, name)
    if not isinstance(value["name"], str):
        raise InputError(f"{name}.name is no text")
    shape, datatype = _shape(value["shape"], name), value["datatype"]
    if datatype != "BYTES" and (not isinstance(datatype, str) or datatype not in DATATYPES):
        raise InputError(f"{name}.datatype is {quoted(datatype)}: give one of BYTES, {', '.join(DATATYPES)}")
    count = prod(shape)
    size = _parameters(value, name).get("binary_data_size")
    if (size is None) == ("data" not in value):
        raise InputError(f"{name} must have either data, or binary_data_size in its parameters")
    if size is not None:
        if type(size) is not int or not 0 <= size <= len(binary):
            raise InputError(f"{name}.parameters.binary_data_size is {quoted(size)}, of {len(binary)} bytes that are left")
        part = binary[:size]
        if datatype == "BYTES":
            return _texts(part, shape, name), size
        return _binary(part, shape, datatype, name), size
    found, numbers = flattened(value["data"], f"{name}.data")
    if len(numbers) != count or (len(found) > 1 and found != shape):
        raise InputError(f"{name}.data has {len(numbers)} numbers in shape {found}, expected {count} in shape {shape}")
    if datatype == "BYTES":
        return _as_texts(numbers, shape, name), 0
    return numbers_of(numbers, DATATYPES[datatype], f"{name}.data").reshape(shape), 0


def _shape(value: Any, name: str) -> tuple[int, ...]:
    sizes = value if isinstance(value, list) else []
    if not 0 < len(sizes) <= MOST_AXES or not all(type(size) is int and 0 <= size < 2**31 for size in sizes):
        raise InputError(f"{name}.shape is {quoted(value)}: give 1 to {MOST_AXES} sizes, the number of examples first")
    return tuple(sizes)


def _binary(part: memoryview | bytes, shape: tuple[int, ...], datatype: str, name: str) -> Array:
    dtype = np.dtype(DATATYPES[datatype]).newbyteorder("<")
    expected = prod(shape) * dtype.itemsize
    if len(part) != expected:
        raise InputError(f"{name} has {len(part)} bytes, expected {expected} for {datatype} in shape {shape}")
    if datatype == "BOOL" and expected and np.frombuffer(part, np.uint8).max() > 1:
        raise InputError(f"{name} has a byte above 1 where BOOL is 0 or 1")
    # A copy: the bytes may be at any offset, and go with the body.
    return np.array(np.frombuffer(part, dtype), DATATYPES[datatype]).reshape(shape)


def _texts(part: memoryview | bytes, shape: tuple[int, ...], name: str) -> list[str]:
    """Elements that each have their length before them, in 4 bytes."""
    texts, place = [], 0
    while place + 4 <= len(part):
        end = place + 4 + int.from_bytes(part[place : place + 4], "little")
        texts.append(part[place + 4 : end])
        place = end
    if place != len(part) or len(texts) != prod(shape):
        raise InputError(f"{name} does not hold {prod(shape)} elements of BYTES, each after its length in 4 bytes")
    try:
        return _as_texts([str(text, "utf-8") for text in texts], shape, name)
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8") from error


def _as_texts(values: list[Any], shape: tuple[int, ...], name: str) -> list[str]:
    if shape not in {(len(values),), (len(values), 1)} or not set(map(type, values)) <= {str}:
        raise InputError(f"{name} holds other than one text for each example")
    return values


def _wanted(content: Mapping[str, Any]) -> tuple[tuple[str, bool], ...]:
    """The outputs of the answer; those in binary are in a body after the JSON object."""
    binary = _flag(_parameters(content, "the request"), "binary_data_output", "the request", default=False)
    listed = content.get("outputs")
    if listed is None or listed == []:
        return tuple((name, binary) for name in OUTPUTS)
    if not isinstance(listed, list):
        raise InputError("outputs is no list")
    wanted = {}
    for number, each in enumerate(listed[: len(OUTPUTS) + 1]):
        name = f"outputs[{number}]"
        _check_keys(each, {"name"}, {"parameters"}, name)
        if not isinstance(each["name"], str) or each["name"] not in OUTPUTS or each["name"] in wanted:
            raise InputError(f"{name}.name is {quoted(each['name'])}: give each of {', '.join(OUTPUTS)} once at most")
        wanted[each["name"]] = _flag(_parameters(each, name), "binary_data", name, default=binary)
    return tuple(wanted.items())


def infer_response(model: str, version: str, request: Request, decisions: Decisions) -> tuple[bytes, int | None]:
    """The body of an answer, and the length of its JSON if binary tensors follow."""
    every = decisions.outputs()
    outputs: list[dict[str, Any]] = []
    binary = []
    for name, as_binary in request.outputs:
        array = every[name]
        output: dict[str, Any] = {"name": name, "datatype": datatype_of(array), "shape": [len(array)]}
        if as_binary:
            content = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            output["parameters"] = {"binary_data_size": len(content)}
            binary.append(content)
        else:
            output["data"] = as_json(array)
        outputs.append(output)
    answer = {"model_name": model, "model_version": version, "id": request.id, "outputs": outputs}
    header = dump_json(answer)
    return b"".join([header, *binary]), len(header) if binary else None


def as_json(array: Array) -> list[Any]:
    """An array's values; JSON has no infinity, so the score of an example without a finite one is the largest FP32.

    >>> as_json(np.array([1.5, np.inf], np.float32))
    [1.5, 3.4028234663852886e+38]
    """
    values: list[Any] = (np.minimum(array, _LARGEST) if array.dtype.kind == "f" else array).tolist()
    return values


def predict_response(version: str, identifier: str, names: Sequence[str | int], decisions: Decisions) -> bytes:
    """The body of an answer to `/predict`; `names` are those of the classes, and the label of an unknown example is null."""
    outputs = {name: as_json(array) for name, array in decisions.outputs().items()}
    labels = [names[number] if number >= 0 else None for number in outputs["class"]]
    return dump_json({"detector": version, "id": identifier, **outputs, "label": labels})


@dataclass(frozen=True)
class Event:
    """What `/collect` was sent: JSON, and the id that came with it."""

    content: Any
    id: str = ""


IGNORED: Final = Event(None)  # an event of an answer


def read_events(body: bytearray, headers: Mapping[str, str]) -> list[Event]:
    """The CloudEvents of a request, without those to be ignored; the modes of their HTTP binding.

    A batch (`application/cloudevents-batch+json`) is a list of events in structured mode. Events in binary mode come one by
    one, and so does plain JSON.
    """
    if media_type(headers) == BATCH:
        listed = parse_json(body)
        if not isinstance(listed, list):
            raise InputError("a batch of CloudEvents is no JSON list: give one")
        events = []
        for number, each in enumerate(listed):
            try:
                events.append(_structured_event(each))
            except InputError as error:
                raise InputError(f"event {number} of the batch: {error}") from error
    else:
        events = [read_event(body, headers)]
    return [each for each in events if each is not IGNORED]


def read_event(body: bytearray, headers: Mapping[str, str]) -> Event:
    """A CloudEvent in binary mode (ce-* headers) or structured mode, or plain JSON."""
    media = media_type(headers)
    if media == "application/cloudevents+json":
        return _structured_event(parse_json(body))
    if media.startswith("application/cloudevents"):
        raise InputError(f"CloudEvents are not read as {quoted(media)}: send application/cloudevents+json, or {BATCH}")
    if "ce-type" in headers or "ce-specversion" in headers:
        _check_event(headers.get("ce-specversion"), headers.get("ce-type"))
        if headers.get("ce-type") == RESPONSE_EVENT:
            return IGNORED
        return Event(parse_json(body), check_identifier(unquote(headers.get("ce-id", ""))))
    return Event(parse_json(body))


def media_type(headers: Mapping[str, str]) -> str:
    """The media type of a body, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _structured_event(event: Any) -> Event:
    if not isinstance(event, dict):
        raise InputError("the CloudEvent is no JSON object")
    _check_event(event.get("specversion"), event.get("type"))
    if event["type"] == RESPONSE_EVENT:
        return IGNORED
    return Event(_event_data(event), check_identifier(event.get("id")))


def _check_event(version: Any, kind: Any) -> None:
    if version != "1.0":
        raise InputError(f"the CloudEvent has specversion {quoted(version)}, expected '1.0'")
    if kind not in {REQUEST_EVENT, RESPONSE_EVENT}:
        raise InputError(f"the CloudEvent has type {quoted(kind)}, expected {REQUEST_EVENT} or {RESPONSE_EVENT}")


def _event_data(event: Mapping[str, Any]) -> Any:
    """The data of an event in structured mode: JSON, or bytes in base64 that are JSON."""
    if ("data" in event) == ("data_base64" in event):
        raise InputError("the CloudEvent must have either data or data_base64")
    if "data" in event:
        return event["data"]
    try:
        return parse_json(base64.b64decode(event["data_base64"], validate=True))
    except (TypeError, binascii.Error) as error:
        raise InputError("data_base64 of the CloudEvent is no base64") from error


def collected_request(content: Any, reader: ExampleReader) -> Raw:
    """The examples in what `/collect` was sent: {"instances": [...]}, a request of the protocol, or as for `/predict`."""
    if isinstance(content, dict) and "instances" in content:
        return reader.values(content["instances"])
    if isinstance(content, dict) and isinstance(content.get("inputs"), list) and _are_tensors(content["inputs"]):
        return v2_request(content, b"", reader).examples
    return reader.values(content)


def _are_tensors(value: list[Any]) -> bool:
    return bool(value) and isinstance(value[0], dict) and "datatype" in value[0]
