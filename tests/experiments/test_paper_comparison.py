"""The paper's numbers are all there, as printed, and ours are compared only with those that mean the same."""

import csv
from collections import Counter, defaultdict
from dataclasses import replace
from decimal import Decimal
from importlib import resources

import pytest

from wildood.experiments.paper_comparison import PaperComparison, compare_with_paper, find_published, published_numbers
from wildood.experiments.tables import AVERAGE, Cell, ResultsTable, TableRow

SETS = ("svhn.npz", "rooms_resize.npz", "rooms_crop.npz", "textures.npz", "places.npz")


def pair(fpr95=0.05, auroc=0.99, error=0.001, accepted=0.07):
    return {"fpr95": Cell(fpr95, error), "accepted": Cell(accepted, error), "auroc": Cell(auroc, error)}


def row_of(cells, method="woods", pi=0.1, accuracy=None):
    return TableRow(f"π = {pi}", pi, method, method.upper(), cells, accuracy, 5, {}, 0, ())


def table_of(row, sets=SETS, known="cifar10.npz", wild=None):
    return ResultsTable(known, wild is None, wild, "honest", tuple(sets), (row,))


def test_a_number_stands_beside_the_papers_with_its_difference():
    row = row_of({"textures.npz": {"fpr95": Cell(0.0625, 0.003), "auroc": Cell(0.9879, 0.0)}})
    fpr95, auroc = compare_with_paper(table_of(row))
    assert (fpr95.ours, fpr95.ours_error) == pytest.approx((6.25, 0.3))
    assert (fpr95.paper, fpr95.paper_error, fpr95.paper_table) == (5.95, 0.6, "A1")
    assert fpr95.difference == pytest.approx(0.3)
    assert (fpr95.set, fpr95.metric, fpr95.method, fpr95.title, fpr95.pi) == ("textures.npz", "fpr95", "woods", "WOODS", 0.1)
    assert (auroc.metric, auroc.paper) == ("auroc", 98.79)
    assert auroc.difference == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("ours", "error", "paper_error", "expected"),
    [
        (10.99, 0.3, 0.4, True),  # the standard error of the difference is 0.5
        (11.01, 0.3, 0.4, False),
        (9.01, 0.3, 0.4, True),
        (8.99, 0.3, 0.4, False),
        (10.0, None, 0.4, None),
        (10.0, 0.3, None, None),
    ],
)
def test_within_is_two_standard_errors_of_the_difference(ours, error, paper_error, expected):
    assert PaperComparison("", 0.1, "oe", "OE", "svhn", "fpr95", ours, error, 10.0, paper_error, "1").within is expected


def test_stand_ins_and_the_sets_themselves_find_the_same_numbers():
    for names, known in ((SETS, "cifar10.npz"), (("svhn", "lsun-r", "lsun-c", "textures", "places365"), "cifar10")):
        found = compare_with_paper(table_of(row_of(dict.fromkeys(names, pair())), names, known))
        assert [each.paper for each in found if each.metric == "fpr95"] == [0.15, 0.03, 0.22, 5.95, 12.49]
        assert [each.set for each in found if each.metric == "fpr95"] == list(names)


def test_average_and_accuracy_are_there_for_the_papers_sets():
    cells = dict.fromkeys([*SETS, AVERAGE], pair())
    found = compare_with_paper(table_of(row_of(cells, accuracy=Cell(0.94, 0.002))))
    assert [(each.set, each.metric, each.paper) for each in found[-3:]] == [
        (AVERAGE, "fpr95", 3.77),
        (AVERAGE, "auroc", 99.14),
        ("", "accuracy", 94.84),
    ]


@pytest.mark.parametrize("sets", [SETS[:4], (*SETS, "isun"), (*SETS[:4], "mine.npz")])
def test_average_and_accuracy_over_other_sets_are_not_compared(sets):
    found = compare_with_paper(table_of(row_of(dict.fromkeys([*sets, AVERAGE], pair()), accuracy=Cell(0.94, 0.002)), sets))
    assert {each.set for each in found} == set(SETS) & set(sets)


