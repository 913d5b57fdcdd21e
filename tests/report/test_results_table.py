"""Tables of results as text, and next to the paper's: the same numbers in each form, and captions that say what they are."""

import csv
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from markupsafe import escape

from wildood.experiments.tables import AVERAGE, Cell, ResultsTable, TableRow
from wildood.report.results_table import (
    paper_csv,
    paper_table,
    results_csv,
    results_latex,
    results_table,
    table_caption,
    table_notes,
    table_title,
)
from wildood.report.table import to_markdown

NASTY = "a_b&c%|d.npz"


def row_of(cells, title="WOODS", block="with P_in and P_wild", pi=0.1, accuracy=None, failed=0):
    seeds = min((found["auroc"].seeds for found in cells.values()), default=0)
    return TableRow(block, pi, title.lower(), title, cells, accuracy, seeds, {}, failed, ())


def on_set(fpr95, auroc, accepted=0.5):
    return {"fpr95": fpr95, "accepted": Cell(accepted, 0.04, seeds=fpr95.seeds), "auroc": auroc}


SVHN = on_set(Cell(0.12344, 0.00561, best=True, seeds=5), Cell(0.98761, 0.0004, seeds=5))
TEXTURES = on_set(Cell(0.3, 0.02, seeds=5), Cell(0.9, 0.01, best=True, seeds=5), 0.25)
MEAN = on_set(Cell(0.21172, 0.0111, seeds=5), Cell(0.94381, 0.005, seeds=5))
WOODS = row_of({"svhn": SVHN, "textures": TEXTURES, AVERAGE: MEAN}, accuracy=Cell(0.948, 0.001, best=True, seeds=5))
ALONE = on_set(Cell(0.3559, None), Cell(0.9096, None))
ENERGY = row_of({"svhn": ALONE}, "energy", "with P_in only", None, Cell(0.9484, None))
TABLE = ResultsTable("cifar10", True, None, "honest", ("svhn", "textures"), (ENERGY, WOODS), "WideResNet", "labelled")
FAILED = row_of({}, "OE", "π = 0.5", 0.5, failed=2)
FILES = ResultsTable(
    "cifar10.npz", False, "random_images.npz", "as_published", ("svhn.npz", NASTY), (row_of({NASTY: SVHN}), FAILED)
)
TABLES = [TABLE, FILES, ResultsTable("digits", True, None, "honest", ("digits",), (FAILED,))]


