"""Our numbers compared with the paper's."""

import csv
from dataclasses import replace

from wildood.experiments.tables import Cell, ResultsTable, TableRow
from wildood.report.paper_comparison import comparison_csv, comparison_table
from wildood.report.table import to_markdown

CELLS = {
    "textures.npz": {
        "fpr95": Cell(0.0625, 0.003, seeds=5),
        "accepted": Cell(0.06, 0.003, seeds=5),
        "auroc": Cell(0.97, 0.001, seeds=5),
    }
}
WOODS = TableRow("with P_in and P_wild", 0.1, "woods", "WOODS", CELLS, None, 5, {}, 0, ())
MSP = TableRow("with P_in only", None, "max-softmax", "MSP", CELLS, Cell(0.95, 0.001, seeds=5), 5, {}, 0, ())
TABLE = ResultsTable("cifar10.npz", True, None, "honest", ("textures.npz",), (MSP, WOODS))


def test_markdown_has_ours_the_papers_and_the_difference():
    title, table, verdict = to_markdown(comparison_table(TABLE)).split("\n\n")
    assert title.startswith(
        "**cifar10 as ID, each OOD set in the wild that is tested on, honest, compared with the paper's Table A1.** "
    )
    assert "textures.npz stands in for Textures." in title
    assert "Bold" not in title
    assert "Only numbers that the paper prints, too, have a row." in title
    assert table.splitlines() == [
        "| method | OOD set | metric | ours | paper | difference | within 2 SE |",
        "| --- | --- | --- | ---: | ---: | ---: | --- |",
        r"| *with P\_in only* |  |  |  |  |  |  |",
        "| MSP | textures | FPR95 ↓ | 6.25 ± 0.30 | 59.28 | -53.03 |  |",
        "| MSP | textures | AUROC ↑ | 97.00 ± 0.10 | 88.50 | +8.50 |  |",
        "| MSP |  | accuracy ↑ | 95.00 ± 0.10 | 94.84 | +0.16 |  |",
        r"| *with P\_in and P\_wild* |  |  |  |  |  |  |",
        "| WOODS | textures | FPR95 ↓ | 6.25 ± 0.30 | 5.95 ± 0.6 | +0.30 | yes |",
        "| WOODS | textures | AUROC ↑ | 97.00 ± 0.10 | 98.79 ± 0.1 | -1.79 | no |",
    ]
    assert verdict == "- 1 of the 2 numbers with a standard error in both are within 2 SE."


def test_it_says_at_which_threshold_each_is_measured():
    same = "The accepted share is compared with the paper's FPR95, which is measured in the same way."
    other = "is measured at the threshold of validation examples, ours at that of the ID test examples."
    published = replace(TABLE, protocol="as_published")
    captions = [comparison_table(table).caption for table in (TABLE, published)]
    assert [(same in caption, other in caption) for caption in captions] == [(False, True), (True, False)]
    assert "| accepted ↓ | 6.00 ± 0.30 | 5.95 ± 0.6 | +0.05 | yes |" in to_markdown(comparison_table(published))


def test_a_table_that_the_paper_has_not_gives_nothing():
    other = ResultsTable("digits", True, None, "honest", ("digits",), (WOODS,))
    assert comparison_table(other) is None
    assert len(comparison_csv([other]).splitlines()) == 1


def test_csv_has_the_same_numbers():
    lines = list(csv.DictReader(comparison_csv([TABLE]).splitlines()))
    assert list(lines[3].values())[1:] == [
        *("cifar10.npz", "honest", "A1", "with P_in and P_wild", "0.1", "woods", "textures.npz", "fpr95"),
        *("6.2500", "0.3000", "5.95", "0.6", "0.3000", "yes"),
    ]
    assert [lines[2][name] for name in ("pi", "set", "metric", "paper_error", "within_2_se")] == ["", "", "accuracy", "", ""]
