"""The tables of an evaluation: the same numbers in each form, and names that stay what they are."""

import re
from dataclasses import replace

import pytest

from wildood.evaluate.intervals import Share
from wildood.experiments.evaluation import Average, Estimate, Evaluation, IdResult, OodResult, PromiseCheck
from wildood.report.evaluation_tables import class_cells, id_cells, latex, markdown, ood_cells, shared_examples, used_before

FPR95, AUROC = Estimate(0.1234, 0.11, 0.135), Estimate(0.987, 0.98, 0.99)
ALARMS = Share(0.06, 0.04, 0.08, 60, 1000)
CHECK = PromiseCheck("holds", "60 of 1000 are rejected: nothing speaks against the promise of at most 10 %")


def ood(name, also_in_id=0):
    return OodResult(name, 1200, FPR95, AUROC, 0.9, 0.8, Share(0.75, 0.7, 0.8, 900, 1200), also_in_id)


def made(*names, known="test", labelled=True, also_in_id=0):
    right = Share(0.95, 0.93, 0.96, 950, 1000) if labelled else None
    by_class = {0: ALARMS, 2: Share(0.5, 0.1, 0.9, 2, 4)}
    costs = IdResult(known, 1000, right, right, ALARMS, "true", by_class)
    sets = tuple(ood(name, also_in_id) for name in names)
    return Evaluation(costs, sets, Average(FPR95, AUROC, 0.91, 0.81, 0.7), resamples=1000, seed=0)


ROW = ["75.0 [70.0, 80.0]", "12.3 [11.0, 13.5]", "98.7 [98.0, 99.0]", "90.0", "80.0", "1,200"]


def test_each_set_has_a_row_and_several_have_a_mean():
    cells = ood_cells(made("svhn", "lsun"))
    assert cells.header == ["OOD set", "caught ↑", "FPR95 ↓", "AUROC ↑", "AUPR-in ↑", "AUPR-out ↑", "examples"]
    assert cells.rows[:2] == [["svhn", *ROW], ["lsun", *ROW]]
    assert cells.rows[2] == ["mean of the sets", "70.0", "12.3 [11.0, 13.5]", "98.7 [98.0, 99.0]", "91.0", "81.0", ""]
    assert cells.strong == 2


def test_a_single_set_needs_no_mean():
    cells = ood_cells(made("svhn"))
    assert (cells.rows, cells.strong) == ([["svhn", *ROW]], None)


def test_id_rows_leave_out_what_needs_labels():
    alarms = ["false alarms ↓", "6.0 [4.0, 8.0]", "1,000"]
    assert id_cells(made("a", labelled=False)).rows == [alarms]
    assert [row[0] for row in id_cells(made("a")).rows] == ["accuracy ↑", "accuracy of the accepted ↑", "false alarms ↓"]
    assert id_cells(made("a")).header[0] == "ID set: test"


def test_classes_come_with_the_most_false_alarms_first_and_no_more_than_asked():
    names = ["cat", "dog", "eel"]
    assert class_cells(made("a"), names, 5).rows == [["eel", "50.0 [10.0, 90.0]", "4"], ["cat", "6.0 [4.0, 8.0]", "1,000"]]
    assert [row[0] for row in class_cells(made("a"), names, 1).rows] == ["eel"]


def test_sets_that_were_used_before_are_told_in_every_form():
    found = made("a|b", "c")
    assert used_before(found) == []
    found = replace(
        found, id=replace(found.id, role_of="threshold"), ood=(replace(found.ood[0], role_of="wild"), found.ood[1])
    )
    new = "what is measured here is not new."
    known, unknown = (
        f"test: these examples set the detector's threshold: {new}",
        f"these examples were the detector's wild data: {new}",
    )
    assert used_before(found) == [known, f"a|b: {unknown}"]
    assert rf"a\|b: {unknown}" in markdown(found, CHECK).splitlines()
    assert f"% {known}" in latex(found, CHECK).splitlines()