def markdown_rows(table):
    lines = [line for line in to_markdown(results_table(table)).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_markdown_has_a_line_for_each_block_and_method():
    header, rule, *rows = markdown_rows(TABLE)
    assert header == [
        *("method", "SVHN FPR95 ↓", "SVHN AUROC ↑", "Textures FPR95 ↓", "Textures AUROC ↑"),
        *("average FPR95 ↓", "average AUROC ↑", "accuracy ↑", "seeds"),
    ]
    assert rule == ["---", *["---:"] * 8]
    assert rows == [
        [r"*with P\_in only*", *[""] * 8],
        ["energy", "35.59", "90.96", *["–"] * 4, "94.84", "1"],
        [r"*with P\_in and P\_wild*", *[""] * 8],
        [
            *("WOODS", "**12.34 ± 0.56**", "98.76 ± 0.04", "30.00 ± 2.00", "**90.00 ± 1.00**"),
            *("21.17 ± 1.11", "94.38 ± 0.50", "**94.80 ± 0.10**", "5"),
        ],
    ]


def test_the_caption_says_what_the_numbers_are():
    assert table_caption(TABLE) == (
        "FPR95 is the share of OOD that is accepted at the threshold that accepts at least 95 % of the ID test examples "
        "(ID is the positive class). In percent, mean ± standard error over 1 to 5 seeds. Bold is the best of the table. "
        "The share of OOD in the wild data is π = 0.1. "
        "Protocol: honest; no test example and no OOD label chose an epoch, a setting or a threshold. "
        "Model: WideResNet; starting classifier: labelled."
    )


def test_a_published_stationary_table_holds_what_is_accepted_and_says_so():
    published = replace(TABLE, protocol="as_published")
    header, *_, woods = markdown_rows(published)
    assert header[1:3] == ["SVHN accepted ↓", "SVHN AUROC ↑"]
    assert woods[1:4] == ["50.00 ± 4.00", "98.76 ± 0.04", "25.00 ± 4.00"]
    assert r"WOODS & 50.00$^{\pm 4.0}$ & 98.76$^{\pm 0.0}$ & 25.00$^{\pm 4.0}$" in results_latex(published)
    assert table_caption(published).startswith(
        "Accepted (FPR in the paper) is the share of OOD that is accepted at the threshold that ID validation examples set, "
        "as in the paper's Tables 1 and A1; FPR95 at the threshold of the ID test examples is in tables.csv. In percent"
    )
    html = escape(results_table(published))
    assert '<td data-value="0.25">25.00 <small>±&nbsp;4.00</small></td>' in html
    assert "accepted ↓" in html
    assert "FPR95 ↓" not in html


@pytest.mark.parametrize("table", [TABLE, FILES])
def test_other_tables_hold_fpr95_and_say_so(table):
    assert table_caption(table).startswith(
        "FPR95 is the share of OOD that is accepted at the threshold that accepts at least"
    )
    assert {name.split()[-2] for name in markdown_rows(table)[0][1::2][:2]} == {"FPR95"}


def test_the_caption_says_what_stands_in_for_what():
    small = "Small files: cifar10.npz stands in for CIFAR-10, random_images.npz stands in for 300K Rand. Img., "
    assert table_caption(FILES).endswith(small + "svhn.npz stands in for SVHN.")
    assert "Protocol: as published;" in table_caption(FILES)
    assert "Bold is the best of its block." in table_caption(FILES)
    assert "Small files" not in table_caption(TABLE)


def test_the_caption_counts_seeds():
    only = ResultsTable("cifar10", True, None, "honest", ("svhn",), (ENERGY,))
    assert "In percent, of one seed." in table_caption(only)
    all_five = ResultsTable("cifar10", True, None, "honest", ("svhn", "textures"), (WOODS,))
    assert "mean ± standard error over 5 seeds." in table_caption(all_five)


def test_titles_tell_tables_apart():
    assert table_title(TABLE) == "CIFAR-10 as ID, each OOD set in the wild that is tested on, honest"
    assert table_title(FILES) == "cifar10 as ID, random_images in the wild, as published"
    alone = ResultsTable("digits", True, None, "honest", ("digits",), (ENERGY,), differs="keep last")
    assert table_title(alone) == "digits 0-6 as ID, no wild data, honest, keep last"


def test_notes_tell_what_failed_and_what_is_missing():
    assert table_notes(TABLE) == [
        "energy, with P_in only: no result on Textures.",
        "energy, with P_in only: fewer seeds than 5: 1 on SVHN.",
    ]
    assert table_notes(FILES) == [
        "WOODS, with P_in and P_wild: no result on svhn.",
        "OE, π = 0.5: 2 runs failed: see failure.json in the folder of each run.",
        "OE, π = 0.5: no result on svhn, a_b&c%|d.",
    ]
    complete = ResultsTable("cifar10", True, None, "honest", ("svhn", "textures"), (WOODS,))
    assert table_notes(complete) == []
    assert to_markdown(results_table(TABLE)).splitlines()[-1] == r"- energy, with P\_in only: fewer seeds than 5: 1 on SVHN."


def test_notes_tell_choices_among_fewer_settings_and_different_code():
    fewer = "seed 1 chose among 2 of 6 settings"
    row = replace(WOODS, incomplete={"svhn": fewer, "textures": fewer})
    code = "The runs come from different code: a1 (2 runs), b2 (1 run)"
    table = replace(TABLE, rows=(row,), origins=(code,))
    assert table_notes(table) == [f"WOODS, with P_in and P_wild: {fewer} on SVHN, Textures.", f"{code}."]
    assert results_table(table).notes == table_notes(table)
    assert f"{code}." in results_latex(table)


def test_markdown_keeps_names_in_their_cell():
    rows = markdown_rows(FILES)
    assert rows[0][3] == r"a\_b\&c%\|d FPR95 ↓"
    assert {len(row) for row in rows} == {7}


def spanned(line):
    """How many columns a row of LaTeX fills."""
    cells = re.split(r"(?<!\\)&", line.removesuffix(r" \\"))
    spans = [re.match(r"\s*\\multicolumn\{(\d+)\}", cell) for cell in cells]
    return sum(int(span[1]) if span else 1 for span in spans)


@pytest.mark.parametrize("table", TABLES)
def test_latex_rows_fill_all_columns_and_braces_match(table):
    text = results_latex(table)
    columns = re.search(r"\\begin\{tabular\}\{(l[r]*)\}", text)[1]
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 3 + len({row.block for row in table.rows}) + len(table.rows)
    assert {spanned(line) for line in lines} == {len(columns)}
    assert len(re.findall(r"(?<!\\)\{", text)) == len(re.findall(r"(?<!\\)\}", text))
    assert text.isascii()


def test_latex_has_the_papers_form():
    lines = results_latex(TABLE).splitlines()
    assert (
        r"WOODS & \textbf{12.34}$^{\pm 0.6}$ & 98.76$^{\pm 0.0}$ & 30.00$^{\pm 2.0}$ & \textbf{90.00}$^{\pm 1.0}$ & "
        r"21.17$^{\pm 1.1}$ & 94.38$^{\pm 0.5}$ & \textbf{94.80}$^{\pm 0.1}$ \\"
    ) in lines
    assert r"energy & 35.59 & 90.96 & -- & -- & -- & -- & 94.84 \\" in lines
    assert r"\multicolumn{8}{c}{\textbf{With $P_{\mathrm{in}}$ and $P_{\mathrm{wild}}$}} \\" in lines
    assert lines[lines.index(r"\toprule") + 1] == (
        r"\multirow{3}{*}{\textbf{Method}} & \multicolumn{4}{c}{\textbf{OOD Dataset}} & "
        r"\multicolumn{2}{c}{\multirow{2}{*}{\textbf{Average}}} & \multirow{3}{*}{\textbf{Acc.}} \\"
    )
    assert r"\label{tab:cifar-10-as-id-each-ood-set-in-the-wild-that-is-tested-on-honest}" in lines


def test_latex_escapes_names_and_captions():
    text = results_latex(FILES)
    assert r"\multicolumn{2}{c}{\textbf{a\_b\&c\%|d}}" in text
    assert r"\multicolumn{6}{c}{$\pi$ = 0.5} \\" in text
    assert r"at least 95 \% of the ID test examples" in text
    assert "Average" not in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_compiles(tmp_path):
    found = subprocess.run(["kpsewhich", "multirow.sty"], capture_output=True, text=True, check=False)  # noqa: S607
    if not found.stdout.strip():
        pytest.skip("needs the multirow package")
    packages = r"\usepackage{booktabs,graphicx,multirow}"
    body = "\n".join(map(results_latex, TABLES))
    text = rf"\documentclass{{article}}{packages}\begin{{document}}{body}\end{{document}}"
    (tmp_path / "page.tex").write_text(text, encoding="utf-8")
    command = ["pdflatex", "-no-shell-escape", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert made.returncode == 0, made.stdout[-2000:]


def test_csv_has_a_line_for_each_number():
    lines = list(csv.DictReader(results_csv([TABLE, FILES]).splitlines()))
    assert len(lines) == 4 + 10 + 3
    assert list(lines[4].values()) == [
        *(table_title(TABLE), "cifar10", "svhn", "honest", "with P_in and P_wild", "0.1", "woods", "svhn"),
        *("fpr95", "12.3440", "0.5610", "5", "1"),
    ]
    assert [lines[0][name] for name in ("wild", "pi", "mean", "error", "seeds", "best")] == ["", "", "35.5900", "", "1", "0"]
    assert [lines[10][name] for name in ("set", "wild", "metric", "mean")] == [AVERAGE, "", "fpr95", "21.1720"]
    assert [lines[13][name] for name in ("set", "wild", "metric", "best")] == ["", "", "accuracy", "1"]
    assert [lines[14][name] for name in ("set", "wild", "protocol")] == [NASTY, "random_images.npz", "as_published"]


@pytest.mark.parametrize("table", [TABLE, replace(TABLE, protocol="as_published"), FILES])
def test_csv_has_both_fpr95_and_what_is_accepted_for_every_protocol(table):
    lines = [line for line in csv.DictReader(results_csv([table]).splitlines()) if line["method"] == "woods"]
    first = lines[0]["set"]
    assert [(line["metric"], line["mean"]) for line in lines if line["set"] == first] == [
        ("fpr95", "12.3440"),
        ("accepted", "50.0000"),
        ("auroc", "98.7610"),
    ]


PAPER_CELLS = {
    "textures.npz": {
        "fpr95": Cell(0.0625, 0.003, seeds=5),
        "accepted": Cell(0.06, 0.003, seeds=5),
        "auroc": Cell(0.97, 0.001, seeds=5),
    }
}
PAPER_WOODS = TableRow("with P_in and P_wild", 0.1, "woods", "WOODS", PAPER_CELLS, None, 5, {}, 0, ())
PAPER_MSP = TableRow("with P_in only", None, "max-softmax", "MSP", PAPER_CELLS, Cell(0.95, 0.001, seeds=5), 5, {}, 0, ())
PAPER_TABLE = ResultsTable("cifar10.npz", True, None, "honest", ("textures.npz",), (PAPER_MSP, PAPER_WOODS))


def test_markdown_has_ours_the_papers_and_the_difference():
    title, table, verdict = to_markdown(paper_table(PAPER_TABLE)).split("\n\n")
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
    published = replace(PAPER_TABLE, protocol="as_published")
    captions = [paper_table(table).caption for table in (PAPER_TABLE, published)]
    assert [(same in caption, other in caption) for caption in captions] == [(False, True), (True, False)]
    assert "| accepted ↓ | 6.00 ± 0.30 | 5.95 ± 0.6 | +0.05 | yes |" in to_markdown(paper_table(published))


def test_a_table_that_the_paper_has_not_gives_nothing():
    other = ResultsTable("digits", True, None, "honest", ("digits",), (PAPER_WOODS,))
    assert paper_table(other) is None
    assert len(paper_csv([other]).splitlines()) == 1


def test_csv_has_the_same_numbers():
    lines = list(csv.DictReader(paper_csv([PAPER_TABLE]).splitlines()))
    assert list(lines[3].values())[1:] == [
        *("cifar10.npz", "honest", "A1", "with P_in and P_wild", "0.1", "woods", "textures.npz", "fpr95"),
        *("6.2500", "0.3000", "5.95", "0.6", "0.3000", "yes"),
    ]
    assert [lines[2][name] for name in ("pi", "set", "metric", "paper_error", "within_2_se")] == ["", "", "accuracy", "", ""]
