"""The tables and the page of an evaluation: whole, on its own, and in agreement with the answers they show."""

import base64
import copy
import io
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import wildood
from wildood.data.images import Images
from wildood.detect.card import escape_markdown
from wildood.evaluate.intervals import Share
from wildood.experiments.evaluation import (
    Average,
    Estimate,
    Evaluation,
    IdResult,
    OodResult,
    PromiseCheck,
    SetDecisions,
)
from wildood.models.small import MLP, SmallCNN
from wildood.report import figures
from wildood.report.evaluation import measure
from wildood.report.evaluation_page import (
    _legend,
    class_table,
    evaluation_latex,
    evaluation_markdown,
    evaluation_page,
    id_table,
    ood_table,
    shared_examples,
    used_before,
)

NAMES = ["<b>cat</b>", "$dog$", "猫", "_eel", "ox"]
COMMAND = 'wildood evaluate d --id "<script>.npz"'


def pictures(rng, count, brightness=200):
    return rng.integers(0, brightness, (count, 8, 8, 1), dtype=np.uint8)


def measured(detector, known, unknown):
    asked = SetDecisions.asked(detector, "test <1>", known)
    answers = [SetDecisions.asked(detector, name, images) for name, images in unknown.items()]
    return replace(measure(detector, asked, answers, resamples=20), command=COMMAND, directory="d")


