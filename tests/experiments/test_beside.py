"""Our numbers beside the paper's: the right one of the paper, the difference by hand, and only what means the same."""

from dataclasses import replace

import pytest

from wildood.experiments.paper_comparison import PaperComparison, beside
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
    fpr95, auroc = beside(table_of(row))
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
        found = beside(table_of(row_of(dict.fromkeys(names, pair())), names, known))
        assert [each.paper for each in found if each.metric == "fpr95"] == [0.15, 0.03, 0.22, 5.95, 12.49]
        assert [each.set for each in found if each.metric == "fpr95"] == list(names)


def test_average_and_accuracy_are_there_for_the_papers_sets():
    cells = dict.fromkeys([*SETS, AVERAGE], pair())
    found = beside(table_of(row_of(cells, accuracy=Cell(0.94, 0.002))))
    assert [(each.set, each.metric, each.paper) for each in found[-3:]] == [
        (AVERAGE, "fpr95", 3.77),
        (AVERAGE, "auroc", 99.14),
        ("", "accuracy", 94.84),
    ]


@pytest.mark.parametrize("sets", [SETS[:4], (*SETS, "isun"), (*SETS[:4], "mine.npz")])
def test_average_and_accuracy_over_other_sets_are_not_compared(sets):
    found = beside(table_of(row_of(dict.fromkeys([*sets, AVERAGE], pair()), accuracy=Cell(0.94, 0.002)), sets))
    assert {each.set for each in found} == set(SETS) & set(sets)


def test_accuracy_of_a_row_that_misses_sets_is_not_compared():
    found = beside(table_of(row_of({"svhn.npz": pair()}, accuracy=Cell(0.94, 0.002))))
    assert {each.metric for each in found} == {"fpr95", "auroc"}


def test_accuracy_without_wild_data_is_compared_whatever_the_sets():
    row = row_of({"svhn": pair()}, "godin", None, Cell(0.94, 0.002))
    found = beside(table_of(row, ("svhn",), "cifar10"))
    assert [(each.metric, each.paper, each.within) for each in found] == [
        ("fpr95", 13.55, None),
        ("auroc", 97.61, None),
        ("accuracy", 94.48, None),
    ]


def test_wild_data_from_random_images_stands_beside_the_second_table():
    row = row_of({"svhn.npz": pair(), "random_images.npz": pair()}, "oe", 0.2, Cell(0.94, 0.002))
    found = beside(table_of(row, ("svhn.npz", "random_images.npz"), wild="random_images.npz"))
    assert {each.paper_table for each in found} == {"A2"}
    assert [each.paper for each in found] == [9.94, 98.04, 24.94, 94.25, 94.10]


def test_a_published_stationary_number_is_what_is_accepted_at_the_threshold_of_validation():
    table = table_of(row_of({"svhn.npz": pair(), AVERAGE: pair()}))
    honest, published = beside(table)[0], beside(replace(table, protocol="as_published"))[0]
    assert (honest.metric, honest.ours, honest.paper, honest.other_threshold) == ("fpr95", 5.0, 0.15, True)
    assert (published.metric, published.paper, published.other_threshold) == ("accepted", 0.15, False)
    assert published.ours == pytest.approx(7.0)


def test_a_published_number_of_another_wild_set_is_fpr95():
    row = row_of({"svhn.npz": pair()}, "oe", 0.2)
    table = replace(table_of(row, ("svhn.npz",), wild="random_images.npz"), protocol="as_published")
    assert [(each.metric, each.ours, each.other_threshold) for each in beside(table)] == [
        ("fpr95", 5.0, False),
        ("auroc", 99.0, False),
    ]


def test_a_method_without_wild_data_stands_beside_the_first_table_at_its_threshold():
    row = row_of({"svhn.npz": pair()}, "energy", None)
    table = replace(table_of(row, ("svhn.npz",), wild="random_images.npz"), protocol="as_published")
    assert [(each.metric, each.paper_table) for each in beside(table)] == [("accepted", "A1"), ("auroc", "A1")]


def test_wild_data_from_another_set_than_the_papers_is_not_compared():
    row = row_of({"svhn.npz": pair()}, "oe", 0.2, Cell(0.94, 0.002))
    assert beside(table_of(row, ("svhn.npz",), wild="textures.npz")) == []


def test_what_the_paper_has_not_is_left_out():
    table = table_of(row_of({"svhn": pair(), "mine.npz": pair()}), ("svhn", "mine.npz"))
    assert [each.set for each in beside(table)] == ["svhn", "svhn"]
    assert beside(table_of(row_of({"svhn": pair()}, pi=0.3))) == []
    assert beside(table_of(row_of({"svhn": pair()}, "knn", None))) == []
    assert beside(replace(table, id="digits")) == []