def test_accuracy_of_a_row_that_misses_sets_is_not_compared():
    found = compare_with_paper(table_of(row_of({"svhn.npz": pair()}, accuracy=Cell(0.94, 0.002))))
    assert {each.metric for each in found} == {"fpr95", "auroc"}


def test_accuracy_without_wild_data_is_compared_whatever_the_sets():
    row = row_of({"svhn": pair()}, "godin", None, Cell(0.94, 0.002))
    found = compare_with_paper(table_of(row, ("svhn",), "cifar10"))
    assert [(each.metric, each.paper, each.within) for each in found] == [
        ("fpr95", 13.55, None),
        ("auroc", 97.61, None),
        ("accuracy", 94.48, None),
    ]


def test_wild_data_from_random_images_stands_beside_the_second_table():
    row = row_of({"svhn.npz": pair(), "random_images.npz": pair()}, "oe", 0.2, Cell(0.94, 0.002))
    found = compare_with_paper(table_of(row, ("svhn.npz", "random_images.npz"), wild="random_images.npz"))
    assert {each.paper_table for each in found} == {"A2"}
    assert [each.paper for each in found] == [9.94, 98.04, 24.94, 94.25, 94.10]


def test_a_published_stationary_number_is_what_is_accepted_at_the_threshold_of_validation():
    table = table_of(row_of({"svhn.npz": pair(), AVERAGE: pair()}))
    honest, published = compare_with_paper(table)[0], compare_with_paper(replace(table, protocol="as_published"))[0]
    assert (honest.metric, honest.ours, honest.paper, honest.other_threshold) == ("fpr95", 5.0, 0.15, True)
    assert (published.metric, published.paper, published.other_threshold) == ("accepted", 0.15, False)
    assert published.ours == pytest.approx(7.0)


def test_a_published_number_of_another_wild_set_is_fpr95():
    row = row_of({"svhn.npz": pair()}, "oe", 0.2)
    table = replace(table_of(row, ("svhn.npz",), wild="random_images.npz"), protocol="as_published")
    assert [(each.metric, each.ours, each.other_threshold) for each in compare_with_paper(table)] == [
        ("fpr95", 5.0, False),
        ("auroc", 99.0, False),
    ]


def test_a_method_without_wild_data_stands_beside_the_first_table_at_its_threshold():
    row = row_of({"svhn.npz": pair()}, "energy", None)
    table = replace(table_of(row, ("svhn.npz",), wild="random_images.npz"), protocol="as_published")
    assert [(each.metric, each.paper_table) for each in compare_with_paper(table)] == [("accepted", "A1"), ("auroc", "A1")]


def test_wild_data_from_another_set_than_the_papers_is_not_compared():
    row = row_of({"svhn.npz": pair()}, "oe", 0.2, Cell(0.94, 0.002))
    assert compare_with_paper(table_of(row, ("svhn.npz",), wild="textures.npz")) == []


def test_what_the_paper_has_not_is_left_out():
    table = table_of(row_of({"svhn": pair(), "mine.npz": pair()}), ("svhn", "mine.npz"))
    assert [each.set for each in compare_with_paper(table)] == ["svhn", "svhn"]
    assert compare_with_paper(table_of(row_of({"svhn": pair()}, pi=0.3))) == []
    assert compare_with_paper(table_of(row_of({"svhn": pair()}, "knn", None))) == []
    assert compare_with_paper(replace(table, id="digits")) == []


P_IN_ONLY = {"max-softmax", "odin", "energy", "mahalanobis", "godin", "csi"}
WITH_WILD = {"oe", "energy-logistic", "woods"}
PAPER_SETS = ("svhn", "lsun-r", "lsun-c", "textures", "places365")
NUMBERS = published_numbers()
PLACES = {(n.table, n.pi, n.method, n.set, n.metric): n for n in NUMBERS}
AVERAGES = [n for n in NUMBERS if n.set == "average"]