@pytest.fixture(scope="module")
def cases():
    rng = np.random.default_rng(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        cnn, mlp = SmallCNN(5, width=4, hidden=16), MLP(2, 30, hidden=(8,))
    spec = wildood.InputSpec(mean=(0.5,), std=(0.5,))
    holdout = pictures(rng, 150)
    detector = wildood.posthoc(cnn, wildood.MaxSoftmax(), holdout=holdout, input=spec, alpha=0.2)
    detector.record["classes"] = NAMES
    known = Images(pictures(rng, 60), rng.integers(0, 5, 60))
    bright = {name: Images(pictures(rng, 30, 256)) for name in ("_bright & co", "$b$", "c", "d", "e" * 40)}
    by_class = wildood.posthoc(cnn, wildood.EnergyScore(), holdout=holdout, input=spec, alpha=0.2)
    by_class.class_thresholds = np.quantile(by_class.score(known.examples), [0.1, 0.3, 0.5, 0.7, 0.4])
    points = rng.normal(size=(300, 2)).astype("float32")
    vectors = wildood.posthoc(mlp, wildood.EnergyScore(), holdout=points[:50], alpha=0.1)
    vectors.promise = None
    many = Images(points[50:], np.arange(250) % 30)
    return {
        "pictures": measured(detector, known, bright),
        "by class": measured(by_class, Images(known.examples), {"svhn": bright["c"]}),
        "vectors": measured(vectors, many, {"far": Images(points[:20] + 5)}),
    }


@pytest.fixture(scope="module")
def pages(cases):
    return {name: evaluation_page(case) for name, case in cases.items()}


@pytest.fixture(scope="module")
def trees(pages, parse):
    return {name: parse(html) for name, html in pages.items()}


CASES = ["pictures", "by class", "vectors"]


@pytest.mark.parametrize("case", CASES)
def test_a_page_refers_to_nothing_outside_and_holds_each_id_once(pages, trees, case):
    tree = trees[case]
    assert tree.all("script") == tree.all("link") == []
    sources = [image.attributes["src"] for image in tree.all("img")]
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert re.findall(r"https?://(?!www\.w3\.org/)", pages[case]) == []
    ids = tree.ids()
    assert len(ids) == len(set(ids))
    assert tree.references() <= set(ids)


@pytest.mark.parametrize("case", CASES)
def test_the_tables_say_what_was_measured(cases, trees, case):
    evaluation, tree = cases[case], trees[case]
    rows = tree.panel("What is caught of each OOD set").rows()
    for result in evaluation.ood:
        assert rows[result.name][0].startswith(f"{100 * result.caught.value:.1f} [")
        assert rows[result.name][2].startswith(f"{100 * result.auroc.value:.1f} [")
    assert ("mean of the sets" in rows) is (len(evaluation.ood) > 1)
    costs = tree.panel("What it costs on ID data").rows()
    assert costs["false alarms ↓"][0].startswith(f"{100 * evaluation.id.false_alarms.value:.1f} [")
    assert ("accuracy ↑" in costs) is (evaluation.id.accuracy is not None)
    assert ("have no labels" in tree.panel("What it costs on ID data").text) is (evaluation.id.accuracy is None)


def test_every_set_has_its_scores_and_a_curve(trees):
    titles = [title.text for title in trees["pictures"].all("h3")]
    assert titles.count("Scores of _bright & co") == 1
    assert len([title for title in titles if title.startswith("Scores of ")]) == 5
    assert [title for title in titles if "at every threshold" in title] == [
        "Caught against cost, at every threshold: sets 1 to 4",
        "Caught against cost, at every threshold: sets 5 to 5",
    ]
    legend = [text.text for text in trees["pictures"].all("text")]
    assert {"1: _bright & co", "2: $b$", "3: c", "4: d", f"5: …{'e' * 27}"} <= set(legend)


def test_names_in_the_legend_have_numbers_only_where_they_need_them(trees):
    assert "svhn" in [text.text for text in trees["by class"].panel("Caught against cost").all("text")]
    assert list(_legend(["a", "b"], [0, 1], numbered=False).values()) == ["a", "b"]
    assert list(_legend(["_a", "b"], [0, 1], numbered=False).values()) == ["1: _a", "2: b"]
    alike = [f"{start}/{'x' * 40}" for start in "ab"]
    assert list(_legend(alike, [4, 5], numbered=False).values()) == [f"{number}: …{'x' * 27}" for number in (5, 6)]


def test_the_line_of_alpha_is_drawn_only_where_it_is_promised(cases, monkeypatch, parse, undrawn):
    limits = []
    monkeypatch.setattr(figures, "by_class", lambda _name, _bars, limit: limits.append(limit) or "")
    case = cases["by class"]
    promised = replace(case, detector=copy.copy(case.detector))
    promised.detector.promise = replace(case.detector.promise, by_class=True)
    page = parse(evaluation_page(promised))
    for other in (case, cases["pictures"], cases["vectors"]):
        evaluation_page(other)
    assert limits == [0.2, None, None, None]
    assert "Classes are what the classifier predicts: a rate is promised for each of these." in page.text
    assert "A rate is promised for each predicted class, none for the true ones." in page.text


def test_classes_that_could_not_be_matched_by_name_are_told(cases, trees, parse, undrawn):
    told = "the detector has no names for its classes, so those of the labels are numbered in their order."
    assert told not in trees["vectors"].text
    case = cases["vectors"]
    found = replace(case, id=replace(case.id, unmatched_names=True))
    assert told in parse(evaluation_page(found)).panel("What it costs on ID data").text


def test_classes_with_odd_names_are_shown_by_them(trees):
    rows = trees["pictures"].panel("The same in numbers").rows()
    assert set(rows) == set(NAMES)
    drawn = [text.text for text in trees["pictures"].panel("Who bears the false alarms").all("text")]
    assert set(NAMES) <= set(drawn)


def test_a_long_list_of_classes_is_cut_where_it_is_least_interesting(cases, trees):
    rows = trees["vectors"].panel("The same in numbers").rows()
    assert len(rows) == 20
    shown = [float(cells[0].split(" ")[0]) for cells in rows.values()]
    assert shown == sorted(shown, reverse=True)
    highest = max(share.value for share in cases["vectors"].id.false_alarms_by_class.values())
    assert shown[0] == pytest.approx(100 * highest, abs=0.05)
    assert "metrics.json has the other 10, too" in trees["vectors"].panel("Who bears the false alarms").text


def test_the_most_confident_mistakes_are_the_pictures(cases, trees):
    case = cases["pictures"]
    answers = case.unknown[0]
    panel = trees["pictures"].panel("_bright & co, accepted")
    source = panel.all("img")[0].attributes["src"].removeprefix("data:image/png;base64,")
    worst = int(np.argmin(np.where(answers.accepted, answers.scores, np.inf)))
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(source))))
    assert np.array_equal(picture, answers.source.examples[worst, :, :, 0])
    assert panel.all("figcaption")[0].text == f"{NAMES[answers.classes[worst]]}, {answers.scores[worst]:.3g}"
    alarm = int(np.argmax(np.where(case.known.accepted, -np.inf, case.known.scores)))
    panel = trees["pictures"].panel("test <1>, rejected")
    assert panel.all("figcaption")[0].text == f"{NAMES[case.known.labels[alarm]]}, {case.known.scores[alarm]:.3g}"


