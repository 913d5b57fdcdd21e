"""Tables: the columns of a frame or of a file become float32 rows, by a spec that is fitted on labelled data."""

import csv
import gzip
import io
import logging
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from numbers import Number
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from wildood.data.files import open_plain
from wildood.errors import InputError
from wildood.settings import check_fields, check_number, check_positive, quoted

TABLES_ALONE = (".csv.gz", ".parquet")
SUFFIXES = (".csv", *TABLES_ALONE)
MOST_CATEGORIES = 1000  # of a column: more are names or numbers of single things, of which nothing can be learned
MISSING = frozenset(
    {"", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>"}
)  # in a CSV file, as pandas reads it
_CATEGORY = ("category", "Categorical", "Enum", "dictionary")  # how dtypes of pandas, polars and pyarrow begin
_BOOLEANS = {"true": 1.0, "false": 0.0}
_LOGGER = logging.getLogger("wildood")
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class NumericColumn:
    """A column of numbers or booleans, x: (x - mean) / std, and 0 where x is missing.

    Attributes:
        name: of the column.
        mean: of labelled data, after the logarithm if there is one.
        std: the same; 1 for a constant, also one with errors of rounding.
        log: whether x is replaced by sign(x) log(1 + |x|) first.
        missing: whether values are missing in labelled data. One more number then is 1 where x is missing, 0 elsewhere.
    """

    name: str
    mean: float
    std: float
    log: bool = False
    missing: bool = False

    instead: ClassVar = "the mean is used"  # of a missing value, where labelled data has none

    def __post_init__(self) -> None:
        check_fields(self, f"column {self.name!r}: ", mean=check_number, std=check_positive)

    @classmethod
    def fit(cls, name: str, column: "Column") -> Self:
        """The spec of a column of labelled data."""
        known = column.numbers()[~column.missing]
        if not len(known):
            raise InputError(f"column {name!r} has no values: leave it out, as in ignore=[{name!r}] (--ignore)")
        log = prefers_log(known)
        if log:
            known = signed_log(known)
        mean, std = float(known.mean()), float(known.std())
        if known.min() == known.max():  # the mean and std of equal numbers have errors of rounding
            mean, std = float(known[0]), 1.0
        elif std <= np.finfo(np.float64).eps * np.abs(known).max():
            std = 1.0
        return cls(name, mean, std, log, bool(column.missing.any()))

    @property
    def width(self) -> int:
        """How many numbers it becomes."""
        return 1 + self.missing

    def encode(self, column: "Column") -> Array:
        """A column as model input, one row for each value."""
        values = column.numbers()
        scaled = ((signed_log(values) if self.log else values) - self.mean) / self.std
        far = np.abs(scaled) > np.finfo(np.float32).max
        if far.any():
            row = int(far.argmax())
            raise InputError(
                f"{column.name} is {values[row]} in row {row}, too far from labelled data for float32: repair it"
            )
        return np.stack([np.where(column.missing, 0, scaled), column.missing][: self.width], axis=1)


@dataclass(frozen=True)
class CategoricalColumn:
    """A column of categories, one-hot: a number for each category; all are 0 for a category that labelled data has not.

    Attributes:
        name: of the column.
        categories: those of labelled data, in order.
        missing: whether values are missing in labelled data. One more number then is 1 where the value is missing.
    """

    name: str
    categories: tuple[str, ...]
    missing: bool = False
    instead: ClassVar = "that is no category"  # of a missing value, where labelled data has none

    @classmethod
    def fit(cls, name: str, column: "Column") -> Self:
        """The spec of a column of labelled data."""
        categories = in_order({text for text in column.texts() if text is not None})
        if len(categories) > MOST_CATEGORIES:
            raise InputError(
                f"column {name!r} has {len(categories)} categories, such as {quoted(categories[0])}, more than "
                f"{MOST_CATEGORIES}: leave it out, as in ignore=[{name!r}] (--ignore), or give numbers or coarser categories"
            )
        return cls(name, tuple(categories), bool(column.missing.any()))

    @property
    def width(self) -> int:
        """How many numbers it becomes."""
        return len(self.categories) + self.missing

    def encode(self, column: "Column") -> Array:
        """A column as model input, one row for each value."""
        places: dict[str | None, int] = {category: place for place, category in enumerate(self.categories)}
        if self.missing:
            places[None] = len(self.categories)
        codes = np.array([places.get(text, -1) for text in column.texts()])
        one_hot: Array = codes[:, None] == np.arange(self.width)
        return one_hot


@dataclass(frozen=True)
class TableSpec:
    """How the columns of a table become model input: `TableSpec.fit(train)`; called with a table, it gives a float32 array.

    A table is a pandas or polars frame, a pyarrow table, or a dict of columns. Columns are looked up by their names. Numbers
    are standardised, categories become one-hot; both by labelled data alone.

    Attributes:
        numeric: the columns of numbers; their inputs come first.
        categorical: the columns of categories.
        label: the column of the classes, if there is one.
        classes: the names of the classes, in their order.
        ignored: columns that are left out.

    >>> train = {"bytes": [10.0, 30.0, None], "service": ["http", "ftp", "http"], "type": ["normal", "normal", "attack"]}
    >>> spec = TableSpec.fit(train, label="type")
    >>> spec.width, spec.classes
    (4, ('attack', 'normal'))
    >>> spec({"service": ["http", "irc"], "bytes": [30.0, None]}).round(2)
    array([[1., 0., 0., 1.],
           [0., 1., 0., 0.]], dtype=float32)
    """

    numeric: tuple[NumericColumn, ...]
    categorical: tuple[CategoricalColumn, ...] = ()
    label: str | None = None
    classes: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @classmethod
    def fit(
        cls, table: Any, *, label: str | None = None, categorical: Sequence[str] = (), ignore: Sequence[str] = ()
    ) -> Self:
        """The spec of labelled data.

        A column is numeric if its values are numbers or booleans, and categorical if they are text or its dtype says so. A
        numeric column takes the logarithm sign(x) log(1 + |x|) if that makes it more like a normal distribution (see
        `prefers_log`).

        Args:
            table: labelled data.
            label: the column of the classes. Tables that have it need no y then.
            categorical: columns of numbers that are codes of categories.
            ignore: columns to leave out, such as identifiers.
        """
        keys = keys_of(table, "table")
        named = {"label": [] if label is None else [label], "categorical": categorical, "ignore": ignore}
        for option, names in named.items():
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                raise InputError(f"{option} is {quoted(names)}: give names of columns, as in {option}=['port']")
            if unknown := next((name for name in names if name not in keys), None):
                raise InputError(f"{option}: there is no column {unknown!r} among {_listed(keys)}: give one of them")
        columns = columns_of(table, "table", [name for name in keys if name == label or name not in ignore])
        numeric, chosen, codes = [], [], set(categorical)
        for name, column in columns.items():
            if name == label:
                continue
            if name not in codes and column.is_numeric:
                numeric.append(NumericColumn.fit(name, column))
            else:
                chosen.append(CategoricalColumn.fit(name, column))
        if not numeric and not chosen:
            raise InputError("no column is left: give a table with columns besides the label and those to ignore")
        classes = () if label is None else in_order(set(_labels(columns[label])))
        return cls(tuple(numeric), tuple(chosen), label, tuple(classes), tuple(ignore))

    @property
    def columns(self) -> tuple[NumericColumn | CategoricalColumn, ...]:
        """The columns in the order of their inputs."""
        return (*self.numeric, *self.categorical)

    @property
    def width(self) -> int:
        """The number of inputs that a model needs."""
        return sum(column.width for column in self.columns)

    @property
    def text_columns(self) -> list[str]:
        """The columns that hold text, whatever the text looks like."""
        return [column.name for column in self.categorical] + ([] if self.label is None else [self.label])

    def __call__(self, table: Any, name: str = "x") -> npt.NDArray[np.float32]:
        """A table as model input: (rows, width). Messages call it `name`."""
        keys, own = keys_of(table, name), [column.name for column in self.columns]
        if missing := [each for each in own if each not in keys]:
            raise InputError(f"{name} lacks {_listed(missing)}: give every column that the input spec was fitted on")
        if others := [each for each in keys if each not in {*own, *self.ignored, self.label}]:
            _warn_once(f"{name}: unused {_listed(others)}: labelled data has none of that name")
        columns = columns_of(table, name, own)
        rows = np.empty((len(columns[own[0]].values), self.width), np.float32)
        first = 0
        for spec in self.columns:
            rows[:, first : first + spec.width] = spec.encode(columns[spec.name])
            first += spec.width
            if not spec.missing and columns[spec.name].missing.any():
                _warn_once(f"{name}: column {spec.name!r} lacks values, as it never did in labelled data: {spec.instead}")
        return rows

    def labels(self, table: Any, name: str = "x") -> npt.NDArray[np.int64] | None:
        """The numbers of the classes in the label's column; None where a table has no such column."""
        keys, own = keys_of(table, name), {column.name for column in self.columns}
        if self.label is None or self.label not in keys:
            return None
        columns = columns_of(table, name, [each for each in keys if each in {*own, self.label}])
        labels, codes = _labels(columns[self.label]), {each: code for code, each in enumerate(self.classes)}
        if strange := next((each for each in labels if each not in codes), None):
            raise InputError(f"{name} has a class {strange!r} in column {self.label!r} that labelled has not: leave it out")
        return np.array([codes[each] for each in labels], np.int64)

    def to_dict(self) -> dict[str, Any]:
        """The spec as JSON-ready data."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Column:
    """One column of a user's table.

    Attributes:
        name: what messages call it.
        values: numbers, booleans, or objects: text, numbers, None.
        is_category: whether its dtype is one of categories.
    """

    name: str
    values: Array
    is_category: bool

    @classmethod
    def of(cls, values: Any, name: str) -> Self:
        """A column of a frame, an array or a list."""
        dtype = str(getattr(values, "dtype", getattr(values, "type", "")))
        try:
            array = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} is no column of numbers or text ({error}): leave it out, or make it one") from error
        if array.ndim != 1:
            raise InputError(f"{name} has shape {array.shape}: give one value for each row")
        if array.dtype.kind not in "biufOUT":
            raise InputError(f"{name} holds {array.dtype} values: make them numbers or text, or leave the column out")
        return cls(name, array, dtype.startswith(_CATEGORY))

    @cached_property
    def missing(self) -> npt.NDArray[np.bool_]:
        """Where a value is missing: None, NaN, or what pandas has for them."""
        if self.values.dtype.kind == "f":
            return np.isnan(self.values)
        if self.values.dtype.kind in "biuU":
            return np.zeros(len(self.values), bool)
        return np.array([_is_missing(value) for value in self.values], bool)

    @cached_property
    def is_numeric(self) -> bool:
        """Whether all values are numbers or booleans."""
        if self.is_category or self.values.dtype.kind in "biuf":
            return not self.is_category
        known = self.values[~self.missing]
        return all(isinstance(value, Number) for value in known)

    def numbers(self) -> npt.NDArray[np.float64]:
        """The values as numbers, with NaN for those that are missing; text is read as numbers."""
        if self.values.dtype.kind in "biuf":
            found = self.values.astype(np.float64)
        else:
            pairs = zip(self.values.tolist(), self.missing.tolist(), strict=True)
            found = np.array([np.nan if missing else self._number(value, row) for row, (value, missing) in enumerate(pairs)])
        if np.isinf(found).any():
            raise InputError(f"{self.name} is infinite in row {int(np.isinf(found).argmax())}: give a number, or none")
        return found

    def texts(self) -> list[str | None]:
        """The values as text, with None for those that are missing; whole numbers are written without a point."""
        pairs = zip(self.values.tolist(), self.missing.tolist(), strict=True)
        return [None if missing else self._text(value, row) for row, (value, missing) in enumerate(pairs)]

    def _number(self, value: Any, row: int) -> float:
        try:
            return _float(value) if isinstance(value, str) else float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{self.name} is {quoted(value)} in row {row}: give a number, as in labelled data") from error

    def _text(self, value: Any, row: int) -> str:
        if isinstance(value, str):
            return value
        if not isinstance(value, Number):
            kind = type(value).__name__
            raise InputError(f"{self.name} holds a {kind} in row {row}: make it a number or text, or leave the column out")
        return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _float(text: str) -> float:
    """A number or a boolean as text; Python would read 1_0 as 10."""
    if "_" in text:
        raise ValueError(text)
    return float(_BOOLEANS.get(text.lower(), text))


def is_frame(data: Any) -> bool:
    """Whether a value is a frame of pandas or polars, or a table of pyarrow."""
    return all(hasattr(type(data), name) for name in ("columns", "shape", "__len__", "__getitem__"))


def keys_of(table: Any, name: str) -> dict[str, Any]:
    """What the columns of a table are looked up by, by their names."""
    if not is_frame(table) and not isinstance(table, Mapping):
        raise InputError(f"{name} is a {type(table).__name__}: give a pandas or polars frame, or a dict of columns")
    keys = list(table) if isinstance(table, Mapping) else list(getattr(table, "column_names", table.columns))
    texts = [str(key) for key in keys]
    if twice := next((text for text in texts if texts.count(text) > 1), None):
        raise InputError(f"{name} has two columns {twice!r}: give each column a name of its own")
    if not keys:
        raise InputError(f"{name} has no rows: give at least one")
    return dict(zip(texts, keys, strict=True))


def columns_of(table: Any, name: str, used: Iterable[str]) -> dict[str, Column]:
    """The columns of a table that are used, by their names; the others may hold anything."""
    keys = keys_of(table, name)
    columns = {text: Column.of(table[keys[text]], f"{name}: column {text!r}") for text in used}
    lengths = {len(column.values) for column in columns.values()}
    if len(lengths) > 1:
        raise InputError(f"{name} has columns of {min(lengths)} to {max(lengths)} values: give one for each row")
    if lengths == {0}:
        raise InputError(f"{name} has no rows: give at least one")
    return columns


def signed_log(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """sign(x) log(1 + |x|)."""
    return np.sign(values) * np.log1p(np.abs(values))


def prefers_log(values: npt.NDArray[np.float64]) -> bool:
    """Whether a normal distribution fits the signed logarithm of values better than the values, by its likelihood.

    If g(x) is normal, the likelihood of x is the density of g(x) times |g'(x)| = 1 / (1 + |x|): the choice of Box and Cox
    among powers, here among two.

    >>> rng = np.random.default_rng(0)
    >>> prefers_log(rng.lognormal(5, 2, 100)), prefers_log(rng.normal(5, 2, 100))
    (True, False)
    """
    if len(np.unique(values)) < 3:  # flags and constants: one is as normal as the other
        return False
    logs = signed_log(values)
    with np.errstate(over="ignore"):  # of values above 1e154, whose logarithm is no trouble
        before, after = values.var(), logs.var()
    return bool(min(before, after) > 0 and -np.log(after) / 2 - np.abs(logs).mean() > -np.log(before) / 2)


def in_order(names: Collection[str]) -> list[str]:
    """Names of classes or categories in their order: by value if all are whole numbers.

    >>> in_order({"10", "9"}), in_order({"10", "9", "a"})
    (['9', '10'], ['10', '9', 'a'])
    """
    by_value = all(name.isdecimal() for name in names)
    return sorted(names, key=lambda name: (int(name) if by_value else 0, name))


def _labels(column: Column) -> list[str]:
    texts = column.texts()
    if column.missing.any():
        raise InputError(f"{column.name} has no class in row {int(column.missing.argmax())}: leave such rows out")
    return [text for text in texts if text is not None]


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)  # noqa: PLR0124 - NaN is not equal to itself
    except (TypeError, ValueError):  # pandas.NA is neither equal nor not; an array is refused later
        return not hasattr(value, "__len__")


def _listed(names: Iterable[str]) -> str:
    """Some names as a message shows them.

    >>> _listed(["a"]), _listed("abcdef")
    ("column 'a'", "columns 'a', 'b', 'c' and 3 others")
    """
    first = list(names)
    shown, more = ", ".join(map(repr, first[:3])), len(first) - 3
    others = f" and {more} others" if more > 0 else ""
    return f"column{'s' if len(first) > 1 else ''} {shown}{others}"


@lru_cache(maxsize=1000)
def _warn_once(text: str) -> None:
    """Say something of a user's tables once, and not for each batch."""
    _LOGGER.warning("%s", text)


# --- files ----------------------------------------------------------------------------------------------------------------


def is_table_file(text: str) -> bool:
    """Whether a text names a table by its ending; a .csv file may be a manifest of pictures, too."""
    return text.lower().endswith(SUFFIXES)


def read_table(path: str | Path, text_columns: Collection[str] = ()) -> Any:
    """The table in a .csv, .csv.gz or .parquet file.

    A CSV file has a header. Its columns hold numbers if every value is one, and text if not, or if they are named.
    """
    if str(path).lower().endswith(".parquet"):
        return _read_parquet(Path(path))
    if not is_table_file(str(path)):
        raise InputError(f"{path} is no table: give a {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file")
    header, rows = _read_csv(Path(path))
    columns: dict[str, Array] = {}
    for number, name in enumerate(header):
        texts = np.array([None if row[number] in MISSING else row[number] for row in rows], object)
        columns[name] = texts if name in text_columns else _typed(texts)
    return columns


def _read_csv(path: Path) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a CSV file."""
    try:
        with open_plain(path) as raw, gzip.open(raw) if path.suffix.lower() == ".gz" else raw as file:
            reader = csv.reader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""))
            header, rows = next(reader, []), []
            for row in reader:
                if len(row) not in {0, len(header)}:
                    raise InputError(f"{path}: line {reader.line_num} has {len(row)} cells, the header has {len(header)}")
                if row:
                    rows.append(row)
    except (csv.Error, UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is not CSV in UTF-8 ({error}): write one row on each line, below a header") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    if twice := next((name for name in header if header.count(name) > 1), None):
        raise InputError(f"{path} has two columns {twice!r}: begin with a header that gives each column its own name")
    return header, rows


def _typed(texts: Array) -> Array:
    """Numbers, if all texts are; else the texts."""
    try:
        return np.array([np.nan if text is None else _float(text) for text in texts.tolist()])
    except ValueError:
        return texts


def _read_parquet(path: Path) -> Any:
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise InputError(f"{path}: Parquet needs pyarrow: pip install pyarrow, or give a .csv file") from error
    try:
        with open_plain(path) as file:
            return parquet.read_table(file)
    except (OSError, ArrowException) as error:
        raise InputError(f"{path} cannot be read as Parquet: {getattr(error, 'strerror', None) or error}") from error
