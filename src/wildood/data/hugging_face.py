"""Hugging Face datasets: columns of numbers are the inputs, `label` or `labels` holds the classes, text is left out."""

import logging
import sys
from collections.abc import Mapping
from typing import Any

from wildood.errors import InputError

LABEL_KEYS = ("label", "labels")  # of an item that is a dict: where its class is
_LOGGER = logging.getLogger("wildood")


def is_hugging_face(data: Any) -> bool:
    """Whether data is a `datasets.Dataset`; that library is not imported for it.

    >>> is_hugging_face([1, 2])
    False
    """
    module = sys.modules.get("datasets.arrow_dataset")
    return module is not None and isinstance(data, module.Dataset)


def is_hugging_face_stream(data: Any) -> bool:
    """Whether data is a `datasets.IterableDataset`, which is read as a stream."""
    module = sys.modules.get("datasets.iterable_dataset")
    return module is not None and isinstance(data, module.IterableDataset)


def refuse_splits(data: Any, name: str) -> None:
    """Refuse a dict of datasets, such as a `DatasetDict`."""
    if isinstance(data, Mapping) and any(map(is_hugging_face, data.values())):
        names = ", ".join(map(repr, data))
        raise InputError(f"{name} is a {type(data).__name__} of {names}: give one of them, such as ds[{next(iter(data))!r}]")


def model_columns(data: Any, name: str, *, labelled: bool) -> Any:
    """The dataset without its columns of text, which no model takes; with `labelled`, refused without classes."""
    is_custom = is_hugging_face(data) and data.format["type"] == "custom"
    if is_custom or data.features is None:  # what a transform makes is not known before it is read
        return data
    texts = [column for column in data.column_names if _is_text(data.features[column])]
    if labelled:
        _check_classes(data, name, texts)
    if not texts:
        return data
    if not {*data.column_names} - {*texts, *LABEL_KEYS}:
        raise InputError(
            f"{name} holds text alone ({', '.join(map(repr, texts))}): give the numbers that a tokenizer makes of it, as "
            "ds.map(lambda rows: tokenizer(rows['text'], padding='max_length', max_length=32), batched=True) does"
        )
    which = ", ".join(map(repr, texts))
    _LOGGER.info("%s: left out, because a model takes no text: column%s %s", name, "s" * (len(texts) > 1), which)
    return data.remove_columns(texts)


def _check_classes(data: Any, name: str, texts: list[str]) -> None:
    found = [column for column in data.column_names if column in LABEL_KEYS]
    if len(found) != 1:
        columns = ", ".join(map(repr, data.column_names))
        raise InputError(
            f"{name} has the columns {columns}: call that of the classes 'label', as ds.rename_column('intent', 'label') "
            "does"
        )
    if found[0] in texts:
        raise InputError(
            f"{name}: its column {found[0]!r} holds text: give integer classes, as "
            f"ds.class_encode_column({found[0]!r}) makes"
        )


def named_classes(data: Any) -> tuple[str, ...]:
    """The names of the classes of a Hugging Face dataset, in the order of their numbers, if it has some."""
    if not (is_hugging_face(data) or is_hugging_face_stream(data)):
        return ()
    features = [data.features[column] for column in LABEL_KEYS if column in (data.features or ())]
    return tuple(next((each.names for each in features if getattr(each, "names", None)), ()))


def check_same_classes(name: str, names: tuple[str, ...], expected: tuple[str, ...], owner: str) -> None:
    """Refuse classes that are numbered otherwise.

    >>> check_same_classes("holdout", ("dog", "cat"), ("cat", "dog"), "labelled")
    Traceback (most recent call last):
    wildood.errors.InputError: holdout: class 0 is 'dog', but 'cat' in labelled: number the classes alike, as
    ds.align_labels_with_mapping({'cat': 0, ...}, 'label') does
    """
    if names and expected and names != expected:
        number = next((n for n, pair in enumerate(zip(names, expected, strict=False)) if len(set(pair)) > 1), None)
        differ = f"{len(names)} classes, but {len(expected)}"
        if number is not None:
            differ = f"class {number} is {names[number]!r}, but {expected[number]!r}"
        raise InputError(
            f"{name}: {differ} in {owner}: number the classes alike, as ds.align_labels_with_mapping({{{expected[0]!r}: 0, "
            "...}, 'label') does"
        )


def _is_text(feature: Any) -> bool:
    """Whether the values of a column are texts, or lists of them."""
    inner = feature[0] if isinstance(feature, list) and feature else getattr(feature, "feature", None)
    return _is_text(inner) if inner is not None else str(getattr(feature, "dtype", "")).endswith("string")
