"""The traffic as a Parquet file, for other tools."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import torch

from wildood.data.mapped import MappedSource
from wildood.data.structures import Raw, parts_of
from wildood.errors import InputError
from wildood.habitat.answers import Integers, Rows
from wildood.habitat.store import Store
from wildood.settings import check_path

_GROUP = 4096  # rows that are written at once


def export_traffic(store: Store, path: str | Path, *, examples: bool = False) -> int:
    """Write the index to a Parquet file; gives the number of rows.

    With `examples`, each array of an example is a list of its numbers, and a list of its sizes in the column `*_shape`.
    """
    try:
        import pyarrow.parquet as pq  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise InputError("an export needs a package: pip install pyarrow") from error
    place = check_path(path, "the path")
    rows = store.rows()
    stored = np.flatnonzero(rows.has_example)
    source = store.source(rows.id[stored]) if examples and len(stored) else None
    draft = place.with_name(f".{place.name}.{token_hex(4)}.part")
    tables = _tables(rows, source)
    table = next(tables)
    try:
        with pq.ParquetWriter(draft, table.schema) as writer:
            writer.write_table(table)
            for each in tables:
                writer.write_table(each)
        draft.replace(place)
    except OSError as error:
        raise InputError(f"{place} cannot be written ({error.strerror or error}): give another path") from error
    finally:
        draft.unlink(missing_ok=True)
    return len(rows)


def _tables(rows: Rows, source: MappedSource | None) -> Iterator[Any]:
    """The rows in groups, at least one; with the examples of a source, which has one for each row that says so."""
    import pyarrow as pa  # noqa: PLC0415 - an optional package

    stored = np.flatnonzero(rows.has_example)
    types = {} if source is None else _types(source)
    for first in range(0, max(1, len(rows)), _GROUP):
        group = slice(first, first + _GROUP)
        columns = {each.name.rstrip("_"): pa.array(getattr(rows, each.name)[group]) for each in fields(Rows)}
        if source is not None:
            chosen = np.arange(*np.searchsorted(stored, (first, first + _GROUP)))
            places = stored[chosen] - first
            for name, (numbers, shapes) in _examples(source, chosen, places, len(columns["id"]), types).items():
                columns[name] = pa.array(numbers, pa.list_(pa.from_numpy_dtype(types[name])))
                columns[f"{name}_shape"] = pa.array(shapes, pa.list_(pa.int64()))
        yield pa.table(columns)


def _types(source: MappedSource) -> dict[str, np.dtype[Any]]:
    """The type of the numbers of each array; where files differ, the one that holds all of them."""
    types: dict[str, np.dtype[Any]] = {}
    for each in source.sources:
        for name, part in _arrays(each.gather(torch.arange(1))[0]):
            types[name] = np.result_type(part.dtype, types.get(name, part.dtype))
    return types


def _arrays(batch: Raw) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    for name, part in parts_of(batch, "example"):
        yield name, (part.float() if part.dtype == torch.bfloat16 else part).numpy()


def _examples(
    source: MappedSource, chosen: Integers, places: Integers, count: int, types: Mapping[str, np.dtype[Any]]
) -> dict[str, tuple[list[Any], list[Any]]]:
    """Some examples of a source as columns of `count` rows: numbers, and sizes; None where there is no example."""
    columns: dict[str, tuple[list[Any], list[Any]]] = {name: ([None] * count, [None] * count) for name in types}
    for which in np.unique(source.which[chosen]).tolist():  # the examples of one file have one shape
        own = source.which[chosen] == which
        for name, part in _arrays(source.sources[which].gather(torch.from_numpy(source.rows[chosen[own]]))[0]):
            for place, example in zip(places[own].tolist(), part.astype(types[name], copy=False), strict=True):
                columns[name][0][place], columns[name][1][place] = example.ravel(), example.shape
    return columns
