"""The user's data, checked once and made into sources; each refusal says what to write instead."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, TensorDataset, WeightedRandomSampler, default_collate

from wildood.data.hugging_face import (
    LABEL_KEYS,
    check_same_classes,
    is_hugging_face,
    is_hugging_face_stream,
    model_columns,
    named_classes,
    refuse_splits,
)
from wildood.data.images import Images
from wildood.data.mapped import MappedSource
from wildood.data.sources import (
    SEVERAL_LABELS,
    Array,
    ArraySource,
    DatasetSource,
    Part,
    Source,
    StructuredSource,
    blocks,
    check_dense,
    check_plain,
    native,
)
from wildood.data.streams import NO_EXAMPLE, Stream, is_stream
from wildood.data.structures import is_structure, map_structure, parts_of
from wildood.data.tables import TableSpec, is_frame
from wildood.errors import InputError

_LOGGER = logging.getLogger("wildood")
_BATCH = 256  # examples of a dataset that are read at once for their labels


def all_labels(source: Source) -> Tensor:
    """Every label of a labelled source, on the CPU."""
    batches = torch.split(torch.arange(len(source)), _BATCH)
    return torch.cat([labels.cpu() for _, labels in map(source.gather, batches) if labels is not None])


def has_labels(source: Source) -> bool:
    """Whether the examples of a source have classes."""
    return source.gather(torch.arange(1))[1] is not None


def check_labels(labels: Tensor, name: str, classes: int) -> None:
    """Refuse a label that the model has no class for."""
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        wrong = lowest if lowest < 0 else highest
        raise InputError(
            f"{name}: a label is {wrong}, but the model has {classes} classes: labels count from 0 to {classes - 1}"
        )


def rows_of(data: Any, spec: Any, name: str, *, labels: bool = True) -> Any:
    """A user's table as an array by a table's spec, or that of `(table, y)`; anything else as it is.

    The classes are those of the label's column, if `labels`.
    """
    if not isinstance(spec, TableSpec):
        return data
    if is_hugging_face(data):
        raise InputError(f"{name} is a {type(data).__name__}: give {name}.to_pandas(), which a TableSpec reads")
    if isinstance(data, tuple | list) and len(data) == 2 and _is_table(data[0]):
        return spec(data[0], name), data[1] if isinstance(data[1], Tensor) else np.asarray(data[1])
    if not _is_table(data):
        return data
    classes = spec.labels(data, name) if labels else None
    advice = "give (x, y)" if spec.label is None else f"it has no column {spec.label!r}"
    names = () if classes is None else spec.classes
    return Images(spec(data, name), classes, where="the table", classes=names, unlabelled=advice)


def _is_table(data: Any) -> bool:
    return is_frame(data) or isinstance(data, Mapping)


def labelled_source(data: Any, name: str) -> Source:
    """`(x, y)` or a dataset of pairs, as a checked source."""
    if isinstance(data, Part) and data.gather(torch.arange(1))[1] is not None:
        return data
    if (isinstance(data, StructuredSource | MappedSource) and data.labels is not None) or (
        isinstance(data, DatasetSource) and data.labelled
    ):
        return data
    if isinstance(data, ArraySource):
        if data.labels is None:
            where, advice = (data.where, data.unlabelled) if isinstance(data, Images) else ("it", "")
            raise InputError(f"{name}: {where} has no labels: {advice or 'give one integer class for each example'}")
        labelled_source((data.examples, data.labels), name)
        return data
    if type(data) is TensorDataset:  # a subclass may give other examples than its tensors hold
        data = data.tensors
    if isinstance(data, np.ndarray | Tensor):
        raise InputError(f"{name} is an array alone: give its labels, too, as in {name}=(x, y)")
    if isinstance(data, tuple | list) and len(data) == 2:
        x, y = data
        if is_structure(x) and _has_arrays(x):
            return _labelled_structure(x, _array(y, f"{name} y"), name)
        examples, labels = _array(x, f"{name} x"), _array(y, f"{name} y")
        labels = _checked_labels(labels, name, len(examples) if examples.ndim else None)
        return ArraySource(_checked_examples(examples, name), labels)
    if isinstance(data, tuple | list):
        items = bool(data) and is_structure(data[0])
        instead = (
            f"DataLoader({name}), which reads such examples" if items else "((x1, x2), y) for a model of several inputs"
        )
        raise InputError(f"{name} is a {type(data).__name__} of {len(data)}: give (x, y), or {instead}")
    if isinstance(data, Mapping):
        refuse_splits(data, name)
        named = dict(data)
        classes = [named.pop(key) for key in LABEL_KEYS if key in named]
        if len(classes) != 1 or not named:
            raise InputError(
                f"{name} is a dict of {', '.join(map(repr, data))}: give {name}=(x, y), or the classes as its 'labels'"
            )
        return labelled_source((named, classes[0]), name)
    if is_stream(data):
        return _sample(data, name, labelled=True)
    return _dataset(data, name, labelled=True, instead=f"{name}=(x, y)")


def _labelled_structure(x: Any, y: Array, name: str) -> StructuredSource:
    structure = structured_source(x, f"{name} x")
    if not isinstance(x, Mapping) and len(structure) != len(y) == len(x):
        raise InputError(f"{name} x is a {type(x).__name__} of one array for each example: give np.stack(x)")
    return replace(structure, labels=_checked_labels(y, name, len(structure)))


def id_source(data: Any, name: str) -> Source:
    """`x`, `(x, y)` or a dataset, as a checked source; with labels if there are any.

    >>> has_labels(id_source((np.zeros((2, 3)), np.array([0, 1])), "id")), has_labels(id_source(np.zeros((2, 3)), "id"))
    (True, False)
    """
    if type(data) is TensorDataset and len(data.tensors) == 2:
        data = data.tensors
    if isinstance(data, tuple | list) and len(data) == 2:
        return labelled_source(data, name)
    if isinstance(data, ArraySource | MappedSource) and data.labels is not None:
        return labelled_source(data, name)
    if isinstance(data, np.ndarray | Tensor | ArraySource | MappedSource | DatasetSource | Part):
        return unlabelled_source(data, name)
    if is_stream(data):
        return _sample(data, name, labelled=None)
    try:
        source = labelled_source(data, name)
        source.gather(torch.arange(1))
    except InputError:  # its first item has no class
        return unlabelled_source(data, name)
    return source


def unlabelled_source(data: Any, name: str, first: int = 0) -> Source:
    """`x` or a dataset (its labels are ignored), as a checked source; messages count examples from `first` on."""
    if isinstance(data, ArraySource):
        _checked_examples(data.examples, name)
    if isinstance(data, ArraySource | StructuredSource | MappedSource | DatasetSource | Part):
        return data
    if type(data) is TensorDataset:  # a subclass may give other examples than its tensors hold
        data = data.tensors[0] if data.tensors else torch.empty(0)
    refuse_splits(data, name)
    if is_structure(data) and _has_arrays(data):
        return structured_source(data, name)
    if isinstance(data, tuple | list):
        raise InputError(
            f"{name} is a {type(data).__name__} of {len(data)}: give x alone, as one array: np.asarray makes one"
        )
    if isinstance(data, np.ndarray | Tensor):
        return ArraySource(_checked_examples(_array(data, name), name, first))
    if is_stream(data):
        return _sample(data, name, labelled=False)
    return _dataset(data, name, labelled=False, instead=f"{name}=x")


def structured_source(data: Any, name: str) -> StructuredSource:
    """A dict, tuple or list of arrays, also nested, as a checked source."""
    if not isinstance(data, Mapping | tuple | list) or not data:
        raise InputError(f"{name} is an empty {type(data).__name__}: give at least one array")
    if isinstance(data, Mapping) and (wrong := next((key for key in data if not isinstance(key, str)), None)) is not None:
        raise InputError(f"{name} has a key {wrong!r}: give the names of the model's arguments, as text")
    try:
        parts = {part: _array(value, part) for part, value in parts_of(data, name)}
    except InputError as error:
        if isinstance(data, Mapping) or not all(isinstance(each, Mapping) for each in data):
            raise
        raise InputError(
            f"{name} is a {type(data).__name__} of {len(data)} dicts: give one dict of arrays, as a tokenizer makes with "
            "padding=True, or a DataLoader with a collate_fn that pads them"
        ) from error
    for part, array in parts.items():
        if array.ndim == 0 or len(array) == 0:
            raise InputError(f"{part} has shape {tuple(array.shape)}: give at least one example, along the first axis")
        if not _is_boolean(array):
            _checked_examples(array[:, None] if array.ndim == 1 else array, part)
    lengths = {part: len(array) for part, array in parts.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{count} in {part}" for part, count in lengths.items())
        raise InputError(f"{name} has parts of different lengths ({counts}): give each example in every part")
    arrays = iter(parts.values())
    return StructuredSource(map_structure(lambda _: ArraySource(next(arrays)), data))


def _has_arrays(data: Any) -> bool:
    """Whether a value is a structure of arrays, and not of numbers alone."""
    if isinstance(data, tuple | list):
        return any(map(_has_arrays, data))
    return isinstance(data, Mapping | np.ndarray | Tensor)


def _is_boolean(array: Array) -> bool:
    return array.dtype == torch.bool if isinstance(array, Tensor) else array.dtype.kind == "b"


def classes_of(data: Any) -> tuple[str, ...]:
    """The names of the classes of labelled data, in the order of their numbers, if it has some."""
    return data.classes if isinstance(data, Images | StructuredSource) else named_classes(data)


def labelled_and_holdout(labelled: Any, holdout: Any) -> tuple[Source, Source | None]:
    """Labelled data and the holdout, if there is one, as checked sources whose classes have the same numbers."""
    known = labelled_source(labelled, "labelled")
    if holdout is None:
        return known, None
    return known, labelled_source(align_classes(labelled, holdout, "holdout"), "holdout")


def align_classes(labelled: Any, other: Any, name: str) -> Any:
    """Other examples with the class numbers of `labelled`, where both have named classes; some may be missing."""
    if not isinstance(labelled, Images | StructuredSource) or not isinstance(other, Images | StructuredSource):
        check_same_classes(name, named_classes(other), named_classes(labelled), "labelled")
        return other
    if labelled.classes == other.classes:
        return other
    if not labelled.classes or not other.classes:
        numbered, named = (labelled, other) if other.classes else (other, labelled)
        if named.classes != tuple(map(str, range(len(named.classes)))):
            text = f"the class {named.classes[0]!r} of {named.where} is number 0 of {numbered.where}, and so on"
            _LOGGER.warning("%s: one of labelled and %s names its classes, the other numbers them: %s", name, name, text)
        return other
    unknown = [each for each in other.classes if each not in labelled.classes]
    if unknown:
        raise InputError(
            f"{name}: {other.where} has a class {unknown[0]!r} that {labelled.where} has not: give the same classes"
        )
    order = np.array([labelled.classes.index(each) for each in other.classes])
    aligned = replace(other, labels=order[np.asarray(other.labels)], classes=labelled.classes)
    if isinstance(aligned, Images) and aligned.content:
        return replace(aligned, content=f"{aligned.content}/{'/'.join(map(str, order))}")
    return aligned


def _refuse_selection(loader: DataLoader[Any], name: str) -> None:
    """Refuse a DataLoader whose sampler leaves out or weighs examples: only its dataset is read."""
    sampler: Any = getattr(loader.batch_sampler, "sampler", loader.sampler)
    dataset: Any = loader.dataset
    try:
        is_whole = len(sampler) == len(dataset)
    except TypeError:  # one of the two has no length, which is said elsewhere
        is_whole = True
    if isinstance(sampler, SubsetRandomSampler | WeightedRandomSampler) or not is_whole:
        raise InputError(
            f"{name}: the {type(sampler).__name__} of the DataLoader selects examples, but only its dataset is read: give "
            "a dataset of these examples, such as torch.utils.data.Subset(dataset, indices)"
        )


def _dataset(data: Any, name: str, *, labelled: bool, instead: str, collated: bool = False) -> DatasetSource:
    """A map-style dataset, or that of a DataLoader; anything else is refused with the line to write instead."""
    if isinstance(data, DataLoader):
        collate = None if data.collate_fn is default_collate else data.collate_fn
        _refuse_selection(data, name)
        source = _dataset(data.dataset, name, labelled=labelled, instead=instead, collated=collate is not None)
        text = "%s: of the DataLoader, the dataset, collate_fn and workers are used; its batch size and its order are not"
        _LOGGER.info(text, name)
        return replace(source, collate=collate, workers=data.num_workers, worker_init_fn=data.worker_init_fn)
    if is_frame(data):
        raise _without_spec(data, name)
    if isinstance(data, str | bytes) or not (isinstance(data, Dataset | Sized) and hasattr(data, "__getitem__")):
        files = ", or wildood.open_images(path) for files" if isinstance(data, str | PathLike) else ""
        text = f"{name} is a {type(data).__name__}: give {instead} with arrays or tensors, or a map-style Dataset{files}"
        raise InputError(text)
    try:
        count = len(data) if isinstance(data, Sized) else 0
    except (TypeError, ValueError, OverflowError) as error:  # what Python says of a length below 0, or of 2.5
        raise InputError(
            f"{name}: the length of the {type(data).__name__} cannot be used ({error}): let __len__ return its number of "
            "examples"
        ) from error
    if count == 0:
        raise InputError(f"{name} is empty: give at least one example")
    if is_hugging_face(data) and not collated:
        data = model_columns(data, name, labelled=labelled)
    return DatasetSource(data, labelled, name)


def _sample(data: Any, name: str, *, labelled: bool | None) -> Source:
    """The examples of a stream that memory holds, as arrays, or as items that a `collate_fn` makes batches of."""
    source, items = _stream(data, name, labelled=bool(labelled)).sample(labelled=labelled)
    return _source_of_items(source, items)


def _stream(data: Any, name: str, *, labelled: bool) -> Stream:
    return Stream(model_columns(data, name, labelled=labelled) if is_hugging_face_stream(data) else data, name)


def read_once(data: Any, name: str) -> Any:
    """A stream as the source that `id_source` makes, so that it can be used several times; anything else as it is."""
    return id_source(data, name) if is_stream(data) else data


def in_order(data: Any, name: str, count: int) -> Iterator[Source]:
    """The examples of `x` or a dataset as one checked source; of a stream, all in their order, as sources of so many."""
    if not is_stream(data):
        yield unlabelled_source(data, name)
        return
    source: Source | None = None
    for dataset, items in _stream(data, name, labelled=False).batches(count):
        yield (source := _source_of_items(dataset, items))
    if source is None:
        raise InputError(NO_EXAMPLE.format(name))


def _source_of_items(source: DatasetSource, items: list[Any]) -> Source:
    if source.collate is not None:
        return replace(source, dataset=items)
    examples, labels = source.batch(items)
    if labels is not None:
        return labelled_source((examples, labels), source.name)
    return unlabelled_source(examples, source.name)


def _without_spec(data: Any, name: str) -> InputError:
    return InputError(
        f"{name} is a {type(data).__name__}, which needs an input spec: spec = wildood.TableSpec.fit(train) makes one; "
        "give input=spec, too, or spec(table) in place of the table"
    )


def _array(data: Any, name: str) -> Array:
    if isinstance(data, Tensor):
        check_plain(check_dense(data, name), name)
        return data if type(data) is Tensor else data.detach().as_subclass(Tensor)  # torch does not mix two subclasses
    if isinstance(data, np.ndarray):
        return check_plain(data, name)
    if is_frame(data):
        raise _without_spec(data, name)
    own, instead = name[-1], "a numpy array or a torch tensor"
    is_list = isinstance(data, Sequence) and len(data) > 0
    if isinstance(data, str) or (is_list and isinstance(data[0], str)):
        raise InputError(f"{name} is text: give the numbers that a tokenizer makes of it")
    if isinstance(data, Mapping) and data:
        instead = f"one of its arrays, such as {own}[{next(iter(data))!r}]"
    elif isinstance(data, Sequence) or hasattr(data, "__array__"):
        instead += f", such as np.asarray({own})"
    elif isinstance(data, Iterable):
        instead += f", such as np.asarray(list({own}))"
    raise InputError(f"{name} is a {type(data).__name__}: give {instead}")


def _checked_labels(labels: Array, name: str, examples: int | None) -> Array:
    """One class for each example; None for examples without an axis, which are refused elsewhere."""
    if labels.ndim != 1 or not _is_integer(labels):
        dtype = str(labels.dtype).removeprefix("torch.")
        several = labels.ndim == 2 and labels.shape[1] > 1
        raise InputError(
            f"{name}: labels have dtype {dtype} and shape {tuple(labels.shape)}: give one integer class for each example"
            + (SEVERAL_LABELS if several else "" if labels.ndim != 1 else _integers_text(labels))
        )
    if examples is not None and examples != len(labels):
        raise InputError(f"{name}: {examples} examples but {len(labels)} labels: give as many of one as of the other")
    labels = labels.detach().cpu().long() if isinstance(labels, Tensor) else labels  # torch has no minimum of unsigned types
    if len(labels) and int(labels.min()) < 0:
        raise InputError(
            f"{name}: a label is {int(labels.min())}: classes count from 0, and unlabelled examples belong in wild"
        )
    return labels


def _integers_text(labels: Array) -> str:
    """The line that makes integer classes of labels of another type; empty where the values are none."""
    if isinstance(labels, Tensor):
        return ", such as y.long()" if not labels.is_complex() and bool((labels == labels.long()).all()) else ""
    if labels.dtype.kind in "USO":
        return ", such as np.unique(y, return_inverse=True)[1]"
    is_whole = labels.dtype.kind == "b" or (labels.dtype.kind == "f" and bool((labels == np.floor(labels)).all()))
    return ", such as y.astype(int)" if is_whole else ""


def _checked_examples(examples: Array, name: str, first: int = 0) -> Array:
    """Refuse examples that cannot be trained on: none at all, without an axis of their own, objects, NaN or infinity."""
    wrong = f"{name} has dtype {examples.dtype}: give float32 numbers or uint8 images"
    if _is_text(examples):
        raise InputError(f"{wrong}; of texts, the numbers that a tokenizer makes of them")
    if examples.ndim < 2 or 0 in examples.shape:
        hint = f" (add the batch axis to a single example: {name}[None])" if examples.ndim == 1 and len(examples) else ""
        raise InputError(f"{name} has shape {tuple(examples.shape)}: give at least one example, along the first axis{hint}")
    if not _is_readable(examples):
        raise InputError(wrong)
    if _is_integer(examples):
        return examples
    for start, block in blocks(examples):
        finite = block.isfinite() if isinstance(block, Tensor) else np.isfinite(block)
        if not bool(finite.all()):
            bad = first + start + int((~torch.as_tensor(finite)).flatten(1).any(1).nonzero()[0])
            raise InputError(f"{name}: example {bad} holds NaN or infinity: repair or drop such examples")
    return examples


def _is_text(examples: Array) -> bool:
    if not isinstance(examples, np.ndarray) or not examples.size:
        return False
    return examples.dtype.kind in "US" or isinstance(examples.flat[0], str)


def _is_readable(examples: Array) -> bool:
    """Real numbers of a dtype that torch has."""
    if isinstance(examples, Tensor):
        return examples.dtype != torch.bool
    if examples.dtype.kind not in "fiu":
        return False
    try:
        torch.from_numpy(native(np.empty(0, examples.dtype)))
    except TypeError:
        return False
    return True


def _is_integer(array: Array) -> bool:
    if isinstance(array, np.ndarray):
        return array.dtype.kind in "iu"
    return not (array.is_floating_point() or array.is_complex() or array.dtype == torch.bool)
