"""How a request becomes a batch of raw examples: JSON lists, named tensors, rows of a table, texts, a picture."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wildood.data.images import Framing, ImageError, decode_bytes
from wildood.data.inputs import InputSpec
from wildood.data.structures import Raw, batch_length, parts_of
from wildood.data.tables import CategoricalColumn, TableSpec
from wildood.data.texts import TextReader
from wildood.detect.detector import Detector, Example
from wildood.errors import InputError
from wildood.settings import quoted

Array = npt.NDArray[Any]
MOST_AXES: Final = 8  # of an array in a request
LONGER, LONG = 4, 512  # a part of free size, such as a text, has at most 4 times the detector's length, or 512
DATATYPES: Final[Mapping[str, Any]] = {  # of the Open Inference Protocol, but for BYTES
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
_NAMES = {np.dtype(dtype): name for name, dtype in DATATYPES.items()}
TAKEN: Final[Mapping[str, Sequence[str]]] = {  # datatypes by the kind of a detector's examples
    "bool": ("BOOL",),
    "uint8": ("UINT8",),
    "integer": ("INT64", "INT32", "INT16", "INT8", "UINT32", "UINT16", "UINT8"),
    "float": ("FP32", "FP64", "FP16"),
}
JSON_TYPES: Final[Mapping[str, set[type]]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {float, int}}
_JSON_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    dict: "an object",
    list: "a list",
}


@dataclass(frozen=True)
class Limits:
    """What a request may hold at most.

    Attributes:
        body: bytes of its body.
        examples: its examples.
        pixels: of a picture, and of each image of free size.
    """

    body: int = 16 * 2**20
    examples: int = 256
    pixels: int = 2**24


@dataclass(frozen=True)
class Field:
    """One input of a detector as a client names it: a tensor, a column of a table, or texts.

    Attributes:
        name: of the tensor.
        datatype: of the Open Inference Protocol, as it is advertised.
        shape: with -1 for a free size; the first is the number of examples.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