def test_what_is_no_picture_is_not_shown_as_one(trees):
    assert trees["vectors"].all("img") == []
    assert "The most confident mistakes" not in [title.text for title in trees["vectors"].all("h2")]
    assert "The most confident mistakes" in [title.text for title in trees["by class"].all("h2")]


def test_thresholds_of_classes_are_told(trees):
    assert "Each class has its own threshold" in trees["by class"].panel("Scores of svhn").text
    assert "Each class has its own threshold" not in trees["pictures"].panel("Scores of c").text
    assert "the dot may lie beside the curve" in trees["by class"].panel("Caught against cost").text
    assert "the dot may lie beside the curve" not in trees["vectors"].panel("Caught against cost").text


def test_scores_are_shown_by_their_distance_from_the_threshold_of_their_class(cases, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "histogram", lambda *given: drawn.append(given) or "")
    monkeypatch.setattr(figures, "roc", lambda *_, points, **__: drawn.append(points) or "")
    case = cases["by class"]
    evaluation_page(case)
    (_, known, unknown, threshold, _, axis), points = drawn
    assert (threshold, axis) == (0, "score - threshold of the predicted class")
    assert np.array_equal(known > 0, ~case.known.accepted)
    assert np.array_equal(unknown > 0, ~case.unknown[0].accepted)
    assert points == {"svhn": (case.id.false_alarms.value, case.ood[0].caught.value)}
    assert case.id.false_alarms.value != np.mean(case.known.scores > case.detector.threshold)


@pytest.mark.parametrize("case", CASES)
def test_the_lead_says_what_becomes_of_the_promise(cases, trees, case):
    assert f"False alarms: {cases[case].promise.says}." in trees[case].one("div", cls="lead").text


def test_a_set_that_set_the_threshold_is_said_to_be_so(cases, trees, parse, undrawn):
    assert "is not new" not in trees["vectors"].text
    case = cases["vectors"]
    far = replace(case, ood=(replace(case.ood[0], role_of="threshold"),))
    panel = parse(evaluation_page(far)).panel("What it costs on ID data")
    assert "far: these examples set the detector's threshold: what is measured here is not new." in panel.text


def test_the_page_says_how_it_was_made(trees):
    made = trees["pictures"].panel("Command, detector, versions").text
    assert COMMAND in made
    assert "MaxSoftmax, higher = more OOD" in made
    assert "false-alarm rate <= 20 % on average over holdouts, if the 150 holdout examples are unseen" in made
    assert "nothing is promised" in trees["vectors"].panel("Command, detector, versions").text


FPR95, AUROC = Estimate(0.1234, 0.11, 0.135), Estimate(0.987, 0.98, 0.99)
ALARMS = Share(0.06, 0.04, 0.08, 60, 1000)
CHECK = PromiseCheck("holds", "60 of 1000 are rejected: nothing speaks against the promise of at most 10 %")


def ood(name, also_in_id=0):
    return OodResult(name, 1200, FPR95, AUROC, 0.9, 0.8, Share(0.75, 0.7, 0.8, 900, 1200), also_in_id)


def texts(table):
    return [table.texts(row) for row in table.rows]


def made(*names, known="test", labelled=True, also_in_id=0):
    right = Share(0.95, 0.93, 0.96, 950, 1000) if labelled else None
    by_class = {0: ALARMS, 2: Share(0.5, 0.1, 0.9, 2, 4)}
    costs = IdResult(known, 1000, right, right, ALARMS, "true", by_class)
    sets = tuple(ood(name, also_in_id) for name in names)
    return Evaluation(costs, sets, Average(FPR95, AUROC, 0.91, 0.81, 0.7), resamples=1000, seed=0)


