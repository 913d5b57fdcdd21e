"""Tables: what columns become, what labelled data decides, and what each mistake is told."""

import datetime as dt
import gzip
import json
from dataclasses import asdict
from decimal import Decimal
from itertools import permutations

import numpy as np
import pytest

import wildood
from wildood.data.schema import check, parse
from wildood.data.tables import TableSpec, _warn_once, in_order, read_table

TRAIN = {
    "age": [20.0, 40.0, None, 60.0],
    "open": [True, False, True, True],
    "port": [80, 443, 80, 22],
    "service": ["http", None, "http", "ssh"],
    "kind": ["b", "a", "b", "b"],
}
SPEC = TableSpec.fit(TRAIN, label="kind", categorical=["port"])


@pytest.fixture(autouse=True)
def _every_warning_anew():
    _warn_once.cache_clear()


def frames():
    """The same table as each kind of frame that is installed, and as a dict."""
    found = [pytest.param(TRAIN, id="dict")]
    for package, make in (("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "table")):
        try:
            module = __import__(package)
        except ImportError:
            found.append(pytest.param(None, id=package, marks=pytest.mark.skip(f"{package} is not installed")))
        else:
            found.append(pytest.param(getattr(module, make)(TRAIN), id=package))
    return found


@pytest.mark.parametrize("frame", frames())
def test_a_frame_becomes_standardised_numbers_and_one_hot_categories(frame):
    spec = TableSpec.fit(frame, label="kind", categorical=["port"])
    assert spec == SPEC
    spread = np.sqrt(800 / 3)
    age = [[-20 / spread, 0], [0, 0], [0, 1], [20 / spread, 0]]
    is_open = [[(value - 0.75) / np.sqrt(0.1875)] for value in (1, 0, 1, 1)]
    port = [[0, 1, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]  # 22, 80, 443: in the order of their values
    service = [[1, 0, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]]  # http, ssh, missing
    expected = np.concatenate([age, is_open, port, service], axis=1)
    rows = spec(frame)
    assert rows.dtype == np.float32
    assert (spec.width, spec.classes) == (9, ("a", "b"))
    assert rows == pytest.approx(expected, abs=1e-6)
    assert spec.labels(frame).tolist() == [1, 0, 1, 1]


def test_columns_are_found_by_name_and_need_no_label():
    shuffled = {name: TRAIN[name] for name in ("service", "port", "open", "age")}
    assert np.array_equal(SPEC(shuffled), SPEC(TRAIN))
    assert SPEC.labels(shuffled) is None


def test_categories_of_one_value_have_one_order():
    assert {tuple(in_order(names)) for names in permutations(["2", "1", "01", "001"])} == {("001", "01", "1", "2")}


def test_only_labelled_data_decides():
    later = {"age": [1000.0], "open": [False], "port": [8080], "service": ["gopher"]}
    rows = SPEC(later)
    assert rows[0, 0] == pytest.approx((1000 - 40) / np.sqrt(800 / 3), rel=1e-6)
    assert rows[0, 3:].tolist() == [0] * 6  # no such port, no such service


def test_text_is_read_as_the_numbers_and_booleans_of_labelled_data():
    as_text = {
        "age": ["20", "40", None, "60.0"],
        "open": ["True", "false", "TRUE", "true"],
        "port": [80.0, 443.0, 80.0, 22.0],
    }
    assert np.array_equal(SPEC({**TRAIN, **as_text}), SPEC(TRAIN))


def test_a_constant_column_is_kept_and_shows_new_values():
    spec = TableSpec.fit({"constant": [7.0, 7.0], "other": [1.0, 2.0]})
    assert spec({"constant": [7.0, 9.0], "other": [1.0, 1.0]})[:, 0].tolist() == [0.0, 2.0]


@pytest.mark.parametrize("values", [np.full(1000, 0.1), np.array([0.1] * 999 + [np.nextafter(0.1, 1)])])
def test_rounding_is_no_spread(values):
    assert 0 < values.std() < 1e-16
    spec = TableSpec.fit({"constant": values, "other": np.arange(1000)})
    assert spec.numeric[0].std == 1
    assert spec({"constant": [0.1, 0.2], "other": [1, 1]})[:, 0] == pytest.approx([0, 0.1], abs=1e-8)


def test_the_mean_of_a_constant_is_its_value():
    assert TableSpec.fit({"constant": np.full(1000, 0.1)}).numeric[0].mean == 0.1


def test_heavy_tails_take_the_logarithm_and_normal_values_do_not():
    rng = np.random.default_rng(0)
    table = {"bytes": rng.lognormal(6, 3, 500), "celsius": rng.normal(10, 8, 500), "share": rng.uniform(size=500)}
    spec = TableSpec.fit(table)
    assert [column.log for column in spec.numeric] == [True, False, False]
    logs = np.log1p(table["bytes"])
    assert spec(table)[:, 0] == pytest.approx((logs - logs.mean()) / logs.std(), abs=1e-5)
    negative = spec({**table, "bytes": -table["bytes"]})[:, 0]
    assert negative == pytest.approx((-logs - logs.mean()) / logs.std(), abs=1e-4)


def test_huge_and_nearly_constant_values_stay_finite():
    table = {"huge": [1e200, -1e300, 3.0, 1e100], "near": [1e15, 1e15 + 1, 1e15 + 2, 1e15 + 3]}
    rows = TableSpec.fit(table)(table)
    assert np.isfinite(rows).all()
    assert rows.std(0) == pytest.approx([1, 1], abs=1e-3)


def test_numbers_of_any_type_are_numbers():
    table = {"a": [Decimal("1.5"), 2, None, True], "b": np.array([1, 2, 3, 4], np.uint8)}
    spec = TableSpec.fit(table)
    assert [column.name for column in spec.numeric] == ["a", "b"]
    assert spec.numeric[0].mean == 1.5


def test_missing_values_of_pandas_are_missing_whatever_their_type():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({
        "whole": pandas.array([1, None, 3], "Int64"),
        "yes": pandas.array([True, None, False], "boolean"),
        "word": pandas.array(["a", None, "b"], "string"),
        "code": pandas.Categorical([1, 2, None]),
        "mixed": pandas.Series([1, "x", None], dtype=object),
    })  # fmt: skip
    spec = TableSpec.fit(frame)
    assert [(each.name, each.mean, each.missing) for each in spec.numeric] == [("whole", 2.0, True), ("yes", 0.5, True)]
    categories = {each.name: (each.categories, each.missing) for each in spec.categorical}
    assert categories == {"word": (("a", "b"), True), "code": (("1", "2"), True), "mixed": (("1", "x"), True)}
    assert spec(frame)[1].tolist() == [0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0]


def test_categories_of_polars_are_categories():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"a": polars.Series(["x", "y", None], dtype=polars.Categorical), "b": [1.0, None, 2.0]})
    spec = TableSpec.fit(frame)
    assert spec.categorical[0].categories == ("x", "y")
    assert spec.categorical[0].missing
    assert spec.numeric[0].missing


def test_superfluous_columns_and_new_gaps_are_said_once(caplog):
    table = {**TRAIN, "comment": ["", "", "", ""], "port": [80, None, 80, 22]}
    for _ in range(2):
        SPEC(table, "wild")
    assert caplog.messages == [
        "wild: unused column 'comment': labelled data has none of that name",
        "wild: column 'port' lacks values, as it never did in labelled data: that is no category",
    ]


def test_ignored_columns_are_not_used_and_not_spoken_of(caplog):
    spec = TableSpec.fit(TRAIN, label="kind", ignore=["port", "service"])
    assert [column.name for column in spec.columns] == ["age", "open"]
    spec(TRAIN)
    assert caplog.messages == []


DAYS = np.array(["2026-01-01"] * 4, "datetime64[ns]")


@pytest.mark.parametrize("values", [DAYS, [[1], [2, 3], [], []], np.ones((4, 2)), [1.0]])
def test_columns_that_are_ignored_or_not_used_may_hold_anything(values, caplog):
    spec = TableSpec.fit({**TRAIN, "seen": values}, label="kind", categorical=["port"], ignore=["seen"])
    assert spec.columns == SPEC.columns
    assert np.array_equal(spec({**TRAIN, "seen": values}), SPEC(TRAIN))
    assert caplog.messages == []
    assert np.array_equal(SPEC({**TRAIN, "seen": values}, "wild"), SPEC(TRAIN))
    assert SPEC.labels({**TRAIN, "seen": values}).tolist() == [1, 0, 1, 1]
    assert caplog.messages == ["wild: unused column 'seen': labelled data has none of that name"]


@pytest.mark.parametrize(("package", "make"), [("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "table")])
def test_dates_of_a_frame_can_be_ignored(package, make):
    frame = getattr(pytest.importorskip(package), make)({**TRAIN, "seen": DAYS})
    with pytest.raises(wildood.InputError, match="table: column 'seen' holds"):
        TableSpec.fit(frame, label="kind")
    spec = TableSpec.fit(frame, label="kind", categorical=["port"], ignore=["seen"])
    assert np.array_equal(spec(frame), SPEC(TRAIN))
    assert np.array_equal(SPEC(frame), SPEC(TRAIN))


def test_a_label_for_each_row_is_asked_for():
    with pytest.raises(wildood.InputError, match="x has columns of 3 to 4 values: give one for each row"):
        SPEC.labels({**TRAIN, "kind": ["a", "b", "a"]})


def test_the_spec_survives_json():
    content = json.dumps(SPEC.to_dict()).encode()
    assert parse(content, TableSpec) == SPEC
    assert check(json.loads(content), wildood.InputSpec | TableSpec) == SPEC
    assert asdict(SPEC)["numeric"][0]["missing"] is True


DAY = dt.date(2026, 1, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"age": None}, "wild lacks column 'age': give every column that the input spec was fitted on"),
        ({"age": ["20", "old", "1", "2"]}, "wild: column 'age' is 'old' in row 1: give a number, as in labelled data"),
        ({"age": [1.0, np.inf, 2.0, 3.0]}, "wild: column 'age' is infinite in row 1: give a number, or none"),
        ({"age": [1.0, 1e300, 2.0, 3.0]}, "wild: column 'age' is 1e+300 in row 1, too far from labelled data for float32"),
        ({"age": [1.0]}, "wild has columns of 1 to 4 values: give one for each row"),
        ({"age": np.ones((4, 2))}, "wild: column 'age' has shape (4, 2): give one value for each row"),
        ({"age": [[1], [2, 3], [], []]}, "wild: column 'age' is no column of numbers or text"),
        ({"service": [DAY] * 4}, "wild: column 'service' holds a date in row 0: make it a number or text"),
        ({"age": np.array([DAY] * 4, "datetime64[D]")}, "wild: column 'age' holds datetime64[D] values"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_in_one_line(change, message):
    table = {name: values for name, values in {**TRAIN, **change}.items() if values is not None}
    with pytest.raises(wildood.InputError) as refused:
        SPEC(table, "wild")
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("table", "settings", "message"),
    [
        (TRAIN, {"label": "type"}, "label: there is no column 'type' among columns 'age', 'open', 'port' and 2 others"),
        (TRAIN, {"categorical": "port"}, "categorical is 'port': give names of columns, as in categorical=['port']"),
        ({"a": [None, None]}, {}, "column 'a' has no values: leave it out, as in ignore=['a'] (--ignore)"),
        ({"a": [f"row {i}" for i in range(1001)]}, {}, "column 'a' has 1001 categories, such as 'row 0', more than 1000"),
        ({"a": ["x", None], "b": [1, 2]}, {"label": "a"}, "table: column 'a' has no class in row 1: leave such rows out"),
        ({"a": [1, 2]}, {"ignore": ["a"]}, "no column is left"),
        ({}, {}, "table has no rows"),
        ({"a": []}, {}, "table has no rows"),
        ({1: [1], "1": [2]}, {}, "table has two columns '1'"),
        (np.ones((3, 2)), {}, "table is a ndarray: give a pandas or polars frame, or a dict of columns"),
    ],
)
def test_labelled_data_that_no_spec_can_be_fitted_on_is_refused(table, settings, message):
    with pytest.raises(wildood.InputError) as refused:
        TableSpec.fit(table, **settings)
    assert str(refused.value).startswith(message)


def test_a_class_that_labelled_has_not_is_refused():
    with pytest.raises(wildood.InputError, match="holdout has a class 'c' in column 'kind' that labelled has not"):
        SPEC.labels({**TRAIN, "kind": ["a", "b", "c", "a"]}, "holdout")


def test_a_csv_file_holds_numbers_where_all_values_are(tmp_path):
    text = "age,flag,code,word\n1.5,true,01,x\n,False,1_0,\n-2e3,,02,NA\n"
    (tmp_path / "a.csv").write_text(text, encoding="utf-8-sig")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("a.csv", "a.csv.gz"):
        table = read_table(tmp_path / name)
        assert table["age"].tolist() == pytest.approx([1.5, np.nan, -2000], nan_ok=True)
        assert table["flag"].tolist() == pytest.approx([1, 0, np.nan], nan_ok=True)
        assert table["code"].tolist() == ["01", "1_0", "02"]
        assert table["word"].tolist() == ["x", None, None]
    assert read_table(tmp_path / "a.csv", ["age"])["age"].tolist() == ["1.5", None, "-2e3"]


def test_a_parquet_file_is_the_frame_that_was_written(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({**TRAIN, "seen": DAYS}), tmp_path / "a.parquet")  # with timestamps, not used
    assert np.array_equal(SPEC(read_table(tmp_path / "a.parquet")), SPEC(TRAIN))
    (tmp_path / "b.parquet").write_bytes(b"nothing")
    with pytest.raises(wildood.InputError, match=r"b\.parquet cannot be read as Parquet"):
        read_table(tmp_path / "b.parquet")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"a,b\n1,2\n3\n", "line 3 has 1 cells, the header has 2"),
        ("a.csv", b"a,a\n1,2\n", "has two columns 'a'"),
        ("a.csv", b"a\n\xff\n", "is not CSV in UTF-8"),
        ("a.csv.gz", b"plain", "is not CSV in UTF-8"),
        ("a.txt", b"a\n1\n", "is no table: give a .csv, .csv.gz or .parquet file"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(wildood.InputError, match=message):
        read_table(tmp_path / name)
    with pytest.raises(wildood.InputError, match="cannot be read: No such file"):
        read_table(tmp_path / "missing.csv")