class ExampleReader:
    """Reads the examples of requests for one detector, and refuses others in one line.

    >>> import wildood
    >>> x = np.random.default_rng(0).normal(size=(100, 2)).astype("float32")
    >>> detector = wildood.posthoc(torch.nn.Linear(2, 3), wildood.EnergyScore(), holdout=x)
    >>> ExampleReader(detector).values([[1, 2], [3, 4.5]])
    tensor([[1.0000, 2.0000],
            [3.0000, 4.5000]])
    """

    def __init__(self, detector: Detector, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._example, self._spec = detector.example, detector.classifier.spec
        double = detector.classifier.dtype == torch.float64 and not isinstance(self._spec, InputSpec)
        self._float = np.float64 if double else np.float32
        self._texts: TextReader | None = None
        if detector.tokenizer is not None and "text" in detector.record:
            self._texts = TextReader.of_record(detector.record["text"], detector.tokenizer)
        self.framing = self._picture_framing()

    @cached_property
    def fields(self) -> list[Field]:
        """What a client may send, each as a tensor."""
        if isinstance(self._spec, TableSpec):
            columns = self._spec.columns
            return [Field(each.name, "BYTES" if isinstance(each, CategoricalColumn) else "FP64", (-1,)) for each in columns]
        names = {bool: "BOOL", np.uint8: "UINT8", np.int64: "INT64", np.float32: "FP32", np.float64: "FP64"}
        own = [
            Field(name, names[self._dtype(part)], (-1, *(-1 if self._is_free(part, axis) else size for axis, size in sized)))
            for name, part in _leaves(self._example)
            for sized in [list(enumerate(part.shape))]
        ]
        return [Field("text", "BYTES", (-1,))] if self._texts is not None else own

    @property
    def takes_slow_values(self) -> bool:
        """Whether reading takes so long that the event loop should not wait for it: texts are cut into tokens."""
        return self._texts is not None

    def values(self, value: Any) -> Raw:
        """Examples as JSON has them: a list of them, an object of lists, or a list of objects, each an example."""
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = _columns(value)
        if isinstance(self._spec, TableSpec) and isinstance(value, dict):
            return self._table(value)
        if self._texts is not None and (texts := _texts_of(value)) is not None:
            return self._encoded(texts)
        return self.check(self._build(self._example, value, "x", self._listed))

    def tensors(self, tensors: Mapping[str, Array | list[str]]) -> Raw:
        """Examples as named tensors; a list of text is a tensor of BYTES."""
        if isinstance(self._spec, TableSpec) and not (len(tensors) == 1 and _is_matrix(*tensors.values())):
            columns = {name: part if isinstance(part, list) else part.tolist() for name, part in tensors.items()}
            return self._table(columns)
        if self._texts is not None and tensors.keys() == {"text"} and isinstance(tensors["text"], list):
            return self._encoded(tensors["text"])
        if not self._example.parts:
            if len(tensors) != 1:
                raise InputError(f"there are {len(tensors)} input tensors: give one")
            return self.check(self._typed(self._example, next(iter(tensors.values())), "x"))
        nested = _nested(tensors, self._example)
        return self.check(self._build(self._example, nested, "x", self._typed))

    def picture(self, content: bytes | bytearray) -> Raw:
        """A picture in a PNG or JPEG file, upright and framed as `wildood score` does it, as a batch of one."""
        if self.framing is None:
            raise InputError("this detector takes no pictures: give JSON")
        try:
            pixels = decode_bytes(content, self.framing, ("PNG", "JPEG"), self.limits.pixels)
        except ImageError as error:
            raise InputError(f"the picture {error}") from error
        batch = torch.from_numpy(np.array(pixels))[None]
        nchw = isinstance(self._spec, InputSpec) and self._spec.layout == "NCHW"
        return self.check(batch.permute(0, 3, 1, 2).contiguous() if nchw else batch)

    def check(self, batch: Raw) -> Raw:
        """The batch, if its examples are such as the detector takes, and not too many or too large."""
        count = _equal_length(batch)
        if not 1 <= count <= self.limits.examples:
            raise InputError(f"there are {count} examples: give 1 to {self.limits.examples}")
        resized = isinstance(self._spec, InputSpec) and self._spec.size is not None
        self._example.compare(Example.of_batch(batch), "x", resized=resized)
        for (name, tensor), (_, part) in zip(parts_of(batch), _leaves(self._example), strict=True):
            if tensor[0].numel() == 0 or (resized and tensor[0].numel() > self.limits.pixels * max(1, min(part.shape))):
                most = f"1 to {self.limits.pixels:,} pixels"
                raise InputError(f"{name}: an example has shape {tuple(tensor.shape[1:])}: give {most}")
            longest = [max(LONG, LONGER * size) for size in part.shape]
            if not resized and any(size > most for size, most in zip(tensor.shape[1:], longest, strict=True)):
                raise InputError(f"{name}: an example has shape {tuple(tensor.shape[1:])}: give at most {tuple(longest)}")
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise InputError(f"{name} holds NaN, infinity or a number too large for {tensor.dtype}: give finite numbers")
        if isinstance(self._spec, InputSpec) and isinstance(batch, Tensor):
            self._spec.check(batch)
        return batch

    def _picture_framing(self) -> Framing | None:
        """How pictures get the shape of the detector's own examples; None if it takes no images of 8 bits."""
        shape = self._example.shape
        if not isinstance(self._spec, InputSpec) or self._example.kind != "uint8" or len(shape) != 3:
            return None
        height, width, channels = shape if self._spec.layout == "NHWC" else (*shape[1:], shape[0])
        return Framing((height, width), channels=channels) if channels in {1, 3} else None  # type: ignore[arg-type]

    def _is_free(self, part: Example, axis: int) -> bool:
        """Whether examples may differ in size along an axis."""
        if self._example.parts:
            return True
        resized = isinstance(self._spec, InputSpec) and self._spec.size is not None
        return resized and len(part.shape) == 3 and axis != (2 if self._spec.layout == "NHWC" else 0)  # type: ignore[union-attr]

    def _dtype(self, part: Example) -> Any:
        """What the numbers of a part become, so that requests of one shape can share a batch."""
        return {"bool": bool, "uint8": np.uint8, "integer": np.int64, "float": self._float}[part.kind]

    def _build(self, example: Example, value: Any, name: str, leaf: Callable[[Example, Any, str], Tensor]) -> Raw:
        if not example.parts:
            return leaf(example, value, name)
        if not isinstance(value, dict) or value.keys() != example.parts.keys():
            is_object = isinstance(value, dict)
            found = f"an object of {quoted(', '.join(value))}" if is_object else _JSON_NAMES.get(type(value), "null")
            raise InputError(f"{name} is {found}, expected an object of {', '.join(example.parts)}")
        parts = {key: self._build(part, value[key], f"{name}.{key}", leaf) for key, part in example.parts.items()}
        return parts if example.kind == "dict" else tuple(parts.values())

    def _listed(self, part: Example, value: Any, name: str) -> Tensor:
        return torch.from_numpy(array_of(value, self._dtype(part), name))

    def _typed(self, part: Example, value: Array | list[str], name: str) -> Tensor:
        found = "BYTES" if isinstance(value, list) else datatype_of(value)
        if isinstance(value, list) or found not in TAKEN[part.kind]:
            raise InputError(f"{name} has datatype {found}, expected {' or '.join(TAKEN[part.kind])}")
        with np.errstate(over="ignore"):
            return torch.from_numpy(value.astype(self._dtype(part), copy=False))

    def _table(self, columns: Mapping[str, Any]) -> Raw:
        if not isinstance(self._spec, TableSpec):
            raise InputError("this detector takes no table")
        own = {column.name for column in self._spec.columns}
        if others := columns.keys() - own - set(self._spec.ignored) - {self._spec.label}:
            raise InputError(f"x has a column {quoted(min(others))}, which the detector does not know: leave it out")
        for name, values in columns.items():
            if not isinstance(values, list) or not set(map(type, values)) <= {int, float, str, bool, type(None)}:
                raise InputError(f"column {quoted(name)} is no list of numbers and text: give one value for each row")
            if len(values) > self.limits.examples:
                raise InputError(f"there are {len(values)} rows: give 1 to {self.limits.examples}")
        try:
            rows = self._spec({name: values for name, values in columns.items() if name in own})
        except (ValueError, TypeError, OverflowError) as error:
            raise InputError(error) from error
        return self.check(torch.from_numpy(rows))

    def _encoded(self, texts: list[str]) -> Raw:
        if not 1 <= len(texts) <= self.limits.examples:
            raise InputError(f"there are {len(texts)} texts: give 1 to {self.limits.examples}")
        try:
            parts, _ = self._texts.tokenizer.encode(texts)  # type: ignore[union-attr]
        except (ValueError, TypeError) as error:  # a lone surrogate is no text
            raise InputError("a text is not valid Unicode: give valid text") from error
        return self.check({name: torch.from_numpy(part) for name, part in parts.items()})


def array_of(value: Any, dtype: Any, name: str) -> Array:
    """Nested JSON lists of numbers as an array; other types, ragged lists and numbers out of range are refused.

    >>> array_of([[1, 2], [3, 4]], np.uint8, "x").tolist()
    [[1, 2], [3, 4]]
    >>> array_of([[1, 2], [3]], np.uint8, "x")
    Traceback (most recent call last):
    wildood.errors.InputError: x has lists of different lengths: give lists of one length
    """
    shape, numbers = flattened(value, name)
    return numbers_of(numbers, dtype, name).reshape(shape)


def flattened(value: Any, name: str) -> tuple[tuple[int, ...], list[Any]]:
    """The shape of nested lists, and what they hold, in one list."""
    if not isinstance(value, list):
        raise InputError(f"{name} is {_JSON_NAMES.get(type(value), 'null')}, expected a list")
    shape: list[int] = []
    level: list[Any] = [value]
    while level and (kinds := set(map(type, level))) and list in kinds:
        lengths = set(map(len, level)) if kinds == {list} else set()
        if len(lengths) != 1:
            raise InputError(f"{name} has lists of different lengths: give lists of one length")
        shape.append(lengths.pop())
        if len(shape) > MOST_AXES:
            raise InputError(f"{name} has lists in lists more than {MOST_AXES} deep: give fewer")
        level = list(chain.from_iterable(level))
    return tuple(shape), level


def numbers_of(numbers: list[Any], dtype: Any, name: str) -> Array:
    """A list of JSON numbers as an array of a type that can hold each of them."""
    allowed = JSON_TYPES[np.dtype(dtype).kind]
    if strange := set(map(type, numbers)) - allowed:
        found = _JSON_NAMES.get(strange.pop(), "null")
        expected = {"b": "true or false", "f": "numbers"}.get(np.dtype(dtype).kind, "whole numbers")
        raise InputError(f"{name} holds {found}, expected {expected}")
    try:
        with np.errstate(over="ignore"):
            return np.array(numbers, dtype)
    except (OverflowError, ValueError) as error:
        raise InputError(f"{name} holds a number that {np.dtype(dtype)} cannot hold") from error


def datatype_of(array: Array) -> str:
    """The name of an array's type in the Open Inference Protocol.

    >>> datatype_of(np.zeros(2, np.float32))
    'FP32'
    """
    return _NAMES[array.dtype]


def _leaves(example: Example, name: str = "") -> list[tuple[str, Example]]:
    """The arrays of an example with their names; those in a structure in a structure are named "outer.inner"."""
    if not example.parts:
        return [(name or "x", example)]
    parts = example.parts.items()
    return [leaf for key, part in parts for leaf in _leaves(part, f"{name}.{key}" if name else key)]


def _nested(tensors: Mapping[str, Any], example: Example) -> dict[str, Any]:
    """Named tensors as the structure of an example."""
    names = [name for name, _ in _leaves(example)]
    if tensors.keys() != set(names):
        raise InputError(f"the input tensors are {quoted(', '.join(sorted(tensors)))}, expected {', '.join(names)}")

    def build(part: Example, name: str) -> Any:
        if not part.parts:
            return tensors[name]
        return {key: build(each, f"{name}.{key}" if name else key) for key, each in part.parts.items()}

    built: dict[str, Any] = build(example, "")
    return built


def _columns(rows: list[Any]) -> dict[str, list[Any]]:
    """A list of objects as an object of lists."""
    names = rows[0].keys()
    if not all(isinstance(row, dict) and row.keys() == names for row in rows):
        raise InputError("the examples are objects with different keys: give the same in each")
    return {name: [row[name] for row in rows] for name in names}


def _texts_of(value: Any) -> list[str] | None:
    """The texts in a list of them, or in {"text": [...]}; None if there are none."""
    texts = value["text"] if isinstance(value, dict) and value.keys() == {"text"} else value
    return texts if isinstance(texts, list) and texts and set(map(type, texts)) == {str} else None


def _is_matrix(value: Array | list[str]) -> bool:
    return not isinstance(value, list) and value.ndim == 2


def _equal_length(batch: Raw) -> int:
    lengths = {tensor.shape[0] if tensor.ndim else -1 for _, tensor in parts_of(batch)}
    if len(lengths) != 1 or -1 in lengths:
        raise InputError("the parts of x have different numbers of examples: give each example in every part")
    return batch_length(batch)