ROW = ["75.0 [70.0, 80.0]", "12.3 [11.0, 13.5]", "98.7 [98.0, 99.0]", "90.0", "80.0", "1,200"]


def test_each_set_has_a_row_and_several_have_a_mean():
    table = ood_table(made("svhn", "lsun"))
    heads = [column.head for column in table.columns]
    assert heads == [
        "OOD set",
        "caught ↑",
        "FPR95 ↓",
        "AUROC ↑",
        "AUPR-in ↑",
        "AUPR-out ↑",
        "examples",
    ]
    first, second, mean = texts(table)
    assert (first, second) == (["svhn", *ROW], ["lsun", *ROW])
    assert mean == ["mean of the sets", "70.0", "12.3 [11.0, 13.5]", "98.7 [98.0, 99.0]", "91.0", "81.0", ""]
    assert [row.strong for row in table.rows] == [False, False, True]


def test_a_single_set_needs_no_mean():
    table = ood_table(made("svhn"))
    assert (texts(table), table.rows[0].strong) == ([["svhn", *ROW]], False)


def test_id_rows_leave_out_what_needs_labels():
    alarms = ["false alarms ↓", "6.0 [4.0, 8.0]", "1,000"]
    assert texts(id_table(made("a", labelled=False))) == [alarms]
    assert [row[0] for row in texts(id_table(made("a")))] == ["accuracy ↑", "accuracy of the accepted ↑", "false alarms ↓"]
    assert id_table(made("a")).columns[0].head == "ID set: test"


def test_classes_come_with_the_most_false_alarms_first_and_no_more_than_asked():
    names = ["cat", "dog", "eel"]
    assert texts(class_table(made("a"), names, 5)) == [["eel", "50.0 [10.0, 90.0]", "4"], ["cat", "6.0 [4.0, 8.0]", "1,000"]]
    assert [row[0] for row in texts(class_table(made("a"), names, 1))] == ["eel"]


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
    assert rf"a\|b: {unknown}" in evaluation_markdown(found, CHECK).splitlines()
    assert f"% {known}" in evaluation_latex(found, CHECK).splitlines()


def test_classes_that_could_not_be_matched_by_name_are_told_in_every_form():
    found, told = made("a"), "the detector has no names for its classes, so those of the labels are numbered in their order."
    assert told not in evaluation_markdown(found, CHECK) + evaluation_latex(found, CHECK)
    found = replace(found, id=replace(found.id, unmatched_names=True))
    assert f"test: {told}" in evaluation_markdown(found, CHECK).splitlines()
    assert f"% test: {told}" in evaluation_latex(found, CHECK).splitlines()


def test_a_share_below_one_percent_keeps_its_digits_in_the_table():
    costs = replace(made("a").id, false_alarms=Share(0.0042, 0.0004, 0.0125, 4, 1000))
    assert texts(id_table(replace(made("a"), id=costs)))[-1] == ["false alarms ↓", "0.42 [0.04, 1.2]", "1,000"]


def test_shared_examples_are_told_only_where_there_are_any():
    assert shared_examples(made("a", "b")) == ""
    assert shared_examples(made("a", also_in_id=3)) == "Examples that are in test, too: 3 of 1,200 in a."


NASTY = r"a|b_*c*[x](y)<i>&amp;`~$1$\%#{}^--z"


def test_markdown_shows_names_as_they_are():
    text = evaluation_markdown(made(NASTY, "line\nbreak", known="id|set", also_in_id=1), CHECK)
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in tables] == [8] * 5 + [4] * 5
    assert re.split(r"(?<!\\)\|", tables[2])[1].strip() == escape_markdown(NASTY)
    assert tables[3].startswith("| line break | 75.0 [70.0, 80.0] |")
    assert tables[5].startswith(r"| ID set: id\|set | share |")
    assert r"1 of 1,200 in a\|b" in text
    assert "False alarms: 60 of 1000 are rejected: nothing speaks against the promise of at most 10 %." in text.splitlines()
    assert "ID is the positive class" in text


def test_latex_is_two_booktabs_tables_with_as_many_columns_as_cells():
    lines = evaluation_latex(made("a", "b", also_in_id=2), CHECK).splitlines()
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