def test_classes_that_could_not_be_matched_by_name_are_told_in_every_form():
    found, told = made("a"), "the detector has no names for its classes, so those of the labels are numbered in their order."
    assert told not in markdown(found, CHECK) + latex(found, CHECK)
    found = replace(found, id=replace(found.id, unmatched_names=True))
    assert f"test: {told}" in markdown(found, CHECK).splitlines()
    assert f"% test: {told}" in latex(found, CHECK).splitlines()


def test_a_share_below_one_percent_keeps_its_digits_in_the_table():
    costs = replace(made("a").id, false_alarms=Share(0.0042, 0.0004, 0.0125, 4, 1000))
    assert id_cells(replace(made("a"), id=costs)).rows[-1] == ["false alarms ↓", "0.42 [0.04, 1.2]", "1,000"]


def test_shared_examples_are_told_only_where_there_are_any():
    assert shared_examples(made("a", "b")) == ""
    assert shared_examples(made("a", also_in_id=3)) == "Examples that are in test, too: 3 of 1,200 in a."


NASTY = r"a|b_*c*[x](y)<i>&amp;`~$1$\%#{}^--z"


def test_markdown_shows_names_as_they_are():
    text = markdown(made(NASTY, "line\nbreak", known="id|set", also_in_id=1), CHECK)
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in tables] == [8] * 5 + [4] * 5
    name = re.split(r"(?<!\\)\|", tables[2])[1].strip()
    assert re.search(r"(?<!\\)[`*_\[\]<>|&~$]", name) is None  # nothing of it is Markdown
    assert re.sub(r"\\([\\`*_\[\]<>|&~$])", r"\1", name) == NASTY
    assert tables[3].startswith("| line break | 75.0 [70.0, 80.0] |")
    assert tables[5].startswith(r"| ID set: id\|set | share |")
    assert r"1 of 1,200 in a\|b" in text
    assert "False alarms: 60 of 1000 are rejected: nothing speaks against the promise of at most 10 %." in text.splitlines()
    assert "ID is the positive class" in text


def latex_to_text(text):
    """What LaTeX would print of a name."""
    words = {r"\textbackslash{}": "\0", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^"}
    words |= {r"\textless{}": "<", r"\textgreater{}": ">"}
    for word, character in words.items():
        text = text.replace(word, character)
    text = text.replace("-{}", "-").removeprefix("{}")
    assert re.search(r"(?<!\\)[&%$#_{}~^]", text.replace("~", "").replace("^", "")) is None
    return re.sub(r"\\([&%$#_{}])", r"\1", text).replace("\0", "\\")


@pytest.mark.parametrize("name", [NASTY, "[1]", "*", "a---b", "plain"])
def test_latex_shows_names_as_they_are(name):
    lines = latex(made("first", name), CHECK).splitlines()
    row = lines[lines.index(r"\toprule") + 4]
    assert latex_to_text(re.split(r"(?<!\\)& ", row)[0].strip()) == name
    assert row[0] not in "[*"  # which would be an argument of the end of the row above
    assert "--" not in row


def test_latex_is_two_booktabs_tables_with_as_many_columns_as_cells():
    lines = latex(made("a", "b", also_in_id=2), CHECK).splitlines()
    body = [line for line in lines if not line.startswith("%")]
    first = [
        r"\begin{tabular}{lrrrrrr}",
        r"\toprule",
        "OOD set",
        r"\midrule",
        "a &",
        "b &",
        r"\midrule",
        "mean of the sets &",
    ]
    second = [r"\begin{tabular}{lrr}", r"\toprule", "ID set: test &", r"\midrule", "accuracy", "accuracy", "false alarms"]
    expected = [*first, r"\bottomrule", r"\end{tabular}", "", *second, r"\bottomrule", r"\end{tabular}"]
    assert len(body) == len(expected)
    assert all(line.startswith(start) for line, start in zip(body, expected, strict=True))
    rows = [line for line in body if " & " in line]
    assert [line.count(" & ") for line in rows] == [6] * 4 + [2] * 4
    assert all(line.endswith(r" \\") for line in rows)
    assert r"FPR95 $\downarrow$ & AUROC $\uparrow$" in rows[0]
    assert lines[0] == r"% \usepackage{booktabs}"
    assert "% Examples that are in test, too: 2 of 1,200 in a, 2 of 1,200 in b." in lines