def place(number):
    return number.table, number.pi, number.method, number.set, number.metric


def exact(percent):
    """As printed, so that a mean that ends in half of 0.01 stays there."""
    return Decimal(str(percent))


def columns_of(average):
    return [PLACES[average.table, average.pi, average.method, name, average.metric] for name in PAPER_SETS]


def mean(values):
    return sum(values, Decimal(0)) / len(values)


def compared():
    """Lists of the cells among which the paper marks the best: a column of a table, at one pi in tables 2 and A2.

    In tables 1 and A1 the best accuracy is marked twice, among the methods with P_in only and among those with P_wild;
    FPR95 and AUROC are marked once for all of them.
    """
    cells = defaultdict(list)
    for number in NUMBERS:
        block = "all" if number.stationary and number.metric != "accuracy" else number.pi
        cells[number.table, block, number.set, number.metric].append(number)
    return cells.values()


def best(cells):
    choose = min if cells[0].metric == "fpr95" else max
    return choose(number.value for number in cells)


def test_the_file_is_package_data_with_one_line_for_each_number():
    lines = resources.files("wildood.experiments").joinpath("published.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "table,id,pi,method,set,metric,value,error,bold"
    assert len(lines) == 1 + len(NUMBERS)


def test_every_cell_of_the_four_tables_is_there_once():
    assert len(NUMBERS) == len(PLACES)
    # a row has 13 numbers; the tables have 10 methods, or 3 methods at 5 values of pi
    assert Counter((n.table, n.id) for n in NUMBERS) == {
        ("1", "cifar100"): 130,
        ("2", "cifar100"): 195,
        ("A1", "cifar10"): 130,
        ("A2", "cifar10"): 195,
    }
    stationary = {(None, name) for name in P_IN_ONLY} | {(0.1, name) for name in WITH_WILD | {"woods-alt"}}
    effect_of_pi = {(pi, name) for pi in (0.05, 0.1, 0.2, 0.5, 1.0) for name in WITH_WILD}
    for tables, rows, last in ((("1", "A1"), stationary, "average"), (("2", "A2"), effect_of_pi, "300k")):
        columns = {(name, metric) for name in (*PAPER_SETS, last) for metric in ("fpr95", "auroc")} | {("", "accuracy")}
        for table in tables:
            assert {found[1:] for found in PLACES if found[0] == table} == {(*r, *c) for r in rows for c in columns}


def test_values_have_two_decimals_and_errors_one_and_only_methods_with_wild_data_have_errors():
    with resources.files("wildood.experiments").joinpath("published.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {len(row["value"].partition(".")[2]) for row in rows} == {2}
    assert {len(row["error"].partition(".")[2]) for row in rows if row["error"]} == {1}
    assert all((n.error is None) == (n.method in P_IN_ONLY) for n in NUMBERS)


@pytest.mark.parametrize(
    ("table", "pi", "method", "name", "metric", "value", "error", "bold"),
    [
        ("1", None, "max-softmax", "", "accuracy", 75.96, None, True),
        ("1", None, "csi", "textures", "auroc", 92.66, None, False),
        ("1", 0.1, "energy-logistic", "textures", "fpr95", 37.26, 9.1, False),
        ("1", 0.1, "woods", "svhn", "fpr95", 0.52, 0.1, False),
        ("1", 0.1, "woods", "places365", "auroc", 91.22, 0.3, True),
        ("1", 0.1, "woods-alt", "average", "fpr95", 7.80, 0.5, True),
        ("2", 0.2, "oe", "", "accuracy", 72.89, 0.3, False),
        ("2", 0.5, "oe", "svhn", "fpr95", 68.80, 2.8, True),
        ("2", 1.0, "energy-logistic", "300k", "auroc", 90.88, 0.1, True),
        ("A1", None, "odin", "lsun-c", "fpr95", 15.52, None, False),
        ("A1", 0.1, "energy-logistic", "lsun-r", "fpr95", 5.04, 4.9, False),
        ("A1", 0.1, "woods", "", "accuracy", 94.84, 0.1, True),
        ("A2", 0.05, "woods", "300k", "fpr95", 24.39, 0.9, True),
        ("A2", 0.5, "energy-logistic", "svhn", "auroc", 99.16, 0.1, True),
        ("A2", 1.0, "woods", "lsun-c", "auroc", 99.50, 0.0, True),
    ],
)
def test_numbers_are_those_that_a_reader_of_the_paper_sees(table, pi, method, name, metric, value, error, bold):
    found = PLACES[table, pi, method, name, metric]
    assert (found.value, found.error, found.bold) == (value, error, bold)


def test_every_average_but_one_is_that_of_its_five_columns():
    off = {
        place(average): (average.value, mean([exact(column.value) for column in columns_of(average)]))
        for average in AVERAGES
        if abs(mean([exact(column.value) for column in columns_of(average)]) - exact(average.value)) > Decimal("0.005")
    }
    assert len(AVERAGES) == 40
    assert off == {("A1", None, "mahalanobis", "average", "auroc"): (93.34, Decimal("93.388"))}


def test_every_bold_number_but_one_is_the_best_of_its_column():
    assert all(any(number.bold for number in cells) for cells in compared())
    off = {place(n): (n.value, best(cells)) for cells in compared() for n in cells if n.bold and n.value != best(cells)}
    assert off == {("1", 0.1, "woods-alt", "average", "auroc"): (97.43, 97.45)}


def test_every_best_number_but_two_is_bold():
    unmarked = {place(n) for cells in compared() for n in cells if n.value == best(cells) and not n.bold}
    assert unmarked == {
        ("1", 0.1, "woods", "average", "auroc"),  # what the bold number of its column should have been
        ("A2", 1.0, "oe", "lsun-c", "auroc"),  # ties with a bold one, to two decimals
    }


def test_the_error_of_an_average_exceeds_the_mean_error_of_its_columns_only_for_woods_alt_in_table_1():
    rounding = Decimal("0.1")  # 0.05 of the average's error and 0.05 of the columns'
    off = {
        place(average)
        for average in AVERAGES
        if average.error is not None
        and exact(average.error) > mean([exact(column.error) for column in columns_of(average)]) + rounding
    }
    assert off == {("1", 0.1, "woods-alt", "average", metric) for metric in ("fpr95", "auroc")}


def test_every_number_is_found_by_what_it_is_about():
    for n in NUMBERS:
        assert find_published(n.id, n.method, n.set, n.metric, n.pi, stationary=n.stationary) is n


@pytest.mark.parametrize("stationary", [True, False])
@pytest.mark.parametrize("pi", [None, 0.1, 0.3])
def test_a_method_without_wild_data_has_its_number_whatever_the_wild_data_is(stationary, pi):
    found = find_published("cifar10", "csi", "places365", "fpr95", pi, stationary=stationary)
    assert (found.table, found.pi, found.value) == ("A1", None, 34.95)


def test_a_computed_pi_is_found():
    assert find_published("cifar10", "oe", "svhn", "fpr95", 1 - 0.9, stationary=True).value == 0.85


@pytest.mark.parametrize(
    ("id_set", "method", "name", "metric", "pi", "stationary"),
    [
        ("cifar10", "woods", "svhn", "fpr95", 0.2, True),  # tables 1 and A1 have pi = 0.1 only
        ("cifar10", "woods", "svhn", "fpr95", None, True),
        ("cifar10", "woods-alt", "svhn", "fpr95", 0.1, False),
        ("cifar10", "woods", "average", "fpr95", 0.1, False),
        ("cifar10", "woods", "svhn", "accuracy", 0.1, True),
        ("cifar10", "energy-margin", "svhn", "fpr95", 0.1, True),
        ("digits", "max-softmax", "svhn", "fpr95", None, True),
    ],
)
def test_what_the_paper_does_not_print_is_not_found(id_set, method, name, metric, pi, stationary):
    assert find_published(id_set, method, name, metric, pi, stationary=stationary) is None
